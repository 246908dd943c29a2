"""Experiments that may stop at a look: what the judge sees of them, and when they stop."""

import math
import random

import pytest

from dsbench.errors import InputError
from dsbench.judge import judge, resolved
from dsbench.looks import as_reached, at_look, looks_reached
from dsbench.records import BootEnded
from dsbench.suite import load_suite


@pytest.fixture
def plan(make_plan):
    return make_plan(until_resolved=12)


def up_to(plan, records, block, status="ok"):
    """Records of all boots up to a block; the ends of the last block's boots have a status."""
    keep = {b.number for b in plan.boots if b.block is None or b.block <= block}
    last = {b.number for b in plan.boots if b.block == block}
    kept = [r for r in records if not hasattr(r, "boot") or r.boot in keep]
    return [r.model_copy(update={"status": status}) if isinstance(r, BootEnded) and r.boot in last else r for r in kept]


def test_the_plan_stores_its_looks(plan):
    assert [look.blocks for look in plan.looks] == [9, 12]
    first, last = plan.looks
    assert first.alpha < 0.025 < last.alpha < 0.05
    assert 0.9 < last.equivalence_confidence < first.equivalence_confidence
    assert plan.blocks == 12


def test_too_few_blocks_for_any_look(make_plan):
    with pytest.raises(InputError, match="--until-resolved 5: no test"):
        make_plan(until_resolved=5)


def test_a_look_counts_once_all_its_boots_have_ended(plan, make_records):
    records = make_records(plan)
    assert looks_reached(plan, up_to(plan, records, 8)) == 0
    assert looks_reached(plan, up_to(plan, records, 9)) == 1
    assert looks_reached(plan, up_to(plan, records, 9, "interrupted")) == 0
    assert looks_reached(plan, up_to(plan, records, 9, "failed")) == 1
    assert looks_reached(plan, up_to(plan, records, 11)) == 1
    assert looks_reached(plan, records) == 2


def test_the_judge_takes_the_level_of_the_look(plan, make_records):
    records = make_records(plan)
    early = judge(plan, up_to(plan, records, 9))
    assert early.word != "void", "blocks that were never started are not missing"
    row = next(row for row in early.rows if row.metric == "decode.tps.c1")
    assert row.blocks == 9
    assert row.confidence >= plan.looks[0].equivalence_confidence
    assert "look 1 of 2, at 9 of 12 blocks: tested at 0.01" in early.notes[-1] + early.notes[0]
    # What came after the look was not looked at.
    assert judge(plan, up_to(plan, records, 11)).rows == early.rows
    assert judge(plan, up_to(plan, records, 8)).word == "void"
    assert next(r for r in judge(plan, records).rows if r.metric == "decode.tps.c1").blocks == 12


def test_a_change_that_the_plain_test_sees_is_not_enough_at_a_look(plan, make_records):
    """Eight of nine blocks agree, the ninth says more: p is .039, below .05 and above the look's level.

    Of one guard alone; among several it would need a smaller p anyway.
    """
    plan = plan.model_copy(update={"guards": ["decode.tps.c1"]})

    def values(boot, key):
        if key == "decode.tps.c1" and boot.block:
            step = 0.96 if boot.block != 1 else 1.06
            return 100.0 * (1 + 0.001 * boot.number / 99) * (step if boot.arm != "baseline" else 1)
        return None

    records = up_to(plan, make_records(plan, values), 9)

    def row(of_plan):
        return next(row for row in judge(of_plan, records).rows if row.metric == "decode.tps.c1")

    plain = at_look(plan, 1).model_copy(update={"alpha": 0.05, "looks": []})
    assert plan.looks[0].alpha < row(plain).p < 0.05
    assert (row(plain).word, row(plan).word) == ("regressed", "inconclusive")


def test_a_plan_with_a_fixed_number_of_blocks_is_judged_as_it_is(make_plan, make_records):
    plan = make_plan()
    assert as_reached(plan, make_records(plan)) is plan


def test_a_look_resolves_nothing_while_a_guard_is_open(make_plan, make_records):
    """Bytes are decided at once, when speeds have been tested at a level that hardly anything passes."""
    plan = make_plan(suite=load_suite("quick"), blocks=8)

    def noisy(spread):
        def values(boot, key):
            rng = random.Random(f"{boot.number} {key}")
            return 100 * math.exp(rng.gauss(0, spread)) if "tps" in key else None

        return values

    loud, quiet = (judge(plan, make_records(plan, noisy(spread))) for spread in (0.2, 0.001))
    assert (loud.word, resolved(loud)) == ("improved", False)
    assert (quiet.word, resolved(quiet)) == ("improved", True)
    assert resolved(loud.model_copy(update={"word": "void"}))
