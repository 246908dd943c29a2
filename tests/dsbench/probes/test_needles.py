"""Prompts with needles: what stands in them, where, and that a seed says it all."""

import random

from hypothesis import given
from hypothesis import strategies as st

from dsbench.probes.needles import AGAINST, LEAD, LETTERS, MORE_BALLOTS, pairs, report, spread, tally, with_ballots
from dsbench.score.coherence import has_needle
from impl.train.micro.tally import PAIRS, reserved_result

SIZES = st.tuples(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 8), st.integers(0, 200))


@given(SIZES)
def test_a_report_announces_its_needles_in_order_and_withdraws_its_distractors(sizes):
    seed, needles, distractors, more = sizes
    lines = 4 * (needles + distractors) + more
    prompt = report(random.Random(seed), lines, needles, distractors)
    log = [line for line in prompt.text.splitlines() if " | " in line]
    assert len(log) == lines + needles + distractors
    announced = [line.split()[4] for line in log if line.endswith("is announced")]
    withdrawn = [line.split()[4] for line in log if line.endswith("was withdrawn")]
    assert (announced, withdrawn) == (prompt.needles, prompt.distractors)
    assert len({*announced, *withdrawn}) == needles + distractors
    assert all(sum(has_needle(line, tag) for line in log) == 1 for tag in announced)
    assert prompt == report(random.Random(seed), lines, needles, distractors)


def test_a_long_report_has_its_needles_where_the_source_document_has_them():
    log = report(random.Random(1), 900, 3, 0).text.splitlines()[2:]
    numbers = [int(log[at - 1].split()[1]) for at, line in enumerate(log) if line.endswith("is announced")]
    assert numbers == [17, 452, 887]
    assert "entry 00100 | subsystem 15 | shard 13 | checksum 673 | scrub finished" in log


@given(SIZES)
def test_pairs_hold_each_key_once_and_ask_for_no_late_one(sizes):
    seed, needles, distractors, more = sizes
    lines = 4 * (needles + distractors) + more
    prompt = pairs(random.Random(seed), lines, needles, distractors)
    *context, query = prompt.text.split("\n")
    values = dict(line.split("=") for line in context)
    assert len(values) == len(context) == lines + distractors
    asked = query.removeprefix("?").removesuffix("=").split(",")
    assert [values[key] for key in asked] == prompt.needles
    assert all(len(key) == 2 and 10 <= int(value) <= 99 for key, value in values.items())
    last = max(list(values).index(key) for key in asked)
    assert last < 3 * lines // 4 + distractors
    assert len(prompt.text) == 6 * (lines + distractors) + len("?=") + 3 * needles - 1


@given(st.integers(0, 2**32))
def test_distractors_of_pairs_are_near_misses(seed):
    prompt = pairs(random.Random(seed), 40, 2, 2)
    *context, query = prompt.text.split("\n")
    values = dict(line.split("=") for line in context)
    asked = query[1:-1].split(",")
    for key, value, needle in zip(asked, prompt.distractors, prompt.needles, strict=True):
        assert value != needle
        near = [other for other in values if other != key and (other[0] == key[0] or other[1] == key[1])]
        assert value in {values[other] for other in near}


def leads(ballots, place):
    """Ballots of the first letter of a pair, less those of the second."""
    return sum(1 if ballot[place] == LETTERS[place][0] else -1 for ballot in ballots)


@given(st.integers(0, 2**32), st.integers(20, 150))
def test_a_tally_is_clear_its_beginning_says_the_opposite_and_training_leaves_it_out(seed, count):
    ballots, result = tally(random.Random(seed), count)
    assert LETTERS == PAIRS
    assert reserved_result(result)
    assert len(ballots) == count
    early = ballots[: round(AGAINST * count)]
    opposed = 0
    for place, (pair, letter) in enumerate(zip(LETTERS, result, strict=True)):
        side = 1 if letter == pair[0] else -1
        assert side * leads(ballots, place) >= LEAD * count - 1e-9
        opposed += side * leads(early, place) < 0
    assert opposed >= len(LETTERS) / 2


@given(st.integers(0, 2**32), st.integers(20, 80))
def test_ballots_stand_among_pairs_and_are_asked_for_behind_the_keys(seed, count):
    plain = pairs(random.Random(seed), 40, 2, 2)
    rng = random.Random(seed)
    prompt = with_ballots(rng, pairs(rng, 40, 2, 2), count)
    *lines, query = prompt.text.split("\n")
    ballots = [line for line in lines if "=" not in line]
    assert count <= len(ballots) <= count + MORE_BALLOTS
    assert "\n".join([*(line for line in lines if "=" in line), query.replace(",*", "")]) == plain.text
    assert query.endswith(",*=")
    assert prompt.needles[:-1] == plain.needles
    assert prompt.tally
    assert len(prompt.needles[-1]) == len(LETTERS)


@given(st.integers(0, 50), st.integers(12, 500), st.integers(1, 12))
def test_needles_are_spread_from_first_to_last(first, width, count):
    places = spread(first, first + width, count)
    assert len(set(places)) == count
    assert places == sorted(places)
    assert count == 1 or (places[0], places[-1]) == (first, first + width)
