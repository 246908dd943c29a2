"""Which claims stand among many: improvements over the experiment, losses over an arm's primaries or guards."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.claims import corrected, is_unproven_gain
from dsbench.compare import compare
from dsbench.metrics import metric
from dsbench.plan import plan_experiment
from dsbench.records import Verdict
from dsbench.simulation.comparing import boot, reading, two_arms
from dsbench.stats.power import smallest_effect
from dsbench.suite import load_suite
from impl.dims import PICO

PLAN = plan_experiment(["mhc_input_reuse"], load_suite("quick"), PICO)
ARM = PLAN.arms[1].name
ALPHA = PLAN.alpha


def a_row(p, role="guard", loss=True, word=None, arm=ARM, **fields):
    """A row whose test gave p and, from `loss`, a change to the bad or the good side beyond the margin."""
    word = word or (("regressed" if loss else "improved") if p <= ALPHA else "inconclusive")
    facts = {"metric": "decode.tps.c1", "unit": "tok/s", "better": "up", "rank": None, "kind": "sample", "arm": arm}
    return Verdict.model_validate(
        {**facts, "role": role, "word": word, "p": p, "delta": -1.0 if loss else 1.0, "smallest_p": 1e-4, **fields}
    )


def words(*rows, plan=PLAN):
    return [row.word for row in corrected(plan, rows)]


def test_a_lone_primary_has_alpha_and_a_lone_guard_four_fifths_of_it():
    assert words(a_row(0.05, "primary"), a_row(0.04)) == ["regressed", "regressed"]
    assert words(a_row(0.05, "primary"), a_row(0.041)) == ["regressed", "inconclusive"]


def test_guards_share_alpha_step_by_step():
    assert words(a_row(0.01), a_row(0.015), a_row(0.03), a_row(0.5)) == ["regressed"] + ["inconclusive"] * 3
    assert words(a_row(0.01), a_row(0.012), a_row(0.02), a_row(0.5)) == ["regressed"] * 3 + ["inconclusive"]


def test_the_primary_costs_the_guards_nothing_and_they_cost_it_nothing():
    rows = [a_row(0.04, "primary"), *[a_row(0.5)] * 9, a_row(0.04, "shown"), a_row(0.04, "drift control")]
    assert words(*rows) == ["regressed", *["inconclusive"] * 9, "regressed", "regressed"]


def test_several_primaries_are_a_family():
    rows = corrected(PLAN, [a_row(0.04, "primary"), a_row(0.04, "primary")])
    assert [(row.word, row.p_holm) for row in rows] == [("inconclusive", 0.08)] * 2
    assert rows[0].notes == ["p=0.04 alone; among 2 tested primaries of this arm p=0.08 (Holm), above 0.05"]


def test_what_has_no_p_is_in_no_family():
    exact = a_row(1.0, word="regressed").model_copy(update={"p": None})
    assert words(exact, a_row(0.04), *[exact] * 5) == ["regressed"] * 7


def test_a_gain_that_does_not_stand_is_no_loss_and_a_loss_that_does_not_is_open():
    gain, loss = corrected(PLAN, [a_row(0.04, loss=False), a_row(0.04)])
    assert (gain.word, is_unproven_gain(gain)) == ("inconclusive", True)
    assert (loss.word, is_unproven_gain(loss)) == ("inconclusive", False)
    assert not is_unproven_gain(a_row(0.5))


def test_p_that_is_alpha_to_the_last_digit_stands():
    """Of exact tests p and alpha may be equal: 20 claims at 1/400 are 1/20."""
    assert words(*[a_row(1 / 400, "primary")] * 20) == ["regressed"] * 20
    assert words(*[a_row(1 / 500)] * 20) == ["regressed"] * 20


@pytest.mark.parametrize(
    ("fields", "takes"),
    [
        ({"blocks": 6, "smallest_p": 1 / 32}, "at 6 blocks none can stand among so many, at 7 blocks one can"),
        ({"n_baseline": 4, "n_candidate": 4, "smallest_p": 2 / 70},
         "at 4+4 boots none can stand among so many, at 5 boots an arm one can"),
    ],
)  # fmt: skip
def test_a_family_too_large_for_this_n_says_what_it_takes(fields, takes):
    row, _ = corrected(PLAN, [a_row(fields["smallest_p"], smallest_effect=0.02, blocks_needed=5, **fields)] * 2)
    assert row.notes[0].endswith(takes)
    assert (row.smallest_effect, row.blocks_needed) == (None, int(takes.split("at ")[2].split()[0]))
    assert (row.needed_for, row.needed_effect) == ("claim", None)
    assert row.needed_unit == ("blocks" if row.blocks else "boots an arm")


@given(st.lists(st.tuples(st.floats(0.0001, 1), st.booleans(), st.sampled_from(["primary", "guard"])), max_size=8))
def test_a_claim_is_only_ever_withdrawn(drawn):
    before = [a_row(p, role, loss) for p, loss, role in drawn]
    for old, new in zip(before, corrected(PLAN, before), strict=True):
        assert new.word in (old.word, "inconclusive")
        assert (new.word == old.word) or (new.p_holm > 0.8 * ALPHA and new.notes)
        assert new.p == old.p


@pytest.mark.parametrize("guards", [1, 4, 12])
def test_by_simulation_guards_of_equal_arms_call_a_loss_in_two_percent(guards):
    rng = np.random.default_rng(guards)
    runs, wrong = 2000, 0
    for _ in range(runs):
        rows = [a_row(float(p), loss=bool(loss)) for p, loss in zip(rng.random(guards), rng.random(guards) < 0.5,
                                                                      strict=True)]  # fmt: skip
        wrong += "regressed" in words(*rows)
    assert wrong / runs <= 0.02 + 2.5 * np.sqrt(0.02 * 0.98 / runs)


# --- what rows say that they could see ------------------------------------------------------------------------------

SPEEDS = [metric(f"decode.tps.c{n}") for n in (1, 4, 8, 16)]
SPREAD, BLOCKS = 0.02, 10


def four_guards(rng, lost=0.0):
    """Corrected rows of four speeds that are guards; the first loses so much, in logarithms."""
    plan = two_arms(SPEEDS[0], BLOCKS)
    arms = [arm.model_copy(update={"primary": []}) for arm in plan.arms]
    plan = plan.model_copy(update={"metrics": SPEEDS, "guards": [speed.key for speed in SPEEDS], "arms": arms})
    boots = []
    for number in range(1, 2 * BLOCKS + 1):
        arm = "ab"[number % 2]
        levels = [100 * np.exp(rng.normal(0, SPREAD / 2**0.5) - (arm == "b" and n == 0) * lost) for n in range(4)]
        readings = [reading(speed, number, level) for speed, level in zip(SPEEDS, levels, strict=True)]
        boots.append(boot(number, arm, (number + 1) // 2, readings))
    return corrected(plan, [compare(plan, boots, plan.arms[1], speed, None, "guard") for speed in SPEEDS])


def test_by_simulation_a_guard_sees_what_it_says_among_the_others():
    margin = -np.log1p(-SPEEDS[0].margin)
    among, alone = (smallest_effect(SPREAD, BLOCKS, level, margin) for level in (0.8 * ALPHA / 4, ALPHA))
    rng = np.random.default_rng(1)
    seen, as_before = (
        np.mean([four_guards(rng, lost)[0].word == "regressed" for _ in range(200)]) for lost in (among, alone)
    )
    assert 0.70 < seen < 0.90
    assert as_before < 0.70
    told = np.median([row.smallest_effect for _ in range(5) for row in four_guards(rng) if row.smallest_effect])
    assert told == pytest.approx(np.expm1(among), rel=0.2)
