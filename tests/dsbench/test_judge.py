"""One verdict from records: exact metrics, items, several arms, attempts."""

import re

import pytest

from dsbench.builds import parse_arm
from dsbench.compare import ONE_BOOT
from dsbench.judge import judge
from dsbench.records import EXIT_CODES, BootEnded, BootStarted
from dsbench.report.table import difference
from tests.dsbench.judged import BOTH, CANDIDATE, PRIMARY, on, row


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
    verdict = verdict_of(on(PRIMARY, "baseline", lambda boot: 1_000_000 + 9_000 * boot.number))
    primary = row(verdict, PRIMARY)
    assert (primary.kind, primary.word) == ("sample", "inconclusive")
    assert "varies between the baseline's own boots: judged as a sample" in primary.notes
    assert (verdict.word, verdict.exit_code) == ("inconclusive", 3)


def test_an_exact_metric_judged_as_a_sample_can_still_be_improved(verdict_of):
    def values(boot, metric):
        if metric != PRIMARY:
            return None
        return 1_000_000 + 7_000 * boot.number - (300_000 if boot.arm == CANDIDATE else 0)

    verdict = verdict_of(values, blocks=6)
    assert row(verdict, PRIMARY).word == "improved"
    assert row(verdict, PRIMARY).p == pytest.approx(0.03125)


def test_one_boot_an_arm_decides_nothing(verdict_of):
    primary = row(verdict_of(blocks=1), PRIMARY)
    assert primary.word == "inconclusive"
    assert primary.notes == [ONE_BOOT]


def test_a_loss_of_one_boot_an_arm_stands_and_says_that_nothing_repeats_it(verdict_of):
    verdict = verdict_of(on(PRIMARY, CANDIDATE, lambda boot: 1_300_000), blocks=1)
    assert (row(verdict, PRIMARY).word, verdict.exit_code) == ("regressed", 1)
    assert ONE_BOOT in row(verdict, PRIMARY).notes


def test_unknown_is_not_fine(verdict_of):
    verdict = verdict_of(lambda boot, key: "unknown" if key == "kv.non_torch_bytes" else None)
    assert row(verdict, "kv.non_torch_bytes").word == "inconclusive"
    assert row(verdict, "kv.non_torch_bytes").notes == ["unknown on this platform"]
    assert verdict.word == "improved"


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
    assert smoke.test == "sign-flip over items"
    assert smoke.word == "improved"
    assert "the baseline's own boots differ on" in smoke.notes[-1]


# --- several arms ---------------------------------------------------------------------------------------------------


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


def test_the_sentence_gives_a_change_as_the_table_does(make_plan, make_records):
    def slower(boot, metric):
        return (100.0 if boot.arm == "baseline" else 80.15) + boot.number / 100 if metric == "decode.tps.c1" else None

    plan = make_plan(blocks=8)
    verdict = judge(plan, make_records(plan, slower))
    row = next(row for row in verdict.rows if row.metric == "decode.tps.c1")
    told = difference(row).partition(" [")[0]
    assert re.fullmatch(r"-\d+\.\d %", told)
    assert verdict.sentence == f"mhc_input_reuse regressed: decode.tps.c1 {told}; tokens identical."


def test_what_the_platform_does_not_tell_is_no_matter_of_blocks(make_plan, make_records):
    def values(boot, metric):
        return {"kv.available_bytes": "unknown", "decode.tps.c1": 50.0 + boot.number**2}.get(metric)

    plan = make_plan()
    sentence = judge(plan, make_records(plan, values)).sentence
    assert "; guards not resolved at 2 blocks: " in sentence
    resolved, _, unknown = sentence.rpartition("; guards unknown on this platform: ")
    assert unknown == "kv.available_bytes."
    assert "kv.available_bytes" not in resolved
