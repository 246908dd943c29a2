import math

import numpy as np
import pytest

from dsbench.builds import parse_arm
from dsbench.judge import judge
from dsbench.records import EXIT_CODES, BootEnded, BootStarted

PRIMARY = "kv.peak_activation_bytes"


@pytest.fixture
def verdict_of(make_plan, make_records):
    """The verdict of a run whose readings `values(boot, metric)` replaces, on a plan with `options`."""

    def run(values=lambda boot, metric: None, *, toggles=("mhc_input_reuse",), **options):
        plan = make_plan(*toggles, **options)
        return judge(plan, make_records(plan, values))

    return run


def row(verdict, metric, arm=None):
    (found,) = [r for r in verdict.rows if r.metric == metric and arm in (None, r.arm)]
    return found


def on(metric, arm, value):
    """Readings that replace one metric of one arm: a value, or a function of the boot."""
    return lambda boot, key: (value(boot) if callable(value) else value) if (key, boot.arm) == (metric, arm) else None


CANDIDATE = "mhc_input_reuse"


def test_the_expected_saving_is_improved(verdict_of):
    verdict = verdict_of()
    primary = row(verdict, PRIMARY)
    assert (verdict.word, verdict.exit_code, verdict.void) == ("improved", 0, [])
    assert (primary.role, primary.delta, primary.expected) == ("primary", -32768, -32768)
    assert (primary.baseline, primary.candidate) == (1_000_000, 967_232)
    assert (primary.n_baseline, primary.n_candidate) == (2, 2)
    assert "kv.peak_activation_bytes -32,768 B, expected -32,768 B" in verdict.sentence
    assert "tokens identical" in verdict.sentence


def test_judging_twice_gives_the_same(verdict_of):
    assert verdict_of().model_dump_json() == verdict_of().model_dump_json()


def test_a_toggle_that_saves_nothing_is_equivalent_never_improved(verdict_of):
    verdict = verdict_of(on(PRIMARY, CANDIDATE, 1_000_000))
    assert (verdict.word, verdict.exit_code) == ("equivalent", 0)
    assert row(verdict, PRIMARY).notes == ["expected -32,768 B, measured +0 B"]
    assert "unchanged, expected -32,768 B" in verdict.sentence


def test_more_bytes_are_regressed(verdict_of):
    verdict = verdict_of(on(PRIMARY, CANDIDATE, 1_000_001))
    assert (verdict.word, verdict.exit_code) == ("regressed", 1)


def test_up_is_better_where_the_metric_says_so(verdict_of):
    assert row(verdict_of(on("kv.blocks", CANDIDATE, 1_000_001)), "kv.blocks").word == "improved"
    assert row(verdict_of(on("kv.blocks", CANDIDATE, 999_999)), "kv.blocks").word == "regressed"


def test_a_guard_that_regresses_decides(verdict_of):
    verdict = verdict_of(on("kv.available_bytes", CANDIDATE, 999_999))
    assert verdict.word == "regressed"
    assert row(verdict, PRIMARY).word == "improved"
    assert verdict.sentence.startswith("mhc_input_reuse regressed: kv.available_bytes -1 B")


def test_what_is_only_shown_does_not_decide(verdict_of):
    verdict = verdict_of(on("kv.workspace_bytes", CANDIDATE, 2_000_000))
    assert row(verdict, "kv.workspace_bytes").word == "regressed"
    assert row(verdict, "kv.workspace_bytes").role == "shown"
    assert verdict.word == "improved"


def test_a_candidate_that_varies_is_regressed_for_nondeterminism(verdict_of):
    verdict = verdict_of(on(PRIMARY, CANDIDATE, lambda boot: 900_000 + boot.number))
    assert verdict.word == "regressed"
    assert row(verdict, PRIMARY).kind == "exact"
    assert row(verdict, PRIMARY).notes[0].startswith("not deterministic: its boots read 900,00")


def test_a_baseline_that_varies_makes_a_sample_and_says_so(verdict_of):
    verdict = verdict_of(on(PRIMARY, "baseline", lambda boot: 1_000_000 + boot.number))
    primary = row(verdict, PRIMARY)
    assert (primary.kind, primary.word) == ("sample", "inconclusive")
    assert "varies between the baseline's own boots: judged as a sample" in primary.notes
    assert (verdict.word, verdict.exit_code) == ("inconclusive", 3)


def test_an_exact_metric_judged_as_a_sample_can_still_be_improved(verdict_of):
    def values(boot, metric):
        if metric != PRIMARY:
            return None
        return 1_000_000 + 7 * boot.number - (100_000 if boot.arm == CANDIDATE else 0)

    verdict = verdict_of(values, blocks=6)
    assert row(verdict, PRIMARY).word == "improved"
    assert row(verdict, PRIMARY).p == pytest.approx(0.03125)


def test_one_boot_an_arm_decides_nothing(verdict_of):
    primary = row(verdict_of(blocks=1), PRIMARY)
    assert primary.word == "inconclusive"
    assert primary.notes == ["one boot an arm: nothing shows that it repeats; exact and item metrics need 2"]


def test_unknown_is_not_fine(verdict_of):
    verdict = verdict_of(lambda boot, key: "unknown" if key == "kv.non_torch_bytes" else None)
    assert row(verdict, "kv.non_torch_bytes").word == "inconclusive"
    assert row(verdict, "kv.non_torch_bytes").notes == ["unknown on this platform"]
    assert verdict.word == "improved"


# --- samples --------------------------------------------------------------------------------------------------------


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
        loss = 100_000 if boot.arm == CANDIDATE else 0
        if metric == PRIMARY:
            return 1_000_000 + 7 * boot.number + loss
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
    noise = {n: float(rng.normal(0, 40_000)) for n in range(1, 40)}
    verdict = verdict_of(on(PRIMARY, "baseline", lambda boot: 1_000_000 + noise[boot.number]), blocks=6)
    primary = row(verdict, PRIMARY)
    assert (primary.word, primary.needed_unit) == ("inconclusive", "blocks")
    assert primary.needed_effect == pytest.approx(32_768 / primary.baseline)
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
        assert decode.smallest_effect > 0.02


# --- items ----------------------------------------------------------------------------------------------------------


def answers(arm, **items):
    return lambda boot, metric: (
        {"a": 1, "b": 1, "c": 0} | (items if boot.arm == arm else {}) if metric == "smoke.correct" else None
    )


@pytest.mark.parametrize(
    ("items", "word"),
    [({}, "equivalent"), ({"c": 1}, "improved"), ({"b": 0}, "regressed"), ({"b": 0, "c": 1}, "regressed")],
)
def test_smoke_is_compared_item_by_item(verdict_of, items, word):
    verdict = verdict_of(answers(CANDIDATE, **items))
    smoke = row(verdict, "smoke.correct")
    assert smoke.word == word
    assert verdict.word == ("regressed" if word == "regressed" else "improved")
    if word == "regressed":
        assert "lost 1" in smoke.notes[0]
        assert "b" in smoke.notes[0]


def tokens(arm, change):
    return lambda boot, metric: (
        {"p": [1, 2, 3], "q": [4, 5]} | (change(boot) if boot.arm == arm else {})
        if metric == "identity.tokens"
        else None
    )


def test_one_other_token_is_regressed(verdict_of):
    verdict = verdict_of(tokens(CANDIDATE, lambda boot: {"q": [4, 6]}))
    identity = row(verdict, "identity.tokens")
    assert (identity.word, identity.baseline, identity.candidate) == ("regressed", 1.0, 0.75)
    assert verdict.exit_code == EXIT_CODES["regressed"]


def test_tokens_that_vary_in_the_candidate_are_nondeterminism(verdict_of):
    verdict = verdict_of(tokens(CANDIDATE, lambda boot: {"q": [4, boot.number]}))
    assert row(verdict, "identity.tokens").word == "regressed"
    assert row(verdict, "identity.tokens").notes == ["not deterministic: its boots differ on q"]


def test_tokens_that_vary_in_the_baseline_cannot_be_compared(verdict_of):
    verdict = verdict_of(tokens("baseline", lambda boot: {"q": [4, boot.number]}))
    assert row(verdict, "identity.tokens").word == "inconclusive"
    assert "tokens identical" not in verdict.sentence


def test_a_flaky_baseline_item_hides_no_loss_of_the_steady_ones(verdict_of):
    def values(boot, metric):
        if metric == "identity.tokens":
            return {"flaky": [boot.number], "steady": [1 if boot.arm == "baseline" else 2]}
        if metric == "smoke.correct":
            return {"flaky": boot.number % 2, "steady": int(boot.arm == "baseline")}
        return None

    verdict = verdict_of(values)
    for metric in ("identity.tokens", "smoke.correct"):
        assert row(verdict, metric).word == "regressed"
        assert row(verdict, metric).notes == ["lost items that the baseline repeats: steady"]
    assert verdict.exit_code == 1


def test_smoke_that_varies_in_the_baseline_is_tested(verdict_of):
    def values(boot, metric):
        if metric != "smoke.correct":
            return None
        return {f"i{n}": int(boot.arm == CANDIDATE or boot.number % 2 == n % 2) for n in range(10)}

    smoke = row(verdict_of(values, blocks=3), "smoke.correct")
    assert smoke.test == "sign-flip over clusters"
    assert smoke.word == "improved"
    assert "the baseline's own boots differ on" in smoke.notes[-1]


# --- several arms ---------------------------------------------------------------------------------------------------

BOTH = ("mhc_residual_reuse", "mhc_input_reuse")


def test_additive_to_the_byte(verdict_of):
    verdict = verdict_of(toggles=BOTH)
    (entry,) = verdict.additivity
    assert (entry.metric, entry.together, entry.difference) == (PRIMARY, -163_840, 0)
    assert entry.alone == {"mhc_residual_reuse": -131_072, "mhc_input_reuse": -32_768}
    assert [arm.word for arm in verdict.arms] == ["improved"] * 3


def test_not_additive_shows_the_difference(verdict_of):
    verdict = verdict_of(on(PRIMARY, "all", 1_000_000 - 163_840 + 100), toggles=BOTH)
    assert verdict.additivity[0].difference == 100


def test_a_ladder_has_no_sum(verdict_of):
    assert verdict_of(toggles=("mtp_hidden_skip", "mhc_final_fused")).additivity == []


def test_arms_of_as_many_toggles_as_there_are_single_ones_are_not_all_together(make_plan, make_records):
    specs = ["base=", "mtp=toggles=mtp_hidden_skip", "input=toggles=mhc_input_reuse",
             "two=toggles=mtp_hidden_skip,mhc_residual_reuse"]  # fmt: skip
    plan = plan_of_arms(make_plan, specs)
    assert judge(plan, make_records(plan)).additivity == []
    both = plan_of_arms(make_plan, [*specs, "both=toggles=mhc_input_reuse,mtp_hidden_skip"])
    entries = judge(both, make_records(both)).additivity
    assert entries
    assert all(set(entry.alone) == {"mtp", "input"} for entry in entries)


def plan_of_arms(make_plan, specs):
    return make_plan(arms=[parse_arm(spec) for spec in specs])


def test_the_worst_arm_decides(verdict_of):
    verdict = verdict_of(on(PRIMARY, "mhc_input_reuse", 1_000_001), toggles=BOTH)
    assert [arm.word for arm in verdict.arms] == ["improved", "regressed", "improved"]
    assert verdict.word == "regressed"


# --- attempts -------------------------------------------------------------------------------------------------------


def test_readings_of_an_interrupted_attempt_are_left_out(make_plan, make_records):
    plan = make_plan()
    records = make_records(plan)
    of_boot = [r for r in records if getattr(r, "boot", None) == 4]
    half = of_boot[: len(of_boot) // 2]
    mark = BootEnded(boot=4, time="t", status="interrupted", reason="killed", seconds=0)
    repeated = [r.model_copy(update={"attempt": 2}) for r in of_boot]
    start = records.index(of_boot[0])
    rest = [r for r in records if getattr(r, "boot", None) != 4]
    resumed = [*rest[:start], *half, mark, *repeated, *rest[start:]]
    assert isinstance(half[0], BootStarted)
    plain, again = judge(plan, records), judge(plan, resumed)
    assert again.rows == plain.rows
    assert again.word == "improved"
    assert again.notes == [*plain.notes, "boots repeated after an interruption: 4"]


def test_an_item_lost_in_some_boots_is_lost_and_its_answer_is_told(verdict_of):
    values = answers(CANDIDATE, b=0)
    smoke = row(verdict_of(lambda boot, key: values(boot, key) if boot.block == 1 else values(boot.model_copy(
        update={"arm": "baseline"}), key)), "smoke.correct")  # fmt: skip
    assert (smoke.word, smoke.test) == ("regressed", "equality")
    assert smoke.notes == ["gained 0, lost 1: b"]
    assert smoke.candidate == pytest.approx((1 + 0.5 + 0) / 3)
