"""Rows of items: which way is a loss, and what an item's p rests on."""

import pytest

from dsbench.metrics import metric
from dsbench.simulation.comparing import boot, reading, row_of, two_arms

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
