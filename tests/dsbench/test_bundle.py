"""Bundles: nothing local or secret in any byte, the same bytes twice, and the same verdict."""

import gzip
import io
import json
import os
import socket
import tarfile
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.bundle import HEAD, TAIL, bundle, shorten
from dsbench.errors import InputError
from dsbench.judge import judge
from dsbench.policy import Policy
from dsbench.records import RECORD, Plan
from dsbench.redact import Redaction, hosts_of
from dsbench.rig import Rig
from dsbench.store import Result, create, load_plan, load_records, save_verdict
from tests.dsbench.conftest import ROOT

KEY = "planted-value-4711"
TOKEN = "hf_" + "abCD" * 8
HOME = "/home/ada.planted"
LOCAL = f"{HOME}/models/v4 flash"
HOST = "gx-planted-07.lab.example"
LEAKS = (
    KEY,
    TOKEN,
    "ada.planted",
    HOST,
    "gx-planted-07",
    "10.11.12.13",
    "/srv/planted",
    "/opt/planted",
    "s3cr3t-planted",
)


@pytest.fixture
def stored(tmp_path, make_plan, make_records, monkeypatch):
    """A result with secrets, paths and host names in its plan, records, logs, file names and read-back facts."""
    monkeypatch.setenv("PLANTED_API_KEY", KEY)
    monkeypatch.setenv("HOME", HOME)
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    rig = Rig(start=["ssh", "-t", f"ada@{HOST}", f"{HOME}/start.sh"], url=f"http://{HOST}:8000", ranks=[])
    plan = make_plan("mhc_input_reuse")
    arms = [arm.model_copy(update={"python": f"{LOCAL}/bin/python", "env": {"CACHE": "/srv/planted/cache"}})
            for arm in plan.arms]  # fmt: skip
    plan = plan.model_copy(update={"rig": rig, "arms": arms, "notes": [f"model {LOCAL}/weights at {HOST}"]})
    folder = create(plan, tmp_path)
    lines = []
    for record in make_records(plan):
        if record.record == "conditions":
            more = {"model": f"{HOME}/models/v4", "host": "10.11.12.13", "api_key": "s3cr3t-planted"}
            record = record.model_copy(update={"values": record.values | more})
        if record.record == "check":
            record = record.model_copy(update={"reason": f"first\nFile {HOME}/x.py line 3\n--token {TOKEN}"})
        lines.append(RECORD.dump_json(record))
    (folder / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    boot = folder / "boots" / "01-baseline"
    boot.mkdir(parents=True)
    log = [f"line {i} {LOCAL} on {HOST} key {KEY}" for i in range(HEAD + TAIL + 300)]
    log[HEAD + 5] = (
        f"ERROR cannot open file://{HOME}/a (http://user:{KEY}@{HOST}/v1/models, PYTHONPATH=/a:/opt/planted/b)"
    )
    log[3] = "Authorization: Bearer s3cr3t-planted"
    log[4] = f"{HOST.upper()}: curl http://127.0.0.1:8000/v1/completions"
    (boot / "engine.log").write_text("\n".join(log))
    (boot / "kv_profile.rank0.json").write_text(
        json.dumps({"source": f"{LOCAL}/p", f"{HOME}/k": [1, f"{HOME}/models/v4"]})
    )
    (boot / "trace.json.gz").write_bytes(b"big")
    (folder / "link.json").symlink_to("/etc/hostname")
    result = Result(folder)
    save_verdict(folder, judge(result.plan, result.records))
    return Result(folder)


def unpacked(content, folder):
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        tar.extractall(folder, filter="data")
    (root,) = folder.iterdir()
    return root


def test_no_key_path_or_host_is_in_any_byte(stored):
    made = bundle(stored)
    plain = gzip.decompress(made.content).decode()
    assert [leak for leak in LEAKS if leak.lower() in plain.lower()] == []
    assert {"secrets", "paths", "hosts"} <= made.redacted.keys()


def test_what_helps_is_still_there(stored, tmp_path):
    root = unpacked(bundle(stored).content, tmp_path / "out")
    log = (root / "boots/01-baseline/engine.log").read_text()
    assert "http://127.0.0.1:8000/v1/completions" in log
    assert "ERROR cannot open" in log
    assert "[... 299 lines left out ...]" in log
    index = json.loads((root / "bundle.json").read_text())
    assert index["shortened"] == {"boots/01-baseline/engine.log": 299}
    assert index["left_out"] == ["boots/01-baseline/trace.json.gz"]
    facts = [r.values for r in load_records(root)[0] if r.record == "conditions"]
    assert facts[0]["model"].endswith("/v4")
    assert facts[0]["seed"] == 0


def test_it_is_judged_as_the_result_is(stored, tmp_path):
    root = unpacked(bundle(stored).content, tmp_path / "out")
    again = Result(root)
    assert judge(again.plan, again.records) == again.verdict
    assert [row.word for row in again.verdict.rows] == [row.word for row in stored.verdict.rows]
    assert (again.verdict.word, again.verdict.void) == (stored.verdict.word, stored.verdict.void)


def test_records_are_summed_anew_and_a_changed_line_is_told(stored, tmp_path):
    root = unpacked(bundle(stored).content, tmp_path / "out")
    lines = (root / "records.jsonl").read_text().splitlines()
    assert all('"crc32":"' in line for line in lines)
    (root / "records.jsonl").write_text("\n".join(lines).replace('"boot":2', '"boot":1', 1) + "\n")
    with pytest.raises(InputError, match="its checksum is not that of its text"):
        load_records(root)


def test_the_same_result_gives_the_same_bytes(stored):
    first = bundle(stored).content
    for path in stored.folder.rglob("*.log"):
        path.touch()
    assert bundle(Result(stored.folder)).content == first


def test_a_clean_result_is_not_changed(tmp_path):
    for number, plan in enumerate(sorted((ROOT / "results").rglob("plan.json"))):
        folder = plan.parent
        stored = Result(folder)
        if len(stored.records) > 500:
            continue
        root = unpacked(bundle(stored).content, tmp_path / str(number))
        assert load_plan(root) == stored.plan
        assert load_records(root)[0] == stored.records


def test_odd_files_beside_a_result_are_packed_too(stored, tmp_path):
    """Names longer than old archives have, or of other bytes than UTF-8; JSON that is nested too deep."""
    deep = stored.folder / "boots" / ("d" * 120) / ("e" * 120)
    deep.mkdir(parents=True)
    (deep / f"{'n' * 200}.log").write_text("x")
    (deep / "deep.json").write_text("[" * 100_000)
    (deep / "nan.json").write_text('{"a": NaN, "b": 1e999}')
    with open(os.fsencode(deep) + b"/a\n\xff.log", "w") as file:
        file.write("y")
    made = bundle(stored)
    root = unpacked(made.content, tmp_path / "out")
    found = {os.fsencode(path.name) for path in root.rglob("*") if path.is_file()}
    assert {b"n" * 200 + b".log", b"deep.json", b"nan.json", b"a\n\xff.log"} <= found
    assert load_records(root)[0]


def test_nothing_to_bundle(tmp_path, make_plan):
    folder = create(make_plan(), tmp_path)
    with pytest.raises(InputError, match="no records"):
        bundle(Result(folder))


def test_hosts_of_a_rig(stored):
    assert set(hosts_of(stored.plan)) >= {HOST}
    assert hosts_of(Plan.model_validate(stored.plan.model_dump() | {"rig": None})) == []


@pytest.mark.parametrize(
    "text",
    [
        "1.5 tok/s and 20/30 items at 12:30:45",
        "kv.available_bytes 1,000 -> 2,000 (exact, n=2+2)",
        "/v1/chat/completions, /health, /dev/shm/x, and/or a/b/c.py",
        "driver 580.159.04, torch 2.11.0+cu130, max_tokens=123456, token ids",
        "tests/x/test_a.py::test_b[1/2]",
        "Q: 36+47\nA: 83",
        "--max-num-batched-tokens 8192 --sort-keys, key: kv.blocks",
    ],
)
def test_what_is_left_alone(text):
    assert Redaction(environment={}).text(text) == text


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("open('/mnt/disk/ada/x.bin')", "/mnt/disk"),
        ("C=/home/ada", "ada"),
        ("~/secret-place/x", "secret-place"),
        ("~ada/x/y", "ada"),
        ("https://me:pw12345@box.lan/v1", "box.lan"),
        ("to ada@box.lan", "box.lan"),
        ("fe80:1:2:3:4:5:6:7 up", "fe80"),
        ("api_key='abcdef123'", "abcdef123"),
        ("docker run -e API_TOKEN=abcdef123 image", "abcdef123"),
        ("serve --hf-token abcdef123 --port 8000", "abcdef123"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIAABCD"),
        ("-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", "MIIE"),
        ("Authorization: Bearer abcdefghij", "abcdefghij"),
        ("Authorization: Basic YWRhOnB3MTIz", "YWRhOnB3MTIz"),
        ("PROXY_AUTHORIZATION=abcdefghij", "abcdefghij"),
        ("AUTHORIZATION='Basic YWRhOnB3MTIz'", "YWRhOnB3MTIz"),
    ],
)
def test_shapes_that_are_taken_out(text, gone):
    assert gone not in Redaction(environment={}).text(text)


@given(st.text(max_size=8), st.text(max_size=8))
def test_a_long_name_is_taken_out_whatever_stands_around_it(before, after):
    assert "gx-planted-07" not in Redaction(["gx-planted-07"], {}).text(f"{before}gx-planted-07{after}")
    short = Redaction(["gx1"], {})
    assert short.text("gx1: gx12 agx1") == "[host1]: gx12 agx1"


def test_a_name_that_is_a_word_of_ours_is_refused(stored):
    rule = {"metric": "kv.blocks", "must": "improve"}
    plan = stored.plan.model_copy(update={"policy": Policy.model_validate({"rule": [rule]})})
    with pytest.raises(InputError, match=r"is also a word of ours, at policy\.rule\.0\.must"):
        bundle(Result(stored.folder, plan=plan), Redaction(["improve"], {}))


def test_arguments_after_a_flag_for_secrets():
    args = ["serve", "--api-key", "abcdef", "--port", "8000", "--no-key"]
    assert Redaction(environment={}).value(args) == ["serve", "--api-key", "[redacted]", *args[3:]]


@given(st.text(max_size=60))
def test_taking_out_twice_changes_nothing(text):
    once = Redaction(environment={}).text(text)
    assert Redaction(environment={}).text(once) == once


@given(st.lists(st.text(alphabet=st.characters(blacklist_categories=["C", "Z"]), max_size=5), max_size=1000))
def test_a_log_is_short_and_keeps_both_ends(lines):
    short, dropped = shorten("\n".join(lines))
    kept = short.splitlines()
    before = "\n".join(lines).splitlines()
    assert len(kept) <= HEAD + TAIL + 101
    assert kept[:HEAD] == before[:HEAD]
    assert kept[-TAIL:][-1:] == before[-1:] or not before
    assert len(kept) + dropped - (dropped > 0) == len(before)


PIECES = (
    "a.", "a", "-", "--", "A_", "/a", "~/", "0.", "1.2.3.", "ab:cd:", "@", "a@b.", "key=", "--token", "--a-token-",
    "eyJa.", "sk-", "-----BEGIN PRIVATE KEY-----", "http://a", "https://a@", "[", "\\", '"', " ", "\n", "api_key ",
    "A_TOKEN=", "a-b-",
)  # fmt: skip


@pytest.mark.parametrize("piece", PIECES)
def test_no_line_keeps_the_redaction_busy(piece):
    """What a log of a mebibyte may hold; time that grows with the square of it would be minutes."""
    for text in (piece * (1_000_000 // len(piece)), "--" + piece * (1_000_000 // len(piece)) + "!"):
        start = time.process_time()
        Redaction(environment={"A_KEY": "abcdefgh"}).text(text)
        assert time.process_time() - start < 10
