"""Tuning rows from records: the fastest point that passed its checks, in ranges that cover all tokens."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.bench import tune
from impl.ops import dispatch

CARD = "NVIDIA H200"


def trial(op, tokens, ms, variant, backend="cuda", reuse=False):
    return {"kind": "time", "backend": backend, "op": op, "variant": variant, "tokens": tokens, "reuse": reuse,
            "ms": ms}  # fmt: skip


def bench(op, tokens, ms, parameters, form="fresh", backend="triton"):
    return {"event": "row", "backend": backend, "op": op, "form": form, "parameters": parameters, "tokens": tokens,
            "dims": "flash", "ms": ms}  # fmt: skip


def made(tmp_path, *events, **options):
    path = tmp_path / "record.jsonl"
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return tune.rows(tune.read([path]), CARD, **options)


def test_the_fastest_point_of_every_range(tmp_path):
    one, two = {"warps": 8}, {"splits": 64}
    rows = made(
        tmp_path, trial("mhc_seam", 1, 0.02, one), trial("mhc_seam", 1, 0.01, two), trial("mhc_seam", 64, 0.03, one),
        trial("mhc_seam", 64, 0.02, two), trial("mhc_seam", 8192, 0.2, one), trial("mhc_seam", 8192, 0.9, two),
        trial("mhc_seam", 8192, 0.1, {}, backend="vllm"),
    )  # fmt: skip
    assert [(r["tokens"], r["parameters"], r["ms"]) for r in rows] == [
        ([1, 64], two, 0.02), ([65, 1 << 30], one, 0.2)
    ]  # fmt: skip
    assert rows[0]["card"] == CARD
    assert rows[0]["record"].endswith("record.jsonl")


def test_a_point_is_judged_over_all_its_forms(tmp_path):
    """In place alone the first is faster; with fresh buffers the second makes up for it."""
    op, first, second = "query_norm_rope", {"heads": 8}, {"heads": 2}
    rows = made(
        tmp_path, bench(op, 64, 1.0, first, "in place"), bench(op, 64, 1.1, second, "in place"),
        bench(op, 64, 1.5, first), bench(op, 64, 1.1, second), bench(op, 64, 0.1, {"heads": 4}),
    )  # fmt: skip
    assert [row["parameters"] for row in rows] == [second]


def test_points_of_one_form_are_judged_by_it_where_only_defaults_have_both(tmp_path):
    rows = made(
        tmp_path, trial("mhc_seam", 64, 1.0, {}), {**trial("mhc_seam", 64, 0.9, {}), "reuse": True},
        {**trial("mhc_seam", 64, 0.8, {"groups": 7}), "reuse": True},
        {**trial("mhc_seam", 64, 0.7, {"groups": 6}), "reuse": True},
    )  # fmt: skip
    assert [(row["parameters"], row["ms"]) for row in rows] == [({"groups": 6}, 0.7)]


def test_a_failed_check_rules_a_point_out(tmp_path):
    fast, slow = {"warps": 16}, {"warps": 8}
    check = {"kind": "check", "backend": "cuda", "op": "mhc_pre", "variant": fast, "ok": False}
    rows = made(tmp_path, trial("mhc_pre", 8, 0.1, fast), trial("mhc_pre", 8, 0.2, slow), check)
    assert [row["parameters"] for row in rows] == [slow]
    passed = made(tmp_path, trial("mhc_pre", 8, 0.1, fast), trial("mhc_pre", 8, 0.2, slow), {**check, "ok": True})
    assert [row["parameters"] for row in passed] == [fast]


def test_a_neighbours_point_is_kept_within_the_slack(tmp_path):
    one, two = {"warps": 1}, {"warps": 2}
    events = [trial("mhc_post", 1, 1.0, one), trial("mhc_post", 1, 2.0, two)]
    events += [trial("mhc_post", 9, 1.004, one), trial("mhc_post", 9, 1.0, two)]
    assert [row["parameters"] for row in made(tmp_path, *events)] == [one]
    assert [row["parameters"] for row in made(tmp_path, *events, slack=0.001)] == [one, two]


def test_defaults_count_only_where_no_point_was_named(tmp_path):
    rows = made(
        tmp_path, trial("mhc_post", 1, 0.5, {}), trial("mhc_post", 64, 0.4, {}),
        trial("mhc_post", 64, 0.6, {"warps": 4}),
    )  # fmt: skip
    assert [(row["tokens"], row["parameters"]) for row in rows] == [([1, 1], {}), ([2, 1 << 30], {"warps": 4})]


SIZES = st.lists(st.integers(1, 10_000), min_size=1, max_size=6, unique=True)
TIMES = st.floats(0.001, 10)


@given(SIZES, st.data())
def test_ranges_cover_every_number_of_tokens_once_and_hold_the_best(sizes, data):
    points = [{"warps": w} for w in (1, 2, 4)]
    times = {(n, i): data.draw(TIMES) for n in sizes for i in range(3)}
    records = tune.Records()
    for (n, i), ms in times.items():
        tune._take(trial("mhc_post", n, ms, points[i]), "a.jsonl", records)
    rows = tune.rows(records, CARD)
    assert rows[0]["tokens"][0] == 1
    assert rows[-1]["tokens"][1] == 1 << 30
    assert all(b["tokens"][0] == a["tokens"][1] + 1 for a, b in pairwise(rows))
    for n in sizes:
        (row,) = [r for r in rows if r["tokens"][0] <= n <= r["tokens"][1]]
        took = times[n, points.index(row["parameters"])]
        assert took <= min(times[n, i] for i in range(3)) * (1 + tune.SLACK)


def test_rows_take_the_place_of_the_cards_own_and_stand_before_any(tmp_path, capsys):
    record = tmp_path / "record.jsonl"
    record.write_text(json.dumps(trial("mhc_seam", 8, 0.2, {"warps": 8})) + "\n")
    table = tmp_path / "table.json"
    old = [{"card": "*", "op": "mhc_seam", "backend": "triton"},
           {"card": CARD, "op": "mhc_seam", "backend": "torch", "dims": "flash"},
           {"card": CARD, "op": "mhc_pre", "backend": "torch", "dims": "flash"}]  # fmt: skip
    table.write_text(tune.text(old))
    assert tune.main([str(record), "--write", "--table", str(table)]) == 2
    assert "records of 0 cards" in capsys.readouterr().err
    assert tune.main([str(record), "--card", CARD, "--write", "--table", str(table)]) == 0
    rows = dispatch.table(table)
    assert [(row.card, row.op, row.backend) for row in rows] == [
        (CARD, "mhc_seam", "cuda"), ("*", "mhc_seam", "triton"), (CARD, "mhc_pre", "torch")
    ]  # fmt: skip


def test_rows_say_which_other_cards_may_take_them(tmp_path):
    machine = {"event": "machine", "card": CARD, "capability": "9.0", "multiprocessors": 132}
    (row,) = made(tmp_path, machine, trial("mhc_pre", 8, 0.1, {"splits": 64}))
    assert (row["card"], row["capability"], row["processors"]) == (CARD, [9, 0], 132)
    (row,) = made(tmp_path, trial("mhc_pre", 8, 0.1, {"splits": 64}))
    assert "capability" not in row


def test_what_is_no_record_is_named(tmp_path, capsys):
    path = tmp_path / "record.jsonl"
    path.write_text('{"kind": "time"}\nnothing\n')
    assert tune.main([str(path), "--card", CARD]) == 2
    assert "record.jsonl:2 is not JSON" in capsys.readouterr().err
    path.write_text("{}\n")
    assert tune.main([str(path), "--card", CARD]) == 2
    assert "no times" in capsys.readouterr().err


def test_the_committed_table_names_records_that_are_there():
    root = dispatch.TABLE.parents[2]
    named = [row for row in dispatch.table() if row.record]
    assert all((root / row.record).is_file() for row in named)
    assert all(row.ms is not None for row in named)


@pytest.mark.parametrize("row", [row for row in dispatch.table() if row.parameters], ids=lambda row: row.op)
def test_the_committed_tables_parameters_are_what_the_backend_takes(row):
    known = {frozenset(point) for point in dispatch.variants(row.backend).get(row.op, ())}
    assert not known or frozenset(row.parameters) in known
