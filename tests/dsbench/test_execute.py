"""Real boots of the fake engine: what is recorded, when a boot fails, and after an interruption."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.evidence import gather
from dsbench.execute import execute
from dsbench.judge import judge
from dsbench.suite import Suite, Timeouts, load_suite

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(make_plan, fake, tmp_path, monkeypatch):
    """Run a plan against the fake engine with a planted fault; gives folder, plan and records."""

    def go(fault="", blocks=2, **options):
        monkeypatch.setenv("FAKE_FAULT", fault)
        plan = make_plan(blocks=blocks, **options)
        folder = store.create(plan, tmp_path)
        execute(plan, folder, command=fake, quiet=True)
        return folder, plan, store.load_records(folder)[0]

    return go


def kinds(records, kind, boot):
    return [record for record in records if isinstance(record, kind) and record.boot == boot]


def test_a_probe_for_the_first_block_runs_there_alone_and_is_not_missed_elsewhere(run, small):
    probes = small.probes.model_copy(update={"smoke": small.probes.smoke.model_copy(update={"blocks": 1})})
    _, plan, records = run(suite=small.model_copy(update={"probes": probes, "warmup_boots": 0}))
    ran = {boot.block: [c.probe for c in kinds(records, r.Check, boot.number)] for boot in plan.boots}
    assert "smoke" in ran[1]
    assert "smoke" not in ran[2]
    verdict = judge(plan, records)
    assert verdict.void == []
    (row,) = [row for row in verdict.rows if row.metric == "smoke.correct"]
    assert (row.word, row.n_baseline) == ("inconclusive", 2)  # one boot an arm shows no repeat
    lost = [
        c for c in records if not (isinstance(c, r.Check) and c.probe == "smoke" and c.boot == plan.boots[0].number)
    ]
    assert judge(plan, lost).word == "void"


def test_bytes_that_serving_costs_are_read_when_it_is_over(run, small, monkeypatch):
    monkeypatch.setattr("dsbench.probes.kv.WRITTEN_S", 0.0)
    folder, plan, records = run("served-later", suite=small.model_copy(update={"warmup_boots": 0}))
    for boot in plan.boots:
        read = [o for o in kinds(records, r.Observation, boot.number) if o.metric == "kv.runtime_peak_bytes"]
        profile = json.loads((folder / store.BOOTS / boot.folder / "kv_profile.rank0.json").read_text())
        assert profile["runtime_peak_bytes"] > 0
        assert [(o.value, o.rank) for o in read] == [(profile["runtime_peak_bytes"], 0)]
    assert judge(plan, records).void == []


def test_a_whole_run(run):
    folder, plan, records = run()
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    assert len(plan.boots) == 6
    for boot in plan.boots:
        n = boot.number
        assert [check.status for check in kinds(records, r.Check, n)] == ["done"] * 5
        assert [c.moment for c in kinds(records, r.Counters, n)] == ["ready", *plan.probes.names()]
        assert [m.moment for m in kinds(records, r.Markers, n)] == ["ready", "end"]
        assert {o.phase for o in kinds(records, r.Observation, n)} == {boot.phase}
        (end,) = kinds(records, r.BootEnded, n)
        assert end.status == "ok"
        assert 0 < end.ready_seconds < end.seconds
        assert (folder / end.log).stat().st_size == end.log_bytes > 0
        (conditions,) = kinds(records, r.Conditions, n)
        assert conditions.values["toggles"] == plan.arm(boot.arm).on
        assert {o.metric for o in kinds(records, r.Observation, n)} == {m.key for m in plan.metrics}
        decode = [o for o in kinds(records, r.Observation, n) if o.metric == "decode.tps.c4"]
        assert len(decode[0].raw) == 2
        assert min(decode[0].raw) <= decode[0].value <= max(decode[0].raw)
        identity = [o.item for o in kinds(records, r.Observation, n) if o.metric == "identity.tokens"]
        assert identity == ["alone/1", "alone/2", "together/1", "together/2"]
    pids = [kinds(records, r.Conditions, boot.number)[0].values["pid"] for boot in plan.boots]
    assert len(set(pids)) == 6
    sizes = [c.values["vllm:prompt_tokens_total"] for c in kinds(records, r.Counters, 3)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 0 < sizes[-1]


@pytest.fixture
def served(small):
    """The small suite without warm-ups: two boots a run."""
    return small.model_copy(update={"warmup_boots": 0})


PROFILE = load_suite("kv").model_copy(update={"warmup_boots": 0})


def test_boots_that_stop_after_the_profile(run):
    _, plan, records = run(suite=load_suite("kv"))
    assert judge(plan, records).word == "improved"
    assert not any(isinstance(record, r.Counters) for record in records)


def expect_void(plan, records, code, said):
    verdict = judge(plan, records)
    assert verdict.word == "void"
    reasons = [reason for reason in verdict.void if reason.code == code]
    assert reasons, verdict.void
    assert said in reasons[0].text


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("exit@mhc_input_reuse", "boot-failed", "ended with code 1; its log ends: planted exit"),
        ("no-marker", "marker-missing", "no marker, no refusal"),
        ("refused", "marker-missing", "refused: y has another reference x1"),
        ("stray-marker@baseline", "marker-misplaced", "mhc_residual_reuse is off in baseline"),
        ("condition@baseline", "condition-differs", "undeclared difference of seed"),
        ("toggles-ignored", "toggles-not-in-effect", "reads back toggles []"),
        ("pinned", "kv-pinned", "pinned"),
        ("drift@mhc_input_reuse", "drift", "kv.weights_bytes"),
    ],
)
def test_faults_at_boot_are_void(run, fault, code, said):
    _, plan, records = run(fault, suite=PROFILE)
    expect_void(plan, records, code, said)


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        ("exit@mhc_input_reuse", "boot-failed", "ended with code 1 before it was ready; its log ends: planted exit"),
        ("die@mhc_input_reuse", "boot-failed", "the engine ended during the prefill probe"),
        ("refuse@mhc_input_reuse", "check-missing", "probe prefill failed: /v1/completions answered 500"),
        ("reset", "counter-reset", "counters fell"),
    ],
)
def test_faults_while_serving_are_void(run, served, fault, code, said):
    _, plan, records = run(fault, suite=served)
    expect_void(plan, records, code, said)


def test_no_saving_is_equivalent(run):
    _, plan, records = run("no-saving", suite=PROFILE)
    assert judge(plan, records).word == "equivalent"


@pytest.mark.parametrize("fault", ["wrong-tokens@mhc_input_reuse", "wrong-answer@mhc_input_reuse"])
def test_wrong_output_is_regressed(run, served, fault):
    _, plan, records = run(fault, suite=served)
    assert judge(plan, records).word == "regressed"


@pytest.mark.parametrize(("arm", "word"), [("mhc_input_reuse", "regressed"), ("baseline", "inconclusive")])
def test_nondeterminism(run, served, arm, word):
    """In the candidate it is the finding. In the baseline neither tokens nor bytes can be compared for equality."""
    _, plan, records = run(f"nondeterministic@{arm}", suite=served, blocks=2)
    verdict = judge(plan, records)
    assert verdict.word == word
    assert ("identity.tokens" in verdict.arms[0].unresolved_guards) == (arm == "baseline")


def test_deadline_of_a_probe(run, served):
    short = Suite.model_validate({**served.model_dump(), "timeouts": Timeouts(boot=30, probe=1.0, stop=2)})
    _, plan, records = run("hang@mhc_input_reuse", suite=short)
    failed = [x for x in records if isinstance(x, r.Check) and x.status == "failed"]
    assert {(x.boot, x.probe, x.reason) for x in failed} == {
        (boot.number, "prefill", "not done within 1 s") for boot in plan.boots if boot.arm == "mhc_input_reuse"
    }
    decode = [x for x in records if isinstance(x, r.Check) and x.probe == "decode"]
    assert {x.status for x in decode} == {"done"}


def test_deadline_of_a_page_of_counters(run, served):
    short = Suite.model_validate({**served.model_dump(), "timeouts": Timeouts(boot=30, probe=1.0, stop=2)})
    short = short.model_copy(update={"probes": served.probes.model_copy(update={"prefill": None, "decode": None})})
    _, plan, records = run("slow-metrics@mhc_input_reuse", suite=short)
    late = [x for x in records if isinstance(x, r.Finding) and x.code == "no-counters"]
    moments = ("ready", *short.probes.names())
    assert {(x.boot, x.text) for x in late} == {
        (boot.number, f"after {moment}: /metrics was not whole within 1 s")
        for boot in plan.boots if boot.arm == "mhc_input_reuse" for moment in moments
    }  # fmt: skip
    assert {x.status for x in records if isinstance(x, r.BootEnded)} == {"ok"}


def test_an_engine_that_never_gets_ready(run, served):
    short = Suite.model_validate({**served.model_dump(), "timeouts": Timeouts(boot=1.5, probe=1.0, stop=2)})
    _, plan, records = run("hang-boot@mhc_input_reuse", suite=short)
    ends = {x.boot: x for x in records if isinstance(x, r.BootEnded)}
    bad = [boot.number for boot in plan.boots if boot.arm == "mhc_input_reuse"]
    assert [n for n, end in ends.items() if end.status == "failed"] == bad
    assert "never wrote ready.json within 1.5 s" in ends[bad[0]].reason
    checks = [x for x in records if isinstance(x, r.Check) and x.boot == bad[0]]
    assert {(x.probe, x.status) for x in checks} == {(name, "not-run") for name in plan.probes.names()}


DRIVER = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job begins with it ignored
from pathlib import Path
from dsbench import execute, store
folder = Path(sys.argv[1])
plan = store.load_plan(folder)
execute.execute(plan, folder, command=lambda plan, arm: sys.argv[2:] + plan.engine_args, quiet=True)
"""


def engines_of(folder):
    """Process ids whose environment names this result's boot folders."""
    found = []
    for process in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if str(folder).encode() in (process / "environ").read_bytes() and (process / "cmdline").read_bytes():
                found.append(int(process.name))
    return [pid for pid in found if pid != os.getpid()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_run_goes_on(make_plan, fake, tmp_path, number):
    plan = make_plan(blocks=2)
    folder = store.create(plan, tmp_path)
    command = [sys.executable, str(ROOT / "tests/dsbench/fake_engine.py")]
    harness = subprocess.Popen([sys.executable, "-c", DRIVER, str(folder), *command], stderr=subprocess.DEVNULL)
    third = next(boot for boot in plan.boots if boot.number == 3)
    while not (folder / store.BOOTS / third.folder / "ready.json").exists():
        time.sleep(0.02)
        assert harness.poll() is None
    harness.send_signal(number)
    harness.wait(20)
    leftover = engines_of(folder)
    for _ in range(250):  # after kill -9 the kernel asks the engine to end
        if not (leftover := engines_of(folder)):
            break
        time.sleep(0.02)
    assert leftover == []
    before, _ = store.load_records(folder)
    kept = [x for x in before if isinstance(x, r.BootEnded) and x.status == "ok"]
    assert [x.boot for x in kept] == [1, 2]

    execute(plan, folder, command=fake, quiet=True)
    records, notices = store.load_records(folder)
    assert notices == []
    assert records[: len(before)] == before
    ends = [(x.boot, x.attempt, x.status) for x in records if isinstance(x, r.BootEnded)]
    last = [(n, 2 if n == 3 else 1, "ok") for n in (3, 4, 5, 6)]
    assert ends == [(1, 1, "ok"), (2, 1, "ok"), (3, 1, "interrupted"), *last]
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    boots = {boot.number: boot for boot in gather(plan, records)}
    assert boots[3].ended.attempt == 2
    assert boots[3].ended.log.endswith("-attempt2/engine.log")


def test_a_finished_run_is_left_alone(run, fake):
    folder, plan, records = run(suite=PROFILE)
    execute(plan, folder, command=fake, quiet=True)
    again, _ = store.load_records(folder)
    assert again[: len(records)] == records
    assert [type(record) for record in again[len(records) :]] == [r.Run]
    assert again[-1].resumed
