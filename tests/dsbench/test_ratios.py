"""Rows of counter ratios: exact where greedy counts repeat, otherwise paired in blocks or boots permuted; and what is
too good."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.gate import judged_under, under
from dsbench.judge import judge
from dsbench.metrics import metric
from dsbench.plan import plan_experiment
from dsbench.policy import Policy
from dsbench.report.table import verdict_words
from dsbench.sample_row import ALONE
from dsbench.sanity import plausible
from dsbench.simulation.comparing import boot, reading, row_of, two_arms
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
    """Nothing shows that greedy counts repeat: a loss stands and says so, as it does for bytes, and no gain does."""
    values = counts("accept.length", {"prose greedy": (200, 100)}, {"prose greedy": (above, 100)})
    found = row(verdict_of(values, blocks=1), "accept.length")
    assert found.word == word
    assert any("one boot an arm" in note for note in found.notes)


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


# --- blocks ---------------------------------------------------------------------------------------------------------

LEVELS = [2.0, 2.2, 2.5, 2.7, 3.0, 3.2, 2.1, 2.8]


def lengths(factor, levels=LEVELS, items=1):
    """Counts at a level of each block; `factor` of the block moves them."""

    def give(boot):
        rounds = 1000 * levels[boot.block - 1] * factor(boot.block)
        return {f"prose t=1 k{k}": (round(rounds), 1000) for k in range(items)}

    return give


def a_little(block):
    return 0.97 + 0.0005 * (block % 3)


@pytest.mark.parametrize(("blocks", "fires"), [(6, True), (8, True), (5, False)])
def test_levels_of_blocks_hide_no_loss_from_six_blocks_on(verdict_of, blocks, fires):
    values = counts("accept.length", lengths(lambda block: 1), lengths(a_little))
    found = row(verdict_of(values, blocks=blocks), "accept.length")
    assert found.relative == pytest.approx(-0.0295, abs=0.01 if not fires else 0.001)
    assert -0.0305 < found.interval[0] <= found.interval[1] < -0.0285
    if fires:
        assert (found.word, found.p) == ("regressed", 2 / 2**blocks)
        assert found.test == "sign-flip over blocks, Holm over items, log ratio"
        assert found.interval[0] <= found.relative <= found.interval[1]
        assert found.candidate / found.baseline - 1 == pytest.approx(found.relative)
    else:
        assert (found.word, found.p > 0.5) == ("inconclusive", True)
        assert found.test == "permutation of boots, Holm over items; interval over blocks"


def test_a_share_is_paired_by_its_points(verdict_of):
    def give(loss):
        return lambda boot: {"prose t=1": (300 + 50 * boot.block - loss - boot.block % 2, 1000)}

    found = row(verdict_of(counts("accept.rate", give(0), give(20)), blocks=7), "accept.rate")
    assert (found.word, found.p, found.interval_of) == ("regressed", 2 / 2**7, "difference")
    assert found.test == "sign-flip over blocks, Holm over items, difference"
    assert found.delta == pytest.approx(-0.02)


def test_so_many_items_that_blocks_could_not_tell_are_permuted(verdict_of):
    """6 blocks give p = 1/32 for one item at least, times 4; 6+6 boots 2/924 times 4."""
    lost = counts("accept.length", lengths(lambda block: 1, [2] * 8, 4), lengths(lambda block: 0.9, [2] * 8, 4))
    few, more = (row(verdict_of(lost, blocks=blocks), "accept.length") for blocks in (6, 8))
    assert (few.word, few.p, few.test.partition(" ")[0]) == ("regressed", pytest.approx(4 * 2 / 924), "permutation")
    assert (more.word, more.p, more.test.partition(" ")[0]) == ("regressed", pytest.approx(4 / 128), "sign-flip")


def test_what_blocks_can_see_is_told_from_the_blocks(verdict_of):
    """Levels from 2.0 to 3.2 are no noise of the change: boots would need a thousand, blocks some."""
    rng = np.random.default_rng(3)
    noise = {block: 1 + 0.015 * rng.standard_normal() for block in range(1, 9)}
    values = counts("accept.length", lengths(lambda block: 1), lengths(noise.get))
    few = row(verdict_of(values, blocks=6), "accept.length")
    assert (few.word, few.smallest_effect, few.notes[-1]) == ("inconclusive", None, ALONE)
    found = row(verdict_of(values, blocks=8), "accept.length")
    assert (found.word, found.needed_unit) == ("inconclusive", "blocks")
    assert 0.02 < found.smallest_effect < 0.05
    assert found.blocks_needed < 40


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(*[st.tuples(st.integers(0, 60), st.integers(50, 60))] * 2), min_size=6, max_size=9))
def test_a_claim_is_on_its_intervals_side(blocks):
    """Pooled counts may say the contrary of every block; what is claimed is what the blocks say."""
    of = metric("accept.rate")
    boots = [
        boot(2 * i + k, "ab"[k], i, [reading(of, 2 * i + k, x / n, item="prose t=1", raw=[x, n])])
        for i, pair in enumerate(blocks, start=1)
        for k, (x, n) in enumerate(pair)
    ]
    found = row_of(two_arms(of, len(blocks)), boots)
    if found.word in ("improved", "regressed"):
        low, high = found.interval
        assert (found.delta > 0) == (low > 0) == (high > 0) == (found.word == "improved")


def test_boots_without_blocks_are_no_pair():
    """Their counts are not the same for having been so in the last boot of each arm."""
    of = metric("accept.rate")
    counted = [("a", 50), ("a", 40), ("b", 30), ("b", 40)]
    boots = [
        boot(i, arm, None, [reading(of, i, x / 100, item="prose t=1", raw=[float(x), 100.0])])
        for i, (arm, x) in enumerate(counted, start=1)
    ]
    found = row_of(two_arms(of, 2), boots)
    assert (found.word, found.blocks, found.interval) == ("inconclusive", 0, None)
    assert found.delta == pytest.approx(-0.1)
