"""Every check against its right answer, and the rules behind them."""

import importlib.util
import json
import math
import random
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import assume, given
from hypothesis import strategies as st

from dsbench.checks import CHECKS, function
from dsbench.checks.gates import gate_state
from dsbench.checks.identities import Row, itl_over_length, speed_limit, violations
from dsbench.checks.kv_boots import cache_state
from dsbench.checks.scale import scale_class
from dsbench.checks.text import incoherence, leaked_control_token, recovered_token
from dsbench.checks.token_ids import bad_token_indices
from dsbench.checks.tool_calls import trace_class
from dsbench.cli import main

DATA = Path(__file__).parents[2] / "data" / "defects"
FILES = {
    "acceptance_too_good": "acceptance",
    "control_token_inside_fluent_text": "control_tokens",
    "draft_depth_against_block_size": "draft_depth",
    "first_boot_reads_less_kv": "first_boot",
    "gate_that_was_not_run": "gates",
    "identities_between_metrics": "identities",
    "kv_swing_between_boots": "kv_swing",
    "kv_tokens_are_derived": "derived_tokens",
    "prefix_cache_vetoed_by_draft": "prefix_cache",
    "rank_capacity_mismatch": "ranks",
    "token_id_equals_vocab_size": "token_ids",
    "tool_call_inside_reasoning": "tool_calls",
    "uniform_scale_error": "scale",
}

spec = importlib.util.spec_from_file_location("expected", Path(__file__).parents[1] / "expected.py")
expected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(expected)


def invoke(*args):
    return CliRunner().invoke(main, list(map(str, args)))


@pytest.mark.parametrize("name", CHECKS)
def test_case(name):
    result = invoke("check", name, DATA / f"{FILES[name]}.json", "--json")
    right = json.loads((DATA / f"{FILES[name]}.expected.json").read_text())
    got = json.loads(result.stdout)
    assert expected.differences(got, right) == []
    assert (result.exit_code, bool(got["found"])) == (1, True)


def test_the_list_and_refusals(tmp_path):
    assert all(name in invoke("check").stdout for name in CHECKS)
    assert json.loads(invoke("check", "--json").stdout).keys() == CHECKS.keys()
    bad = tmp_path / "bad.json"
    bad.write_text('{"gates": [{"rc": "x", "stdout": ""}], "must_be_full": [true]}')
    for args, said in (
        (["gate_not_run"], "unknown check 'gate_not_run': did you mean gate_that_was_not_run?"),
        (["gate_that_was_not_run"], "needs a FILE"),
        (["gate_that_was_not_run", bad], "gates.0.rc: input should be a valid integer"),
    ):
        result = invoke("check", *args)
        assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
        assert said in result.stderr


@pytest.mark.parametrize("name", CHECKS)
def test_an_empty_object_is_refused_in_one_line(name, tmp_path):
    refused(name, {}, "nothing was checked" if name == "tool_call_inside_reasoning" else "is missing", tmp_path)


EMPTY = {
    "acceptance_too_good": {"lines": []},
    "acceptance_too_good ": {"lines": [{"num_speculative_tokens": 5}]},
    "control_token_inside_fluent_text": {"outputs": []},
    "draft_depth_against_block_size": {"configs": []},
    "first_boot_reads_less_kv": {"boots": []},
    "gate_that_was_not_run": {"gates": [], "must_be_full": []},
    "identities_between_metrics": {"rows": []},
    "identities_between_metrics ": {"rows": [{}, {"name": "prose", "mean_acceptence_length": 9, "depth": 3}]},
    "kv_swing_between_boots": {"A": [], "B": []},
    "kv_swing_between_boots ": {"A": [], "B": [1]},
    "kv_swing_between_boots  ": {"A": [1], "B": []},
    "kv_tokens_are_derived": {"serves": {}, "columns": [], "pairs": []},
    "prefix_cache_vetoed_by_draft": {"cases": []},
    "rank_capacity_mismatch": {"cases": []},
    "token_id_equals_vocab_size": {"vocab_size": 9, "token_ids": []},
    "tool_call_inside_reasoning": {"traces": [], "rates": []},
    "uniform_scale_error": {"tokens": [], "ratio_series": [], "tolerance": 0.01},
    "uniform_scale_error ": {"tokens": [1], "ratio_series": [], "tolerance": 0.01},
}


def refused(name, content, said, tmp_path):
    path = tmp_path / "input.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    result = invoke("check", name.strip(), path)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert said in result.stderr


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_input_is_nothing_checked(name, tmp_path):
    refused(name, EMPTY[name], "nothing was checked", tmp_path)


def test_every_check_is_tried_with_nothing():
    assert {name.strip() for name in EMPTY} == CHECKS.keys()


SERVE = {"columns": ["kv_tokens", "max_concurrency", "max_model_len"], "pairs": [["a", "a"]]}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("draft_depth_against_block_size", {"configs": [{"num_speculative_tokens": 5, "block_size": 5}],
                                            "per_position_k5": [True]}, "should be a list of rates"),
        ("first_boot_reads_less_kv", {"boots": [{"arm": "A", "available_kv_gib": "1"}]}, "got '1'"),
        ("first_boot_reads_less_kv", {"boots": [{"arm": "A", "available_kv_gib": 1}],
                                      "kv_tokens_before_after": [0, 5]}, "got 0, 5"),
        ("kv_swing_between_boots", {"A": [True], "B": [1]}, "A.0: input should be a valid number, got True"),
        ("kv_tokens_are_derived", {"serves": {"a": [1, 1, 0]}, **SERVE}, "max_model_len should be above 0, got 0"),
        ("prefix_cache_vetoed_by_draft", {"cases": [{"queries": 1, "hits": 1, "prompts_share_prefix": True}],
                                          "acceptance": {"cold_prefix": [0], "hot_prefix": [1]}}, "greater than 0"),
        ("rank_capacity_mismatch", {"cases": [{"0": 1}], "pipeline": {"0": {"gib": 1, "layers": 0}}}, "layers"),
        ("control_token_inside_fluent_text", {"outputs": ["a"], "sampler": {
            "draft_probs": [], "target_probs_peak_index": 5, "target_prob_of_index_0": 0}}, "5 is no index of 0"),
        ("token_id_equals_vocab_size", {"vocab_size": 0, "token_ids": [1], "tile": 8}, "vocab_size"),
        ("tool_call_inside_reasoning", {"rates": [{"on": [1, 0], "off": [1, 2]}]}, "rates.0.on"),
        ("prefix_cache_vetoed_by_draft", {"cases": [{"queries": 1, "hits": 10**400, "prompts_share_prefix": True}]},
         "a figure is too large"),
        ("tool_call_inside_reasoning", "[" * 100_000, "nested more than 64 levels deep"),
    ],
)  # fmt: skip
def test_input_that_no_check_can_use(name, content, said, tmp_path):
    refused(name, content, said, tmp_path)


def test_zeros_are_readings():
    """Empty ranks and outputs of nothing are answers, not divisions by zero."""
    assert function("rank_capacity_mismatch")({"cases": [{"0": 0.0, "1": 0.0}]}).found == []
    assert scale_class([1, 64], [0.0, 0.0], 0.01) == "uniform scale error, about 0"


def test_a_clean_input_finds_nothing(tmp_path):
    path = tmp_path / "gates.json"
    path.write_text('{"gates": [{"rc": 0, "stdout": "passed=24/24"}], "must_be_full": [true]}')
    result = invoke("check", "gate_that_was_not_run", path)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "nothing found")


# --- text -----------------------------------------------------------------------------------------------------------

WORDS = st.text("abcdefghij klmnop.", min_size=1, max_size=60)


@given(WORDS, WORDS, st.sampled_from(["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<|im_end|>", "<\uff5cUser\uff5c>"]))
def test_a_control_token_is_found_anywhere(before, after, token):
    assert leaked_control_token(before + token + after)


@given(st.text("abc <|>", max_size=40))
def test_signs_of_code_are_no_control_token_unless_whole(text):
    assert leaked_control_token(text) == any(f"<|{w}|>" in text for w in ("a", "b", "c")) or "|>" in text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("A plain answer.", None),
        ("", None),
        ("broken \ufffd here", "replacement character"),
        ("only \u6f22\u5b57\u6f22\u5b57", "4 of 8 letters are non-Latin"),
        ("na\u00efve caf\u00e9 \u00fcber", None),
        ("x" * 40, "repetition"),
        ("abab" * 10, "repetition"),
        ("ok ok", None),
        ("the " * 200, "repetition"),
        ("I will go. " * 50, "repetition"),
        ("a b " * 1000, "repetition"),
        ("The harbour is quiet at night and then " + "the ships wait, " * 9, "repetition"),
        ("I will go. " * 7, None),
        ("la la la la la la la", None),
        ("no no no no no no no no no, said the clerk who had been asked for it once too often that day", None),
        ("nul \0 here", "NUL character"),
        ("icon \ue0a0 here", "private-use character"),
        ("icon \U000f0001 here", "private-use character"),
        ("It is 42.</s>", "leaked control token"),
        ("<s> It is 42.", "leaked control token"),
        ("<s>It is 42.</s>\n", "leaked control token"),
        ("was <s>40</s> 42", None),
        ("let v: Vec<s> = x;", None),
        ("the tag `</s>` ends a sentence", None),
        ('He said "no."</s>', "leaked control token"),
        ("It is 42<eos>", "leaked control token"),
        ("It is 42</s>", "leaked control token"),
        ("was <s>40</s> and <s>41</s>", None),
        ("It is 42.[/INST] And", "leaked control token"),
        ("It is 42. <<SYS>>", "leaked control token"),
        ("arr[INST] = 3", None),
        ("<think>6*7</think>42", None),
        ("6*7</think>42", None),
        ("<think>6*7", None),
        ("<think>6*7</think>42 <think>so", "leaked control token"),
        ("It is 42. <think>so", "leaked control token"),
        ("6*7</think>42</think>", "leaked control token"),
        ("write `<think>` before it", None),
    ],
)
def test_incoherence(text, why):
    assert incoherence(text) == why


PHRASES = st.lists(st.text("abcdefgh.,", min_size=1, max_size=8), min_size=1, max_size=20).map(" ".join)


@given(PHRASES, st.integers(9, 30), st.data())
def test_a_loop_of_words_is_repetition_wherever_it_is_cut(phrase, times, data):
    looped = f"{phrase} " * times
    cut = looped[: len(looped) - data.draw(st.integers(0, len(phrase)))]
    assume(len(cut) >= 40)
    before = data.draw(st.text("ijkl ", max_size=len(cut) // 4))
    assert incoherence(f"{before} {cut}") == "repetition"


NOUNS = ["log", "harbour", "engine", "index", "page", "token", "night", "ships", "clerk", "report", "draft", "row"]
VERBS = ["holds", "writes", "reads", "sends", "waits", "turns", "counts"]


def sentence(rng: random.Random) -> str:
    subject, verb, thing = rng.choice(NOUNS), rng.choice(VERBS), rng.choice(NOUNS)
    return f"The {subject} {verb} the {thing}{rng.choice(['', ' again', ' at night', f' {rng.randint(1, 99)} times'])}."


@given(st.integers(0, 2**32), st.integers(2, 200))
def test_ordinary_texts_lists_json_and_tables_are_no_repetition(seed, n):
    rng = random.Random(seed)
    rows = [{"id": i, "name": rng.choice(NOUNS), "ok": True, "note": None} for i in range(n)]
    cells = [[str(i), rng.choice(NOUNS), "yes", "0"] for i in range(n)]
    for text in (
        " ".join(sentence(rng) for _ in range(n)),
        "\n".join(f"{i}. {sentence(rng)}" for i in range(n)),
        "\n".join(f"- {rng.choice(NOUNS)}: {rng.randint(0, 9)}" for i in range(n)),
        "\n".join(f"* The {rng.choice(NOUNS)} is number {i} of the list" for i in range(n)),
        json.dumps(rows),
        json.dumps(rows, indent=2),
        "\n".join(["| n | name | ok | left |", "|---|---|---|---|", *(f"| {' | '.join(row)} |" for row in cells)]),
        "\n".join(f"    total += rows[{i}].count  # {rng.choice(VERBS)}" for i in range(n)),
        ",".join(str(rng.randint(10, 99)) for _ in range(n)),
    ):
        assert incoherence(text) is None, text


def test_our_own_models_answers_are_sound():
    """The committed answers of the battery that its own verdict calls clean."""
    texts = set()
    for file in sorted(Path("results/battery").glob("*/records.jsonl")):
        for line in file.read_text().splitlines():
            record = json.loads(line)
            if record.get("metric") in ANSWERS and record.get("text") and record.get("value") == 1:
                texts.add(record["text"])
    assert len(texts) > 500
    assert {text: why for text in texts if (why := incoherence(text))} == {}


ANSWERS = ("coherence.clean", "coherence.recall", "gsm8k.correct", "instruction.correct", "smoke.correct")


@given(st.integers(0, 9), st.floats(1e-30, 1e-3))
def test_a_draft_of_nan_leaves_the_target(peak, rest):
    target = [1.0 if i == peak else rest for i in range(10)]
    assert recovered_token(target, [math.nan] * 10) == peak
    assert recovered_token(target, [None] * 10) == peak


# --- figures --------------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(-5, 20), max_size=20), st.integers(1, 15))
def test_bad_ids_are_those_outside(ids, size):
    assert [ids[i] for i in bad_token_indices(ids, size)] == [t for t in ids if t < 0 or t >= size]


@given(st.floats(1.05, 8.0), st.floats(1.0, 100.0), st.integers(1, 64))
def test_true_figures_break_no_identity(length, itl, concurrency):
    row = Row(
        depth=7,
        mean_acceptance_length=length,
        itl_ms=itl,
        tpot_ms=itl / length,
        concurrency=concurrency,
        tokens_per_second=concurrency * 1000 * length / itl,
    )
    assert violations(row) == []
    assert speed_limit(row) == pytest.approx(1.05 * row.tokens_per_second)
    swapped = row.model_copy(update={"tpot_ms": itl})
    assert "tpot against itl" in violations(swapped)
    assert itl_over_length(Row()) is None


@given(st.integers(0, 30), st.integers(1, 30), st.sampled_from([0, 1, 126, 127]))
def test_a_gate_passes_only_when_full_and_started(passed, of, rc):
    state = gate_state(rc, f"passed={passed}/{of}", True)
    assert (state == "pass") == (passed == of and rc == 0)
    assert (state == "not run") == (rc in (126, 127))
    assert gate_state(rc, "done", True) == gate_state(rc, "passed=0/0", False) == "not run"


@given(st.floats(0.3, 5.0).filter(lambda f: abs(f - 1) > 0.01))
def test_one_factor_is_uniform(factor):
    assert scale_class([1, 64, 1024], [factor] * 3, 0.002).startswith("uniform scale error")
    assert scale_class([1, 64, 1024], [1.0, 1.0, factor], 0.002) == "size-dependent error from 1024 tokens"


@pytest.mark.parametrize(
    ("reasoning", "calls", "what"),
    [
        ("<\uff5cDSML\uff5ctool_calls>", [], "tool call swallowed by reasoning"),
        ("<tool_call>{}</tool_call>", None, "tool call swallowed by reasoning"),
        ("<tool_call>", [{"name": "f"}], "tool call"),
        ("no tool calls needed", [], "no tool call"),
        (None, [], "no tool call"),
    ],
)
def test_trace_class(reasoning, calls, what):
    assert trace_class(reasoning, calls) == what


def test_cache_state_is_read_not_guessed():
    assert cache_state("torch.compile takes 41.20 s in total") == "cold"
    assert cache_state("Directly load AOT compilation from path <cache>") == "warm"
    assert cache_state(None) == cache_state("starting") == "unknown"
