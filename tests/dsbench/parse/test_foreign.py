"""Results of other programs: every known shape against its right answer, and that nothing else is taken for one."""

import copy
import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsbench.errors import InputError
from dsbench.imported_table import Imported, build_table
from dsbench.parse.foreign import records
from dsbench.parse.foreign.lm_eval import items_behind, stderr
from dsbench.parse.foreign.recognise import TOOLS, UNKNOWN, import_result, tool_of
from dsbench.table_input import Table
from dsbench.table_judge import judge_table

TESTS = Path(__file__).resolve().parents[2]
DATA = TESTS / "data" / "results"
CASES = sorted(path for path in DATA.glob("*.json*") if ".expected." not in path.name)

spec = importlib.util.spec_from_file_location("expected", TESTS / "dsbench" / "expected.py")
expected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(expected)


def right_answer(path):
    return json.loads((DATA / f"{path.stem}.expected.json").read_text())


def write(folder, content, name="result"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def content_of(name):
    return json.loads((DATA / name).read_text())


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_case(path):
    got = json.loads(json.dumps(import_result(path)))
    assert expected.differences(got, right_answer(path)) == []


def test_no_case_is_left_out():
    assert len(CASES) == 11


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_file_is_known_by_its_keys_alone(path, tmp_path):
    """One program claims it, and neither the name nor the ending says which."""
    first = records.load_records(path)[0]
    assert [tool.name for tool in TOOLS if tool.is_mine(first)] == [tool_of(first).name]
    assert import_result(write(tmp_path, path.read_text(), "notes.txt")) == import_result(path)


OTHERS = sorted(
    path for path in (TESTS / "data").rglob("*.json*") if path.parent != DATA and path.parent.name != "logs"
)


@pytest.mark.parametrize("path", OTHERS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_other_files_are_unknown(path):
    assert import_result(path)["tool"] == UNKNOWN


@pytest.mark.parametrize("content", [{}, [], 1, None, '"text"', [1], [{}], {"a": 1}, [[{}]], {"benchmarks": []}])
def test_json_of_nobody_is_unknown(content, tmp_path):
    got = import_result(write(tmp_path, content))
    assert got["tool"] == UNKNOWN
    assert got["why"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "is empty"),
        (" \n", "is empty"),
        ("INFO 01-01 server started\n", "result:1: not valid JSON"),
        ('{"completed": 3,', "result:1: not valid JSON"),
        ('{"a": 1}\n{"a": \n', "result:2: not valid JSON"),
        ('{"a": 1}\n\n[1]\n', "result:3: should be an object"),
        ("[" * 200_000, "nested more than 64 levels"),
        ('{"a":' * 80 + "1" + "}" * 80, "nested more than 64 levels"),
        ('{"completed": ' + "1" * 5000 + "}", "integer of more than"),
    ],
)
def test_a_file_that_is_no_result_is_one_line(text, told, tmp_path):
    with pytest.raises(InputError, match=told) as error:
        import_result(write(tmp_path, text))
    assert "\n" not in str(error.value)


def test_bytes_and_files_that_are_not_there(tmp_path):
    (tmp_path / "result").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        import_result(tmp_path / "result")
    with pytest.raises(InputError, match="cannot read"):
        import_result(tmp_path / "none")


def test_a_file_of_more_bytes_than_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "MOST_BYTES", 10)
    with pytest.raises(InputError, match="larger than 10 bytes"):
        import_result(write(tmp_path, {"a": "0123456789"}))


def test_the_wrong_kind_of_value_is_named_with_its_place(tmp_path):
    content = content_of("guidellm_two_rates.json")
    content["benchmarks"][1]["config"]["strategy"]["rate"] = "fast"
    with pytest.raises(InputError, match=r"guidellm: benchmarks\.1\.config\.strategy\.rate: .*got 'fast'"):
        import_result(write(tmp_path, content))


def test_the_record_is_named_where_there_are_several(tmp_path):
    lines = (DATA / "sglang_appended.jsonl").read_text().splitlines()
    bad = json.dumps(json.loads(lines[1]) | {"completed": -4})
    with pytest.raises(InputError, match=r"sglang bench_serving: record 2: completed: .*got -4"):
        import_result(write(tmp_path, f"{lines[0]}\n{bad}\n"))


# --- programs ---------------------------------------------------------------------------------------------------------


def changed(tmp_path, name, **changes):
    return import_result(write(tmp_path, content_of(name) | changes))


def test_vllm_runs_that_were_appended_are_rows(tmp_path):
    run = content_of("vllm_serve_drafts.json")
    got = import_result(write(tmp_path, "".join(json.dumps(run | {"max_concurrency": c}) + "\n" for c in (1, 2))))
    assert [row["concurrency"] for row in got["rows"]] == [1, 2]


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"failed": 3, "completed": 77}, "3 of 80 requests failed"),
        ({"completed": 77}, "77 of 80 requests completed"),
        ({"duration": 100.0}, "tokens over seconds are 147.05"),
        ({"spec_decode_acceptance_length": 3.5}, "3.5 is not 1 + 9 accepted / 5 drafts"),
        ({"spec_decode_acceptance_length": 4.5}, "4.5 is above 3 drafts + 1"),
        ({"output_throughput": 400.0}, "400 tokens/s at concurrency 1 is more than a mean TPOT of 8.12 ms allows"),
        ({"mean_itl_ms": 30.0}, "but ITL over acceptance length is 10.71 ms"),
    ],
)
def test_figures_that_cannot_be_together_are_flagged(changes, flag, tmp_path):
    flags = changed(tmp_path, "vllm_serve_drafts.json", **changes)["flags"]
    assert any(flag in told for told in flags), flags


def test_figures_that_are_sound_have_no_flag(tmp_path):
    sound = {"mean_itl_ms": 22.7, "spec_decode_num_drafts": 5000, "spec_decode_draft_tokens": 15000}
    sound |= {"spec_decode_accepted_tokens": 9000, "spec_decode_per_position_acceptance_rates": [0.9, 0.6, 0.3]}
    assert changed(tmp_path, "vllm_serve_drafts.json", **sound)["flags"] == []
    certain = sound | {"spec_decode_per_position_acceptance_rates": [1.0, 0.6, 0.2]}
    assert changed(tmp_path, "vllm_serve_drafts.json", **certain)["flags"] == ["position at the ceiling: 1, 0.6, 0.2"]


def test_nan_is_no_figure(tmp_path):
    text = (DATA / "vllm_serve_drafts.json").read_text().replace("83.24", "NaN").replace("117.405", "Infinity")
    got = import_result(write(tmp_path, text))
    assert (got["mean_ttft_ms"], got["output_tokens_per_second"]) == (None, None)


def test_a_wrapped_run_that_failed_has_no_figures(tmp_path):
    runs = content_of("vllm_wrapped.json")
    runs[1] |= {"ok": False, "detail": "timed out", "metrics": None}
    got = import_result(write(tmp_path, runs))
    assert got["rows"][1]["output_tokens_per_second"] is None
    assert got["flags"] == ["concurrency 2: failed (timed out)"]


def test_a_temperature_that_the_command_does_not_say_is_unknown(tmp_path):
    """vLLM's default has changed between versions."""
    runs = content_of("vllm_wrapped.json")
    for run in runs:
        run["command"] = run["command"][: run["command"].index("--temperature")]
    assert import_result(write(tmp_path, runs))["temperature"] is None


@pytest.mark.parametrize(
    ("changes", "valid"),
    [
        ({}, True),
        ({"mean_itl_ms": 25.0}, False),
        ({"completed": 0}, False),
        ({"accept_length": None, "max_concurrency": None}, None),
    ],
)
def test_a_run_is_valid_by_its_identities(changes, valid, tmp_path):
    run = json.loads((DATA / "sglang_appended.jsonl").read_text().splitlines()[0])
    assert import_result(write(tmp_path, run | changes))["rows"][0]["valid"] is valid


def test_guidellm_without_a_rate_is_neither_saturated_nor_not(tmp_path):
    content = content_of("guidellm_two_rates.json")
    run = content["benchmarks"][0]
    run["args"] = {"strategy": {"type_": "concurrent", "streams": 8}}
    del run["config"]
    row = import_result(write(tmp_path, content))["rows"][0]
    assert (row["concurrency"], row["rate_asked_per_second"], row["saturated"]) == (8, None, None)


def test_llama_bench_by_lines_and_with_both_kinds_of_tokens(tmp_path):
    tests = content_of("llama_bench.json")
    tests[1] |= {"n_prompt": 64, "n_depth": 1024, "samples_ts": [5.0]}
    rows = import_result(write(tmp_path, "\n".join(map(json.dumps, tests))))["rows"]
    assert [row["test"] for row in rows] == ["prefill 512", "prefill 64 + decode 128 at depth 1024"]
    assert rows[1]["first_sample_is_slowest"] is None


def test_lm_eval_of_two_tasks_is_two_rows(tmp_path):
    content = content_of("lm_eval_first_200.json")
    content["results"]["arc"] = {"alias": "arc", "acc,none": 0.5, "acc_stderr,none": "N/A"}
    rows = import_result(write(tmp_path, content))["rows"]
    assert [(row["task"], row["n"], row["acc"], row["acc_stderr"]) for row in rows] == [
        ("gsm8k", 200, None, None),
        ("arc", None, 0.5, None),
    ]


def test_rounded_figures_do_not_give_away_n(tmp_path):
    content = content_of("lm_eval_flattened.json")
    content["tasks"][0] |= {"exact_match_flexible_stderr": 0.0058, "exact_match_strict_stderr": 0.0057}
    got = import_result(write(tmp_path, content))
    assert (got["n"], got["strict_correct"], got["flexible"]) == (None, None, pytest.approx(0.953753))


@given(st.integers(2, 50_000).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1), st.integers(1, n - 1))))
def test_n_follows_from_shares_and_their_errors(drawn):
    n, strict, flexible = drawn
    pairs = [(k / n, stderr(k / n, n)) for k in (strict, flexible)]
    assert items_behind(pairs) == n


def test_filters_of_different_n_give_none():
    assert items_behind([(0.5, stderr(0.5, 100)), (0.5, stderr(0.5, 200))]) is None


def full_battery(lost=0):
    summary = content_of("tool_scenarios.json")["summary"]
    summary |= {"thinking_modes": ["off"], "rounds": 1, "total_cases": 4, "points": 8 - 2 * lost, "max_points": 8}
    summary |= {"failures": lost, "score_percent": round(100 * (8 - 2 * lost) / 8)}
    rows = [{"id": f"S{n}", "category": "AAAB"[n], "points": 0 if n < lost else 2} for n in range(4)]
    return {"summary": summary, "results": rows}


def test_all_cases_give_the_score_by_category(tmp_path):
    got = import_result(write(tmp_path, full_battery(lost=1)))
    assert got["category_score_from_rows"] == pytest.approx((200 / 3 + 100) / 2)
    assert (got["tool"], got["flags"]) == ("tool-call scenarios (4 x 1 modes x 1 rounds)", [])
    assert got["exit_code_1_is_normal"] is True
    assert import_result(write(tmp_path, full_battery()))["exit_code_1_is_normal"] is False


def test_counts_and_rows_that_disagree_are_flagged(tmp_path):
    content = full_battery(lost=1)
    content["summary"] |= {"failures": 2, "score_percent": 90}
    assert import_result(write(tmp_path, content))["flags"] == [
        "1 rows lost points, but 2 are counted",
        "the score is printed as 90 %, but the points give 75.00 %",
    ]


# --- any input --------------------------------------------------------------------------------------------------------

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([0, -1, 10**400, 1e308, 5e-324, -0.0, "N/A", "inf", "\ud800", "a\nb", "\x1b[31m"]),
    st.floats(allow_nan=True),
    st.text(max_size=8),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
)


def places(content, path=()):
    """Every place of a JSON value."""
    inner = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@st.composite
def mutated(draw):
    """A known file with up to three of its values replaced or taken away."""
    content = copy.deepcopy(records.load_records(draw(st.sampled_from(CASES))))
    for _ in range(draw(st.integers(1, 3))):
        if not content:
            break
        *path, last = draw(st.sampled_from(places(content)[1:]))
        at = content
        for key in path:
            at = at[key]
        if draw(st.booleans()):
            at[last] = draw(VALUES)
        else:
            del at[last]
    return content


def outcome(path):
    """What was read, as it is printed; None if it was refused in one line."""
    refused = ""
    try:
        got = import_result(path)
    except InputError as error:
        got, refused = None, str(error)
    assert refused.isprintable()
    assert len(refused) < 600
    json.dumps(got, allow_nan=False)
    return got


FREELY = settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@FREELY
@given(content=mutated())
def test_changed_files_are_read_or_refused_in_one_line(content, tmp_path):
    outcome(write(tmp_path, content))


@FREELY
@given(content=VALUES)
def test_any_json_is_read_or_refused_in_one_line(content, tmp_path):
    outcome(write(tmp_path, json.dumps(content)))


@FREELY
@given(path=st.sampled_from(CASES), cut=st.integers(0, 3000), junk=st.binary(max_size=6))
def test_damaged_bytes_are_read_or_refused_in_one_line(path, cut, junk, tmp_path):
    content = path.read_bytes()
    (tmp_path / "result").write_bytes(content[:cut] + junk + content[cut + len(junk) + 1 :])
    outcome(tmp_path / "result")


@FREELY
@given(first=mutated(), second=mutated())
def test_what_was_read_makes_a_table_that_is_judged_or_is_refused(first, second, tmp_path):
    paths = [write(tmp_path, content, name) for name, content in (("a", first), ("b", second))]
    read = [outcome(path) for path in paths]
    if None in read:
        return
    files = [Imported(path, content) for path, content in zip(paths, read, strict=True)]
    try:
        table = build_table(files, ["base", "new"])
    except InputError:
        return
    judge_table(Table.model_validate(json.loads(json.dumps(table, allow_nan=False))))
