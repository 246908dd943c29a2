"""The shortest inputs of what `dsbench selftest --fuzz` found: each crashed a reader, or kept it busy."""

import difflib
import json
import time

import pytest

from dsbench import records as r
from dsbench.checks.text import incoherence
from dsbench.engines.client import read_counters
from dsbench.errors import InputError
from dsbench.judge import judge
from dsbench.parse.foreign.recognise import import_result
from dsbench.parse.inspect import inspect
from dsbench.parse.prometheus import read_page, read_snapshots, window
from dsbench.policy import load_policy
from dsbench.store import PLAN, create, load_plan, load_records
from dsbench.suite import parse_suite
from dsbench.table_input import load_table

POSITION = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%s"} 1\n'


@pytest.mark.parametrize(
    "text",
    [
        f"SpecDecoding metrics: Drafted: {'9' * 400} tokens, Accepted: 3 tokens",
        "Engine 000: Avg prompt throughput: 1.0 tokens/s, Avg generation throughput: 1.0 tokens/s, Running: 0.0 reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 0.0%",
        f"Error executing method 'x' [repeated {'9' * 5000}x across cluster]",
        '=== CELL: a ===\n"exact_match_flexible": 9.0\n=== CELL: b ===\n"exact_match_flexible": 0.95',
        "# SNAPSHOT 2026-01-01T00:00:00 status=200\na 1\n# SNAPSHOT 2026-01-01T00:00:09+00:00 status=200\na 1\n",
        "# TYPE a counter\na_total 9e999\nvllm:spec_decode_num_drafts_total inf\n",
        f"# TYPE a counter\na_total {'9' * 400}\n",
        f"# TYPE a counter\na_total 1 {'9' * 400}\n",
        POSITION % ("9" * 12),
        POSITION % "²",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1..2 GiB. GPU 0 has a total capacity of "
        "14...62 GiB",
    ],
)
def test_logs_and_pages(text):
    json.dumps(inspect(text), allow_nan=False)


def test_figures_of_too_many_digits_are_not_read_in_part():
    (record,) = inspect(f"SpecDecoding metrics: Drafted: {'9' * 30} tokens, Accepted: 3 tokens")["spec"]
    assert (record["drafted_tokens"], record["accepted_tokens"]) == (None, 3)


def test_samples_that_are_no_figures_are_absent():
    page = "# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total NaN\nprocess_start_time_seconds 5\n"
    assert read_counters(page) == {"process_start_time_seconds": 5.0}
    assert read_page(page).total("vllm:prompt_tokens") is None
    text = (
        "# SNAPSHOT 2026-01-01T00:00:00\nvllm:prefix_cache_queries 0\nvllm:prefix_cache_hits 0\n"
        "# SNAPSHOT 2026-01-01T00:00:09\nvllm:prefix_cache_queries 4.9e-324\nvllm:prefix_cache_hits 32\n"
    )
    json.dumps(inspect(text), allow_nan=False)
    naive = "# SNAPSHOT 2026-01-01T00:00:00\na 1\n# SNAPSHOT 2026-01-01T00:00:09+00:00\na 1\n"
    assert window(*read_snapshots(naive)).seconds == 9.0
    for text in ("a{," * 100_000, "a 1\n" * 2_000_000, f"a 1 {'9' * 400}"):
        with pytest.raises(ValueError, match=r"a page of more than|beyond every float"):
            read_counters(text)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"a[": 1}', "unknown key"),
        (json.dumps({"metric": "m", "x" * 5000: 1}), r" \[\.\.\.\] "),
        ('{"metric": "a\\nb", "blocks": 7}', "."),
    ],
)
def test_tables(tmp_path, content, said):
    (tmp_path / "table.json").write_text(content)
    with pytest.raises(InputError, match=said) as error:
        load_table(tmp_path / "table.json")
    assert "\n" not in str(error.value)
    assert len(str(error.value)) <= 1100


def test_halves_of_characters_can_be_printed(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"model_id":"a\\ud800\\ud83d\\ude00","num_prompts":1,"completed":1,"output_throughput":1}')
    assert import_result(path)["model"] == "a?\U0001f600"


def test_repeats_without_end_are_refused(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"n_prompt":1,"n_gen":1,"avg_ts":1,"samples_ts":[%s1]}' % ("1.5," * 20_000))
    with pytest.raises(InputError, match="at most 10000"):
        import_result(path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = " + "[" * 3000, "nested too deep"),
        ("x = " + "9" * 5000, "4300 digits"),
        ("blocks = 0x" + "f" * 5000, "more than 1,024 bits"),
        ("x = [{y = 0x" + "f" * 5000 + "}]", "more than 1,024 bits"),
        ("x = 2026-02-31", "not valid TOML"),
        ("a." * 500 + "b = 1", "a key of more than 32 levels"),
        ("[" + "a." * 500 + "b]", "a key of more than 32 levels"),
        ('"$".' * 60_000 + "b = 1", "a key of more than 32 levels"),
        ("'a b' . " * 30_000 + "b = 1", "a key of more than 32 levels"),
        ("a    .    " * 20_000 + "b = 1", "a key of more than 32 levels"),
        ("# " + "x" * 300_000, "the most that are read"),
    ],
)
def test_toml(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        parse_suite(text, "s.toml")
    (tmp_path / "p.toml").write_text(text)
    with pytest.raises(InputError, match=said):
        load_policy(tmp_path / "p.toml")


def test_a_size_of_thousands_of_digits_is_refused_in_a_moment(tmp_path):
    (tmp_path / "p.toml").write_text(f'[[rule]]\nmetric = "kv.tokens"\nmust = "improve"\nby = "{"9" * 12_000}"\n')
    began = time.process_time()
    with pytest.raises(InputError, match=r"rule.0.by: '999+.* is no size"):
        load_policy(tmp_path / "p.toml")
    assert time.process_time() - began < 0.3


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"arms": []}, "there should be one or more"),
        ({"alpha": 0}, "alpha"),
        ({"equivalence_confidence": 1e-9}, "equivalence_confidence"),
        ({"equivalence_confidence": 1.5}, "equivalence_confidence"),
    ],
)
def test_plans(tmp_path, make_plan, change, said):
    plan = make_plan()
    folder = create(plan, tmp_path)
    content = json.loads(plan.model_dump_json()) | change
    (folder / PLAN).write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        load_plan(folder)


@pytest.mark.parametrize("change", [{"arm": "nobody"}, {"number": 2}])
def test_boots_of_plans(tmp_path, make_plan, change):
    plan = make_plan()
    folder = create(plan, tmp_path)
    content = json.loads(plan.model_dump_json())
    content["boots"][0] |= change
    (folder / PLAN).write_text(json.dumps(content))
    with pytest.raises(InputError, match="boots: "):
        load_plan(folder)


def test_a_record_whose_kind_is_a_text_of_any_length(tmp_path, make_plan):
    folder = create(make_plan(), tmp_path)
    (folder / "records.jsonl").write_text('{"record":"%s\\n"}\n' % ("y" * 100_000))
    with pytest.raises(InputError, match="not a record") as error:
        load_records(folder)
    assert len(str(error.value)) <= 1100
    assert "\n" not in str(error.value)


def test_an_item_is_a_share(make_plan, make_records):
    plan = make_plan()
    records = make_records(plan, lambda boot, key: {"a": 7} if key == "smoke.correct" else None)
    with pytest.raises(InputError, match=r"smoke\.correct of 'a' reads 7 where a share from 0 to 1 is due"):
        judge(plan, records)


@pytest.mark.parametrize("pid", [[1], "one", {}])
def test_facts_of_another_type_are_judged(make_plan, make_records, pid):
    plan = make_plan()
    odd = {"pid": pid, "toggles": [1, "a", None]}
    records = [
        record.model_copy(update={"values": record.values | odd}) if isinstance(record, r.Conditions) else record
        for record in make_records(plan)
    ]
    assert judge(plan, records).void[0].code == "toggles-not-in-effect"


@pytest.mark.parametrize("value", ["1e300", "NaN", "Infinity", "9" * 400])
def test_readings_are_figures(value):
    line = '{"record":"observation","boot":1,"metric":"kv.blocks","value":@,"unit":"B","phase":"measured"}'
    with pytest.raises(ValueError, match="observation"):
        r.RECORD.validate_json(line.replace("@", value))


def test_a_long_reply_is_looked_at_in_a_moment():
    assert incoherence("word, " * 1_000_000) == "repetition"
    assert incoherence(" ".join(map(str, range(200_000)))) is None
    assert incoherence("<s> <think> </s> " * 100_000) is not None
    assert incoherence("x" * 50 + "yz" * 25) == "repetition"
    assert incoherence("yz" * 26 + "x" * 50) is None


def test_a_long_unknown_key_is_not_compared_whole(tmp_path, monkeypatch):
    compared = []
    real = difflib.get_close_matches
    monkeypatch.setattr(
        difflib, "get_close_matches", lambda word, *a, **k: compared.append(word) or real(word, *a, **k)
    )
    (tmp_path / "table.json").write_text(json.dumps({"metricks" + "a" * 100_000: 1}))
    with pytest.raises(InputError, match="unknown key"):
        load_table(tmp_path / "table.json")
    assert [len(word) for word in compared] == [100]


def test_totals_beyond_an_exact_test_are_refused(tmp_path):
    arms = {"A": {"runs": [0.96], "n_items": 10**15}, "B": {"runs": [0.95], "n_items": 1319}}
    table = {"metric": "gsm8k", "unit": "fraction", "higher_is_better": True, "replicate": "run", "alpha": 0.05}
    (tmp_path / "table.json").write_text(json.dumps({**table, "arms": arms, "conditions": {}}))
    with pytest.raises(InputError, match=r"n_items: .*1000000000"):
        load_table(tmp_path / "table.json")


def test_a_margin_next_to_nothing_needs_no_number_of_items(make_plan, make_records):
    plan = make_plan()
    metrics = [m.model_copy(update={"margin": 5e-324}) if m.key == "smoke.correct" else m for m in plan.metrics]
    plan = plan.model_copy(update={"metrics": metrics})

    def reading(boot, key):
        return {"a": int(boot.arm != "baseline"), "b": 1} if key == "smoke.correct" else None

    (row,) = [row for row in judge(plan, make_records(plan, reading)).rows if row.metric == "smoke.correct"]
    assert row.blocks_needed is None


def test_what_a_toggle_should_do_is_a_figure(tmp_path, make_plan):
    folder = create(make_plan(), tmp_path)
    plan = json.loads((folder / PLAN).read_text())
    plan["arms"][1]["expected"] = {"kv.peak_activation_bytes": 10**400}
    (folder / PLAN).write_text(json.dumps(plan))
    with pytest.raises(InputError, match="expected"):
        load_plan(folder)
