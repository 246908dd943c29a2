"""Refusals in the middle of a run, before and after something was measured: real boots of the fake engine."""

import contextlib
import fcntl
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsbench import records as r
from dsbench import store
from dsbench.cli import main
from dsbench.engines import embedded
from tests.dsbench.cli.test_aa_plan import PROFILE

KEPT = "; what was measured is kept, go on with: "
AB = ("ab", "-t", "mhc_input_reuse", "--blocks", "2")
GATE = (*AB, "--gate")
AA = ("aa",)
OPEN = (*AB[:-2], "--until-resolved", "9")
"""Looks at 7 and 9 blocks."""


class Harness:
    """`dsbench` in this process, with the fake engine in place of the embedded one."""

    def __init__(self, fake):
        self.fake = fake
        self.before_boot = {}
        """What happens before the engine of the boot of this place in the run, from 1, starts."""
        self.boots = 0

    def command(self, plan, arm):
        self.boots += 1
        self.before_boot.get(self.boots, lambda: None)()
        return self.fake(plan, arm)

    def run(self, *args, code=0):
        own = ("--dims", "pico", "--suite", "fast.toml") if args[0] in ("ab", "aa") and "--resume" not in args else ()
        result = CliRunner().invoke(main, [*args, *(() if "--from" in args else own)])
        assert result.exit_code == code, result.output
        return result

    def refused(self, *args):
        """The one line that says why, without what is shown of boots."""
        line = self.run(*args, code=2).stderr.splitlines()[-1]
        assert line.startswith("dsbench: ")
        return line

    @property
    def folder(self):
        (found,) = (path for path in Path("results").iterdir() if path.name != "floors")
        return found

    def ended(self):
        """Statuses of the boots that have ended, by number; of a damaged file none can be told."""
        return {x.boot: x.status for x in store.load_records(self.folder)[0] if isinstance(x, r.BootEnded)}


@pytest.fixture
def harness(fake, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fast.toml").write_text(PROFILE)
    harness = Harness(fake)
    monkeypatch.setattr(embedded, "command", harness.command)
    return harness


@pytest.fixture
def held():
    """Files that another dsbench holds; all are let go by `close`."""
    with contextlib.ExitStack() as stack:
        yield stack


def hold(path, held):
    file = held.enter_context(path.open("ab"))
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def refuse_the_flags(plan, arm):
    """Any command line that an engine of ours does not take."""
    return [sys.executable, "-c", "import sys; print('error: unknown flag --x'); sys.exit(2)"]


# --- nothing measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", [AB, GATE, AA], ids=["ab", "gate", "aa"])
def test_a_build_that_the_engine_refuses_leaves_nothing(harness, command):
    harness.fake = refuse_the_flags
    line = harness.refused(*command)
    assert "the engine refuses this build" in line
    assert "unknown flag --x" in line
    assert KEPT not in line
    assert list(Path("results").iterdir()) == []


def test_the_second_run_of_a_gate_may_be_refused_and_the_first_stays(harness, monkeypatch):
    monkeypatch.setenv("FAKE_FAULT", "nondeterministic@baseline")
    Path("gate.toml").write_text('inconclusive = "rerun"\n')
    usual = harness.fake
    harness.fake = lambda plan, arm: (usual if harness.boots <= 4 else refuse_the_flags)(plan, arm)
    assert "the engine refuses this build" in harness.refused(*AB, "--gate", "gate.toml")
    assert set(harness.ended().values()) == {"ok"}
    assert len(harness.ended()) == 4


def test_a_gpu_that_is_taken_before_the_first_boot_leaves_nothing(harness, held, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("dsbench.execute.gpus_of", lambda plan: {0})
    hold(tmp_path / "dsbench-gpu0.lock", held)
    assert "GPU 0 is measured by another dsbench" in harness.refused(*AB)
    assert list(Path("results").iterdir()) == []


def test_a_result_that_another_dsbench_writes_is_not_removed_under_it(harness, held, monkeypatch):
    """Before its first boot: someone was quick to resume it."""
    real = store.create

    def create(plan, out):
        folder = real(plan, out)
        hold(folder / store.RECORDS, held)
        return folder

    monkeypatch.setattr(store, "create", create)
    line = harness.refused(*AB)
    assert line.endswith(f"wait for it, or stop it{KEPT}dsbench ab --resume {harness.folder}")
    assert (harness.folder / store.PLAN).is_file()
    held.close()
    harness.run("ab", "--resume", str(harness.folder))


# --- something measured -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "on", "boots"),
    [(AB, "dsbench judge", 4), (GATE, "dsbench gate", 4), (AA, "dsbench aa --from", 6)],
    ids=["ab", "gate", "aa"],
)
def test_judging_that_is_refused_after_all_boots_loses_none(harness, monkeypatch, command, on, boots):
    from dsbench import judge as judging

    real = judging.judge

    def judge(plan, records):
        """Of records that hold the last reading twice."""
        return real(plan, [*records, next(x for x in reversed(records) if isinstance(x, r.Observation))])

    with monkeypatch.context() as patch:
        patch.setattr(judging, "judge", judge)
        line = harness.refused(*command)
    assert " has 2 readings of kv." in line
    assert line.endswith(f"where one number is due{KEPT}{on} {harness.folder}")
    assert harness.ended() == dict.fromkeys(range(1, boots + 1), "ok")
    harness.run(*on.split()[1:], str(harness.folder))


@pytest.mark.parametrize(("command", "on"), [(AB, "ab --resume"), (GATE, "ab --gate --resume"), (AA, "aa --from")],
                         ids=["ab", "gate", "aa"])  # fmt: skip
def test_a_byte_that_changes_under_the_run_loses_nothing(harness, command, on):
    def flip():
        path = harness.folder / store.RECORDS
        content = path.read_bytes()
        assert b'"record":"run"' in content
        changed.append((path, content))
        with path.open("r+b") as file:
            file.seek(content.index(b'"record":"run"') + 10)
            file.write(b"R")

    changed = []
    harness.before_boot[3] = flip
    line = harness.refused(*command)
    path, early = changed[0]
    assert f"{path}:1: " in line
    assert line.endswith(f"{KEPT}dsbench {on} {harness.folder}")
    assert len(list((harness.folder / store.BOOTS).iterdir())) == (6 if command == AA else 4)
    path.write_bytes(early + path.read_bytes()[len(early) :])
    assert set(harness.ended().values()) == {"ok"}
    done = harness.boots
    harness.run(*on.split(), str(harness.folder))
    assert harness.boots == done


@pytest.mark.parametrize("lock", ["records", "gpu"])
def test_a_lock_that_is_taken_between_two_looks_loses_no_boot(harness, held, tmp_path, monkeypatch, lock):
    from dsbench import judge as judging

    real = judging.judge

    def judge(plan, records):
        """Taken in the gap behind the first look."""
        if not taken:
            taken.append(len(records))
            hold(harness.folder / store.RECORDS if lock == "records" else tmp_path / "dsbench-gpu0.lock", held)
        return real(plan, records)

    taken = []
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("dsbench.execute.gpus_of", lambda plan: {0})
    monkeypatch.setattr(judging, "judge", judge)
    monkeypatch.setattr(judging, "resolved", lambda verdict: False)  # so that all looks are due
    line = harness.refused(*OPEN)
    told = "is being written by another dsbench" if lock == "records" else "GPU 0 is measured by another dsbench"
    assert told in line
    assert line.endswith(f"{KEPT}dsbench ab --resume {harness.folder}")
    assert harness.ended() == dict.fromkeys(range(1, 15), "ok")
    assert len(store.load_records(harness.folder)[0]) == taken[0]
    held.close()
    harness.run("ab", "--resume", str(harness.folder))
    assert harness.ended() == dict.fromkeys(range(1, 19), "ok")


def test_a_boot_that_was_cut_off_behind_a_look_is_closed_with_its_log(harness, monkeypatch):
    """The look before it is whole and runs nothing: it knows no such boot, and would leave its log as it is."""
    from dsbench import judge as judging

    monkeypatch.setattr(judging, "resolved", lambda verdict: False)
    harness.run(*OPEN)
    path = harness.folder / store.RECORDS
    lines = path.read_bytes().splitlines(keepends=True)
    cut = next(n for n, line in enumerate(lines) if b'"record":"boot_started"' in line and b'"boot":15,' in line)
    path.write_bytes(b"".join(lines[: cut + 1]))
    harness.run("ab", "--resume", str(harness.folder))
    ends = [x for x in store.load_records(harness.folder)[0] if isinstance(x, r.BootEnded) and x.boot == 15]
    assert [(end.status, end.attempt) for end in ends] == [("interrupted", 1), ("ok", 2)]
    assert ends[0].log is not None


def test_boots_that_failed_are_evidence_and_stay(harness, monkeypatch):
    """One arm's engine ends with code 1, the other's runs on: neither is a refusal of the build."""
    from dsbench import judge as judging
    from dsbench.errors import InputError

    def judge(plan, records):
        raise InputError("planted")

    monkeypatch.setenv("FAKE_FAULT", "exit")
    monkeypatch.setattr(judging, "judge", judge)
    assert harness.refused(*AB) == f"dsbench: planted{KEPT}dsbench judge {harness.folder}"
    assert set(harness.ended().values()) == {"failed"}
