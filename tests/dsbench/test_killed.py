"""Boots whose engine was killed under a harness that lived: marked and repeated once, real boots of the fake engine."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsbench import execute as executing
from dsbench import records as r
from dsbench import store
from dsbench.cli import main
from dsbench.engines import embedded
from dsbench.engines.bounded_get import find_status
from dsbench.engines.strays import strays
from dsbench.execute import execute
from dsbench.judge import judge
from dsbench.killed import RAN_COLD, to_repeat
from dsbench.selftest.drill import undisturbed, without_history
from dsbench.suite import load_suite, parse_suite
from tests.dsbench.cli.test_aa_plan import PROFILE

SUICIDE = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), {})"]
MARK = "its engine was killed by signal 9 (SIGKILL); repeated"
KV = load_suite("kv")
COLD = KV.model_copy(update={"warmup_boots": 0})


class Boots:
    """The fake engine; those boots of a run, from 1, whose place is in `ends` run that line instead."""

    def __init__(self, fake, **ends):
        self.fake = fake
        self.ends = {int(name[1:]): line for name, line in ends.items()}
        self.begun = 0

    def __call__(self, plan, arm):
        self.begun += 1
        return self.ends.get(self.begun) or self.fake(plan, arm)


def killing(number):
    return [part.format(int(number)) for part in SUICIDE]


@pytest.fixture
def begin(make_plan, fake, tmp_path):
    """Run a plan in which lines take the place of engines; gives folder and plan."""

    def go(suite=COLD, **ends):
        plan = make_plan(suite=suite)
        folder = store.create(plan, tmp_path)
        execute(plan, folder, command=Boots(fake, **ends), quiet=True)
        return folder, plan

    return go


def ends_of(folder):
    return [(x.boot, x.attempt, x.status) for x in store.load_records(folder)[0] if isinstance(x, r.BootEnded)]


def resume(folder, plan, fake, **ends):
    """Goes on with the run; gives how many boots began, and the verdict of what is there then."""
    before = (folder / store.RECORDS).read_bytes()
    boots = Boots(fake, **ends)
    execute(plan, folder, command=boots, quiet=True)
    assert (folder / store.RECORDS).read_bytes().startswith(before)
    return boots.begun, judge(plan, store.load_records(folder)[0])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_boot_whose_engine_was_killed_is_marked_and_repeated(begin, fake, number):
    folder, plan = begin(n2=killing(number))
    verdict = judge(plan, store.load_records(folder)[0])
    (failed,) = [reason for reason in verdict.void if reason.code == "boot-failed"]
    assert f"killed by signal {int(number)} " in failed.text
    assert "dsbench ab --resume, which repeats a boot whose engine was killed, once" in failed.mend
    begun, verdict = resume(folder, plan, fake)
    assert begun == 1
    assert (verdict.word, verdict.void) == ("improved", [])
    assert ends_of(folder) == [
        (1, 1, "ok"), (2, 1, "failed"), (3, 1, "ok"), (4, 1, "ok"), (2, 1, "interrupted"), (2, 2, "ok")
    ]  # fmt: skip
    records = store.load_records(folder)[0]
    first, mark = [x for x in records if isinstance(x, r.BootEnded) and (x.boot, x.attempt) == (2, 1)]
    assert first.killed_by == mark.killed_by == number
    assert (mark.log, mark.log_sha256) == (first.log, first.log_sha256)
    name = signal.Signals(number).name
    assert mark.reason == f"its engine was killed by signal {int(number)} ({name}); repeated"
    assert f"boots repeated after their engine was killed: 2 (signal {int(number)} ({name}))" in verdict.notes
    assert not any("after an interruption" in note for note in verdict.notes)
    assert without_history(verdict) == judge(plan, undisturbed(plan, records))
    assert resume(folder, plan, fake)[0] == 0


def test_a_boot_whose_engine_is_killed_a_second_time_stays_failed(begin, fake):
    folder, plan = begin(n2=killing(signal.SIGKILL))
    begun, verdict = resume(folder, plan, fake, n1=killing(signal.SIGTERM))
    assert (begun, verdict.word) == (1, "void")
    (failed,) = [reason for reason in verdict.void if reason.code == "boot-failed"]
    assert failed.mend == (
        "the engine was killed in this boot before, so --resume does not repeat it again: mend what kills it "
        "(see dmesg for memory that ran out), and begin a new experiment"
    )
    assert "boots repeated after their engine was killed: 2 (signal 9 (SIGKILL))" in verdict.notes
    assert to_repeat(plan, store.load_records(folder)[0]) == []
    begun, verdict = resume(folder, plan, fake)
    assert (begun, verdict.word) == (0, "void")


def test_interruptions_between_are_no_kills(begin, fake):
    """The second attempt is interrupted, and the third one's engine killed: that is the second kill."""
    folder, plan = begin(n2=killing(signal.SIGKILL))
    with store.RecordWriter(folder) as writer:
        records = store.load_records(folder)[0]
        (start,) = [x for x in records if isinstance(x, r.BootStarted) and x.boot == 2]
        ((end, reason),) = to_repeat(plan, records)
        writer.write(end.model_copy(update={"status": "interrupted", "reason": reason}))
        writer.write(start.model_copy(update={"attempt": 2}))
    begun, verdict = resume(folder, plan, fake, n1=killing(signal.SIGKILL))
    assert (begun, verdict.word) == (1, "void")
    assert [status for boot, _, status in ends_of(folder) if boot == 2] == [
        "failed", "interrupted", "interrupted", "failed"
    ]  # fmt: skip
    assert resume(folder, plan, fake)[0] == 0
    (note, other) = [note for note in verdict.notes if "repeated after" in note]
    assert note == "boots repeated after an interruption: 2"
    assert other.startswith("boots repeated after their engine was killed: 2 ")


@pytest.mark.parametrize("line", [
    [sys.executable, "-c", "import sys; sys.exit(3)"],
    [sys.executable, "-c", "import os; os.abort()"],
    [sys.executable, "-c", "import sys; sys.exit(137)"],
    ["/no/such/engine"],
])  # fmt: skip
def test_an_engine_that_fails_by_itself_stays_as_evidence(begin, fake, line):
    folder, plan = begin(n2=line)
    begun, verdict = resume(folder, plan, fake)
    assert (begun, verdict.word) == (0, "void")
    (failed,) = [reason for reason in verdict.void if reason.code == "boot-failed"]
    assert "--resume" not in failed.mend


def test_with_a_warm_up_go_the_boots_that_ran_cold(begin, fake):
    folder, plan = begin(KV, n1=killing(signal.SIGKILL))
    assert [boot.phase for boot in plan.boots[:3]] == ["warm-up", "warm-up", "measured"]
    again = to_repeat(plan, store.load_records(folder)[0])
    # The warm-up's own end last: a harness that is killed between two marks must find the rest of them again.
    assert [(end.boot, reason) for end, reason in again] == [*((n, RAN_COLD) for n in (3, 4, 5, 6)), (1, MARK)]
    begun, verdict = resume(folder, plan, fake)
    assert (begun, verdict.word, verdict.void) == (5, "improved", [])
    told = "they ran without their warm-up, whose engine was killed, and so are held to be cold"
    assert f"boots repeated after {told}: 3, 4, 5, 6" in verdict.notes
    assert not any("after an interruption" in note for note in verdict.notes)
    assert "boots repeated after their engine was killed: 1 (signal 9 (SIGKILL))" in verdict.notes


def test_an_engine_killed_while_it_serves_or_after_its_last_probe(make_plan, fake, small, tmp_path, monkeypatch):
    """From outside, by the id of its process."""
    plan = make_plan(suite=small.model_copy(update={"warmup_boots": 0}), blocks=1)
    folder = store.create(plan, tmp_path)
    real, seen = executing.record_devices, []

    def kill_then_record(of_boot, moment, *rest):
        if moment == "after":
            seen.append(of_boot["boot"])
            if len(seen) == 1:
                (pid,) = strays(folder)
                os.kill(pid, signal.SIGKILL)
                os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # until it can be seen that it ended
        real(of_boot, moment, *rest)

    monkeypatch.setattr(executing, "record_devices", kill_then_record)
    monkeypatch.setenv("FAKE_FAULT", f"die@{plan.boots[1].folder}")
    execute(plan, folder, command=fake, quiet=True)
    first, second = [x for x in store.load_records(folder)[0] if isinstance(x, r.BootEnded)]
    assert (first.status, second.status, first.killed_by, second.killed_by) == ("failed", "failed", 9, 9)
    told = "; killed by signal 9 (SIGKILL): out of memory? see dmesg; its log ends: "
    assert first.reason.startswith(f"the engine ended after its last probe{told}")
    assert second.reason.startswith(f"the engine ended during the prefill probe{told}")
    monkeypatch.setenv("FAKE_FAULT", "")
    execute(plan, folder, command=fake, quiet=True)
    assert judge(plan, store.load_records(folder)[0]).void == []


REAL = parse_suite(
    """
name = "real"
summary = "a boot of the engine itself"
blocks = 1
warmup_boots = 0
guards = ["smoke.correct"]
[probes.kv]
[[probes.smoke.items]]
prompt = "7*8="
answer = 56
[[probes.smoke.items]]
prompt = "17+25="
answer = 42
""",
    "real.toml",
)


@pytest.mark.parametrize(
    ("moment", "told"),
    [("ready", "the engine ended during the smoke probe"), ("after", "the engine ended after its last probe")],
)
def test_our_own_engine_that_is_told_to_end_from_outside_was_killed(make_plan, tmp_path, monkeypatch, moment, told):
    """It stops cleanly, and takes its time; the harness's own stop of the second boot is none."""
    plan = make_plan(suite=REAL, engine_args=["--dims", "pico", "--load-format", "dummy", "--seed", "0"])
    folder = store.create(plan, tmp_path)
    name = "record_markers" if moment == "ready" else "record_devices"
    real, sent = getattr(executing, name), []

    def terminate(*args):
        real(*args)
        if not sent and moment in args:
            sent.extend(strays(folder))
            (pid,) = sent
            os.kill(pid, signal.SIGTERM)
            # Once it listens no more, and before it has ended: until then it answers.
            ready = json.loads((folder / "boots" / plan.boots[0].folder / "ready.json").read_text())
            while find_status(f"http://127.0.0.1:{ready['port']}/health", 3.0) is not None:
                time.sleep(0.01)

    monkeypatch.setattr(executing, name, terminate)
    execute(plan, folder, quiet=True)
    first, second = [x for x in store.load_records(folder)[0] if isinstance(x, r.BootEnded)]
    assert (first.status, first.killed_by) == ("failed", signal.SIGTERM)
    assert first.reason.startswith(f"{told}; killed by signal 15 (SIGTERM); its log ends: ")
    assert (second.status, second.killed_by) == ("ok", None)
    assert "boot-failed" in {reason.code for reason in judge(plan, store.load_records(folder)[0]).void}
    execute(plan, folder, quiet=True)
    assert ends_of(folder)[2:] == [(1, 1, "interrupted"), (1, 2, "ok")]


def test_an_engine_that_ends_with_its_harness_was_not_killed_alone(make_plan, fake, small, tmp_path, monkeypatch):
    """As a machine that shuts down ends them: the boot was broken off, and a later kill is the first one."""
    plan = make_plan(suite=small.model_copy(update={"warmup_boots": 0}), blocks=1)
    folder = store.create(plan, tmp_path)
    real = executing.record_markers

    def shut_down(*args):
        monkeypatch.setattr(executing, "record_markers", real)
        (pid,) = strays(folder)
        os.kill(pid, signal.SIGTERM)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        raise KeyboardInterrupt

    monkeypatch.setattr(executing, "record_markers", shut_down)
    with pytest.raises(KeyboardInterrupt):
        execute(plan, folder, command=fake, quiet=True)
    (end,) = [x for x in store.load_records(folder)[0] if isinstance(x, r.BootEnded)]
    assert (end.status, end.killed_by) == ("interrupted", None)
    begun, verdict = resume(folder, plan, fake, n1=killing(signal.SIGKILL))
    assert (begun, verdict.word) == (2, "void")
    begun, verdict = resume(folder, plan, fake)
    assert (begun, verdict.void) == (1, [])


def test_records_of_older_versions_know_no_signal_and_repeat_nothing(make_plan, make_records):
    plan = make_plan()
    records = make_records(plan)
    end = next(x for x in records if isinstance(x, r.BootEnded) and x.boot == 3)
    old = end.model_dump(exclude={"killed_by"}) | {"status": "failed", "reason": "engine ended with code -9"}
    read = r.RECORD.validate_python(old)
    assert read.killed_by is None
    assert to_repeat(plan, [read if x is end else x for x in records]) == []


def test_boots_of_another_result_are_not_taken_for_cold_ones(make_plan, make_records):
    plan = make_plan()
    warm_up = next(boot for boot in plan.boots if boot.phase == "warm-up")
    reused = {boot.number for boot in plan.boots if boot.arm == "baseline" and boot.phase == "measured"}
    plan = plan.model_copy(
        update={"boots": [b.model_copy(update={"reused": 9} if b.number in reused else {}) for b in plan.boots]}
    )
    killed = {"status": "failed", "killed_by": 9}
    records = [
        x.model_copy(update=killed) if isinstance(x, r.BootEnded) and x.boot == warm_up.number else x
        for x in make_records(plan)
    ]
    again = {end.boot for end, _ in to_repeat(plan, records)}
    measured = {boot.number for boot in plan.boots if boot.phase == "measured"}
    assert again == {warm_up.number, *measured - reused}


@pytest.mark.parametrize(("number", "name"), [(2, "SIGINT"), (1, "SIGHUP")])
def test_an_engine_that_a_terminal_ended_is_not_repeated_and_its_mend_says_so(make_plan, make_records, number, name):
    plan = make_plan()
    ended = {"status": "failed", "killed_by": number, "reason": f"killed by signal {number} ({name})"}
    last = max(boot.number for boot in plan.boots)
    records = [
        x.model_copy(update=ended) if isinstance(x, r.BootEnded) and x.boot == last else x for x in make_records(plan)
    ]
    assert to_repeat(plan, records) == []
    (failed,) = [reason for reason in judge(plan, records).void if reason.code == "boot-failed"]
    assert failed.mend == (
        f"signal {number} ({name}) ended the engine, and --resume does not repeat that: find what sent it, a terminal "
        "or a supervisor, and begin a new experiment"
    )


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def ab(fake, tmp_path, monkeypatch):
    """`dsbench` in this process; the engine of the second boot is killed."""
    monkeypatch.chdir(tmp_path)
    Path("fast.toml").write_text(PROFILE)
    monkeypatch.setattr(embedded, "command", Boots(fake, n2=killing(signal.SIGKILL)))
    return lambda *args: CliRunner().invoke(main, args)


NEW = ("--dims", "pico", "--suite", "fast.toml")


@pytest.mark.parametrize(
    ("args", "on"),
    [
        (("ab", "-t", "mhc_input_reuse", "--blocks", "2"), "dsbench ab --resume"),
        (("ab", "-t", "mhc_input_reuse", "--blocks", "2", "--json"), "dsbench ab --resume"),
        (("ab", "-t", "mhc_input_reuse", "--blocks", "2", "--gate"), "dsbench ab --gate --resume"),
        (("aa",), "dsbench aa --from"),
    ],
    ids=["ab", "json", "gate", "aa"],
)
def test_the_run_ends_with_the_command_that_repeats_them(ab, args, on):
    result = ab(*args, *NEW)
    assert result.exit_code == 4
    (folder,) = Path("results").glob("*-*")
    lines = result.stderr.splitlines()
    line = f"engines were killed: boots 2 are repeated, once, by: {on} {folder}"
    assert lines.count(line) == 1
    again = ab(*on.split()[1:], str(folder))
    assert again.exit_code == 0, again.output
    assert "boots repeated after their engine was killed: 2" in again.output or "aa" in args or "--gate" in args
    assert "engines were killed" not in again.output


def test_a_refusal_after_them_names_the_command_that_repeats_them(ab, monkeypatch):
    from dsbench import judge as judging
    from dsbench.errors import InputError

    def refuse(plan, records):
        raise InputError("planted")

    monkeypatch.setattr(judging, "judge", refuse)
    result = ab("ab", "-t", "mhc_input_reuse", "--blocks", "2", *NEW)
    (folder,) = Path("results").glob("*-*")
    assert result.stderr.splitlines()[-1] == (
        f"dsbench: planted; what was measured is kept, go on with: dsbench ab --resume {folder}"
    )
