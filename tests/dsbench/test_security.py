"""A planted key is in nothing that a run writes or prints, and names from outside never leave their folder."""

import gzip
import hashlib
import json
import os
import re
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from dsbench.builds import parse_arm
from dsbench.engines.secrets import redact_files, redact_object, refuse_secrets
from dsbench.engines.vllm import free_port
from dsbench.errors import InputError
from dsbench.records import RECORD, BootEnded
from dsbench.store import BOOTS, load_records

ROOT = Path(__file__).resolve().parents[2]
KEYS = {
    "OPENAI_API_KEY": "sk-planted-0123456789abcdefghij",
    "HF_TOKEN": "hf_plantedABCDEFGHIJKLMNOPQRST",
    "DSBENCH_API_KEY": 'planted "quoted" \\ key',
    "MY_PASSWORD": "plantedpässword",
}
MARKS = ("planted", "0123456789abcdef", "ABCDEFGHIJKLMNOP", "quoted")
"""Parts of them: what is cut in two is found too."""
SUITE = """
name = "telling"
summary = "one reading of everything"
blocks = 2
warmup_boots = 0
guards = ["smoke.correct", "identity.tokens"]
[timeouts]
boot = 30
probe = 10
stop = 3
[probes.kv]
[[probes.smoke.items]]
chat = "17+25"
answer = 42
[probes.identity]
prompts = ["a b c"]
tokens = 6
together = 2
[probes.prefill]
lengths = [256]
repeats = 1
"""


def telling(place):
    """Arguments of `dsbench ab` in `place` for an engine that tells its keys, and the environment that holds them."""
    (place / "suite.toml").write_text(SUITE)
    port = free_port()
    line = json.dumps([sys.executable, str(ROOT / "tests/dsbench/telling_engine.py"), "--port", str(port), "{args}"])
    files = "\n".join(
        f'{name} = "{{boot_dir}}/{file}.rank0.json"'
        for name, file in (("profile", "kv_profile"), ("conditions", "conditions"), ("markers", "markers"))
    )
    rig = f'start = {line}\nurl = "http://127.0.0.1:{port}"\n[[ranks]]\nlog = "{{boot_dir}}/engine.log"\n{files}\n'
    (place / "rig.toml").write_text(rig)
    environment = {**os.environ, **KEYS, "PYTHONPATH": str(ROOT)}
    environment.pop("FAKE_FAULT", None)
    asked = ("--engine", "command", "--rig", "rig.toml", "--suite", "suite.toml", "--serve-args", "--dims pico")
    env = [part for name in KEYS if name != "DSBENCH_API_KEY" for part in ("--env", name)]
    return ["ab", "-t", "mhc_input_reuse", *asked, *env], environment


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Folder and output of `ab` and everything that reads its result, around an engine that tells its keys."""
    place = tmp_path_factory.mktemp("telling")
    asked, environment = telling(place)
    said = []

    def dsbench(*args):
        line = [sys.executable, "-P", "-m", "dsbench", *args]
        done = subprocess.run(line, capture_output=True, cwd=place, timeout=120, env=environment, check=False)
        said.append(done.stdout + done.stderr)
        assert b"Traceback" not in said[-1], said[-1].decode()
        return done

    done = dsbench(*asked, "--gate", "--junit", "ab.xml")
    assert done.returncode in (1, 3, 4), said
    (folder,) = (place / "results").iterdir()
    dsbench("report", str(folder))
    dsbench("gate", str(folder), "--junit", "gate.xml", "--github")
    dsbench("bundle", str(folder), "-o", "bundle.tar.gz")
    dsbench("show", str(folder))
    (place / "raw").mkdir()
    raw = place / "raw" / "engine.log"
    fault = "ERROR 05-08 16:21:55 [w.py:1] RuntimeError: CUDA error: an illegal memory access was encountered"
    raw.write_text("".join(f"{fault}, {key}\n" for key in KEYS.values()))
    dsbench("inspect", str(raw), "--json")
    dsbench("inspect", str(raw))
    raw.unlink()
    return place, folder, said


def leaks(content):
    text = content.decode("utf-8", "replace")
    return [mark for mark in MARKS if mark in text]


def test_the_engine_has_told_its_keys_everywhere(ran):
    """Else the search below would find nothing in any case."""
    _, folder, _ = ran
    texts = {path.name: path.read_text("utf-8", "replace") for path in folder.rglob("*") if path.is_file()}
    for name in ("records.jsonl", "engine.log", "conditions.rank0.json", "kv_profile.rank0.json", "trace.json"):
        assert "[redacted]" in texts[name], name
    records = [json.loads(line) for line in texts["records.jsonl"].splitlines()]
    for kind in ("check", "finding", "conditions", "kv_profile", "observation"):
        assert any("[redacted]" in json.dumps(record) for record in records if record["record"] == kind), kind


def test_no_part_of_a_key_is_in_any_file_or_line(ran):
    place, _, said = ran
    files = {path.relative_to(place).as_posix(): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert {"ab.xml", "gate.xml", "bundle.tar.gz"} <= files.keys()
    assert any(name.endswith("report.html") for name in files)
    with tarfile.open(place / "bundle.tar.gz") as tar:
        files |= {f"bundle/{m.name}": tar.extractfile(m).read() for m in tar.getmembers() if m.isfile()}
    files |= {f"output {number}": output for number, output in enumerate(said)}
    files["bundle unpacked"] = gzip.decompress(files["bundle.tar.gz"])
    assert {name: found for name, content in files.items() if (found := leaks(content))} == {}


@pytest.mark.slow
def test_what_a_killed_run_left_is_cleaned_when_it_goes_on(tmp_path):
    """The log of a boot that kill -9 ended with its harness, too: nobody cleaned it then."""
    asked, environment = telling(tmp_path)
    line = [sys.executable, "-P", "-m", "dsbench"]
    where = {"cwd": tmp_path, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([*line, *asked], **where) as harness:
        try:
            deadline = time.monotonic() + 60
            while not (cut := [p for p in tmp_path.glob("results/*/boots/02-*/*.log") if leaks(p.read_bytes())]):
                assert time.monotonic() < deadline
                assert harness.poll() is None
        finally:
            harness.kill()
    (folder,) = (tmp_path / "results").iterdir()
    done = subprocess.run([*line, "ab", "--resume", str(folder)], check=False, **where)
    assert done.returncode in (1, 3, 4)
    assert {p: found for p in folder.rglob("*") if p.is_file() and (found := leaks(p.read_bytes()))} == {}
    assert all(b"[redacted]" in path.read_bytes() for path in cut if path.exists())
    ends = [x for x in load_records(folder)[0] if isinstance(x, BootEnded) and x.boot == 2]
    assert [end.status for end in ends] == ["interrupted", "ok"]
    log = folder / ends[0].log
    assert log.parent.name.startswith("02-")
    assert ends[0].log_sha256 == hashlib.sha256(log.read_bytes()).hexdigest()


def test_a_record_without_a_secret_keeps_its_bytes_and_one_with_it_its_shape():
    line = b'{"boot":1,"attempt":1,"record":"finding","code":"x","text":"say record-42"}'
    assert redact_object(line, {"A_KEY": "nothing like it"}) is line
    for secret in ("record-42", "finding"):
        made = redact_object(line, {"A_KEY": secret})
        assert RECORD.validate_json(made).record == "finding"
        assert (b"[redacted]" in made) == (secret == "record-42")


def test_files_of_a_boot_are_cleaned_but_not_what_links_lead_to(tmp_path):
    outside, boot = tmp_path / "outside", tmp_path / BOOTS
    boot.mkdir()
    outside.write_bytes(b"key abcdefgh")
    (boot / "link").symlink_to(outside)
    (boot / "log").write_bytes(b"\xff key abcdefgh\0abcdefgh")
    (boot / "empty").touch()
    redact_files(boot, {"MY_KEY": "abcdefgh"})
    assert (boot / "log").read_bytes() == b"\xff key [redacted]\0[redacted]"
    assert outside.read_bytes() == b"key abcdefgh"


def test_files_that_are_read_only_or_gone_do_not_keep_others_from_being_cleaned(tmp_path, monkeypatch):
    for name in "abc":
        (tmp_path / name).write_bytes(b"key abcdefgh")
    (tmp_path / "b").chmod(0o400)
    (tmp_path / "d").write_bytes(b"x")
    opened = Path.open

    def failing(path, *args, **options):
        if path.name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        if path.name == "d":
            raise FileNotFoundError(2, "gone", str(path))
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", failing)
    with pytest.raises(PermissionError):
        redact_files(tmp_path, {"MY_KEY": "abcdefgh"})
    monkeypatch.undo()
    assert [(tmp_path / name).read_bytes() for name in "bc"] == [b"key [redacted]"] * 2


def test_a_folder_that_is_a_link_is_left_alone(tmp_path):
    """What a stored result of somebody else may hold: its boot's folder leads home."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "profile").write_bytes(b"export MY_KEY=abcdefgh")
    (tmp_path / "02-base").symlink_to(tmp_path / "home")
    redact_files(tmp_path / "02-base", {"MY_KEY": "abcdefgh"})
    assert (tmp_path / "home" / "profile").read_bytes() == b"export MY_KEY=abcdefgh"


def test_a_secret_in_arguments_is_refused(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "abcdefgh")
    for args, env in ((["--header", "x-abcdefgh"], {}), ([], {"URL": "http://x/?k=abcdefgh"})):
        with pytest.raises(InputError, match="would be stored") as told:
            refuse_secrets(args, env)
        assert "abcdefgh" not in str(told.value)


# --- names ------------------------------------------------------------------------------------------------------------

HOSTILE = (
    "../../x",
    "/etc/passwd",
    "..",
    "a/b",
    "a\\b",
    "x\0y",
    "<b>",
    "a\nb",
    "~root",
    "-rf",
    "$(id)",
    "`id`",
    "é" * 200,
)


def cli(tmp_path, *args):
    done = subprocess.run([sys.executable, "-P", "-m", "dsbench", *args], capture_output=True, text=True, timeout=60,
                          cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)  # fmt: skip
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.parametrize("name", [name for name in HOSTILE if "\0" not in name])
def test_arms_with_hostile_names_are_refused(name):
    with pytest.raises(InputError):
        parse_arm(f"{name}=toggles=mhc_input_reuse")


@pytest.mark.parametrize("name", ["../../x", "a/b", "..", "-rf", "<b>"])
def test_suites_with_hostile_names_are_refused(tmp_path, name):
    from dsbench.suite import parse_suite

    with pytest.raises(InputError, match="name"):
        parse_suite(SUITE.replace('"telling"', json.dumps(name)), "s.toml")


@pytest.mark.parametrize("name", ["../../evil", "/evil", "..", ".evil", "a\\b", "a\nb", "x\0", ""])
def test_a_stored_plan_that_names_another_place_is_refused(make_plan, name):
    """An arm's name is part of its boots' folders, and an id the folder of a bundle."""
    from dsbench.records import Plan

    plan = json.loads(make_plan().model_dump_json())
    old = plan["arms"][0]["name"]
    boots = [{**boot, "arm": name} if boot["arm"] == old else boot for boot in plan["boots"]]
    assert Plan.model_validate(plan).arms[0].name == old
    for change in ({"id": name}, {"boots": boots}, {"arms": [{**plan["arms"][0], "name": name}, *plan["arms"][1:]]}):
        with pytest.raises(ValueError, match="string_pattern_mismatch"):
            Plan.model_validate({**plan, **change})


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("ab", "--resume", "../../x"), ("ab", "--resume", "/etc"), ("show", "../.."), ("report", "../../x"),
        ("bundle", "../../etc"), ("ab", "-t", "../../x", "--suite", "quick"),
        ("ab", "-t", "mhc_input_reuse", "--suite", "../../x"),
        ("ab", "-t", "mhc_input_reuse;id", "--suite", "quick"), ("gate", "../../x"), ("judge", "../../x"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_commands_refuse_what_leads_elsewhere_and_write_nothing(tmp_path, args):
    (tmp_path / "work").mkdir()
    done = cli(tmp_path / "work", *args)
    assert done.returncode == 2, done.stdout + done.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_members_of_a_bundle_stay_in_one_folder(ran):
    place, folder, _ = ran
    with tarfile.open(place / "bundle.tar.gz") as tar:
        for member in tar.getmembers():
            assert member.isfile()
            assert ".." not in member.name.split("/")
            assert not member.name.startswith("/")
            assert re.match(rf"{re.escape(folder.name)}/", member.name)


def test_reports_show_hostile_texts_as_texts(tmp_path, make_plan, make_records):
    from dsbench import records as r
    from dsbench import store
    from dsbench.judge import judge

    evil = '<script>alert(1)</script><img src=x onerror="alert(1)">'
    plan = make_plan()
    told = [
        o.model_copy(update={"text": evil, "item": f"{o.item}{evil}"}) if isinstance(o, r.Observation) and o.item else o
        for o in make_records(plan)
    ]
    folder = store.create(plan, tmp_path / "results")
    with store.RecordWriter(folder) as writer:
        writer.write_all([*told, r.Finding(boot=1, code="x", text=evil)])
    store.save_verdict(folder, judge(plan, store.load_records(folder)[0]))
    done = cli(tmp_path, "report", str(folder))
    assert done.returncode == 0, done.stderr
    (page,) = folder.glob("report.html")
    html = page.read_text()
    assert "<script" not in html
    assert "<img" not in html


@pytest.mark.parametrize("read", ["suite", "policy", "rig"])
def test_a_file_without_an_end_is_read_as_far_as_it_may_be(read, tmp_path):
    from dsbench.policy import load_policy
    from dsbench.rig import load_rig
    from dsbench.suite import load_suite

    (tmp_path / "endless.toml").symlink_to("/dev/zero")
    readers = {"suite": lambda path: load_suite(str(path)), "policy": load_policy, "rig": load_rig}
    with pytest.raises(InputError, match="longer than 262,144 characters"):
        readers[read](tmp_path / "endless.toml")
