"""Effects on synthetic values with known answers, and from records as they are stored."""

import math
import random
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.effects import _additive, contrasts, effects
from dsbench.evidence import gather
from dsbench.judge import judge
from dsbench.matrices import design
from dsbench.report.effects import effect_lines

FREE = ["mtp_hidden_skip", "mhc_residual_reuse", "mhc_input_reuse", "dflash_staging_skip", "q_in_place"]
A, B, C, D, E = FREE
BYTES = st.integers(-(2**34), 2**34)


def arms(kind, factors):
    made = design(factors, kind)
    return made.matrix, [frozenset(), *(frozenset(cell.factors) for cell in made.cells)]


def estimates(kind, factors, value):
    matrix, cells = arms(kind, factors)
    values = {cell: value(cell) for cell in cells}
    made = contrasts(matrix, cells)
    return {(c.kind, c.toggles): c.estimate(values) for c in made}, _additive(made, values)


@given(st.lists(BYTES, min_size=5, max_size=5), BYTES, st.integers(3, 5), st.sampled_from(["full", "half"]))
def test_additive_bytes_give_back_every_effect_to_the_byte(saved, base, k, kind):
    of = dict(zip(FREE, saved, strict=True))
    found, additive = estimates(kind, FREE[:k], lambda cell: base + sum(of[name] for name in cell))
    for (what, toggles), estimate in found.items():
        assert estimate == (of[toggles[0]] if what == "main" else 0)
    assert additive is (None if (kind, k) == ("half", 3) else True)
    assert {t for what, t in found if what == "main"} == {(name,) for name in FREE[:k]}
    assert len(found) == k + (0 if (kind, k) == ("half", 3) else math.comb(k, 2))


@given(st.lists(BYTES, min_size=4, max_size=4), st.integers(1, 2**30), st.sampled_from(list(combinations(FREE[:4], 2))))
def test_the_pair_that_interacts_is_named_by_how_much(saved, extra, pair):
    of = dict(zip(FREE, saved, strict=False))

    def value(cell):
        return sum(of[name] for name in cell) + (extra if set(pair) <= cell else 0)

    full, additive = estimates("full", FREE[:4], value)
    assert additive is False
    assert {toggles: e for (what, toggles), e in full.items() if what == "interaction" and e} == {pair: extra}
    for name in FREE[:4]:
        assert full["main", (name,)] == of[name] + (extra / 2 if name in pair else 0)
    # Resolution IV: the same figure stands at the pair and at the two others, and is said to be mixed.
    half, additive = estimates("half", FREE[:4], value)
    others = tuple(name for name in FREE[:4] if name not in pair)
    assert additive is False
    assert {toggles for (what, toggles), e in half.items() if what == "interaction" and e} == {pair, others}
    assert half["interaction", pair] == extra


def test_a_half_of_five_tells_two_way_interactions_apart():
    found, additive = estimates("half", FREE, lambda cell: 7 * len(cell) + (5 if {A, D} <= cell else 0))
    assert {key: e for key, e in found.items() if key[0] == "interaction" and e} == {("interaction", (A, D)): 5}
    assert additive is False


def test_mixed_effects_are_named():
    mixed = {
        k: {c.toggles: c.mixed_with for c in contrasts(*arms("half", FREE[:k])) if c.mixed_with} for k in (3, 4, 5)
    }
    assert mixed[3] == {
        (A,): f"minus half of {B} x {C}",
        (B,): f"minus half of {A} x {C}",
        (C,): f"minus half of {A} x {B}",
    }
    assert mixed[4][A, B] == f"plus {C} x {D}"
    assert len(mixed[4]) == 6
    assert mixed[5] == {}


@given(st.tuples(BYTES, BYTES, BYTES), st.integers(-(2**30), 2**30))
def test_half_of_three_reads_each_effect_minus_half_of_the_other_pair(saved, extra):
    """Against the full factorial of the same engine: what is told of the sign and the size is what comes out."""
    of = dict(zip(FREE, saved, strict=False))

    def value(cell):
        return sum(of[name] for name in cell) + (extra if {B, C} <= cell else 0)

    full, _ = estimates("full", FREE[:3], value)
    half, _ = estimates("half", FREE[:3], value)
    assert half["main", (A,)] == full["main", (A,)] - full["interaction", (B, C)] / 2 == of[A] - extra / 2
    for name in (B, C):
        assert half["main", (name,)] == full["main", (name,)]


def test_a_mixed_figure_says_how_it_is_mixed(make_plan, make_records):
    """Two toggles save 1,000 B together and nothing alone: the third has minus 500 B, and is said to."""
    plan = make_plan(*FREE[:3], matrix="half")

    def values(boot, key):
        if key == "kv.peak_activation_bytes":
            return 1_000_000 + 1_000 * ({B, C} <= set(plan.arm(boot.arm).toggles))
        return None

    lines = list(effect_lines([of_records(plan, make_records, values)["kv.peak_activation_bytes"]]))
    assert f"{A} (minus half of {B} x {C}) -500" in lines[1]
    assert "cannot be told apart" in lines[0]


@given(st.lists(BYTES, min_size=4, max_size=4))
def test_ladder_steps_and_what_each_gives_given_the_rest(saved):
    of = dict(zip(FREE, saved, strict=False))
    table = {}

    def value(cell):  # not additive at all: any table will do
        return table.setdefault(cell, sum(of[name] for name in cell) + 3 * len(cell) ** 2)

    steps, _ = estimates("ladder", FREE[:4], value)
    assert sum(steps.values()) == value(frozenset(FREE[:4])) - value(frozenset())
    rest, _ = estimates("leave-one-out", FREE[:4], value)
    everything = frozenset(FREE[:4])
    assert rest == {("given the rest", (name,)): value(everything) - value(everything - {name}) for name in FREE[:4]}


def test_arms_that_cannot_be_leave_the_effects_that_can():
    matrix, cells = arms("full", ["mtp_hidden_skip", "mhc_final_fused", "mhc_input_reuse"])
    found = {(c.kind, c.toggles): len(c.terms) for c in contrasts(matrix, cells)}
    assert found == {
        ("main", ("mtp_hidden_skip",)): 2,
        ("main", ("mhc_final_fused",)): 2,
        ("main", ("mhc_input_reuse",)): 3,
        ("interaction", ("mtp_hidden_skip", "mhc_input_reuse")): 1,
        ("interaction", ("mhc_final_fused", "mhc_input_reuse")): 1,
    }


# --- from records ---------------------------------------------------------------------------------------------------


def of_records(plan, make_records, values):
    boots = gather(plan, make_records(plan, values))
    return {entry.metric: entry for entry in effects(plan, [b for b in boots if b.planned.phase == "measured"])}


def test_bytes_from_records(make_plan, make_records):
    plan = make_plan(B, C, matrix="full")
    found = of_records(plan, make_records, lambda boot, key: None)["kv.peak_activation_bytes"]
    expected = {arm.name: arm.expected["kv.peak_activation_bytes"] for arm in plan.arms[1:]}
    assert (found.exact, found.additive) == (True, True)
    assert [effect.estimate for effect in found.effects] == [expected[B], expected[C], 0]
    lines = list(effect_lines([found]))
    assert lines[1] == (
        f"kv.peak_activation_bytes rank 0 B: {B} {expected[B]:+,}, {C} {expected[C]:+,}; additive to the byte"
    )
    assert len(lines) == 2


def test_an_interaction_is_said(make_plan, make_records):
    plan = make_plan(B, C, matrix="full")

    def values(boot, key):
        if key == "kv.peak_activation_bytes":
            return 1_000_000 - 700 * len(plan.arm(boot.arm).toggles) ** 2
        return None

    lines = list(effect_lines([of_records(plan, make_records, values)["kv.peak_activation_bytes"]]))
    assert lines[1].endswith(f"{B} -1,400 (from -2,100 to -700), {C} -1,400 (from -2,100 to -700); not additive")
    assert lines[2].endswith(f"{B} x {C} -1,400")


def test_speeds_are_tested_by_block(make_plan, make_records):
    plan = make_plan(B, C, matrix="full", blocks=8)
    rng = random.Random(3)
    of_block = [100 * math.exp(rng.gauss(0, 0.3)) for _ in range(9)]

    def values(boot, key):
        if key != "decode.tps.c1" or boot.block is None:
            return None
        factor = 0.9 if B in plan.arm(boot.arm).toggles else 1.0
        return of_block[boot.block] * factor * math.exp(rng.gauss(0, 0.004))

    found = of_records(plan, make_records, values)
    slow, same, both = found["decode.tps.c1"].effects
    assert slow.estimate == pytest.approx(-0.1, abs=0.01)  # the blocks' own spread is gone
    assert slow.p == pytest.approx(2 / 2**8)
    assert slow.interval[0] < slow.estimate < slow.interval[1] < -0.09
    assert abs(same.estimate) < 0.01
    assert same.p > 0.05
    assert both.kind == "interaction"
    assert both.p > 0.05
    assert "kv.weights_bytes" not in found, "nothing moves it"
    assert any("not corrected for their number" in line for line in effect_lines(list(found.values())))


def test_the_verdict_carries_effects_and_a_void_one_none(make_plan, make_records):
    plan = make_plan(B, C, matrix="ladder")
    records = make_records(plan)
    verdict = judge(plan, records)
    assert verdict.effects[0].metric == "kv.peak_activation_bytes"
    broken = judge(plan, [r for r in records if r.record != "check"])
    assert broken.word == "void"
    assert broken.effects == []


def test_without_a_matrix_there_are_none(make_plan, make_records):
    assert of_records(make_plan(B, C), make_records, lambda boot, key: None) == {}
