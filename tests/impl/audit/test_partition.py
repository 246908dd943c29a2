"""The shared index buffer's check is clean on the tree, and sees rows that overlap, shift or stay stale."""

from __future__ import annotations

import pytest

from impl.audit import partition
from impl.audit.partition import SPLITS, check
from impl.engine import index_rows
from impl.engine.index_rows import IndexRows


def codes() -> set[str]:
    return {finding.code for split in SPLITS for finding in partition._partition(*split)}


def test_the_tree_is_clean():
    outcome = check()
    assert outcome.findings == ()
    assert outcome.evidence["stale rows planted"] > 0
    assert outcome.evidence["partitions"] == len(SPLITS)


@pytest.mark.parametrize("shift", [-1, 1])
def test_prefill_rows_read_from_a_shifted_row_are_found(monkeypatch, shift):
    def parts_of(self, step):
        first = max(step.n_decode + shift, 0) if self.shared else 0
        return self.decode[: step.n_decode], self.prefill[first : first + step.n_tokens - step.n_decode]

    monkeypatch.setattr(IndexRows, "_parts_of", parts_of)
    assert "inexact-partition" in codes()


def test_prefill_rows_written_over_decode_rows_are_found(monkeypatch):
    def parts(self, step):
        return self.decode[: step.n_decode], self.prefill[: step.n_tokens - step.n_decode]

    monkeypatch.setattr(IndexRows, "_parts", parts)
    assert "partition-differs" in codes()


def test_a_row_too_many_is_found(monkeypatch):
    build = IndexRows.build

    def one_more(self, step, workspace):
        build(self, step, workspace)
        self.decode[step.n_tokens : step.n_tokens + 1] = 7

    monkeypatch.setattr(IndexRows, "build", one_more)
    assert "row-beyond" in codes()


def test_rows_whose_tails_stay_stale_are_found(monkeypatch, leave_tails):
    (finding,) = [finding for finding in check().findings if finding.code == "stale-rows-read"]
    assert "differ" in finding.what
    assert finding.where.startswith("impl/engine/index_rows.py:")


def test_a_trial_that_never_shares_is_not_run(monkeypatch):
    monkeypatch.setattr(index_rows, "SHARED", "c128_double_map")
    with pytest.raises(partition.NotRun):
        check()
