"""Verdicts of samples: what they call, what they need, and how many rows are corrected together."""

import math

import numpy as np
import pytest

from dsbench.judge import judge
from dsbench.sample_row import ALONE
from tests.dsbench.judged import CANDIDATE, PRIMARY, on, row


def tps(factor, spread=0.0, seed=1):
    """decode.tps.c1 readings: the candidate runs at `factor`, each boot with noise of relative size `spread`."""
    rng = np.random.default_rng(seed)
    noise = {n: math.exp(rng.normal(0, spread)) * (1 + 1e-9 * n) for n in range(1, 200)}
    return lambda boot, metric: (
        300.0 * noise[boot.number] * (factor if boot.arm == CANDIDATE else 1.0) if metric == "decode.tps.c1" else None
    )


@pytest.mark.parametrize(
    ("factor", "spread", "blocks", "word"),
    [
        (0.90, 0.002, 5, "inconclusive"),  # a clear loss, but 5 blocks cannot say so at 5 %
        (0.90, 0.002, 6, "inconclusive"),  # p = 0.031 alone, but four speeds are tested
        (0.90, 0.002, 8, "regressed"),
        (1.10, 0.002, 9, "improved"),
        (1.00, 0.002, 5, "equivalent"),
        (1.01, 0.001, 8, "equivalent"),  # significant, but within the margin
        (1.00, 0.08, 6, "inconclusive"),
        (1.00, 0.002, 4, "inconclusive"),  # no 90 % interval exists at 4 blocks
    ],
)
def test_samples(verdict_of, factor, spread, blocks, word):
    verdict = verdict_of(tps(factor, spread), blocks=blocks)
    decode = row(verdict, "decode.tps.c1")
    assert decode.word == word
    assert decode.blocks == blocks
    assert (decode.p is None) == (blocks < 6)
    assert (decode.interval is None) == (blocks < 5)
    assert verdict.word == ("regressed" if word == "regressed" else "improved")
    assert ("decode.tps.c1" in verdict.arms[0].unresolved_guards) == (word == "inconclusive")


def test_a_test_that_could_not_fire_is_said_not_shown(verdict_of):
    decode = row(verdict_of(tps(0.9), blocks=5), "decode.tps.c1")
    assert decode.p is None
    assert decode.smallest_p == 0.0625
    assert decode.notes == ["at 5 blocks the test cannot go below p=0.0625; improved or regressed needs 6"]
    assert decode.smallest_effect is None


def test_inconclusive_says_what_it_could_see_and_what_it_needs(verdict_of):
    decode = row(verdict_of(tps(1.0, 0.05), blocks=8), "decode.tps.c1")
    assert decode.word == "inconclusive"
    assert 0.02 < decode.smallest_effect < 0.25
    assert decode.blocks_needed > 8
    assert (decode.needed_for, decode.needed_effect) == ("equivalence", pytest.approx(0.02))
    assert decode.interval[0] < decode.relative < decode.interval[1]


def test_pairs_are_made_by_block(verdict_of):
    """Drift ten times the effect cancels inside the blocks."""

    def values(boot, metric):
        if metric != "decode.tps.c1" or boot.block is None:
            return None
        return 100.0 * 1.5**boot.block * (1.05 if boot.arm == CANDIDATE else 1.0) * (1 + 1e-7 * boot.number)

    assert row(verdict_of(values, blocks=9), "decode.tps.c1").word == "improved"


def test_warm_up_boots_are_not_in_the_figures(verdict_of):
    verdict = verdict_of(lambda boot, key: 5 if boot.phase == "warm-up" and key.startswith("kv.") else None)
    assert row(verdict, PRIMARY).baseline == 1_000_000
    assert verdict.word == "improved"


def test_by_simulation_an_aa_of_the_suite_is_rarely_regressed(verdict_of, make_plan, make_records):
    """Noise only: no verdict but the primary's, at 9 blocks where one of four tests can stand."""
    regressed = 0
    for seed in range(60):
        plan = make_plan(blocks=9)
        rng = np.random.default_rng(seed)

        def values(boot, metric, rng=rng):
            return 100 * math.exp(rng.normal(0, 0.05)) if "tps" in metric else None

        regressed += judge(plan, make_records(plan, values)).word == "regressed"
    assert regressed <= 4  # Holm over the four speeds: one side of 5 % of 60 is 1.5


def test_claims_of_improvement_are_corrected(verdict_of):
    """Four clock guards: at 6 blocks p = 0.031 stands alone, not among four."""
    verdict = verdict_of(tps(1.10, 0.002), blocks=6)
    decode = row(verdict, "decode.tps.c1")
    assert (decode.word, decode.p, decode.p_holm) == ("inconclusive", pytest.approx(1 / 32), pytest.approx(4 / 32))
    assert decode.notes == [
        "p=0.031 alone; among 4 claims of improvement p=0.12 (Holm), above 0.05; at 6 blocks none can stand among so "
        "many, at 8 blocks one can"
    ]
    assert "decode.tps.c1" not in verdict.arms[0].unresolved_guards


def test_losses_of_guards_are_corrected_among_the_arms_guards(verdict_of):
    """A loss that does not stand stays open, with its own p and with the corrected one."""
    verdict = verdict_of(tps(0.90, 0.002), blocks=6)
    decode = row(verdict, "decode.tps.c1")
    assert (decode.word, decode.p, decode.p_holm) == ("inconclusive", pytest.approx(1 / 32), pytest.approx(4 / 32))
    assert decode.notes[-1].startswith("p=0.031 alone; among 4 tested guards of this arm p=0.12 (Holm)")
    assert (verdict.word, verdict.arms[0].unresolved_guards) == ("improved", ["decode.tps.c1"])
    assert (decode.smallest_effect, decode.blocks_needed) == (None, 8)
    stands = row(verdict_of(tps(0.90, 0.002), blocks=8), "decode.tps.c1")
    assert (stands.word, stands.p_holm) == ("regressed", pytest.approx(4 / 128))


def test_a_loss_of_the_primary_keeps_its_own_p(verdict_of):
    def values(boot, metric):
        loss = 300_000 if boot.arm == CANDIDATE else 0
        if metric == PRIMARY:
            return 1_000_000 + 7_000 * boot.number + loss
        return 100 + boot.number / 100 if "tps" in metric else None

    verdict = verdict_of(values, blocks=6)
    primary = row(verdict, PRIMARY)
    assert (primary.word, primary.p, primary.p_holm) == ("regressed", pytest.approx(1 / 32), pytest.approx(1 / 32))
    assert verdict.word == "regressed"


def test_exact_losses_are_no_tests_and_stand_among_any_number(verdict_of):
    def values(boot, metric):
        if metric == "kv.available_bytes":
            return 1_000_000 - (boot.arm == CANDIDATE)
        return 100 + boot.number / 100 if "tps" in metric else None

    verdict = verdict_of(values, blocks=6)
    exact = row(verdict, "kv.available_bytes")
    assert (exact.word, exact.p, exact.p_holm, verdict.word) == ("regressed", None, None, "regressed")


def test_a_declared_primary_is_not_corrected(verdict_of):
    def values(boot, metric):
        shift = 100_000 if boot.arm == CANDIDATE else 0
        return 1_000_000 + 7 * boot.number - shift if metric == PRIMARY else None

    primary = row(verdict_of(values, blocks=6), PRIMARY)
    assert (primary.word, primary.p_holm) == ("improved", None)


def test_less_than_the_claim_is_improved_with_a_warning(verdict_of):
    primary = row(verdict_of(on(PRIMARY, CANDIDATE, 1_000_000 - 12_288)), PRIMARY)
    assert primary.word == "improved"
    (note,) = primary.notes
    assert note.startswith("warning: expected -32,768 B, measured -12,288 B, 38% of the claim: look for")
    (note,) = row(verdict_of(on(PRIMARY, CANDIDATE, 900_000)), PRIMARY).notes
    assert "more than the claim: find the mechanism" in note


def test_boots_are_counted_for_the_claimed_effect(verdict_of):
    """An exact metric that turned into a sample has no margin: the claim is what has to be seen."""
    rng = np.random.default_rng(3)
    noise = {n: float(rng.normal(0, 80_000)) for n in range(1, 40)}
    verdict = verdict_of(on(PRIMARY, "baseline", lambda boot: 1_000_000 + noise[boot.number]), blocks=6)
    primary = row(verdict, PRIMARY)
    assert (primary.word, primary.needed_unit) == ("inconclusive", "blocks")
    assert primary.needed_effect == pytest.approx(32_768 / primary.baseline)
    assert primary.needed_for == "change"
    assert primary.blocks_needed > 6
    assert primary.smallest_effect > primary.needed_effect


def unblocked(plan):
    """The same plan, its measured boots in no block: as with boots of an earlier run."""
    boots = [boot.model_copy(update={"block": None}) for boot in plan.boots]
    return plan.model_copy(update={"boots": boots})


@pytest.mark.parametrize(
    ("factor", "spread", "blocks", "word"),
    [
        (0.90, 0.002, 5, "regressed"),
        (0.90, 0.002, 3, "inconclusive"),
        (1.00, 0.002, 4, "equivalent"),
        (1.00, 0.08, 4, "inconclusive"),
    ],
)
def test_samples_without_blocks(make_plan, make_records, factor, spread, blocks, word):
    plan = unblocked(make_plan(blocks=blocks))
    decode = row(judge(plan, make_records(plan, tps(factor, spread))), "decode.tps.c1")
    assert (decode.word, decode.test) == (word, "exact Mann-Whitney, log ratio")
    assert (decode.n_baseline, decode.n_candidate) == (blocks, blocks)
    assert (decode.p is None) == (blocks < 4)
    if blocks < 4:
        assert "cannot go below p=0.1; improved or regressed needs 4 an arm" in decode.notes[0]
    if spread > 0.01:
        assert decode.needed_unit == "boots an arm"
        assert decode.blocks_needed > 4
        # Of 4 + 4 boots p is 0.029 at least, and four guards share 0.04.
        assert (decode.smallest_effect, decode.notes) == (None, [ALONE])


def test_a_wild_boot_makes_ranks_and_means_disagree(make_plan, make_records):
    """All candidate boots but one are faster than any of the baseline; the mean says a loss, and none is claimed."""
    plan = unblocked(make_plan(blocks=8))
    of_arm = {
        arm.name: [b.number for b in plan.boots if (b.arm, b.phase) == (arm.name, "measured")] for arm in plan.arms
    }

    def reading(boot, metric):
        if metric != "decode.tps.c1" or boot.phase != "measured":
            return None
        place = of_arm[boot.arm].index(boot.number)
        return 100.0 + place if boot.arm != CANDIDATE else 1.0 if place == 7 else 110.0 + place

    decode = row(judge(plan, make_records(plan, reading)), "decode.tps.c1")
    assert (decode.word, decode.p <= 0.05, decode.delta < 0) == ("inconclusive", True, True)
    assert any("ranks and means disagree" in note for note in decode.notes)
