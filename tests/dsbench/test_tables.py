"""Tables of readings: every case with a right answer, the rules that a table can break, and bad input."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.cli import main
from dsbench.records import EXIT_CODES
from dsbench.table_input import Table
from dsbench.table_judge import judge_table

DATA = Path(__file__).parents[1] / "data" / "verdicts"
CASES = sorted(path.stem for path in DATA.glob("*.json") if not path.stem.endswith(".expected"))

spec = importlib.util.spec_from_file_location("expected", Path(__file__).parent / "expected.py")
expected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(expected)


def invoke(*args):
    return CliRunner().invoke(main, list(map(str, args)))


def test_no_case_is_left_out():
    assert len(CASES) == 16


@pytest.mark.parametrize("name", CASES)
def test_case(name):
    result = invoke("judge", "--from-table", DATA / f"{name}.json", "--json")
    right = json.loads((DATA / f"{name}.expected.json").read_text())
    got = json.loads(result.stdout)
    assert expected.differences(got, right) == []
    assert result.exit_code == EXIT_CODES[right["verdict"]]


@pytest.mark.parametrize("name", CASES)
def test_people_read_the_same_verdict(name):
    result = invoke("judge", "--from-table", DATA / f"{name}.json")
    right = json.loads((DATA / f"{name}.expected.json").read_text())
    assert right["verdict"] in result.stdout.lower()
    if right["verdict"] == "inconclusive":
        assert "80 % power needs" in result.stdout or "boots an arm" in result.stdout or "it needs 4" in result.stdout


def test_single_boots_of_four_builds():
    """The builds are the declared difference: not void, and the boots that an answer would take."""
    got = json.loads(invoke("judge", "--from-table", DATA / "builds_one_boot_each.json", "--json").stdout)
    assert (got["verdict"], got["void"]) == ("inconclusive", [])
    needed = got["boots_per_arm_for_80_percent_power_normal_approximation"]
    assert needed["0.25"] == 54
    assert needed["0.06"] == pytest.approx(930, abs=2)


# --- rules ----------------------------------------------------------------------------------------------------------


def table(a=(300.1, 300.4, 299.8, 300.2), b=(320.2, 320.9, 319.7, 320.4), **changes):
    content = {
        "metric": "decode speed",
        "unit": "tokens/s",
        "higher_is_better": True,
        "practical_margin": 3.0,
        "arms": {"off": {"boots": list(a)}, "on": {"boots": list(b)}},
        "conditions": {"toggle_marker_seen": {"off": False, "on": True}},
    }
    return content | changes


def judged(content):
    return judge_table(Table.model_validate(content))


def with_conditions(**conditions):
    return table(conditions={"toggle_marker_seen": {"off": False, "on": True}} | conditions)


def builds(**conditions):
    boots = [{"build": n, "available_kv_gib": gib} for n, gib in enumerate([20.0, 21.5], start=1)]
    fixed = {"metric": "KV memory", "unit": "GiB", "higher_is_better": True}
    return fixed | {"boots": boots, "conditions": conditions}


def with_arm(**fields):
    content = copy.deepcopy(table())
    content["arms"]["on"] |= fields
    return content


VOID = {
    "marker-missing": table(conditions={"toggle_marker_seen": {"off": False, "on": False}}),
    "marker-missing ": table(conditions={"toggle_marker_seen": {"off": False, "on": None}}),
    "marker-misplaced": table(conditions={"toggle_marker_seen": {"off": True, "on": True}}),
    "marker-misplaced ": table(conditions={"toggle_marker_seen": {"off": None, "on": True}}),
    "condition-differs": with_conditions(version={"off": "0.26", "on": "0.27"}),
    "condition-differs ": with_arm(fewshot=5),
    "condition-differs  ": with_conditions(version={"off": "0.26"}),
    "counter-reset ": builds(counter_reset={"1": False, "2": True}),
    "kv-pinned ": builds(kv_source={"1": "profiled", "2": "pinned"}),
    "shared-log": with_conditions(log_sha256={"off": "abc", "on": "abc"}),
    "shared-log ": with_arm(logs=["1", "2", "3", "3"]),
    "identical-readings": table(b=(300.1, 300.4, 299.8, 300.2)),
    "check-missing": with_conditions(checks_planned=3, checks_run={"off": 3, "on": 2}),
    "counter-reset": with_conditions(counter_reset={"off": False, "on": True}),
    "engine-restarted": with_conditions(engine_restarted=True),
    "foreign-process": with_conditions(other_gpu_process={"off": True, "on": False}),
    "fatal-finding": with_conditions(fatal={"off": [], "on": ["oom"]}),
    "kv-pinned": table(metric="KV memory", unit="GiB", conditions={"kv_source": "pinned"}),
}


@pytest.mark.parametrize("code", VOID)
def test_a_broken_rule_voids(code):
    verdict = judged(VOID[code])
    assert verdict.word == "void"
    assert {reason.code for reason in verdict.void} == {code.strip()}
    assert all(reason.mend for reason in verdict.void)


@pytest.mark.parametrize(
    ("unit", "clock"),
    [
        *((unit, True) for unit in ("ms", "s", "µs", "tok/s", "tokens per second", "ms/token", "GB/s", "Seconds")),
        *((unit, False) for unit in ("items", "menus", "GiB", "points", "systems", "tokens", "share")),
    ],
)
def test_only_clocks_never_read_alike(unit, clock):
    """24 of 24 items in every boot of both arms are two sound arms, not one file read twice."""
    verdict = judged(table([24, 24, 23, 24], [24, 24, 23, 24], unit=unit, conditions={}))
    assert [reason.code for reason in verdict.void] == (["identical-readings"] if clock else [])


def test_a_sound_table_is_judged():
    verdict = judged(table())
    assert (verdict.word, verdict.void) == ("improved", [])


def test_what_is_declared_may_differ():
    content = with_conditions(version={"off": "0.26", "on": "0.27"})
    assert judged(content | {"declared": ["version"]}).word == "improved"


@pytest.mark.parametrize("arm", ["serve A", "serve C"])
def test_renaming_an_arm_but_not_its_conditions_is_refused(tmp_path, arm):
    """Otherwise two lengths are compared as if nobody had said that they differ."""
    content = json.loads((DATA / "tokens_other_length.json").read_text())
    content["arms"] = {"new name" if name == arm else name: boots for name, boots in content["arms"].items()}
    path = tmp_path / "table.json"
    path.write_text(json.dumps(content))
    result = invoke("judge", "--from-table", path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert f"conditions.max_model_len: '{arm}' has no readings" in result.stderr


def test_conditions_of_sound_builds_by_name_do_not_void():
    assert judged(builds(counter_reset={"1": False, "2": False}, kv_source={"1": "profiled"})).void == []


def test_a_companion_reading_of_one_arm_is_no_difference():
    assert judged(with_conditions(available_kv_gib={"off": 21.2})).word == "improved"


def test_a_byte_order_mark_is_read_past(tmp_path):
    path = tmp_path / "table.json"
    path.write_text(json.dumps(table()), encoding="utf-8-sig")
    assert invoke("judge", "--from-table", path).exit_code == 0


def test_a_pinned_memory_does_not_void_a_speed():
    assert judged(with_conditions(kv_source="pinned")).word == "improved"


def test_blocks_are_paired():
    """Drift of a hundred times the effect cancels inside the blocks; without blocks nothing is seen."""
    a = [100.0 * block + 0.01 * (block % 3) for block in range(1, 9)]
    b = [value + 5.0 for value in a]
    content = table(a, b)
    assert judged(content).word == "inconclusive"
    for arm in content["arms"].values():
        arm["blocks"] = list(range(1, 9))
    verdict = judged(content)
    assert (verdict.word, verdict.figures["test"]) == ("improved", "sign-flip over blocks")
    assert verdict.figures["p"] == pytest.approx(2 / 2**8)


@pytest.mark.parametrize("up", [True, False])
def test_a_wild_boot_makes_ranks_and_means_disagree(up):
    """Seven of eight boots are above all of the baseline: no loss to claim, and no gain of the mean either."""
    arms = {"base": {"boots": list(range(100, 108))}, "cand": {"boots": [110, 111, 112, 113, 114, 115, 116, 1]}}
    verdict = judged(table(arms=arms, conditions={}, practical_margin=2.0, higher_is_better=up))
    assert (verdict.word, verdict.figures["p"] <= 0.05) == ("inconclusive", True)
    assert "higher in 56 of 64 pairs, but its mean is lower" in verdict.lines[0]
    arms["cand"]["boots"][-1] = 117
    assert judged(table(arms=arms, conditions={}, higher_is_better=up)).word == ("improved" if up else "regressed")


# --- what it would take ---------------------------------------------------------------------------------------------

NOISY = {"a": (300, 310, 290, 305, 295), "b": (301, 312, 291, 304, 298)}
BY_BLOCK = {
    "arms": {
        "off": {"boots": list(NOISY["a"]), "blocks": [1, 2, 3, 4, 5]},
        "on": {"boots": [302, 308, 296, 304, 301], "blocks": [1, 2, 3, 4, 5]},
    }
}


@pytest.mark.parametrize("by_block", [False, True])
def test_what_is_needed_is_told_beyond_the_margin(by_block):
    """A change of the margin is called by no number of boots; one of a little more takes many."""
    content = table(**NOISY) | (BY_BLOCK if by_block else {})
    told = judged(content | {"practical_margin": 3.0, "effects": [3.0, 3.5, 6.0]})
    needed = told.figures["boots_per_arm_for_80_percent_power"]
    without = judged(content | {"practical_margin": None, "effects": [3.5]})
    assert list(needed) == ["3.5", "6"]
    assert needed["3.5"] > 2 * without.figures["boots_per_arm_for_80_percent_power"]["3.5"]
    assert needed["6"] < needed["3.5"]
    assert "; no number of boots calls a change that is within the margin" in told.lines[0]
    equivalent = judged(content | {"practical_margin": 3.0})
    assert equivalent.figures["boots_per_arm_for_80_percent_power"] == {}
    n = equivalent.figures["boots_per_arm_to_call_equivalent"]
    assert f"80 % power needs {n:,} boots an arm to call equal arms equivalent within 3 tokens/s" in equivalent.lines[0]


def test_power_of_several_arms_says_that_it_is_of_one():
    content = table(**NOISY)
    content["arms"]["both"] = {"boots": [302, 309, 293, 306, 297]}
    content["conditions"]["toggle_marker_seen"]["both"] = True
    lines = judged(content).lines
    assert all("told of one claim alone; Holm over 2 takes more." in line for line in lines)


def test_cold_boots_are_left_out_and_said():
    content = table()
    content["arms"]["on"] |= {"compile_cache": ["cold", "warm", "warm", None]}
    verdict = judged(content)
    assert verdict.figures["boots_excluded"] == {"on": [320.2]}
    assert (verdict.word, verdict.detail) == ("inconclusive", "underpowered after exclusion")
    content["arms"]["on"] |= {"compile_cache": ["cold"] * 4}
    assert judged(content).word == "inconclusive"


def test_several_arms_are_corrected():
    content = table()
    assert judged(content).word == "improved"
    content["arms"]["other"] = {"boots": [300.0, 300.3, 300.5, 299.9]}
    del content["conditions"]
    figures = judged(content).figures["comparisons"]
    assert figures["on"]["p"] == pytest.approx(2 / 70)
    assert figures["on"]["p_holm"] == pytest.approx(4 / 70)
    assert figures["on"]["verdict"] == "inconclusive"


def test_a_ladder_whose_prediction_fails_says_so():
    content = json.loads((DATA / "ladder_exact.json").read_text())
    content["predicted_released_mib"][1] = 512
    verdict = judged(content)
    assert verdict.figures["attribution_holds"] is False
    assert "Warning" in verdict.lines[-1]


@pytest.mark.parametrize(
    ("gib", "margin", "word"),
    [
        ([20.0, 20.1], 0.5, "equivalent"),
        ([20.0, 20.1], None, "improved"),
        ([20.0, 19.9], 0.05, "regressed"),
        ([20.0, 20.6, 20.5], 0.5, "improved"),
        ([20.0, 19.6, 19.2], 0.5, "regressed"),  # each step inside the margin, both together beyond it
    ],
)
def test_exact_steps_are_held_to_the_margin(gib, margin, word):
    content = json.loads((DATA / "ladder_exact.json").read_text())
    for key in ("predicted_released_mib", "printed_resolution_gib"):
        content.pop(key, None)
    steps = [{"step": str(n), "available_kv_gib": value} for n, value in enumerate(gib)]
    verdict = judged(content | {"steps": steps, "practical_margin": margin})
    assert verdict.word == word
    assert ("within 0.5 GiB" in verdict.lines[0]) == (word == "equivalent")


def test_exact_must_be_seen_not_only_said():
    content = json.loads((DATA / "ladder_exact.json").read_text())
    assert judged(content | {"noise_model": "exact: no repeats were made"}).word == "inconclusive"


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=4, max_size=6), st.lists(st.integers(0, 40), min_size=4, max_size=6))
def test_swapping_the_arms_swaps_the_words(a, b):
    """Readings in quarter units with no clock, so that equal ones are no copies."""
    first = judged(table([x / 4 for x in a], [x / 4 for x in b], unit="GiB", conditions={}))
    second = judged(table([x / 4 for x in b], [x / 4 for x in a], unit="GiB", conditions={}))
    swapped = {"improved": "regressed", "regressed": "improved"}
    assert second.word == swapped.get(first.word, first.word)
    assert second.figures["p"] == first.figures["p"]


def test_many_boots_are_judged_too():
    """Hundreds of boots: assignments are drawn, and no number is too large."""
    a = [300 + (7 * n % 50) / 10 for n in range(600)]
    b = [301 + (11 * n % 50) / 10 for n in range(600)]
    assert judged(table(a, b, practical_margin=0.5)).word == "improved"
    assert judged(table(a, [300 + (11 * n % 50) / 10 for n in range(600)])).word == "equivalent"


def test_whole_or_empty_memory_is_no_reason_to_stop():
    content = {"metric": "KV memory", "unit": "GiB", "higher_is_better": True}
    boots = [{"build": n, "available_kv_gib": gib} for n, gib in enumerate([0, 20, 21.5])]
    verdict = judged(content | {"boots": boots})
    assert verdict.figures["range_percent_of_smallest"] is None
    assert verdict.figures["claims_forbidden"] == ["+20.00 GiB gain of build 1", "+1.50 GiB gain of build 2"]


# --- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[1]", "should be an object with keys"),
        ("{", "not valid JSON"),
        ('{"metric": "m"}', "is missing"),
        (table(practical_margn=1), "practical_margn: unknown key; did you mean practical_margin"),
        (with_arm(boots=[1, "x"]), "arms.on.boots.1: input should be a valid number"),
        (with_arm(boots=[]), "arms.on.boots: list should have at least 1 item"),
        (with_arm(compile_cache=["warm"]), "compile_cache has 1 entries for 4 readings"),
        (table(alpha=5), "alpha: input should be less than 1, got 5"),
        (table(arms={"a": {"boots": [1]}}), "a comparison needs two"),
        (table(steps=[]), "steps"),
        (table([True, 300.4, 299.8, 300.2]), "arms.off.boots.0: input should be a valid number, got True"),
        (table(["11.5", 300.4, 299.8, 300.2]), "arms.off.boots.0: input should be a valid number, got '11.5'"),
        (table(higher_is_better="yes"), "higher_is_better: input should be a valid boolean, got 'yes'"),
        (table(alpha="0.05"), "alpha: input should be a valid number, got '0.05'"),
        (with_arm(blocks=[1, 2, 3, True]), "arms.on.blocks.3: input should be a valid integer, got True"),
        (with_conditions(toggle_marker_seen={"off": False, "on": "false"}), "should be true, false or null, got 'fa"),
        (with_conditions(checks_planned="3"), "conditions.checks_planned: should be a whole number or null, got '3'"),
        (with_conditions(seed={"off": 1, "no": 1}), "conditions.seed: 'no' has no readings; the table has off, on"),
        (builds(cache_state={"1": "warm", "3": "warm"}), "conditions.cache_state: '3' has no readings"),
        (
            builds() | {"boots": [{"build": n, "available_kv_gib": n, "kv_tokens": 10**400} for n in (1, 2)]},
            "too large",
        ),
        ("[" * 100_000, "nested more than 64 levels deep"),
        (table(conditions={"seed": json.loads("[" * 70 + "]" * 70)}), "nested more than 64 levels deep"),
        ('{"n_items": ' + "9" * 5000 + "}", "has an integer of more than 4300 digits"),
    ],
)
def test_bad_input_is_one_line(tmp_path, content, said):
    path = tmp_path / "table.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    result = invoke("judge", "--from-table", path)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_result_or_a_table_not_both(tmp_path):
    for args in ([], [tmp_path, "--from-table", DATA / "cold_boot.json"]):
        result = invoke("judge", *args)
        assert result.exit_code == 2
        assert "either one RESULT or one --from-table FILE" in result.stderr
    assert "No such file" in invoke("judge", "--from-table", tmp_path / "none.json").stderr
