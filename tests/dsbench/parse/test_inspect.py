"""Every shape of log and metrics page that is known, and that nothing else is taken for one."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from dsbench.cli.inspect import inspect as command
from dsbench.parse.inspect import MOST_PAIRED, inspect
from dsbench.parse.lines import LONGEST, read_lines

DATA = Path(__file__).resolve().parents[2] / "data"
CASES = sorted([*(DATA / "logs").glob("*.log"), *(DATA / "metrics").glob("*.prom")])
SHARED = Path(__file__).resolve().parents[4] / "shared" / "cases"
"""The cases themselves, of which `DATA` has copies; beside a checkout, and not part of one."""
EXPECTED = sorted(path for kind in ("logs", "metrics") for path in (SHARED / kind).glob("*.expected.json"))
FOR_PEOPLE = ("why", "flags", "notes")


def differences(found, expected, path=""):
    """What disagrees: a key that is missing, a number off by more than 1e-3, any other value that is not equal."""
    if isinstance(expected, dict):
        if not isinstance(found, dict):
            return [f"{path}: {found!r} for {expected!r}"]
        exact = path.endswith("by_rank") and found.keys() != expected.keys()
        wrong = [f"{path}: ranks {list(found)} for {list(expected)}"] if exact else []
        for key, value in expected.items():
            if key in FOR_PEOPLE:
                wrong += [] if key == "why" or len(found[key]) == len(value) else [f"{path}.{key}: {found[key]}"]
            else:
                wrong += differences(found.get(key, "no such key"), value, f"{path}.{key}")
        return wrong
    if isinstance(expected, list):
        if not isinstance(found, list) or len(found) != len(expected):
            return [f"{path}: {found!r} for {expected!r}"]
        return [
            w for i, (a, b) in enumerate(zip(found, expected, strict=True)) for w in differences(a, b, f"{path}.{i}")
        ]
    number = isinstance(expected, int | float) and not isinstance(expected, bool)
    same = found == (pytest.approx(expected, rel=1e-3, abs=1e-9) if number else expected)
    return (
        []
        if same and isinstance(found, bool) == isinstance(expected, bool)
        else [f"{path}: {found!r} for {expected!r}"]
    )


def test_the_cases_are_there():
    assert len(CASES) == 36


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_a_known_shape(path):
    expected = json.loads(path.with_suffix(".expected.json").read_text())
    found = json.loads(json.dumps(inspect(path.read_text(encoding="utf-8"))))
    assert found["shape"] == ("metrics" if path.suffix == ".prom" else "log")
    assert differences(found, expected) == []


@pytest.mark.skipif(not EXPECTED, reason="no folder shared/cases beside this checkout")
def test_the_shared_cases_are_all_asked():
    inputs = {path for kind in ("logs", "metrics") for path in (SHARED / kind).iterdir() if path.suffix != ".json"}
    assert {path.with_suffix("") for path in inputs} == {path.with_suffix("").with_suffix("") for path in EXPECTED}
    assert len(EXPECTED) == len(inputs) >= 35


@pytest.mark.parametrize("path", EXPECTED, ids=lambda path: path.name.removesuffix(".expected.json"))
def test_a_shared_case(path):
    """What `dsbench inspect --json` prints of an input, against the answer beside it."""
    stem = path.name.removesuffix(".expected.json")
    (given,) = [other for other in path.parent.glob(f"{stem}.*") if other.suffix != ".json"]
    ran = CliRunner().invoke(command, [str(given), "--json"], standalone_mode=False)
    assert ran.exception is None, ran.output
    assert differences(json.loads(ran.output), json.loads(path.read_text(encoding="utf-8"))) == []


BOOT = """\
===== serve {0}: no spec, max-model-len {1} =====
(Worker_TP0_EP0 pid={0}) INFO 05-13 05:46:54 [gpu_worker.py:462] Available KV cache memory: {2} GiB
(EngineCore pid=25) INFO 05-13 05:46:54 [kv_cache_utils.py:1710] GPU KV cache size: 445,969 tokens
(EngineCore pid=25) INFO 05-13 05:46:54 [kv_cache_utils.py:1711] Maximum concurrency for {1} tokens per request: 6.80x
"""


def boots_of(count, limits=(65_536,)):
    named = (BOOT.format(f"b{n}", f"{limits[n % len(limits)]:,}", 20 + n / 100) for n in range(count))
    return inspect("".join(named))


def test_up_to_so_many_boots_every_pair_is_compared():
    found = boots_of(MOST_PAIRED)
    assert len(found["token_comparable_pairs"]) == MOST_PAIRED * (MOST_PAIRED - 1) // 2
    assert found["delta_gib_b1_minus_b0"] == found["delta_gib_b63_minus_b62"] == 0.01
    assert found["flags"] == ["one boot each: no verdict"]
    two = boots_of(4, (65_536, 32_768))
    assert two["flags"][0].endswith("differ in max_model_len: compare GiB, not tokens")


@pytest.mark.parametrize("limits", [(65_536,), (65_536, 32_768)])
def test_more_boots_cost_as_much_more_and_no_more_than_that(limits):
    found, twice = boots_of(400, limits), boots_of(800, limits)
    assert len(twice["boots"]) == 800
    assert not [key for key in twice if key.startswith(("delta_gib", "token_comparable"))]
    assert twice["flags"] == [f"800 boots: pairs are compared in files of at most {MOST_PAIRED}",
                              "one boot each: no verdict"]  # fmt: skip
    assert len(json.dumps(twice)) < 2.1 * len(json.dumps(found))


UNKNOWN = [
    "",
    "\n\n",
    "The available KV cache memory was fine, about 10 GiB, and acceptance was 40 %.",
    '{"kv_cache_size": 3.81, "tokens": 1000}',
    "# KV cache\n\n* 21.28 GiB\n* 420,586 tokens\n",
    "GPU KV cache usage: 62.8%",
    "Maximum concurrency is high",
    "# TYPE vllm:x counter\nvllm:x{ 3 4 5\n",
]


@pytest.mark.parametrize("text", UNKNOWN)
def test_what_is_no_known_shape_is_called_unknown(text):
    found = inspect(text)
    assert found["shape"] == "unknown"
    assert set(found) <= {"shape", "why"}


def test_a_page_alone_has_totals_and_no_differences():
    found = inspect('# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total{engine="0"} 7.0\n')
    assert found == {"shape": "metrics", "pages": 1, "totals": {"vllm:prompt_tokens": 7.0}}


def test_a_counter_that_falls_between_pages_gives_no_figures():
    page = "# SNAPSHOT 2026-01-01T00:00:0{}Z status=200\nvllm:prompt_tokens_total {}\n"
    found = inspect(page.format(0, 9) + page.format(5, 3) + page.format(9, 12))
    assert found["counter_reset"]
    assert "prompt_tokens" not in found


def test_a_page_that_was_refused_gives_no_figures():
    page = "# SNAPSHOT 2026-01-01T00:00:0{}Z status={}\nvllm:prompt_tokens_total {}\n"
    found = inspect(page.format(0, 200, 9) + page.format(5, 503, 12))
    assert found["flags"] == ["a page was answered with status 503"]
    assert "prompt_tokens" not in found


PIECES = st.sampled_from([
    "(Worker_TP0 pid=1) ", "(EngineCore pid=2) ", "INFO 01-01 00:00:00 [a.py:1] ", "ERROR 01-01 00:00:00 [a.py:1] ",
    "Available KV cache memory: 1.50 GiB", "GPU KV cache size: 1,000 tokens", "SpecDecoding metrics: ", "\r", "\n",
    "Maximum concurrency for 500 tokens per request: 2.00x", "Accepted: 3 tokens, Drafted: 9 tokens, ", "\x1b[1;36m",
    "Per-position acceptance rate: 0.5, 0.1", "=== a: b ===", "arm=x", "Assertion `x` failed", "Traceback (most recent",
    " call last):", "CUDA out of memory. Tried to allocate 2.00 GiB", "# SNAPSHOT 2026-01-01T00:00:00Z status=200\n",
    "vllm:x_total 3\n", "SERVE1  c1=passed=1/2", "CELL: a ", "rc=127", "torch.compile takes 3.0 s in total",
])  # fmt: skip


@given(st.lists(st.one_of(PIECES, st.text(max_size=30)), max_size=40))
def test_any_text_is_read_without_an_error(parts):
    found = inspect("".join(parts))
    assert found["shape"] in ("log", "metrics", "unknown")
    json.dumps(found)


@given(st.text(alphabet="ab\r\n[1m\x1b(", max_size=200))
def test_lines_keep_their_numbers_and_lose_no_text(text):
    lines = list(read_lines(text))
    for line in lines:
        raw = text.split("\n")[line.number - 1]
        assert line.text.replace("m", "").strip("\r") in raw.replace("m", "") or "[" in raw
    assert [line.number for line in lines] == sorted(line.number for line in lines)


HOSTILE = [" ", "1", "\x1b[", "[1;31m", "(Worker_TP0 ", "Available KV cache memory: 1", "err ", "Assertion `", "= ",
           "SpecDecoding metrics: Accepted: 1 ", "05-08 16:21:55 ", "Engine 0: Avg prompt throughput: 1", "\0", "^M",
           "# SNAPSHOT ", "vllm:a{"]  # fmt: skip


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_line_of_ten_megabytes_costs_no_more_than_the_part_that_is_read(piece):
    line = piece * (10_000_000 // len(piece))
    assert sum(len(part.text) for part in read_lines(line)) <= LONGEST
    assert inspect(line)["shape"] in ("log", "unknown")
