"""The words, as a table of truth and by property."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.decide import decide, decide_exact, direction, overall, worst
from dsbench.stats.samples import Interval

WORDS = st.sampled_from(["improved", "regressed", "equivalent", "inconclusive", "not-run"])


@pytest.mark.parametrize(
    ("effect", "p", "interval", "word"),
    [
        (5.0, 0.01, (4.0, 6.0), "improved"),
        (-5.0, 0.01, (-6.0, -4.0), "regressed"),
        (5.0, 0.06, (-1.0, 11.0), "inconclusive"),
        (5.0, None, (4.0, 6.0), "inconclusive"),  # a test that could not fire claims nothing
        (0.5, 0.01, (0.2, 0.8), "equivalent"),  # real, and too small to matter
        (0.5, 0.01, (0.2, 1.2), "inconclusive"),
        (0.5, 0.90, None, "inconclusive"),
    ],
)
def test_words(effect, p, interval, word):
    span = Interval(*interval, 0.9) if interval else None
    assert decide(effect, margin=1.0, better="up", p=p, interval=span, alpha=0.05) == word


@given(st.floats(-10, 10), st.floats(0, 5), st.none() | st.floats(0, 1), st.floats(0, 3))
def test_better_down_turns_the_words(effect, margin, p, width):
    span = Interval(effect - width, effect + width, 0.9)
    up = decide(effect, margin=margin, better="up", p=p, interval=span, alpha=0.05)
    down = decide(effect, margin=margin, better="down", p=p, interval=span, alpha=0.05)
    assert down == {"improved": "regressed", "regressed": "improved"}.get(up, up)
    same = decide(effect, margin=margin, better="same", p=p, interval=span, alpha=0.05)
    assert same == ("regressed" if up in ("improved", "regressed") else up)


def test_exact():
    assert [decide_exact(x, 0, "down") for x in (-1, 0, 1)] == ["improved", "equivalent", "regressed"]
    assert decide_exact(0.5, 0.5, "up") == "equivalent"
    assert direction(1, "same") == "regressed"


@given(st.lists(WORDS, min_size=1, max_size=4), st.lists(WORDS, max_size=4))
def test_a_loss_or_a_void_is_never_hidden(primary, guards):
    assert overall(primary, guards, True) == "void"
    word = overall(primary, guards, False)
    if "regressed" in (*primary, *guards):
        assert word == "regressed"
    elif "not-run" in primary:
        assert word == "void"
    elif "inconclusive" in primary:
        assert word == "inconclusive"
    else:
        assert word == ("improved" if "improved" in primary else "equivalent")


def test_nothing_judged_passes_nothing():
    assert worst([]) == "void"
