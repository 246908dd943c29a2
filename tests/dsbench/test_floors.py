"""Floors: what an A/A run leaves, when it counts, and when it has expired."""

import math
import random
from io import StringIO
from statistics import fmean, stdev

import pytest
from rich.console import Console

from dsbench.builds import ArmSpec
from dsbench.evidence import gather
from dsbench.fingerprint import fingerprint
from dsbench.floors import Floor, build_of, match, measure, probe_digest, save, snapshot, stored
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.report.table import floor, floor_noise, print_report
from dsbench.suite import load_suite
from impl.dims import PICO

AA = [ArmSpec("a"), ArmSpec("b")]


@pytest.fixture
def aa_plan(small):
    def build(blocks=8, seed=0, suite=small, **options):
        args = ["--dims", "pico", "--seed", str(seed)]
        return plan_experiment(
            (),
            suite,
            PICO,
            arms=options.pop("arms", AA),
            alike=True,
            blocks=blocks,
            seed=seed,
            engine_args=args,
            **options,
        )

    return build


def floors_of(plan, records):
    boots = [boot for boot in gather(plan, records) if boot.planned.phase == "measured"]
    return measure(plan, boots, fingerprint())


def by_metric(floors):
    return {floor.metric: floor for floor in floors.floors}


def test_spreads_are_those_that_were_put_in(aa_plan, make_records):
    plan = aa_plan(blocks=60)
    rng = random.Random(2)
    of_block = {block: rng.gauss(0, 0.05) for block in range(1, 61)}

    def values(boot, key):
        if key == "decode.tps.c1":
            return 100 * math.exp(of_block.get(boot.block, 0) + rng.gauss(0, 0.01))
        return None

    found = by_metric(floors_of(plan, make_records(plan, values)))
    speed = found["decode.tps.c1"]
    assert (speed.boots, speed.blocks, speed.relative) == (120, 60, True)
    assert speed.between == pytest.approx(0.05, rel=0.3)
    assert speed.paired == pytest.approx(0.01 * math.sqrt(2), rel=0.3), "what blocks share does not count"
    assert speed.within == pytest.approx(stdev([0, math.log(1.01)]), rel=0.01), "two readings, 1 % apart"
    assert 0.02 < speed.smallest_effect < speed.visible(10, 0.05, 0.02), "nothing inside the margin of 2 % is called"
    assert speed.visible(5, 0.05, 0.02) is None, "five blocks cannot say regressed"
    assert speed.noise(4) == pytest.approx(2 * speed.noise(16))
    assert "smoke.correct" not in found
    steady = found["kv.available_bytes"]
    assert (steady.between, steady.paired, steady.drift, steady.drift_p) == (0, 0, 0, None)
    assert steady.smallest_effect == steady.noise(2) == 0


def test_arms_that_differ_by_luck_are_noise_and_not_a_difference(aa_plan, make_records):
    plan = aa_plan(blocks=3)

    def values(boot, key):
        return 100 * (1.29 if boot.arm == "b" else 1) * (1 + boot.number / 1e4) if key == "decode.tps.c1" else None

    found = by_metric(floors_of(plan, make_records(plan, values)))["decode.tps.c1"]
    assert found.paired == pytest.approx(math.log(1.29), rel=0.01)
    assert found.noise(3) > 0.29


def test_drift_over_the_boots_is_seen(aa_plan, make_records):
    plan = aa_plan(blocks=8)
    rng = random.Random(4)
    measured = [boot.number for boot in plan.boots if boot.phase == "measured"]

    def values(boot, key):
        if key.startswith("decode") and boot.phase == "measured":
            slope = 0.1 / (len(measured) - 1) if key.endswith("c1") else 0.0
            return 100 * math.exp(slope * measured.index(boot.number) + rng.gauss(0, 0.002))
        return None

    found = by_metric(floors_of(plan, make_records(plan, values)))
    assert found["decode.tps.c1"].drift == pytest.approx(0.1, abs=0.01)
    assert found["decode.tps.c1"].drift_p < 0.001
    assert abs(found["decode.tps.c4"].drift) < 0.01
    assert found["decode.tps.c4"].drift_p > 0.05


def test_the_noise_of_a_floor_holds_95_per_cent_of_a_a_experiments(aa_plan, make_records):
    """Over many machines: a floor from 6 blocks, then an A/A of 5 blocks beside it."""
    rng = random.Random(6)
    plan = aa_plan(blocks=6)
    floor = by_metric(floors_of(plan, make_records(plan)))["decode.tps.c1"]
    inside = 0
    for _ in range(1500):
        spread = math.sqrt(fmean(rng.gauss(0, 0.03) ** 2 for _ in range(6)))
        mine = floor.model_copy(update={"paired": spread})
        inside += abs(sum(rng.gauss(0, 0.03) for _ in range(5)) / 5) < mine.noise(5)
    assert inside / 1500 == pytest.approx(0.95, abs=0.02)


def test_stored_and_matched(aa_plan, make_plan, make_records, tmp_path):
    aa = aa_plan(seed=5)
    floors = floors_of(aa, make_records(aa))
    path = save(floors, tmp_path)
    assert path.parent == tmp_path / "floors"
    assert stored(tmp_path) == ([floors], [])
    plan = snapshot(make_plan(), tmp_path)
    assert plan.fingerprint == fingerprint()
    assert {floor.metric for floor in plan.floors} == {floor.metric for floor in floors.floors}
    assert not any("floors" in note for note in plan.notes)


def test_another_seed_is_the_same_build_other_arguments_are_not(aa_plan, make_plan):
    def build(plan):
        return build_of(plan, plan.baseline)

    aa = aa_plan(seed=5)
    other = ["--dims", "pico", "--seed", "0", "--eager"]
    assert build(make_plan(seed=9)) == build(aa)
    assert build(make_plan(engine_args=other)) != build(aa)
    assert build(make_plan(speculative="dspark")) != build(aa)
    assert build(aa_plan(arms=[ArmSpec("a", env={"X": "/home/me"}), ArmSpec("b")])) != build(aa)
    assert "/home/me" not in build(aa_plan(arms=[ArmSpec("a", env={"X": "/home/me"}), ArmSpec("b")])).model_dump_json()


def test_without_floors_the_plan_says_how_to_get_them(make_plan, tmp_path):
    plan = snapshot(make_plan(), tmp_path)
    assert plan.floors == []
    assert (
        plan.notes[-1] == "no floors of this build on this machine: dsbench aa measures what moves when nothing changes"
    )
    assert snapshot(make_plan(suite=load_suite("kv")), tmp_path).notes == [], "exact metrics need none"


def test_floors_expire_with_the_machine_and_say_what_changed(aa_plan, make_plan, make_records, tmp_path):
    aa = aa_plan()
    floors = floors_of(aa, make_records(aa))
    old = floors.fingerprint.model_copy(update={"kernel": "5.0.0", "torch": "2.0.0"})
    save(floors.model_copy(update={"fingerprint": old}), tmp_path)
    plan = snapshot(make_plan(), tmp_path)
    now = fingerprint()
    assert plan.floors == []
    assert plan.notes[-1] == (
        f"floors of {aa.created[:10]} expired (kernel 5.0.0 -> {now.kernel}, torch 2.0.0 -> {now.torch}): "
        "measure them again with dsbench aa"
    )


def test_the_newest_floors_count_and_other_probe_settings_have_none(aa_plan, make_plan, make_records, small):
    aa = aa_plan()
    older = floors_of(aa, make_records(aa))
    newer = older.model_copy(update={"floors": [f.model_copy(update={"centre": 1.5}) for f in older.floors]})
    plan = make_plan()
    assert {floor.centre for floor in match(plan, [newer, older], fingerprint())[0]} == {1.5}
    decode = small.probes.decode.model_copy(update={"tokens": 12})
    changed = small.model_copy(update={"probes": small.probes.model_copy(update={"decode": decode})})
    plan = make_plan(suite=changed)
    found = {floor.metric for floor in match(plan, [newer], fingerprint())[0]}
    assert "prefill.tps.64" in found
    assert "decode.tps.c1" not in found
    assert probe_digest(plan, "no.metric") == ""


def test_a_file_that_is_no_floor_is_told_and_left_alone(tmp_path):
    (tmp_path / "floors").mkdir()
    (tmp_path / "floors" / "x.json").write_text("{}")
    found, notices = stored(tmp_path)
    assert found == []
    assert len(notices) == 1
    assert "x.json holds no floors that this version reads" in notices[0]


def test_the_table_prints_the_floor_beside_each_difference(aa_plan, make_plan, make_records, tmp_path):
    aa = aa_plan()
    save(floors_of(aa, make_records(aa)), tmp_path)
    plan = snapshot(make_plan(blocks=6), tmp_path)
    verdict = judge(plan, make_records(plan))
    rows = {row.metric: floor(plan, row) for row in verdict.rows}
    assert rows["kv.available_bytes"] == "±0 B"
    assert rows["decode.tps.c1"].startswith("±0.")
    assert rows["smoke.correct"] == ""
    text = StringIO()
    print_report(plan, verdict, Console(file=text, width=1000))
    assert "floor" in text.getvalue().splitlines()[3]
    assert "95 % of A/A experiments of so many blocks differ by less" in text.getvalue()


@pytest.mark.parametrize(("change", "word"), [(0.03, "inconclusive"), (0.1, "regressed")])
def test_nothing_is_claimed_below_the_floor(make_plan, make_records, change, word):
    """All blocks agree to a tenth of a percent on this loss, and A/A experiments of as many move by 4 %."""
    plan = make_plan(blocks=8)
    known = {"unit": "tok/s", "probe": "", "boots": 12, "blocks": 6, "centre": 100, "drift": 0}
    speed = Floor(metric="decode.tps.c1", rank=None, relative=True, between=0.05, paired=0.05, **known)
    assert 0.04 < speed.noise(8) < 0.045

    def values(boot, key):
        if key != "decode.tps.c1":
            return None
        return 100 * math.exp((0.001 * boot.block if boot.block else 0) - (boot.arm != "baseline") * change)

    def row(floors):
        verdict = judge(plan.model_copy(update={"floors": floors}), make_records(plan, values))
        return next(row for row in verdict.rows if row.metric == "decode.tps.c1")

    assert row([]).word == "regressed"
    assert row([speed]).word == word
    assert any("the floor" in note for note in row([speed]).notes) == (word == "inconclusive")


def test_a_row_of_a_rank_has_the_floor_of_that_rank(make_plan, make_records):
    plan = make_plan(blocks=6)
    row = next(row for row in judge(plan, make_records(plan)).rows if row.metric == "decode.tps.c1")
    known = {"unit": "tok/s", "probe": "", "boots": 12, "blocks": 6, "centre": 100, "drift": 0, "between": 0.1}
    floors = [Floor(metric=row.metric, rank=rank, relative=True, paired=0.01 + rank, **known) for rank in (0, 1)]
    plan = plan.model_copy(update={"floors": floors})
    noises = [floor_noise(plan, row.model_copy(update={"rank": rank})) for rank in (0, 1, 2, None)]
    assert [found and found[0].rank for found in noises] == [0, 1, None, 0]
