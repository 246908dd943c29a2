"""What the trial of the mHC kernels times, in which order, and the tuning rows that come of it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import torch

from impl.bench import mhc_trial as trial
from impl.bench import tune
from impl.bench.mhc_exact import streams_in_order
from impl.ops import dispatch

ASKED = (1, 6, 16, 24, 32, 36, 48, 64, 96, 128, 256, 512, 1024, 2048, 8192)
CASES = [case for case in trial.cases("cuda", 2) if case["event"] == "row"]


def test_defaults_and_vllm_are_timed_at_every_size():
    of_vllm = [case for case in trial.cases("vllm", 2) if case["event"] == "row"]
    for cases in (CASES, of_vllm):
        for op in ("mhc_seam", "mhc_pre", "mhc_post", "mhc_post_mean", "mhc_post_head", "mhc_post_mean_head"):
            sizes = {case["tokens"] for case in cases if case["op"] == op and not case["parameters"]}
            assert sizes == set(ASKED), op


def test_every_point_of_the_seam_is_timed_in_both_forms_at_each_of_its_sizes():
    """A point that was timed in one form alone is not judged where another has both."""
    forms: dict[tuple[str, int], set[str]] = {}
    for case in CASES:
        if case["op"] == "mhc_seam":
            forms.setdefault((json.dumps(case["parameters"]), case["tokens"]), set()).add(case["form"])
    assert set(map(frozenset, forms.values())) == {frozenset(("fresh", "in place"))}
    groups = {tokens for variant, tokens in forms if "groups" in variant}
    assert {64, 128, 256, 512, 1024, 2048, 8192} <= groups
    few = {tokens for variant, tokens in forms if "splits" in variant}
    assert {1, 16, 24, 36, 48, 96, 128} <= few
    assert few & groups >= {24, 36, 48, 64, 96, 128, 256}, "both ways are timed where one gives way to the other"


def test_no_case_is_timed_twice():
    keys = [json.dumps(case) for case in CASES]
    assert len(keys) == len(set(keys))


def test_sizes_between_come_last_and_in_less_time():
    ranks = [trial.rank(case) for case in sorted(trial.cases("cuda", 2), key=trial.rank)]
    assert ranks == sorted(ranks)
    assert {0, 1, 2} == set(ranks)
    for case in CASES:
        assert (trial.rank(case) == 2) == (case["tokens"] in trial.BETWEEN)
        assert case["seconds"] == (trial.SECONDS_BETWEEN if case["tokens"] in trial.BETWEEN else trial.SECONDS)
    assert trial.SECONDS_BETWEEN < trial.SECONDS / 3


@pytest.mark.parametrize("least", [64, 96, 256])
def test_the_table_changes_ways_at_the_size_where_the_times_do(tmp_path, least):
    """Points for few win up to a size, one of many behind it: the rows say so, and cover every number once."""
    best = {"groups": 7, "early": 2}
    assert best in [case["parameters"] for case in CASES]

    def ms(case: dict) -> float:
        if case["parameters"] == best:
            return 0.9 if case["tokens"] >= least else 2.0
        return 1.0 if trial.for_few(case["parameters"]) else 1.5

    path = tmp_path / "trial.jsonl"
    path.write_text("".join(json.dumps({**case, "ms": ms(case)}) + "\n" for case in CASES))
    rows = [row for row in tune.rows(tune.read([path]), "a card") if row["op"] == "mhc_seam"]
    assert all(b["tokens"][0] == a["tokens"][1] + 1 for a, b in pairwise(rows))
    assert "splits" in rows[0]["parameters"]
    assert rows[0]["tokens"] == [1, ASKED[ASKED.index(least) - 1]]
    assert rows[-1]["parameters"] == best
    assert rows[-1]["tokens"][1] == 1 << 30


CPU = torch.device("cpu")


def checked(monkeypatch, op, function, sizes=(5,)):
    """The check's answer for one operation of one backend."""
    monkeypatch.setattr(dispatch, "operations", lambda name: {op: function})
    case = {"event": "check", "backend": "cuda", "op": op, "parameters": {}, "tokens": list(sizes), "inputs": 2}
    return trial.run_case(case, CPU)


def post(residual, y, post, comb, *, out=None):
    """In vLLM's rounding order, as the kernels are."""
    new = streams_in_order({"residual": residual, "y": y, "post": post, "comb": comb})
    return new if out is None else out.copy_(new)


def test_kernels_that_are_right_pass_the_check(monkeypatch):
    reference = dispatch.operations("torch")
    assert checked(monkeypatch, "mhc_pre", reference["mhc_pre"])["ok"]
    found = checked(monkeypatch, "mhc_post", post, sizes=(1, 3))
    assert found == {"ok": True, "bad": [], "1": {"streams_differ": 0, "in_place_same": True},
                     "3": {"streams_differ": 0, "in_place_same": True}}  # fmt: skip


def test_another_rounding_order_and_a_write_elsewhere_fail_the_check(monkeypatch):
    reference = dispatch.operations("torch")["mhc_post"]

    def other_order(*inputs, out=None):
        return reference(*inputs) if out is None else out.copy_(reference(*inputs))

    def half_in_place(*inputs, out=None):
        new = post(*inputs)
        if out is not None:
            new[-1, 0] = out[-1, 0]
        return new

    found = checked(monkeypatch, "mhc_post", other_order)
    assert not found["ok"]
    assert found["5"]["streams_differ"] > 0
    assert found["5"]["in_place_same"]
    found = checked(monkeypatch, "mhc_post", half_in_place)
    assert [n for n, _, _ in found["bad"]] == [5, 5]
    assert found["5"] == {"streams_differ": 0, "in_place_same": False}


def test_a_time_is_a_row_as_the_bench_writes_it(tmp_path):
    case = {"event": "row", "backend": "torch", "op": "mhc_seam", "parameters": {}, "form": "in place", "tokens": 2,
            "seconds": 0.0}  # fmt: skip
    row = {**case, **trial.run_case(case, CPU)}
    again = {**case, **trial.run_case(case, CPU)}
    assert row["ms"] > 0
    assert (row["dims"], row["bytes"]) == ("pico", again["bytes"])
    path = tmp_path / "trial.jsonl"
    path.write_text(json.dumps({"event": "machine", "error": "no answer in 60 s"}) + "\n" + json.dumps(row) + "\n")
    (figure,) = tune.read([path]).figures
    assert (figure.op, figure.form, figure.tokens, figure.ms) == ("mhc_seam", "in place", 2, row["ms"])


def test_what_a_case_changes_is_there_again_for_the_next(monkeypatch):
    trial._inputs.cache_clear()
    case = {"event": "row", "backend": "torch", "op": "mhc_seam", "parameters": {}, "form": "in place", "tokens": 2,
            "seconds": 0.0}  # fmt: skip
    before = trial._inputs(2, CPU, 1)["residual"].clone()
    trial.run_case(case, CPU)
    assert torch.equal(trial._inputs(2, CPU, 1)["residual"], before)
