"""Experiments over two nodes of this machine: real units, lost nodes, stopped drivers, and what is judged of them."""

import os
import shutil
import stat
import sys

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.engines.strays import strays
from dsbench.errors import InputError, ResultsLost
from dsbench.evidence import gather
from dsbench.execute import execute
from dsbench.fingerprint import fingerprint
from dsbench.judge import judge
from dsbench.pool.hosts import Ended, Files, Line
from dsbench.pool.spread import spread
from dsbench.pool.unit import run_unit
from dsbench.record_lines import record_of
from dsbench.suite import load_suite
from tests.dsbench.pool.local_pool import FAKE, LocalPool

KV = load_suite("kv").model_copy(update={"warmup_boots": 0})
WARMED = load_suite("kv")


@pytest.fixture
def pooled(make_plan, fake, tmp_path):
    """A plan of a pool, and its folder; `fake` sets the fake engine's environment."""

    def build(suite=KV, **options):
        plan = make_plan(suite=suite, **options).model_copy(update={"pool": "ray"})
        return plan, store.create(plan, tmp_path)

    return build


def run(plan, folder, **options):
    spread(plan, folder, LocalPool(**options), quiet=True)
    return store.load_records(folder)[0]


def hosts_by_block(plan, records):
    found = {}
    for boot in gather(plan, records):
        found.setdefault(boot.planned.block, set()).add(boot.host)
    return found


def exact_rows(verdict):
    return [(row.arm, row.metric, row.word, row.baseline, row.candidate, row.delta) for row in verdict.rows]


def test_the_end_of_a_unit_is_told_when_its_place_is_free(pooled, monkeypatch, tmp_path):
    """Whoever hears it may begin the next unit there at once."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "places"))
    plan, _ = pooled(blocks=1)
    for message in run_unit(plan, "a", FAKE):
        places = list((tmp_path / "places").glob(f"*/{plan.id}-a"))
        assert len(places) == (0 if isinstance(message, Ended) else 1)
    assert isinstance(message, Ended)


def test_units_run_in_a_folder_that_nobody_else_reads_or_has_made(pooled, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "places"))
    (tmp_path / "places").mkdir()
    (folder := tmp_path / "places" / f"dsbench-pool-{os.getuid()}").mkdir(mode=0o777)
    plan, _ = pooled(blocks=1)
    for _ in run_unit(plan, "a", FAKE):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.rmdir()
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="somebody else's, or a link"):
        next(run_unit(plan, "a", FAKE))
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_blocks_are_whole_and_the_verdict_is_that_of_one_machine(pooled, fake, make_plan, tmp_path):
    plan, folder = pooled(blocks=4)
    records = run(plan, folder)
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    blocks = hosts_by_block(plan, records)
    assert {len(hosts) for hosts in blocks.values()} == {1}
    assert set().union(*blocks.values()) == {"host1", "host2"}
    assert [host.name for host in verdict.hosts] == ["host1", "host2"]
    local = store.create(plan.model_copy(update={"pool": None}), tmp_path / "local")
    execute(plan, local, command=fake, quiet=True)
    assert exact_rows(judge(plan, store.load_records(local)[0])) == exact_rows(verdict)
    row = next(row for row in verdict.rows if row.metric == "kv.peak_activation_bytes")
    assert (row.by_host.effects, row.by_host.differs) == ({"host1": -32768.0, "host2": -32768.0}, False)
    assert row.by_host.blocks == {
        host: sum(hosts == {host} for hosts in blocks.values()) for host in ("host1", "host2")
    }


def test_a_result_of_a_pool_has_the_form_of_any_other(pooled):
    plan, folder = pooled()
    records = run(plan, folder)
    for boot in gather(plan, records):
        log = folder / boot.ended.log
        assert log.stat().st_size == boot.ended.log_bytes > 0
        assert {path.name for path in log.parent.iterdir()} == {
            "conditions.rank0.json", "engine.log", "kv_profile.rank0.json", "markers.rank0.json",
        }  # fmt: skip
    lines = (folder / "records.jsonl").read_bytes().splitlines()
    assert [record_of(line) for line in lines] == records
    line = next(line for line in lines if b'"record":"conditions"' in line)  # nodes take turns as they come
    with pytest.raises(ValueError, match="checksum is not that"):
        record_of(line.replace(b"conditions", b"Conditions"))
    with pytest.raises(ValueError, match="no checksum"):
        record_of(b"{}")


def test_every_host_has_warm_ups_of_its_own(pooled):
    plan, folder = pooled(WARMED, blocks=4)
    pool = LocalPool()
    spread(plan, folder, pool, quiet=True)
    records = store.load_records(folder)[0]
    assert {node: next(boots for name, boots in pool.begun if name == node) for node in "ab"} == {
        "a": [1, 2], "b": [1, 2],
    }  # fmt: skip
    boots = gather(plan, records)
    warm = [(boot.number, boot.host) for boot in boots if boot.planned.phase == "warm-up"]
    assert sorted(warm) == [(1, "host1"), (1, "host2"), (2, "host1"), (2, "host2")]
    assert judge(plan, records).void == []
    assert not any("repeated after" in note for note in judge(plan, records).notes)
    cold = [x for x in records if not (isinstance(x, r.BootEnded) and (x.boot, x.attempt) == (1, 2))]
    assert [reason.code for reason in judge(plan, cold).void] == ["boot-missing"]


def lose_in_block(node, kind, boot_is_second=True):
    """Lose `node` in its first block: at the start of its second boot, when one has ended well."""
    seen = {"ended": 0}

    def loses(name, message):
        if name != node or not isinstance(message, Line):
            return False
        record = record_of(message.content)
        seen["ended"] += isinstance(record, r.BootEnded)
        return seen["ended"] == 1 and isinstance(record, kind)

    return loses


@pytest.mark.parametrize("kind", [r.BootStarted, r.Observation])
def test_the_block_of_a_lost_node_runs_again_whole(pooled, kind):
    plan, folder = pooled(blocks=4)
    records = run(plan, folder, loses=lose_in_block("b", kind))
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    assert {host for hosts in hosts_by_block(plan, records).values() for host in hosts} == {"host1"}
    lost = {x.boot: x.attempt for x in records if isinstance(x, r.BootStarted) and x.host == "host2"}
    ends = {(x.boot, x.attempt): x for x in records if isinstance(x, r.BootEnded)}
    whole = min(lost)
    superseded = [ends[whole_boot, attempt] for whole_boot, attempt in lost.items()]
    assert {end.status for end in superseded} == {"interrupted"}
    assert (
        sum("superseded, for its block runs again whole: host2 was lost: planted" in e.reason for e in superseded) == 1
    )
    kept = [x for x in records if isinstance(x, r.Observation) and x.attempt == 1 and x.boot in lost]
    assert kept, "what a superseded boot read is kept"
    assert ends[whole, 2].status == "ok"
    assert any("boots repeated after an interruption" in note for note in verdict.notes)
    assert (folder / ends[whole, 2].log).parent.name.endswith("-attempt2")


@pytest.mark.parametrize("spoil", ["lost", "doubled", "changed"])
def test_a_node_whose_lines_do_not_arrive_as_written_is_lost(pooled, spoil):
    plan, folder = pooled(blocks=2)
    seen = {"lines": 0}

    class Spoiling(LocalPool):
        """The fifth line of node b is lost, comes twice, or is another one."""

        def next(self, seconds):
            again = self.__dict__.pop("again", None)
            node, message = found = again or super().next(seconds) or (None, None)
            if node is None or node.id != "b" or not isinstance(message, Line) or again:
                return found if node else None
            seen["lines"] += 1
            if seen["lines"] != 5:
                return found
            if spoil == "doubled":
                self.again = found
            changed = Line(message.content.replace(b'"boot":', b'"boot": '))
            return {"lost": None, "doubled": found, "changed": (node, changed)}[spoil]

    spread(plan, folder, Spoiling(), quiet=True)
    assert seen["lines"] >= 5
    records = store.load_records(folder)[0]
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    assert {host for hosts in hosts_by_block(plan, records).values() for host in hosts} == {"host1"}
    reasons = {x.reason for x in records if isinstance(x, r.BootEnded) and x.status == "interrupted"}
    assert any("host2 was lost: a line that it told is damaged: it" in reason for reason in reasons)


def test_no_half_block_is_judged(pooled):
    """Without its second run a lost block is void, though one of its boots had ended well."""
    plan, folder = pooled(blocks=4)
    records = run(plan, folder, loses=lose_in_block("b", r.BootStarted))
    first_tries = [x for x in records if isinstance(x, r.Run) or x.attempt == 1]
    assert {reason.code for reason in judge(plan, first_tries).void} == {"boot-failed"}


def test_a_pool_without_a_host_left_stops_and_goes_on_with_new_ones(pooled):
    plan, folder = pooled(WARMED, blocks=2)
    ends = {"a": 0, "b": 0}

    def all_lost(name, message):
        ends[name] += isinstance(message, Line) and isinstance(record_of(message.content), r.BootEnded)
        return ends[name] > 2

    with pytest.raises(
        ResultsLost, match="no host of the pool is left; start nodes and go on with: dsbench ab --resume"
    ):
        run(plan, folder, loses=all_lost)
    assert judge(plan, store.load_records(folder)[0]).word == "void"
    before = (folder / "records.jsonl").read_bytes()
    records = run(plan, folder, names=("c", "d"))
    assert (folder / "records.jsonl").read_bytes().startswith(before)
    verdict = judge(plan, records)
    assert (verdict.word, verdict.void) == ("improved", [])
    assert {host.name for host in verdict.hosts} == {"host3", "host4"}


def test_a_stopped_driver_goes_on_where_blocks_are_whole(pooled):
    plan, folder = pooled(WARMED, blocks=3)
    done = {"ended": 0}

    def interrupt(name, message):
        done["ended"] += isinstance(message, Ended)
        if done["ended"] == 4:
            raise KeyboardInterrupt
        return False

    class Interrupting(LocalPool):
        def next(self, seconds):
            found = super().next(seconds)
            if found:
                interrupt(*found)
            return found

    with pytest.raises(KeyboardInterrupt):
        spread(plan, folder, Interrupting(), quiet=True)
    started = [x for x in store.load_records(folder)[0] if isinstance(x, r.BootStarted)]
    ended = [x for x in store.load_records(folder)[0] if isinstance(x, r.BootEnded)]
    assert {(x.boot, x.attempt) for x in started} == {(x.boot, x.attempt) for x in ended}
    whole = {boot.number for boot in gather(plan, store.load_records(folder)[0]) if boot.ok and boot.planned.block}
    pool = LocalPool()
    spread(plan, folder, pool, quiet=True)
    again = {boot for _, boots in pool.begun for boot in boots}
    assert not again & whole
    assert not again & {1, 2}, "a node that is still there is warm"
    verdict = judge(plan, store.load_records(folder)[0])
    assert (verdict.word, verdict.void) == ("improved", [])


def test_folders_of_boots_that_the_records_lost_stay_as_they_are(pooled):
    plan, folder = pooled(blocks=1)
    run(plan, folder)
    left = {path: path.read_bytes() for path in folder.rglob("engine.log")}
    lines = (folder / "records.jsonl").read_bytes().splitlines(keepends=True)
    (folder / "records.jsonl").write_bytes(lines[0])
    records = run(plan, folder)
    assert {boot.ended.attempt for boot in gather(plan, records)} == {2}
    assert left.items() < {path: path.read_bytes() for path in folder.rglob("engine.log")}.items()


def test_hosts_that_differ_are_told_and_not_taken_for_the_planned_machine(pooled):
    other = fingerprint().model_copy(update={"cpu": "another"})
    plan, folder = pooled(blocks=4)
    verdict = judge(plan, run(plan, folder, machines={"b": other}))
    (told,) = [note for note in verdict.notes if note.startswith("hosts differ")]
    assert "host1 -> host2: cpu" in told
    assert told.endswith("another; effects are those inside blocks, each on one host")
    equal = plan.model_copy(update={"id": "equal", "fingerprint": fingerprint()})
    with pytest.raises(InputError, match=r"host2 is not like the hosts of the plan .*: start anew"):
        run(equal, store.create(equal, folder.parent), machines={"b": other})


def test_a_build_that_is_refused_ends_the_experiment(pooled, tmp_path):
    plan, folder = pooled(engine_args=["--dims", "pico", "--bogus"])
    with pytest.raises(InputError, match=r"host1: the engine refuses this build: .*--bogus"):
        run(plan, folder, names=("a",))


def test_an_engine_that_fails_on_a_host_is_a_failed_boot(pooled, monkeypatch):
    monkeypatch.setenv("FAKE_FAULT", "exit@mhc_input_reuse")
    plan, folder = pooled()
    verdict = judge(plan, run(plan, folder))
    assert {reason.code for reason in verdict.void} == {"boot-failed", "not-run"}


def test_a_unit_that_is_left_ends_its_engine(pooled, monkeypatch, tmp_path):
    monkeypatch.setenv("FAKE_FAULT", "hang-boot")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    plan, _ = pooled()
    messages = run_unit(plan.model_copy(update={"pool": None}), "node", FAKE)
    kinds = [type(record_of(next(messages).content)) for _ in range(2)]
    assert kinds == [r.Run, r.BootStarted]
    (place,) = tmp_path.glob("dsbench-pool-*/*")
    while not strays(place):
        pass
    messages.close()
    assert strays(place) == []
    assert not place.exists()


def test_the_folder_of_a_boot_comes_before_its_last_line(pooled):
    plan, _ = pooled()
    unit = plan.model_copy(update={"pool": None, "boots": plan.boots[:1]})
    messages = list(run_unit(unit, "node", FAKE))
    assert [type(message) for message in messages[-3:]] == [Files, Line, Ended]
    assert messages[-1] == Ended(0)


def test_a_harness_that_crashes_says_its_last_line(pooled):
    plan, folder = pooled()
    harness = (sys.executable, "-c", "import sys; sys.exit('planted crash')")
    with pytest.raises(ResultsLost, match="host1: planted crash; mend it and go on with: dsbench ab --resume"):
        run(plan, folder, names=("a",), harness=harness)
    shutil.rmtree(folder)


# --- engines that are killed ------------------------------------------------------------------------------------------


def ends_by_boot(records):
    found = {}
    for record in records:
        if isinstance(record, r.BootEnded):
            found.setdefault(record.boot, []).append(record)
    return found


def test_the_block_of_an_engine_that_was_killed_runs_again_whole(pooled, monkeypatch):
    """Once: where the engine of the same boot is killed again it stays failed."""
    plan, folder = pooled(blocks=2)
    (killed,) = [boot for boot in plan.boots if (boot.block, boot.arm) == (1, "mhc_input_reuse")]
    (beside,) = [boot for boot in plan.boots if (boot.block, boot.arm) == (1, "baseline")]
    monkeypatch.setenv("FAKE_FAULT", f"killed@{killed.folder}")
    assert judge(plan, run(plan, folder)).word == "void"
    monkeypatch.setenv("FAKE_FAULT", "")
    pool = LocalPool()
    spread(plan, folder, pool, quiet=True)
    assert [boots for _, boots in pool.begun] == [[boot.number for boot in plan.boots if boot.block == 1]]
    records = store.load_records(folder)[0]
    ends = ends_by_boot(records)
    assert [end.status for end in ends[killed.number]] == ["failed", "interrupted", "ok"]
    marks = [ends[boot.number][1] for boot in (killed, beside)]
    told = "its engine was killed by signal 9 (SIGKILL); repeated"
    assert [mark.reason for mark in marks] == [told, f"superseded, for its block runs again whole: {told}"]
    assert [mark.killed_by for mark in marks] == [9, None]
    verdict = judge(plan, records)
    assert verdict.void == []
    assert f"boots repeated after their engine was killed: {killed.number} (signal 9 (SIGKILL))" in verdict.notes
    assert f"boots repeated after an interruption: {beside.number}" in verdict.notes


def test_a_boot_of_a_pool_whose_engine_is_killed_again_stays_failed(pooled, monkeypatch):
    plan, folder = pooled(blocks=1)
    monkeypatch.setenv("FAKE_FAULT", "killed@mhc_input_reuse")
    run(plan, folder)
    assert judge(plan, run(plan, folder)).word == "void"
    pool = LocalPool()
    spread(plan, folder, pool, quiet=True)
    assert pool.begun == []


def test_a_block_with_a_boot_that_failed_by_itself_stays_as_evidence(pooled, monkeypatch):
    plan, folder = pooled(blocks=1)
    monkeypatch.setenv("FAKE_FAULT", "killed")
    records = run(plan, folder)
    first = next(x for x in records if isinstance(x, r.BootEnded))
    with store.RecordWriter(folder) as writer:
        writer.write(first.model_copy(update={"killed_by": None, "reason": "engine ended with code 3"}))
    pool = LocalPool()
    spread(plan, folder, pool, quiet=True)
    assert pool.begun == []


def test_a_host_whose_warm_up_was_killed_is_warmed_again_with_its_blocks(pooled, monkeypatch):
    plan, folder = pooled(WARMED, blocks=1)
    monkeypatch.setenv("FAKE_FAULT", f"killed@-b/boots/{plan.boots[0].folder}")
    assert judge(plan, run(plan, folder, names=("b",))).word == "void"
    monkeypatch.setenv("FAKE_FAULT", "")
    pool = LocalPool(names=("b",))
    spread(plan, folder, pool, quiet=True)
    warmups, block = ([boot.number for boot in plan.boots if boot.block == n] for n in (None, 1))
    assert pool.begun == [("b", warmups), ("b", block)]
    verdict = judge(plan, store.load_records(folder)[0])
    assert verdict.void == []
    told = "they ran without their warm-up, whose engine was killed, and so are held to be cold"
    assert f"boots repeated after {told}: {', '.join(map(str, block))}" in verdict.notes
    assert "boots repeated after their engine was killed: 1 (signal 9 (SIGKILL))" in verdict.notes
