"""TP=1 beside TP=2: which figures a second rank changes, and that the reason is the code's own."""

import json

import pytest

from impl.projection.__main__ import main
from impl.projection.beside import beside, text, to_json
from impl.projection.ladder import ladder
from tests.impl.projection.thin import thin

MIB = 1 << 20
TOGGLES = ("mtp_hidden_skip", "q_in_place", "mhc_residual_reuse", "dflash_staging_skip")


@pytest.fixture(scope="module")
def ladders():
    return {
        (platform, tp): ladder(thin((0, 0), platform=platform, tp=tp), TOGGLES, workers=1)
        for platform in ("sm90", "sm120")
        for tp in (1, 2)
    }


def rows_of(ladders, platform):
    return {row.figure: row for row in beside(ladders[platform, 1], ladders[platform, 2])}


def test_on_sm90_the_query_cannot_stay_where_it_is_at_tp_2(ladders):
    row = rows_of(ladders, "sm90")["q_in_place, serve"]
    assert (row.a, row.b) == (512 * MIB, 0)
    assert row.why.startswith("refused: 32 local heads, the kernel reads 64")


def test_on_sm120_it_can_and_halves(ladders):
    row = rows_of(ladders, "sm120")["q_in_place, serve"]
    assert (row.a, row.b) == (512 * MIB, 256 * MIB)
    assert "[8192, 64, 512] -> [8192, 32, 512] at impl/model/attention.py" in row.why


def test_what_every_rank_holds_whole_is_the_same_and_has_no_reason(ladders):
    rows = rows_of(ladders, "sm90")
    for figure, size in (("mtp_hidden_skip, load", 256), ("mhc_residual_reuse, profile", 256),
                         ("dflash_staging_skip, init", 64)):  # fmt: skip
        assert (rows[figure].a, rows[figure].b, rows[figure].why) == (size * MIB, size * MIB, "")


def test_weights_are_split_by_heads_groups_and_columns(ladders):
    row = rows_of(ladders, "sm90")["weights"]
    assert row.a > row.b > row.a // 2
    assert row.why.startswith("64 -> 32 heads, 8 -> 4 groups, 2048 -> 1024 columns of an expert")


def test_text_and_json_hold_the_same_rows(ladders):
    pair = ladders["sm90", 1], ladders["sm90", 2]
    told, content = text(*pair), json.loads(json.dumps(to_json(*pair)))
    assert (content["tp"], content["local_heads"], content["padded_heads"]) == ([1, 2], [64, 32], [64, 64])
    for row in content["rows"]:
        assert f"{row['a']:>18,}{row['b']:>18,}" in next(x for x in told.splitlines() if x.startswith(row["figure"]))


def test_the_command(capsys):
    asked = ["--dims", "pico", "--platform", "sm90", "--tp", "2", "-T", "40", "-t", "mhc_input_reuse", "--workers", "1"]
    assert main([*asked, "--beside-tp", "1", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert (content["kind"], content["tp"]) == ("projected beside", [1, 2])
    (row,) = [row for row in content["rows"] if row["figure"].startswith("mhc_input_reuse")]
    assert row["a"] == row["b"] == 40 * 64 * 2
    assert main([*asked, "--beside-tp", "1"]) == 0
    assert "TP=1" in capsys.readouterr().out
