"""Acceptance that is too good, at every depth, in the notes of a verdict."""

import pytest

from dsbench import records as r
from dsbench.judge import VOIDED, judge
from dsbench.sanity import plausible
from tests.dsbench.probes.serving import plan_of

TABLE = """
[probes.acceptance]
prose = ["a"]
structured = ["b"]
"""


@pytest.mark.parametrize("depth", range(1, 9))
def test_plausible_at_every_depth(depth):
    assert plausible(depth + 0.94, depth) == "plausible"
    assert plausible(depth + 0.96, depth) == "implausible"
    assert plausible(depth + 1, depth) == "implausible"
    assert plausible(depth + 1.01, depth) == "impossible (above depth + 1)"
    assert plausible(0.99, depth) == "impossible (below 1)"
    assert plausible(None, depth) == "unknown"
    for place in range(depth):
        rates = [0.5] * depth
        rates[place] = 0.999
        assert plausible(1 + depth / 2, depth, rates) == "implausible"
        assert plausible(1 + depth / 2, depth, rates, "counting").startswith("not a quality measure")


def findings(make_records, positions, **options):
    """Findings of a verdict whose candidate accepted so many drafts at each position."""
    told = notes(make_records, positions, **options)
    return [note for note in told if note.startswith("finding, acceptance too good")]


def notes(make_records, positions, kind="prose", rounds=200, temperature="t=1", base=None):
    """All notes of an experiment that has nothing but drafts, and so is void; the baseline accepts half of them, or so
    many."""
    plan = plan_of(TABLE, speculative="dspark")
    records = []
    for record in make_records(plan):
        if not (isinstance(record, r.Observation) and record.metric.startswith("accept.")):
            records.append(record)
        elif record.item == "prose greedy":
            good = plan.boots[record.boot - 1].arm == "b"
            usual = base or [rounds // 2] * len(positions)
            records += of_boot(record, positions if good else usual, rounds, kind, temperature)
    return [note.removeprefix(f"{VOIDED}: ") for note in judge(plan, records).notes]


def of_boot(record, positions, rounds, kind, temperature):
    """Observations of one accept metric of one boot."""
    item, accepted = f"{kind} {temperature}", sum(positions)
    raws = {
        "accept.rate": {item: [accepted, rounds * len(positions)]},
        "accept.length": {item: [rounds + accepted, rounds]},
        "accept.per_position": {f"{item} k{k}": [n, rounds] for k, n in enumerate(positions)},
        "accept.conditional": {},
    }[record.metric]
    return [
        record.model_copy(update={"item": name, "raw": raw, "value": raw[0] / raw[1]}) for name, raw in raws.items()
    ]


@pytest.mark.parametrize("depth", range(1, 6))
@pytest.mark.parametrize("temperature", ["greedy", "t=1"])
def test_a_position_that_is_never_rejected_is_a_finding(make_records, depth, temperature):
    positions = [200, *[60] * (depth - 1)]
    (note,) = findings(make_records, positions, temperature=temperature)
    assert note.startswith("finding, acceptance too good: b ")
    if depth > 1:
        assert f"of prose {temperature} with {depth} drafts, position 0 accepted in 1.0000 of 400 rounds" in note


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": [199, 150, 100]},
        {"positions": [40, 30, 20], "rounds": 40},
        {"positions": [200, 100, 50], "kind": "structured"},
    ],
)
def test_what_is_no_finding(make_records, changes):
    assert findings(make_records, **changes) == []


def never_rejected(*given, **options):
    return [note for note in notes(*given, **options) if note.endswith("predictable, or not verified")]


@pytest.mark.parametrize("temperature", ["greedy", "t=1"])
@pytest.mark.parametrize("kind", ["structured", "random"])
def test_structured_text_whose_drafts_are_all_accepted_is_no_finding_but_told(make_records, kind, temperature):
    """A verifier that accepts all looks like this, and so does text that the draft foresees."""
    given = {"kind": kind, "temperature": temperature}
    assert never_rejected(make_records, [200, 200, 200], **given) == [
        f"positions 0, 1, 2 accepted in all 400 rounds of {kind} {temperature} in b: predictable, or not verified"
    ]
    assert never_rejected(make_records, [200, 100, 50], **given) == [
        f"position 0 accepted in all 400 rounds of {kind} {temperature} in b: predictable, or not verified"
    ]


def test_arms_that_are_never_rejected_alike_share_the_line(make_records):
    alike = {"kind": "structured", "base": [1999, 900], "rounds": 2000}
    assert never_rejected(make_records, [1999, 900], **alike) == [
        "position 0 accepted in 0.9995 of 4000 rounds of structured t=1 in a, b: predictable, or not verified"
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"positions": [199, 150, 100], "kind": "structured"},
        {"positions": [40, 30, 20], "kind": "structured", "rounds": 40},
        {"positions": [200, 100, 50]},
    ],
)
def test_what_is_not_told_of_text_that_may_be_foreseen(make_records, changes):
    assert never_rejected(make_records, **changes) == []


TOOLS = plan_of("""
[probes.toolcall]
thinking = ["off"]
max_tokens = 99
""")
FEW = {"z0": 1, "z1": 0.5, "z2": 1, "z3": 0, "z4": 1}
"""Of 15 items; make_records names them so."""


@pytest.fixture
def tool_notes(make_records):
    """What is told of the points of an experiment whose arms have these items, and 0 in all others."""

    def tell(a, b):
        def values(boot, key):
            mine = a if TOOLS.boots[boot.number - 1].arm == "a" else b
            return {f"z{i}": mine.get(f"z{i}", 0) for i in range(15)} if key == "toolcall.points" else None

        notes = judge(TOOLS, make_records(TOOLS, values)).notes
        return [note for note in notes if "points of tool calls" in note]

    return tell


def test_a_baseline_with_few_points_has_little_to_lose(tool_notes):
    assert tool_notes(FEW, FEW) == [
        "finding, the baseline itself has 3.5 of 15 points of tool calls: only 4 of the 15 conversations can lose any"
    ]
    most = {f"z{i}": 1 for i in range(8)}
    assert tool_notes(most, FEW) == []
    assert tool_notes({**most, "z0": 0.5, "z1": 0.5, "z2": 0.5}, most) == [
        "finding, the baseline itself has 6.5 of 15 points of tool calls: only 8 of the 15 conversations can lose any"
    ]


GRADED = {
    "smoke.correct": '[probes.smoke]\nitems = [{ prompt = "7*8=", answer = 56 }, { chat = "x", answer = 1 }]',
    "gsm8k.correct": "[probes.gsm8k]\nlimit = 7",
    "instruction.correct": "[probes.instruction]\nitems = 9",
}


@pytest.mark.parametrize("metric", GRADED)
def test_a_baseline_without_a_right_answer_has_nothing_to_lose(make_records, metric):
    plan = plan_of(GRADED[metric])
    items = [f"z{i}" for i in range(plan.probes.items(metric.split(".")[0]))]

    def told(**right):
        def values(boot, key):
            arm = plan.boots[boot.number - 1].arm
            return {item: int(item == right.get(arm)) for item in items} if key == metric else None

        return [note for note in judge(plan, make_records(plan, values)).notes if "the baseline itself" in note]

    finding = (
        f"finding, the baseline itself has 0 of {len(items)} right in {metric}: nothing can be lost, so take another "
        "model, or look at its answers"
    )
    assert told() == told(b="z1") == [finding]
    assert told(a="z1") == told(a="z1", b="z0") == []
