"""Gates as a function of records and policy: every setting, on readings whose answer is known."""

import random

import pytest

from dsbench.comparison import Comparison
from dsbench.errors import InputError
from dsbench.gate import gate, judged_under, under, without_baseline
from dsbench.policy import LARGEST, Policy
from dsbench.report.table import verdict_words
from dsbench.suite import parse_suite
from tests.dsbench.conftest import SMALL

ARM = "mhc_input_reuse"
PEAK = "kv.peak_activation_bytes"


@pytest.fixture
def held(make_plan, make_records):
    """The outcome of a policy on records whose `values(boot, metric)` are given."""

    def build(rules=(), values=lambda boot, metric: None, blocks=2, again=False, **settings):
        policy = Policy.model_validate({"rule": list(rules), **settings})
        plan = make_plan(ARM, suite=parse_suite(SMALL, "s"), blocks=blocks)
        return gate(judged_under(plan, make_records(plan, values), policy), policy, again=again)

    return build


def moved(metric, change, spread=0.0):
    """A clock reading that the candidate moves by a share, with some noise."""
    rng = random.Random(3)

    def values(boot, key):
        if key != metric:
            return None
        return 100 * (1 + (change if boot.arm == ARM else 0) + spread * rng.gauss(0, 1))

    return values


def check(outcome, metric, arm=ARM):
    (found,) = [entry for entry in outcome.checks if (entry.metric, entry.arm) == (metric, arm)]
    return found


def test_without_rules_primaries_and_guards_must_not_regress(held):
    outcome = held()
    assert (outcome.word, outcome.exit_code) == ("passed", 0)
    assert check(outcome, PEAK).why == "improved"
    assert check(outcome, "decode.tps.c1").status == "passed"
    assert "kv.tokens" not in [entry.metric for entry in outcome.checks]


def test_a_lost_byte_of_a_guard_fails(held):
    outcome = held(values=lambda boot, m: 999_999 if m == "kv.available_bytes" and boot.arm == ARM else None)
    assert (outcome.word, outcome.exit_code) == ("failed", 1)
    assert check(outcome, "kv.available_bytes").why == "regressed"
    assert "kv.available_bytes" in outcome.sentence


def test_open_guards_pass_unless_they_must_be_resolved(held):
    noisy = moved("decode.tps.c1", 0.0, spread=0.2)
    assert held(values=noisy).word == "passed"
    outcome = held(values=noisy, guards_resolved=True)
    assert check(outcome, "decode.tps.c1").status == "failed"
    assert "--blocks" in check(outcome, "decode.tps.c1").mend


@pytest.mark.parametrize(
    ("setting", "again", "word", "code"),
    [
        ("fail", False, "failed", 1),
        ("pass", False, "passed", 0),
        ("rerun", False, "rerun", 3),
        ("rerun", True, "failed", 1),
    ],
)
def test_what_open_means(held, setting, again, word, code):
    rules = [{"metric": "decode.tps.c1", "inconclusive": setting}]
    outcome = held(rules, moved("decode.tps.c1", 0.0, spread=0.2), blocks=4, again=again)
    assert (outcome.word, outcome.exit_code) == (word, code)
    mend = check(outcome, "decode.tps.c1").mend
    assert ("blocks would call equal arms equivalent: add --blocks" in mend) == (word == "failed")


@pytest.mark.parametrize(
    ("by", "word"),
    [("2 %", "failed"), ("1 %", "passed"), (10_000, "passed"), (10_001, "failed"), ("10,000 B", "passed")],
)
def test_an_exact_improvement_must_be_as_large_as_asked(held, by, word):
    values = lambda boot, m: (990_000 if boot.arm == ARM else 1_000_000) if m == PEAK else None  # noqa: E731
    assert held([{"metric": PEAK, "must": "improve", "by": by}], values).word == word


@pytest.mark.parametrize(("by", "status"), [("5 %", "passed"), ("9.5 %", "failed"), ("15 %", "failed")])
def test_a_noisy_improvement_must_be_shown_to_be_as_large(held, by, status):
    rules = [{"metric": "decode.tps.c1", "must": "improve", "by": by}]
    outcome = held(rules, moved("decode.tps.c1", 0.10, spread=0.02), blocks=8)
    found = check(outcome, "decode.tps.c1")
    assert found.row.word == "improved"
    assert found.status == status
    assert ("less than" in found.why) == (by == "15 %")
    assert ("not shown" in found.why) == (by == "9.5 %")


def test_an_improvement_that_is_no_better_is_none(held):
    outcome = held([{"metric": "kv.persistent_bytes", "must": "improve"}])
    assert check(outcome, "kv.persistent_bytes").why.startswith("equivalent")
    assert outcome.word == "failed"


def test_own_margins_in_each_of_their_terms(held):
    lost = lambda boot, m: 999_000 if m == "kv.available_bytes" and boot.arm == ARM else None  # noqa: E731
    line = "kv.available_bytes"
    assert held([{"metric": line, "margin": "0.1 %"}], lost).word == "passed"
    assert held([{"metric": line, "margin": "0.09 %"}], lost).word == "failed"
    assert held([{"metric": line, "margin": 1000}], lost).word == "passed"
    assert held([{"metric": line, "margin": "999 B"}], lost).word == "failed"


@pytest.mark.parametrize("base", [0, 2**10, 60 * 2**30])
@pytest.mark.parametrize(
    ("change", "why"), [(2**20, "equivalent"), (64 * 2**20, "equivalent"), (65 * 2**20, "regressed")]
)
def test_a_margin_in_bytes_is_one_whatever_the_baseline_reads(held, base, change, why):
    """Nothing of another program on the device, then 1 MiB of it, is inside 64 MiB."""
    line = "kv.non_torch_bytes"
    values = lambda boot, m: base + (change if boot.arm == ARM else 0) if m == line else None  # noqa: E731
    found = check(held([{"metric": line, "margin": "64 MiB"}], values), line)
    assert found.why == why
    if not base and why == "equivalent":
        assert verdict_words(found.row) == "equivalent within 67,108,864 B"


@pytest.mark.parametrize(("margin", "why"), [("4 tok/s", "regressed"), ("6 tok/s", "equivalent"), (6, "equivalent")])
def test_a_margin_in_the_unit_of_a_clock(held, margin, why):
    values = moved("decode.tps.c1", -0.05, spread=0.0005)
    found = check(held([{"metric": "decode.tps.c1", "margin": margin}], values, blocks=8), "decode.tps.c1")
    assert (found.why, found.row.margin) == (why, pytest.approx(float(str(margin).split()[0]) / 100, rel=1e-3))


def test_a_wide_margin_makes_a_noisy_guard_equivalent(held):
    values = moved("decode.tps.c1", -0.05, spread=0.005)
    assert check(held(values=values, blocks=8), "decode.tps.c1").status == "failed"
    wide = held([{"metric": "decode.tps.*", "margin": "10 %"}], values, blocks=8)
    assert check(wide, "decode.tps.c1").why == "equivalent"


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"metric": PEAK, "margin": "1 point"}, 'write "2 %"'),
        ({"metric": "smoke.correct", "margin": "2 %"}, 'write "1 point"'),
        ({"metric": PEAK, "margin": "1 ms"}, "whose unit is B"),
        ({"metric": PEAK, "must": "improve", "by": "1 ms"}, "whose unit is B"),
        ({"metric": PEAK, "must": "improve", "by": "1 point"}, "does not fit"),
    ],
)
def test_sizes_that_a_metric_cannot_have(held, rule, said):
    with pytest.raises(InputError, match=said):
        held([rule])


def test_a_metric_that_is_not_there_has_failed(held):
    outcome = held([{"metric": "gsm8k.correct"}])
    assert check(outcome, "gsm8k.correct", "*").status == "missing"
    assert outcome.exit_code == 1
    assert held([{"metric": PEAK, "arm": "another"}]).exit_code == 1


def test_a_rule_puts_a_shown_metric_among_the_guards(held):
    less = lambda boot, m: 999 if m == "kv.tokens" and boot.arm == ARM else 1000 if m == "kv.tokens" else None  # noqa: E731
    assert held(values=less).word == "passed"
    outcome = held([{"metric": "kv.tokens"}], less)
    assert check(outcome, "kv.tokens").row.role == "guard"
    assert outcome.word == "failed"


def test_a_waived_guard_is_not_looked_at(held):
    lost = lambda boot, m: 1 if m == "kv.available_bytes" and boot.arm == ARM else None  # noqa: E731
    outcome = held([{"metric": "kv.available_bytes", "must": "nothing"}], lost)
    assert outcome.word == "passed"
    assert "kv.available_bytes" not in [entry.metric for entry in outcome.checks]


def test_nothing_checked_is_no_pass(held):
    outcome = held([{"metric": "*", "must": "nothing"}])
    assert (outcome.word, outcome.exit_code) == ("nothing-checked", 4)


def test_void_stays_void_whatever_the_policy_lets_pass(make_plan, make_records):
    plan = make_plan(ARM)
    records = [r for r in make_records(plan) if not (r.record == "check" and r.probe == "smoke" and r.boot == 3)]
    policy = Policy.model_validate({"inconclusive": "pass", "rule": [{"metric": "*", "must": "nothing"}]})
    outcome = gate(judged_under(plan, records, policy), policy)
    assert (outcome.word, outcome.exit_code) == ("void", 4)
    assert "check-missing" in outcome.sentence


def test_a_drift_control_stays_one_when_a_rule_names_it(held):
    outcome = held(
        [{"metric": "kv.*"}], lambda boot, m: 2_000_000 if m == "kv.weights_bytes" and boot.arm == ARM else None
    )
    assert outcome.word == "void"


def test_nothing_stored_that_compares_is_void():
    outcome = without_baseline("main", {("baseline", "*"): "another machine", ("a", "kv.blocks"): "other settings"})
    assert (outcome.word, outcome.exit_code) == ("void", 4)
    assert "baseline: another machine" in outcome.void[0].text


@pytest.mark.parametrize("margin", ["99999999999999999999 %", 1e18, "1000000000000000 %"])
def test_a_plan_under_the_widest_policy_can_be_read_again(make_plan, margin):
    """A margin in the metric's own unit is one of its baseline in a row, which may be next to nothing."""
    policy = Policy.model_validate({"rule": [{"metric": "kv.available_bytes", "margin": margin}]})
    plan = under(make_plan(), policy)
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan
    assert under(plan, policy) == plan
    this = Comparison(plan, plan.arms[1], plan.metric("kv.available_bytes"), 0, "guard")
    for base in (1e-300, 0.0, 1e30):
        assert this.row("equivalent", baseline=base).margin <= LARGEST
