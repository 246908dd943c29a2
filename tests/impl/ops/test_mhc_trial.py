"""What the trial of the mHC kernels times, in which order, and the tuning rows that come of it."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from impl.bench import tune
from impl.ops import mhc_trial as trial

ASKED = (1, 6, 16, 24, 32, 36, 48, 64, 96, 128, 256, 512, 1024, 2048, 8192)
CASES = [case for case in trial.cases("cuda", 2) if case["kind"] == "time"]


def test_defaults_and_vllm_are_timed_at_every_size():
    of_vllm = [case for case in trial.cases("vllm", 2) if case["kind"] == "time"]
    for cases in (CASES, of_vllm):
        for op in ("mhc_seam", "mhc_pre", "mhc_post", "mhc_post_mean", "mhc_post_head", "mhc_post_mean_head"):
            sizes = {case["tokens"] for case in cases if case["op"] == op and not case["variant"]}
            assert sizes == set(ASKED), op


def test_every_point_of_the_seam_is_timed_in_both_forms_at_each_of_its_sizes():
    """A point that was timed in one form alone is not judged where another has both."""
    forms: dict[tuple[str, int], set[bool]] = {}
    for case in CASES:
        if case["op"] == "mhc_seam":
            forms.setdefault((json.dumps(case["variant"]), case["tokens"]), set()).add(case["reuse"])
    assert set(map(frozenset, forms.values())) == {frozenset((False, True))}
    groups = {tokens for variant, tokens in forms if "groups" in variant}
    assert {64, 128, 256, 512, 1024, 2048, 8192} <= groups
    few = {tokens for variant, tokens in forms if "splits" in variant}
    assert {1, 16, 24, 36, 48, 96, 128} <= few
    assert few & groups >= {24, 36, 48, 64, 96, 128, 256}, "both ways are timed where one gives way to the other"


def test_no_case_is_timed_twice():
    keys = [json.dumps(case) for case in CASES]
    assert len(keys) == len(set(keys))


def test_sizes_between_come_last_and_by_fewer_replays():
    ranks = [trial.rank(case) for case in sorted(trial.cases("cuda", 2), key=trial.rank)]
    assert ranks == sorted(ranks)
    assert {0, 1, 2} == set(ranks)
    for case in CASES:
        assert (trial.rank(case) == 2) == (case["tokens"] in trial.BETWEEN)
        assert case["replays"] == (trial.REPLAYS_BETWEEN if case["tokens"] in trial.BETWEEN else trial.REPLAYS)
    assert trial.REPLAYS_BETWEEN < trial.REPLAYS / 3


@pytest.mark.parametrize("least", [64, 96, 256])
def test_the_table_changes_ways_at_the_size_where_the_times_do(tmp_path, least):
    """Points for few win up to a size, one of many behind it: the rows say so, and cover every number once."""
    best = {"groups": 7, "unit": 4, "fn": 1}
    assert best in [case["variant"] for case in CASES]

    def ms(case: dict) -> float:
        if case["variant"] == best:
            return 0.9 if case["tokens"] >= least else 2.0
        return 1.0 if trial.for_few(case["variant"]) else 1.5

    path = tmp_path / "trial.jsonl"
    path.write_text("".join(json.dumps({**case, "ms": ms(case)}) + "\n" for case in CASES))
    rows = [row for row in tune.rows(tune.read([path]), "a card") if row["op"] == "mhc_seam"]
    assert all(b["tokens"][0] == a["tokens"][1] + 1 for a, b in pairwise(rows))
    assert "splits" in rows[0]["parameters"]
    assert rows[0]["tokens"] == [1, ASKED[ASKED.index(least) - 1]]
    assert rows[-1]["parameters"] == best
    assert rows[-1]["tokens"][1] == 1 << 30
