"""Rows of items: which way is a loss, and what an item's p rests on."""

import numpy as np
import pytest

from dsbench.metrics import metric
from dsbench.simulation import noise
from dsbench.simulation.comparing import boot, reading, row_of, two_arms
from dsbench.simulation.counted import Items
from dsbench.simulation.tally import tally

TRUNCATED = metric("gsm8k.truncated")
NEVER = [0] * 20
OFTEN = [1] * 8 + [0] * 12


def judged(of, baseline, candidate, **fields):
    """The row of answers by boot and item; boots stand side by side in blocks."""
    boots = []
    for block, pair in enumerate(zip(baseline, candidate, strict=True), start=1):
        for arm, answers in zip("ab", pair, strict=True):
            number = len(boots) + 1
            seen = [reading(of, number, v, item=f"i{k}", text=f"reply {k}") for k, v in enumerate(answers)]
            boots.append(boot(number, arm, block, seen))
    return row_of(two_arms(of.model_copy(update=fields), len(baseline)), boots)


# --- which way is a loss --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("margin", [0.0, 0.01])
def test_more_replies_that_are_cut_off_are_a_loss(margin):
    worse = judged(TRUNCATED, [NEVER] * 2, [OFTEN] * 2, margin=margin)
    assert (worse.word, worse.delta) == ("regressed", 0.4)
    assert worse.notes[0] == "gained 0, lost 8: i0, i1, i2 and 5 more"
    assert worse.notes[1] == "i0 in boot 2: reply 0"
    better = judged(TRUNCATED, [OFTEN] * 2, [NEVER] * 2, margin=margin)
    assert (better.word, better.delta) == ("improved", -0.4)
    assert better.notes == ["gained 8, lost 0: i0, i1, i2 and 5 more"]


def test_a_reply_that_is_cut_off_in_one_boot_is_a_loss_not_only_noise():
    found = judged(TRUNCATED, [NEVER] * 2, [NEVER, OFTEN], margin=0.0)
    assert (found.word, found.notes[0]) == ("regressed", "gained 0, lost 8: i0, i1, i2 and 5 more")
    found = judged(TRUNCATED, [OFTEN] * 2, [NEVER, OFTEN], margin=0.0)
    assert (found.word, found.notes) == ("regressed", ["not deterministic: its boots differ on i0, i1, i2 and 5 more"])


def test_a_flaky_baseline_hides_no_new_cut():
    flaky = [[1, *NEVER[1:]], NEVER]
    found = judged(TRUNCATED, flaky, [[0, 1, *NEVER[2:]]] * 2, margin=0.0)
    assert (found.word, found.notes) == ("regressed", ["lost items that the baseline repeats: i1"])
    assert judged(TRUNCATED, [[0, 1, *NEVER[2:]], [1, 1, *NEVER[2:]]], [NEVER] * 2, margin=0.0).word == "inconclusive"


@pytest.mark.parametrize(("baseline", "candidate"), [(NEVER, OFTEN), (OFTEN, NEVER)])
def test_where_items_must_stay_the_same_any_change_is_a_loss(baseline, candidate):
    found = judged(TRUNCATED, [baseline] * 2, [candidate] * 2, better="same", margin=0.0)
    assert (found.word, found.notes[0]) == ("regressed", "gained 0, lost 8: i0, i1, i2 and 5 more")


# --- boots that are not one another's repeat ------------------------------------------------------------------------

RECALL = metric("coherence.recall")


def right(n, of=24):
    return [1] * n + [0] * (of - n)


def test_what_one_boot_had_is_no_evidence_of_24_items():
    """measurement.md, section 2: one build read 22, 6 and 23 of 24 in three boots."""
    found = judged(RECALL, [right(23), right(22)], [right(23), right(6)])
    assert (found.word, found.p, found.smallest_p, found.blocks) == ("inconclusive", None, 0.5, 2)
    assert found.test == "sign-flip over blocks, mean score of a boot"
    assert "boots of b differ by 17 of 24 items: not one another's repeat (p=1.5e-05), so the boot is the unit" in (
        found.notes
    )
    assert "at 2 blocks the test cannot go below p=0.5; improved or regressed needs 6" in found.notes
    assert found.delta == pytest.approx((23 + 6 - 23 - 22) / 48)
    assert judged(RECALL, [right(23), right(6)], [right(23), right(22)]).word == "inconclusive"


def test_answers_that_every_boot_repeats_are_judged_by_item():
    found = judged(RECALL, [right(23)] * 2, [right(6)] * 2)
    assert (found.word, found.test, found.p) == ("regressed", "exact McNemar", pytest.approx(2 / 2**17))
    assert found.blocks == 0


def test_boots_that_flip_by_single_items_are_judged_by_item():
    flips = [[1] * 40, [1] * 38 + [0, 0]]
    found = judged(RECALL, flips, [[0] * 20 + [1] * 20, [0] * 19 + [1] * 20 + [0]])
    assert (found.word, found.test) == ("regressed", "sign-flip over items")


LUCK = [24, 14, 22, 10, 23, 16, 24, 12]


LOST = [n - 8 + i % 2 for i, n in enumerate(LUCK)]
UNSURE = [max(0, n - 5) if i % 2 else min(24, n + 5) for i, n in enumerate(LUCK)]


@pytest.mark.parametrize(("of_b", "word"), [(LOST, "regressed"), (UNSURE, "inconclusive"), (LUCK, "equivalent")])
def test_enough_blocks_of_such_boots_are_judged_as_blocks(of_b, word):
    found = judged(RECALL, [right(n) for n in LUCK], [right(n) for n in of_b])
    assert (found.word, found.test, found.blocks) == (word, "sign-flip over blocks, mean score of a boot", 8)
    assert found.interval[0] <= found.delta <= found.interval[1]
    assert (found.p == 2 / 2**8) == (word == "regressed")
    if word == "inconclusive":
        assert (found.needed_for, found.needed_unit) == ("equivalence", "blocks")
        assert found.blocks_needed > 8


def test_without_blocks_such_boots_are_permuted():
    boots = []
    for arm, counted in (("a", [24, 20, 23, 21]), ("b", [10, 4, 9, 6])):
        for n in counted:
            number = len(boots) + 1
            boots.append(boot(number, arm, None, [reading(RECALL, number, v, item=f"i{k}") for k, v in
                                                  enumerate(right(n))]))  # fmt: skip
    found = row_of(two_arms(RECALL, 4), boots)
    assert (found.word, found.test) == ("regressed", "permutation of boots, mean score of a boot")
    assert found.p == pytest.approx(2 / 70)


def test_one_boot_an_arm_keeps_its_word_and_says_what_is_not_seen():
    found = judged(RECALL, [right(23)], [right(6)])
    assert (found.word, found.test) == ("regressed", "exact McNemar")
    assert "one boot in an arm: luck that all items of a boot share is not seen" in found.notes


def test_by_simulation_equal_arms_with_lucky_boots_are_rarely_told_apart():
    """Where the test over items, which takes answers for replicates, finds a difference in most experiments."""
    found = tally(Items("coherence", 2, noise.RECALL[2.3], 0.02).run(np.random.default_rng(5), 60, False))
    assert found.claims <= 10
    assert found.u_rejected > 30
    blocked = tally(Items("coherence", 7, noise.RECALL[2.3], 0.02).run(np.random.default_rng(6), 30, False))
    assert blocked.claims <= 5
