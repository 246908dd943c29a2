"""Rows of counter ratios: exact where greedy counts repeat, otherwise by permutation of boots; and what is too good."""

import numpy as np
import pytest

from dsbench.gate import judged_under, under
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.policy import Policy
from dsbench.report.table import verdict_words
from dsbench.sanity import plausible
from dsbench.suite import parse_suite
from impl.dims import PICO

SUITE = parse_suite(
    """
name = "drafts"
summary = "s"
blocks = 5
warmup_boots = 0
guards = ["accept.*", "output_law"]
[probes.acceptance]
prose = ["a"]
structured = ["b"]
[probes.output_law]
prompts = ["a"]
""",
    "drafts.toml",
)
OFF = "draft_logits_persistent-off"


@pytest.fixture
def verdict_of(make_records):
    def run(values=lambda boot, metric: None, engine_args=(), toggle="draft_logits_persistent=off", **options):
        plan = plan_experiment([toggle], SUITE, PICO, controls=True, engine_args=engine_args, **options)
        return judge(plan, make_records(plan, values))

    return run


def row(verdict, metric):
    (found,) = [r for r in verdict.rows if r.metric == metric]
    return found


def counts(metric, baseline, candidate):
    """`baseline` and `candidate`: counts by item, or functions of the boot that give them."""

    def values(boot, key):
        given = baseline if boot.arm == "baseline" else candidate
        return (given(boot) if callable(given) else given) if key == metric else None

    return values


@pytest.mark.parametrize(
    ("above", "word"),
    [(50, "equivalent"), (48, "regressed"), (52, "improved"), (50.5, "equivalent"), (49.5, "equivalent")],
)
def test_greedy_counts_that_repeat_are_exact(verdict_of, above, word):
    values = counts("accept.rate", {"prose greedy": (50, 100)}, {"prose greedy": (above, 100)})
    found = row(verdict_of(values, blocks=2), "accept.rate")
    assert (found.word, found.test, found.p) == (word, "equal counts", None)
    assert found.delta == pytest.approx((above - 50) / 100)


def test_a_policys_margin_in_tokens_a_round_holds_for_every_item(make_records):
    """0.1 of 2 and of 4 tokens a round alike, whichever item the row shows."""
    policy = Policy.model_validate({"rule": [{"metric": "accept.length", "margin": "0.1 tok/round"}]})
    plan = under(
        under(plan_experiment(["draft_logits_persistent=off"], SUITE, PICO, controls=True, blocks=2), policy), policy
    )
    for lost, word in ((9, "equivalent"), (11, "regressed")):
        after = {"prose greedy": (200 - lost, 100), "structured greedy": (400 - lost, 100)}
        values = counts("accept.length", {"prose greedy": (200, 100), "structured greedy": (400, 100)}, after)
        found = row(judged_under(plan, make_records(plan, values), policy), "accept.length")
        assert (found.word, found.margin, found.margin_absolute) == (word, 0.1, True)
        told = "equivalent within 0.1 tok/round" if word == "equivalent" else word
        assert verdict_words(found) == told


@pytest.mark.parametrize(("above", "word"), [(250, "inconclusive"), (200, "inconclusive"), (150, "regressed")])
def test_one_boot_an_arm_grants_no_draft_anything(verdict_of, above, word):
    """Nothing shows that greedy counts repeat: a loss stands, as it does for bytes, and no gain does."""
    values = counts("accept.length", {"prose greedy": (200, 100)}, {"prose greedy": (above, 100)})
    found = row(verdict_of(values, blocks=1), "accept.length")
    assert found.word == word
    assert any("one boot an arm" in note for note in found.notes) == (word == "inconclusive")


def test_the_margin_of_a_length_is_relative(verdict_of):
    for above, word in ((196.5, "equivalent"), (195.5, "regressed")):
        values = counts("accept.length", {"prose greedy": (200, 100)}, {"prose greedy": (above, 100)})
        assert row(verdict_of(values, blocks=2), "accept.length").word == word


def drawn(rate, seed=0, spread=0.0):
    """Counts of sampled drafts; boots of one block and rate get other draws in each arm."""

    def give(boot):
        rng = np.random.default_rng((seed, boot.number))
        return {"prose t=1": (int(rng.binomial(2000, rate + spread * rng.standard_normal())), 2000)}

    return give


def test_sampled_counts_are_permuted(verdict_of):
    found = row(verdict_of(counts("accept.rate", drawn(0.5), drawn(0.3))), "accept.rate")
    assert (found.word, found.kind) == ("regressed", "counter-ratio")
    assert found.p == pytest.approx(2 / 252)
    assert found.interval[1] < -0.1
    assert (found.n_baseline, found.n_candidate, found.blocks) == (5, 5, 5)


def by_block(boot):
    return {"prose t=1": (45 + boot.block, 100)}


def test_equal_draws_are_equivalent_and_noisy_ones_open(verdict_of):
    found = row(verdict_of(counts("accept.rate", by_block, by_block), blocks=2), "accept.rate")
    assert (found.word, found.test, found.delta) == ("equivalent", "equal counts", 0)
    found = row(verdict_of(counts("accept.rate", drawn(0.5, 1, 0.1), drawn(0.5, 2, 0.1))), "accept.rate")
    assert found.word == "inconclusive"


def test_sampled_counts_are_never_exact_and_few_boots_say_so(verdict_of):
    values = counts("accept.rate", {"prose t=1": (50, 100)}, {"prose t=1": (30, 100)})
    found = row(verdict_of(values, blocks=2), "accept.rate")
    assert (found.word, found.p) == ("inconclusive", None)
    assert "with so few boots the permutation cannot go below p=0.33" in found.notes


def test_one_item_decides_and_is_named(verdict_of):
    base = {f"prose greedy k{k}": (50, 100) for k in range(5)}
    values = counts("accept.per_position", base, {**base, "prose greedy k3": (30, 100), "prose greedy k1": (60, 100)})
    found = row(verdict_of(values, blocks=2), "accept.per_position")
    assert (found.word, found.baseline, found.candidate) == ("regressed", 0.5, 0.3)
    assert found.notes == ["accept.per_position: 1 of 5 items regressed, shown: prose greedy k3"]


def test_a_position_no_draft_got_to_is_left_out_and_said(verdict_of):
    base = {"prose greedy k0": (50, 100), "prose greedy k1": (0, 0)}
    found = row(verdict_of(counts("accept.conditional", base, base), blocks=2), "accept.conditional")
    assert found.word == "equivalent"
    assert found.notes == ["accept.conditional: no draft got to prose greedy k1"]
    nothing = {"prose greedy k1": (0, 0)}
    assert row(verdict_of(counts("accept.conditional", nothing, nothing)), "accept.conditional").word == "inconclusive"


@pytest.mark.parametrize("above", [30, 70])
def test_with_synthetic_rates_a_rise_is_a_fault_too(verdict_of, above):
    values = counts("accept.per_position", {"prose greedy k0": (50, 100)}, {"prose greedy k0": (above, 100)})
    args = ["--synthetic-acceptance-rates", "0.5,0.4,0.3,0.2,0.1"]
    verdict = verdict_of(values, engine_args=args, toggle="rejection_keyword_binding=off", blocks=2)
    assert verdict.word == "regressed"
    assert row(verdict, "accept.per_position").role == "primary"
    assert any("any change is a fault" in note for note in row(verdict, "accept.per_position").notes)


def test_by_simulation_an_aa_of_acceptance_is_rarely_regressed(verdict_of):
    regressed = 0
    for seed in range(60):
        values = counts("accept.rate", drawn(0.5, 2 * seed, 0.03), drawn(0.5, 2 * seed + 1, 0.03))
        regressed += row(verdict_of(values), "accept.rate").word == "regressed"
    assert regressed <= 5  # one side of 5 % of 60 is 1.5


# --- too good -------------------------------------------------------------------------------------------------------


def rates(candidate_sampled, greedy=60):
    def values(boot, key):
        sampled = candidate_sampled if boot.arm == OFF else 55
        return {"prose greedy": (greedy, 100), "prose t=1": (sampled, 100)} if key == "accept.rate" else None

    return values


def test_acceptance_at_its_bound_is_a_finding(verdict_of):
    notes = " ".join(verdict_of(rates(98)).notes)
    assert f"finding, acceptance too good: {OFF} accepts 0.980 of its drafts of prose at temperature 1, 0.600" in notes


@pytest.mark.parametrize(("sampled", "greedy"), [(90, 60), (98, 99)])
def test_acceptance_that_is_only_good_is_no_finding(verdict_of, sampled, greedy):
    assert "too good" not in " ".join(verdict_of(rates(sampled, greedy)).notes)


@pytest.mark.parametrize(
    ("length", "depth", "positions", "workload", "answer"),
    [
        (5.99, 5, None, "prose", "implausible"),
        (5.44, 5, [0.983, 0.949, 0.915, 0.881, 0.712], "prose", "plausible"),
        (3.9, 3, [1.0, 0.96, 0.94], "prose", "implausible"),
        (7.9, 7, None, "counting", "not a quality measure (predictable text)"),
        (3.4, 2, None, "prose", "impossible (above depth + 1)"),
        (None, 5, None, "prose", "unknown"),
    ],
)
def test_what_a_length_is_worth(length, depth, positions, workload, answer):
    assert plausible(length, depth, positions, workload) == answer


def test_a_baseline_that_fails_the_law_is_said(verdict_of):
    verdict = verdict_of(lambda boot, key: {"prompt 1": 0} if key == "output_law" else None)
    assert row(verdict, "output_law").word == "equivalent"
    assert "the baseline itself fails output_law" in " ".join(verdict.notes)


def test_many_items_count_before_a_row_is_called_a_test(verdict_of):
    """5+5 boots give p = 2/252 at least: Holm over two items can still be within 5 %, over ten it cannot."""

    def ratios(items):
        return lambda rate: lambda boot: {f"prose t=1 k{k}": (rate + boot.number + k, 100) for k in range(items)}

    few, many = (
        row(verdict_of(counts("accept.per_position", of(20), of(50))), "accept.per_position")
        for of in (ratios(2), ratios(10))
    )
    assert (few.word, few.p, few.smallest_p) == ("regressed" if few.delta < 0 else "improved", few.smallest_p, 4 / 252)
    assert (many.word, many.p, many.smallest_p) == ("inconclusive", None, pytest.approx(20 / 252))
    assert "with so few boots the permutation cannot go below p=0.079" in many.notes[-1]


def test_of_the_items_that_decide_the_surest_is_shown(verdict_of):
    """The row is judged among other rows by its p, so that must be the smallest, not that of the largest effect."""

    def values(rate, noise):
        return lambda boot: {
            "prose t=1 k0": (rate + noise * (boot.number % 3), 100),
            "prose t=1 k1": (60 if rate > 50 else 52, 100),
        }

    found = row(verdict_of(counts("accept.rate", values(60, 14), values(38, 14)), blocks=6), "accept.rate")
    assert found.p == pytest.approx(2 * 2 / 924)
    assert found.word == "regressed"
