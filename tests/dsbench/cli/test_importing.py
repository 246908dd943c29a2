"""`dsbench import` as it is typed, and from files of other programs to a verdict."""

import glob
import importlib.util
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from dsbench.cli import main
from dsbench.records import EXIT_CODES

TESTS = Path(__file__).resolve().parents[2]
RESULTS = TESTS / "data" / "results"
VERDICTS = TESTS / "data" / "verdicts"
FILES = sorted(path for path in RESULTS.glob("*.json*") if ".expected." not in path.name)

spec = importlib.util.spec_from_file_location("expected", TESTS / "dsbench" / "expected.py")
expected = importlib.util.module_from_spec(spec)
spec.loader.exec_module(expected)


def run(*args):
    return CliRunner().invoke(main, list(map(str, args)))


def served(speed, **changes):
    """One file of vllm bench serve without speculation, whose figures agree with each other."""
    content = json.loads((RESULTS / "vllm_serve_drafts.json").read_text())
    content = {key: value for key, value in content.items() if not key.startswith("spec_decode")}
    fixed = {"duration": 14705 / speed, "mean_tpot_ms": 1000 / speed, "mean_itl_ms": 1000 / speed}
    return content | fixed | {"output_throughput": speed} | changes


def write(folder, contents):
    """One file a result, in order."""
    paths = []
    for name, content in contents.items():
        paths.append(folder / name)
        paths[-1].write_text(json.dumps(content))
    return paths


def boots_of(case):
    arms = json.loads((VERDICTS / f"{case}.json").read_text())["arms"]
    return {name: arm["boots"] for name, arm in arms.items()}


def table_of(folder, paths, *options):
    result = run("import", *paths, "--table", folder / "table.json", *options)
    assert result.exit_code == 0, result.output
    return json.loads((folder / "table.json").read_text())


def judged(folder):
    result = run("judge", "--from-table", folder / "table.json", "--json")
    verdict = json.loads(result.stdout)
    assert result.exit_code == EXIT_CODES[verdict["verdict"]]
    return verdict


# --- printing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_table_of_every_known_file(path):
    result = run("import", path)
    right = json.loads((RESULTS / f"{path.stem}.expected.json").read_text())
    assert result.exit_code == 0, result.output
    assert str(path) in result.stdout
    told = [*right.get("flags", ()), *[key for key, value in right.items() if value is None]]
    assert [line for line in told if line not in result.stdout] == []


def test_json_of_one_file_is_its_object_and_of_several_a_list():
    one, two = RESULTS / "specbundle.json", RESULTS / "llama_bench.json"
    assert json.loads(run("import", one, "--json").stdout)["tool"] == "SpecBundle"
    got = json.loads(run("import", one, two, "--json").stdout)
    assert [(row["file"], row["tool"]) for row in got] == [(str(one), "SpecBundle"), (str(two), "llama-bench")]


def test_an_unknown_file_is_called_unknown(tmp_path):
    (path,) = write(tmp_path, {"x.json": {"tokens": 3}})
    result = run("import", path)
    assert result.exit_code == 0
    assert result.stdout == f"{path}: unknown: no known program's result has the keys tokens\n"
    assert json.loads(run("import", path, "--json").stdout)["tool"] == "unknown"


# --- tables and verdicts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["speed_lost", "speed_noise"])
def test_twelve_files_get_the_verdict_of_their_readings(case, tmp_path):
    """The same readings in a table made by hand have this right answer."""
    boots = boots_of(case)
    paths = write(tmp_path, {f"{a}{n}.json": served(speed) for a, of in boots.items() for n, speed in enumerate(of)})
    by_hand = json.loads((VERDICTS / f"{case}.json").read_text())
    arms = ",".join(f"{name}:{len(of)}" for name, of in boots.items())
    table = table_of(tmp_path, paths, "--arms", arms, "--margin", by_hand["practical_margin"])
    assert {name: arm["boots"] for name, arm in table["arms"].items()} == boots
    right = json.loads((VERDICTS / f"{case}.expected.json").read_text())
    assert expected.differences(judged(tmp_path), right) == []


def test_two_shares_get_the_verdict_of_their_readings(tmp_path):
    by_hand = json.loads((VERDICTS / "shares_one_run_each.json").read_text())
    full = json.loads((RESULTS / "lm_eval_first_200.json").read_text())
    full["n-samples"]["gsm8k"]["effective"] = 1319
    contents = {}
    for name, arm in by_hand["arms"].items():
        scores = full["results"]["gsm8k"] | {"exact_match,flexible-extract": arm["runs"][0]}
        contents[name] = full | {"results": {"gsm8k": scores}}
    table = table_of(tmp_path, write(tmp_path, contents), "--arms", ",".join(contents), "--margin", "0")
    assert {name: arm["n_items"] for name, arm in table["arms"].items()} == dict.fromkeys(contents, 1319)
    right = json.loads((VERDICTS / "shares_one_run_each.expected.json").read_text())
    assert expected.differences(judged(tmp_path), right) == []


def test_shares_of_other_items_and_settings_are_no_comparison(tmp_path):
    table_of(tmp_path, [RESULTS / "lm_eval_first_200.json", RESULTS / "lm_eval_flattened.json"], "--arms", "A,B")
    verdict = judged(tmp_path)
    assert verdict["verdict"] == "void"
    assert {"n_items", "fewshot", "limit"} <= {reason["text"].split(":")[0].split()[-1] for reason in verdict["void"]}


def four(folder, **changes):
    speeds = [300.1, 300.4, 310.2, 310.9]
    return write(folder, {f"{n}.json": served(speed, **changes) for n, speed in enumerate(speeds)})


def test_files_that_ran_side_by_side_are_blocks(tmp_path):
    contents = {f"{n}.json": served(speed) for n, speed in enumerate([300.0 + k for k in range(6)])}
    contents |= {f"{n + 6}.json": served(speed) for n, speed in enumerate([330.3, 330.1, 331.6, 332.2, 333.5, 334.9])}
    table = table_of(tmp_path, write(tmp_path, contents), "--arms", "base:6,new:6", "--blocks")
    assert [arm["blocks"] for arm in table["arms"].values()] == [[1, 2, 3, 4, 5, 6]] * 2
    verdict = judged(tmp_path)
    assert (verdict["verdict"], verdict["test"]) == ("improved", "sign-flip over blocks")


def test_arms_may_alternate(tmp_path):
    table = table_of(tmp_path, four(tmp_path), "--arms", "base,new,base,new")
    assert [arm["boots"] for arm in table["arms"].values()] == [[300.1, 310.2], [300.4, 310.9]]


def test_appended_runs_are_repeats_inside_their_boot(tmp_path):
    lines = "".join(json.dumps(served(speed)) + "\n" for speed in (300.0, 302.0))
    (tmp_path / "a").write_text(lines)
    (tmp_path / "b").write_text(lines.replace("300.0", "310.0"))
    table = table_of(tmp_path, [tmp_path / "a", tmp_path / "b"], "--arms", "base,new")
    assert table["arms"]["base"]["boots"] == [[300.0, 302.0]]
    assert judged(tmp_path)["n_boots"] == {"base": 1, "new": 1}


def test_the_row_of_a_figure_is_picked_by_its_settings(tmp_path):
    paths = [RESULTS / "sglang_appended.jsonl", RESULTS / "sglang_appended.jsonl"]
    table = table_of(tmp_path, paths, "--arms", "a,b", "--at", "concurrency=8", "--metric", "mean_ttft_ms")
    assert (table["metric"], table["unit"]) == ("sglang bench_serving mean_ttft_ms", "ms")
    assert (table["higher_is_better"], table["practical_margin"]) == (False, 2.4)
    assert [arm["boots"] for arm in table["arms"].values()] == [[120.0], [120.0]]
    assert {reason["code"] for reason in judged(tmp_path)["void"]} == {"shared-log"}


def test_a_copy_of_a_file_is_no_boot(tmp_path):
    paths = write(tmp_path, {"a": served(300.0), "b": served(300.0)})
    table_of(tmp_path, paths, "--arms", "base,new")
    assert {reason["code"] for reason in judged(tmp_path)["void"]} == {"shared-log"}


def test_counts_may_repeat_to_the_byte(tmp_path):
    text = (RESULTS / "coherence_long_context.jsonl").read_text()
    for name in "ab":
        (tmp_path / name).write_text(text)
    table = table_of(tmp_path, [tmp_path / "a", tmp_path / "b"], "--arms", "base,new")
    assert [arm["boots"] for arm in table["arms"].values()] == [[2], [2]]
    assert judged(tmp_path)["void"] == []


@pytest.mark.parametrize("declared", [(), ("--declare", "model")])
def test_settings_have_to_agree_unless_they_are_declared(declared, tmp_path):
    paths = four(tmp_path)
    other = json.loads(paths[3].read_text()) | {"model_id": "other"}
    paths[2].write_text(json.dumps(json.loads(paths[2].read_text()) | {"model_id": "other"}))
    paths[3].write_text(json.dumps(other))
    table_of(tmp_path, paths, "--arms", "base:2,new:2", *declared)
    assert judged(tmp_path)["verdict"] == ("inconclusive" if declared else "void")


def test_a_setting_that_differs_inside_an_arm_is_seen(tmp_path):
    paths = four(tmp_path)
    paths[3].write_text(json.dumps(served(310.9, max_concurrency=4)))
    table = table_of(tmp_path, paths, "--arms", "base:2,new:2")
    assert [arm["concurrency"] for arm in table["arms"].values()] == [1, [1, 4]]
    assert judged(tmp_path)["verdict"] == "void"


@pytest.mark.parametrize(("margin", "value"), [("2%", 6.005), ("1.5", 1.5), ("0", 0.0)])
def test_a_margin_in_the_unit_or_in_percent_of_the_baseline(margin, value, tmp_path):
    table = table_of(tmp_path, four(tmp_path), "--arms", "base:2,new:2", "--margin", margin)
    assert table["practical_margin"] == pytest.approx(value)


def test_flags_of_the_files_are_told_beside_the_table(tmp_path):
    result = run("import", *four(tmp_path, failed=3), "--arms", "base:2,new:2", "--table", tmp_path / "t", "--json")
    assert result.stderr.count("3 of 80 requests failed") == 4
    assert len(json.loads(result.stdout)) == 4


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--arms", "base:2,new:2"], "--table and --arms go together"),
        (["--table", "T"], "--table and --arms go together"),
        (["--metric", "passed"], "are options of a --table"),
        (["--table", "T", "--arms", "base,new"], "names the arms of 2 files, but there are 4"),
        (["--table", "T", "--arms", "base:4"], "a comparison needs two arms"),
        (["--table", "T", "--arms", "base:0,new"], "should be a name, or a name and a number"),
        (["--table", "T", "--arms", ",new:3"], "should be a name, or a name and a number"),
        (["--table", "T", "--arms", "base:2,new:2", "--metric", "speed"], "'speed' cannot be judged; one of output_"),
        (["--table", "T", "--arms", "base:2,new:2", "--metric", "passed"], "0.json: has no passed"),
        (["--table", "T", "--arms", "base:2,new:2", "--at", "concurrency"], "should be KEY=VALUE"),
        (["--table", "T", "--arms", "base:2,new:2", "--at", "concurrency=9"], "no row .* at concurrency=9; there are"),
        (["--table", "T", "--arms", "base:2,new:2", "--margin", "much"], "'much' should be a number in tokens/s"),
        (["--table", "T", "--arms", "base:2,new:2", "--margin", "nan"], "'nan' should be a number in tokens/s"),
        (["--table", "T", "--arms", "base:2,new:2", "--margin=-1"], "'-1' should be a number in tokens/s"),
        (["--table", "T", "--arms", "base:2,new:2", "--declare", "color"], "state no color; they state program, model"),
        (["--table", "none/T", "--arms", "base:2,new:2"], "cannot write none/T"),
        (["--table", "0.json", "--arms", "base:2,new:2"], "is one of the files to read"),
    ],
)
def test_bad_options_are_one_line_and_write_nothing(options, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    paths = [path.name for path in four(tmp_path)]
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = run("import", *paths, *options)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert re.search(told, result.stderr), result.stderr
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (["sglang_appended.jsonl"] * 2, "2 rows of output_tokens_per_second; pick one with --at concurrency=4 or conc"),
        (["sglang_appended.jsonl", "tool_scenarios.json"], "no figure in common"),
        (["README.md", "specbundle.json"], "not valid JSON"),
        (["README.json", "specbundle.json"], "nothing to compare"),
    ],
)
def test_files_that_make_no_table(names, told, tmp_path):
    for name in names:
        source = RESULTS / name
        shutil.copy(source, tmp_path) if source.exists() else (tmp_path / name).write_text("{}")
    result = run("import", *(tmp_path / name for name in names), "--arms", "a,b", "--table", tmp_path / "t")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.output
    assert told in result.stderr
    assert not (tmp_path / "t").exists()


# --- docs -------------------------------------------------------------------------------------------------------------

PAGE = (TESTS.parent / "docs" / "importing.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```console\n(.*?)```", PAGE, re.DOTALL)


def test_the_page_has_examples():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.split("\n")[0][2:40])
def test_examples_of_the_page_print_what_stands_there(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in FILES:
        shutil.copy(path, tmp_path)
    boots = boots_of("speed_lost")
    write(tmp_path, {f"{a}{n}.json": served(speed) for a, of in boots.items() for n, speed in enumerate(of, start=1)})
    for command in re.split(r"^\$ ", example, flags=re.MULTILINE)[1:]:
        line, _, printed = command.partition("\n")
        program, *words = shlex.split(line)
        assert program == "dsbench"
        result = run(*(name for word in words for name in (sorted(glob.glob(word)) if "*" in word else [word])))
        lines = [told.rstrip() for told in result.output.strip().splitlines()]
        assert lines == [told.rstrip() for told in printed.strip().splitlines()]


def test_every_program_has_a_row_in_the_page():
    from dsbench.parse.foreign.recognise import TOOLS

    assert [tool.name for tool in TOOLS if f"| {tool.name} |" not in PAGE] == []


def test_every_figure_that_can_be_judged_is_in_the_page():
    from dsbench.imported_table import READINGS, SETTINGS

    assert [key for key in (*READINGS, *SETTINGS) if f"`{key}`" not in PAGE] == []
