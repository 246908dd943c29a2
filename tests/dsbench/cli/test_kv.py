import json

import pytest
from click.testing import CliRunner

from dsbench.cli import main
from impl.kv_geometry import KvGeometry


def run(*args: str):
    return CliRunner().invoke(main, ["kv", *args], prog_name="dsbench")


def read(*args: str):
    result = run(*args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


SOURCE_TOKENS = [1_095_149, 1_121_196, 1_147_140, 1_147_140, 1_173_083, 1_199_131, 1_205_591]
SOURCE_CONCURRENCY = ["2.09", "2.14", "2.19", "2.19", "2.24", "2.29", "2.30"]


def test_published_table_in_print():
    result = run("--published-table")
    assert result.exit_code == 0
    lines = [line for line in result.stdout.splitlines() if line.startswith(("baseline", "after"))]
    assert len(lines) == 7
    for line, tokens, concurrency in zip(lines, SOURCE_TOKENS, SOURCE_CONCURRENCY, strict=True):
        assert f" {tokens:,} " in line
        assert f" {concurrency}x " in line


def test_published_table_in_json():
    rows = read("--published-table")
    assert [row["tokens"] for row in rows] == SOURCE_TOKENS
    assert [f"{row['max_concurrency']:.2f}" for row in rows] == SOURCE_CONCURRENCY
    assert [row["size_model_block_distance"] for row in rows] == [0, -1, -1, -1, -1, -2, -1]
    assert {(row["blocks_per_max_request"], row["block_bytes"]) for row in rows} == {(5032, 1_077_120)}


@pytest.mark.parametrize("change", [("-T", "4096"), ("--max-model-len", "131072"), ("--rule", "0.26.0")])
def test_other_limits_change_every_row(change):
    base, other = read("--published-table"), read("--published-table", *change)
    assert all(a["tokens"] != b["tokens"] and a["blocks"] == b["blocks"] for a, b in zip(base, other, strict=True))


def test_another_page_size_changes_every_row(monkeypatch):
    """Tokens come from geometry: with wider pages, the same blocks are worth other tokens."""
    original = KvGeometry.of
    monkeypatch.setattr(KvGeometry, "of", lambda dims, n=None: original(dims.with_changes(index_dim=256), n))
    assert all(row["tokens"] != tokens for row, tokens in zip(read("--published-table"), SOURCE_TOKENS, strict=True))


def test_measured_boot():
    content = read("63586506240", "--rule", "0.26.0", "--dims", "flash6", "--max-model-len", "65536")
    assert content["tokens"] == 6_469_153
    assert f"{content['max_concurrency']:.2f}" == "98.71"
    text = run("63,586,506,240", "--ratios", "0,0,4,128,4,128", "--max-model-len", "65536").stdout
    assert "6,469,153" in text
    assert "98.71x" in text


def test_without_bytes_only_the_geometry():
    content = read("--dims", "pico")
    assert content["blocks"] is content["tokens"] is content["max_concurrency"] is content["available_bytes"] is None
    assert content["pages"]["c4_index"]["page_bytes"] == 336
    result = run("--dims", "pico")
    assert "KV tokens" not in result.stdout
    assert "2,448 B" in result.stdout


def test_flags_reach_the_formula():
    one = read("1GiB", "--rule", "0.26.0", "--concurrent-batches", "1")
    two = read("1GiB", "--rule", "0.26.0")
    old = read("1GiB", "--rule", "0.25.1")
    assert one["tokens"] == old["tokens"] > two["tokens"]
    assert (one["in_flight_tokens"], two["in_flight_tokens"]) == (8192, 16_384)
    assert read("1GiB", "-T", "64")["in_flight_tokens"] == 128
    assert read("--draft-layers", "1")["block_bytes"] == 1_039_680


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--published-table", "10GiB"], "leave out BYTES"),
        (["--published-table", "--dims", "pico"], "leave out BYTES, --dims"),
        (["1", "--ratios", "0,3"], "compress_ratios hold 3"),
        (["1", "--rule", "0.25.1", "--concurrent-batches", "2"], "counts one batch in flight"),
        (["12QB"], "'12QB' is no size in bytes"),
        (["--dims", "falsh"], "unknown shape 'falsh': did you mean flash"),
        (["--rule", "0.27"], "'0.27' is not one of"),
        (["-T", "0"], "x>=1"),
    ],
)
def test_refusals(args, words):
    result = run(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
