"""Real runs that go wrong, a few of those of `dsbench selftest --faults` and `--kills`, and detectors taken away."""

import dataclasses
import json
import re

import pytest
from click.testing import CliRunner

from dsbench import records as r
from dsbench import store
from dsbench.cli.selftest import selftest
from dsbench.judge import judge
from dsbench.selftest import broken_engine, broken_harness, faults, happenings
from dsbench.selftest.drill import drill, undisturbed, without_history
from dsbench.selftest.kills import Kill, KilledRun, ended
from dsbench.selftest.mishaps import MISHAPS, NONE


def command(*args):
    result = CliRunner().invoke(selftest, args, standalone_mode=False)
    return result.return_value, result.stdout


def test_the_table_is_sound():
    names = [mishap.name for mishap in MISHAPS]
    assert len(set(names)) == len(names) >= 25
    for mishap in MISHAPS:
        re.compile(mishap.says)
        assert mishap.engine == NONE or hasattr(broken_engine, mishap.engine) or hasattr(faults, mishap.engine)
        assert mishap.harness == NONE or mishap.harness in broken_harness.FAULTS
        assert mishap.code in (0, 2, 4, 130, -9)
        assert mishap.code or mishap.whole, "a run that nothing happens to has to end as one"


@pytest.mark.slow
def test_a_fault_that_is_met_and_the_table_that_says_so(tmp_path):
    code, told = command("--faults", "--only", "weights-empty", "--out", str(tmp_path), "--json")
    (row,) = json.loads(told)
    assert (code, row["outcome"]) == (0, "caught"), row
    assert row["given"].startswith("exit 2, dsbench: the engine refuses this build")


@pytest.mark.slow
def test_without_its_detector_a_fault_is_missed(tmp_path):
    code, told = command("--faults", "--only", "status-500", "--out", str(tmp_path), "--without", "void")
    assert code == 1
    assert "1 missed" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "without"), [("byte-changed", "checksum"), ("gpu-held", "lock"), ("kill-9-engine", "repeat")]
)
def test_without_its_detector_the_command_does_not_end_well(tmp_path, fault, without):
    code, told = command("--faults", "--only", fault, "--out", str(tmp_path), "--without", without, "--json")
    assert (code, [row["outcome"] for row in json.loads(told)]) == (1, ["missed"]), told


@pytest.mark.slow
def test_a_gpu_that_another_process_holds_is_refused(tmp_path):
    code, told = command("--faults", "--only", "gpu-held", "--out", str(tmp_path), "--json")
    assert (code, [row["outcome"] for row in json.loads(told)]) == (0, ["caught"]), told


@pytest.mark.slow
@pytest.mark.parametrize(("without", "outcome"), [(NONE, "caught"), ("chain", "missed")])
def test_a_line_that_is_gone_is_seen_by_the_chain_alone(tmp_path, without, outcome):
    (mishap,) = [mishap for mishap in MISHAPS if mishap.name == "line-missing"]
    (row,) = drill([mishap], tmp_path, without)
    assert row.outcome == outcome, row


@pytest.mark.slow
def test_without_the_group_grandchildren_are_found(tmp_path):
    (mishap,) = [mishap for mishap in MISHAPS if mishap.name == "grandchildren"]
    (row,) = drill([dataclasses.replace(mishap, blocks=1)], tmp_path, "group")
    assert row.outcome == "missed"
    assert "orphans" in row.given


@pytest.mark.slow
def test_kills_at_random_moments(tmp_path):
    code, told = command("--kills", "2", "--seed", "3", "--out", str(tmp_path), "--json")
    runs = json.loads(told)
    assert code == 0, runs
    assert sum(kill["hit"] > 0 for run in runs for kill in run["kills"]) >= 2
    assert {run["lost"] + run["orphans"] + len(run["problems"]) for run in runs} == {0}
    assert {run["verdict"] for run in runs if not run["failed_boots"]} == {"improved"}


@pytest.fixture
def ended_run(make_plan, make_records, tmp_path):
    """A stored run of whose second boot the engine was killed for good, and was so by these kills."""

    def build(*kills, status="failed"):
        plan = make_plan()
        end = {"status": status, "reason": "killed", "killed_by": 9} if status != "ok" else {}
        records = [x.model_copy(update=end) if isinstance(x, r.BootEnded) and x.boot == 4 else x
                   for x in make_records(plan)]  # fmt: skip
        folder = store.create(plan, tmp_path)
        with store.RecordWriter(folder) as writer:
            writer.write(*records)
        verdict = judge(plan, records)
        store.save_verdict(folder, verdict)
        run = KilledRun(kills=[Kill(who, 1.0, phase, 9, 1) for who, phase in kills])
        return ended(run, tmp_path, verdict.exit_code, "")

    return build


BOOT = "04-baseline"


@pytest.mark.parametrize("kills", [
    [], [("engine", BOOT)], [("engine", BOOT), ("both", BOOT)], [("engine", BOOT), ("engine", "03-mhc_input_reuse")],
])  # fmt: skip
def test_a_run_that_stays_void_after_single_kills_is_a_problem(ended_run, kills):
    run = ended_run(*kills)
    assert (run.verdict, run.failed_boots) == ("void", 1)
    assert run.problems == ["the verdict is void, not improved"]


def test_a_boot_whose_engine_was_killed_twice_may_leave_the_run_void(ended_run):
    run = ended_run(("engine", BOOT), ("engine", f"{BOOT}-attempt2"))
    assert (run.verdict, run.failed_boots, run.problems) == ("void", 1, [])


def test_a_run_that_was_not_repaired_is_told_by_its_exit_code_too(ended_run):
    run = ended_run(status="ok")
    assert (run.verdict, run.failed_boots, run.problems) == ("improved", 0, [])


def test_no_group_is_left_where_none_can_have_a_limit(tmp_path):
    """Folders that are no control groups: no file of a limit comes with them."""
    (tmp_path / "own").write_text("4:memory:/a\n0::/a/b\n")
    (tmp_path / "groups" / "a" / "b").mkdir(parents=True)
    assert happenings._memory_group(tmp_path / "groups", tmp_path / "own") is None
    for folder in (tmp_path, tmp_path / "groups", tmp_path / "groups" / "a", tmp_path / "groups" / "a" / "b"):
        (folder / "cgroup.subtree_control").write_text("cpu memory\n")
    assert happenings._memory_group(tmp_path / "groups", tmp_path / "own") is None
    assert not list(tmp_path.rglob("dsbench-*"))
    assert happenings._memory_group(tmp_path / "groups", tmp_path / "none") is None


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--faults", "--kills", "3"), "not given together"),
        (("--faults", "--from", "x"), "not given together"),
        (("--faults", "--only", "nothing"), "no such fault; there are exits-at-boot"),
        (("--faults", "--without", "nothing"), "no such detector; there are checksum"),
    ],
)
def test_usage(args, said):
    result = CliRunner().invoke(selftest, args, standalone_mode=False)
    assert said in str(result.exception)


def test_a_folder_with_files_is_left_alone(tmp_path):
    (tmp_path / "mine").touch()
    result = CliRunner().invoke(selftest, ["--faults", "--out", str(tmp_path)], standalone_mode=False)
    assert "holds files already" in str(result.exception)


def test_an_interrupted_boot_changes_no_verdict(make_plan, make_records):
    plan = make_plan()
    clean = make_records(plan)
    second = [record for record in clean if not isinstance(record, r.Run) and record.boot == 2]
    half = second[: len(second) // 2]
    cut = r.BootEnded(boot=2, time="t", status="interrupted", reason="killed", seconds=0)
    again = [record.model_copy(update={"attempt": 2}) for record in second]
    at = clean.index(second[0])
    rest = [record for record in clean[at:] if isinstance(record, r.Run) or record.boot != 2]
    disturbed = [*clean[:at], *half, cut, r.Run(time="t", pid=2, harness_version="0", resumed=True), *again, *rest]
    assert undisturbed(plan, disturbed) == clean
    verdict = judge(plan, disturbed)
    assert verdict != judge(plan, clean)
    assert without_history(verdict) == judge(plan, clean)
