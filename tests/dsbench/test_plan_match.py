"""Records are used only beside the plan that they were written under: boot by boot, and its design by digest."""

import io
import json
import tarfile
from pathlib import Path

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.bundle import bundle
from dsbench.cli import main
from dsbench.errors import InputError
from dsbench.execute import execute
from dsbench.looks import at_look
from dsbench.plan_nouns import DESIGN, plan_digest
from dsbench.store import PLAN, RECORDS, load_records
from dsbench.suite import parse_suite

OLDER = "not tell the digest of their plan (an older dsbench wrote them)"


def without_digest(folder):
    """The records as an older version wrote them."""
    records = load_records(folder)[0]
    (folder / RECORDS).unlink()
    with store.RecordWriter(folder) as writer:
        writer.write(*(x.model_copy(update={"plan_sha256": ""}) if isinstance(x, r.Run) else x for x in records))


def rewrite(folder, change):
    """Change the stored plan's JSON in place."""
    told = json.loads((folder / PLAN).read_text())
    change(told)
    (folder / PLAN).write_text(json.dumps(told))


def exits_with(*command):
    with pytest.raises(SystemExit) as left:
        main([*map(str, command)])
    return left.value.code


def swap(told):
    """The arms of all boots exchanged."""
    first, second = (arm["name"] for arm in told["arms"])
    for boot in told["boots"]:
        boot["arm"] = second if boot["arm"] == first else first


def boot(number, **update):
    return lambda told: next(b for b in told["boots"] if b["number"] == number).update(update)


CHANGES = {
    "arms swapped": (swap, "boot 1 ran with arm 'baseline', plan.json says 'mhc_input_reuse'"),
    "another block": (boot(4, block=99), "boot 4 ran with block 1, plan.json says 99"),
    "another phase": (boot(1, phase="measured"), "boot 1 ran with phase 'warm-up', plan.json says 'measured'"),
    "a boot less": (lambda told: told["boots"].pop(), "boot 6 ran arm 'mhc_input_reuse', plan.json has no boot 6"),
}


@pytest.mark.parametrize("old", [False, True], ids=["", "without digest"])
@pytest.mark.parametrize(("change", "told"), CHANGES.values(), ids=CHANGES)
def test_a_boot_that_ran_otherwise_than_planned_is_refused(folder, change, told, old):
    if old:
        without_digest(folder)
    boots = json.loads((folder / PLAN).read_text())["boots"]
    assert (boots[0]["arm"], boots[0]["phase"], boots[3]["block"]) == ("baseline", "warm-up", 1)
    rewrite(folder, change)
    with pytest.raises(InputError) as refused:
        load_records(folder)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{folder / RECORDS}: {told}: ")
    assert line.endswith("take both from a copy, or run anew")


def test_judging_reporting_and_going_on_are_refused_and_write_nothing(folder, capsys):
    assert exits_with("judge", folder) == 0
    rewrite(folder, swap)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    for command in (["judge"], ["report"], ["compare", str(folder)], ["ab", "--resume"]):
        assert exits_with(*command, folder) == 2, command
        out, err = capsys.readouterr()
        assert out == ""
        assert err.splitlines()[-1].startswith(f"dsbench: {folder / RECORDS}: boot 1 ran with arm 'baseline'"), command
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_records_of_another_result_are_refused_though_its_boots_are_alike(folder, make_plan, make_records, tmp_path):
    other = store.create(make_plan(seed=0).model_copy(update={"id": "another"}), tmp_path)
    (other / RECORDS).write_bytes((folder / RECORDS).read_bytes())
    mine, theirs = store.stored_digest(other)[:12], store.stored_digest(folder)[:12]
    with pytest.raises(InputError, match=f"run of t was of a plan with digest {theirs}, plan.json has {mine}: they"):
        load_records(other)


OTHER = {
    "id": "x", "suite": "x", "engine": "vllm", "engine_args": ["--x"], "rig": {"start": ["x"], "url": "http://x"},
    "dims": {"name": "x"}, "seed": 1, "until": "profile", "arms": [], "boots": [], "blocks": 99, "probes": {},
    "drift_controls": ["x"], "alpha": 0.2, "equivalence_confidence": 0.5, "looks": [{"blocks": 1}],
    "reused_from": "x", "pool": "ray",
}  # fmt: skip


@pytest.mark.parametrize("key", DESIGN)
def test_every_part_of_the_design_is_in_the_digest(make_plan, key):
    told = json.loads(make_plan().model_dump_json())
    assert told[key] != OTHER[key]
    assert plan_digest(json.dumps(told | {key: OTHER[key]})) != plan_digest(json.dumps(told))


def test_another_seed_or_setting_or_direction_of_a_metric_is_another_plan(folder):
    for change in (
        lambda told: told.update(seed=7),
        lambda told: told["probes"]["decode"].update(tokens=64),
        lambda told: told["arms"][1].update(env={"X": "1"}),
        lambda told: told["metrics"][0].update(better="down"),
    ):
        before = (folder / PLAN).read_text()
        rewrite(folder, change)
        with pytest.raises(InputError, match="was of a plan with digest"):
            load_records(folder)
        (folder / PLAN).write_text(before)
    assert load_records(folder)[1] == []


def test_what_is_asked_or_noted_later_is_the_same_plan(folder):
    def later(told):
        told.update(notes=["more"], harness_version="9.9", policy=None, guards=[], floors=[], created="2030-01-01")
        told.update(timeouts=told["timeouts"] | {"boot": 1.0})
        for metric in told["metrics"]:
            metric.update(margin=0.5, summary="in other words")

    before = load_records(folder)
    rewrite(folder, later)
    assert load_records(folder) == before


def test_a_later_version_with_more_fields_and_other_defaults_finds_the_same_digest(folder):
    """The text decides, in whatever order and layout: fields that it lacks are none."""
    text = (folder / PLAN).read_text()
    told = json.loads(text)
    del told["pool"], told["reused_from"], told["arms"][0]["url"]
    older = json.dumps(told)
    backwards = json.dumps(dict(reversed(told.items())), indent=3)
    assert plan_digest(older) == plan_digest(backwards) != plan_digest(text)
    (folder / PLAN).write_text(older)
    records = [x for x in map(r.RECORD.validate_json, lines(folder)) if not isinstance(x, r.Run)]
    (folder / RECORDS).unlink()
    digest = store.stored_digest(folder)
    assert digest == plan_digest(older)
    with store.RecordWriter(folder) as writer:
        writer.write(r.Run(time="t", pid=1, harness_version="9", resumed=False, plan_sha256=digest), *records)
    assert load_records(folder)[1] == []


def lines(folder):
    for line in (folder / RECORDS).read_bytes().splitlines():
        yield store.parse(line).content


def test_older_records_are_read_and_said_to_be_such(folder, capsys):
    before = load_records(folder)[0]
    without_digest(folder)
    records, notices = load_records(folder)
    assert records[1:] == before[1:]
    (notice,) = notices
    assert f"its runs do {OLDER}" in notice
    assert exits_with("judge", folder) == 0
    assert OLDER in capsys.readouterr().err
    with store.RecordWriter(folder) as writer:
        writer.write(before[0])
    assert [f"1 of its 2 runs do {OLDER}" in notice for notice in load_records(folder)[1]] == [True]
    rewrite(folder, lambda told: told.update(seed=7))
    with pytest.raises(InputError, match="was of a plan with digest"):
        load_records(folder)


def test_a_bundle_of_it_belongs_together_too(folder, tmp_path, monkeypatch):
    rewrite(folder, lambda told: told.update(notes=["x"]))
    monkeypatch.setenv("SOME_API_KEY", "--dims")  # an engine argument is redacted: the design's text changes
    made = bundle(store.Result(folder))
    with tarfile.open(fileobj=io.BytesIO(made.content)) as archive:
        archive.extractall(tmp_path / "there", filter="data")
    (unpacked,) = (tmp_path / "there").iterdir()
    assert store.stored_digest(unpacked) != store.stored_digest(folder)
    assert load_records(unpacked)[1] == []
    rewrite(unpacked, lambda told: told.update(seed=7))
    with pytest.raises(InputError, match="was of a plan with digest"):
        load_records(unpacked)


PROFILE = """
name = "profile"
summary = "s"
until = "profile"
blocks = 6
warmup_boots = 0
[probes.kv]
"""


def test_a_run_tells_the_digest_of_the_stored_plan_at_every_look(make_plan, fake, tmp_path):
    plan = make_plan(suite=parse_suite(PROFILE, "p.toml"), until_resolved=8)
    folder = store.create(plan, tmp_path)
    execute(at_look(plan, 1), folder, command=fake, quiet=True)
    execute(plan, folder, command=fake, quiet=True)
    records, notices = load_records(folder)
    assert [x.plan_sha256 for x in records if isinstance(x, r.Run)] == [store.stored_digest(folder)] * 2
    assert notices == []
    rewrite(folder, boot(len(plan.boots), block=1))
    with pytest.raises(InputError, match=f"boot {len(plan.boots)} ran with block 8"):
        execute(plan, folder, command=fake, quiet=True)


def test_every_committed_result_is_of_its_plan():
    root = Path(__file__).parents[2]
    found = [*root.glob("results/**/records.jsonl"), *root.glob("tests/data/**/records.jsonl")]
    assert len(found) >= 30
    for path in found:
        load_records(path.parent)
