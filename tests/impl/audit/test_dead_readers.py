"""Nothing reads a buffer after its death; a reader planted for each of them is found."""

from __future__ import annotations

import pytest

from impl.audit import trial
from impl.audit.dead_readers import BUFFERS, REUSE, REUSING, check, poisoned_runs, reusing_run
from impl.audit.report import NotRun
from impl.model.attention import Attention
from impl.model.moe import Moe
from impl.model.streams import Seam

RESIDUAL, Y, X, QUERIES, ROWS, WORKSPACE = ((buffer,) for buffer in BUFFERS)


def test_the_tree_is_clean():
    outcome = check()
    assert outcome.findings == ()
    for buffer in BUFFERS:
        assert outcome.evidence[f"poisoned: {buffer.name}"] > 0
    for toggle in REUSING:
        assert outcome.evidence[f"reused: {toggle}"] > 0


class Late:
    """Readers that do not change what an unpoisoned run computes: they add zero times what they read."""

    @staticmethod
    def residual(monkeypatch):
        Late._after_seam(monkeypatch, lambda streams: streams.residual)

    @staticmethod
    def y(monkeypatch):
        Late._after_seam(monkeypatch, lambda streams: streams.y)

    @staticmethod
    def _after_seam(monkeypatch, held):
        """Layers that keep a tensor from before a seam, and read it in the sublayer behind the seam."""
        kept = {}
        seam, forward = Seam.__call__, Moe.forward

        def keeping(self, streams):
            kept["tensor"] = held(streams)
            return seam(self, streams)

        def reading(self, x_cell, *rest):
            out = forward(self, x_cell, *rest)
            return out.add_(kept["tensor"].flatten()[0] * 0)

        monkeypatch.setattr(Seam, "__call__", keeping)
        monkeypatch.setattr(Moe, "forward", reading)

    @staticmethod
    def x(monkeypatch):
        forward = Attention.forward

        def reading(self, x_cell, *rest):
            x = x_cell[0]
            return forward(self, x_cell, *rest).add_(x[0, 0] * 0)

        monkeypatch.setattr(Attention, "forward", reading)

    @staticmethod
    def queries(monkeypatch):
        attend = Attention._attend

        def attending(self, q, dense, projected, *rest):
            attend(self, q + projected.q[0, 0, 0] * 0, dense, projected, *rest)

        monkeypatch.setattr(Attention, "_attend", attending)

    @staticmethod
    def workspace(monkeypatch):
        forward = Moe.forward

        def reading(self, x_cell, token_ids, workspace):
            out = forward(self, x_cell, token_ids, workspace)
            left = workspace.buffer[:4].view(out.dtype)[0]
            return out.add_(left.nan_to_num(nan=1.0, posinf=0.0, neginf=0.0).eq(1.0))

        monkeypatch.setattr(Moe, "forward", reading)


@pytest.mark.parametrize(
    ("plant", "buffers"),
    [
        (Late.residual, RESIDUAL),
        (Late.y, Y),
        (Late.x, X),
        (Late.queries, QUERIES),
        (Late.workspace, WORKSPACE),
    ],
    ids=["residual", "y", "x", "queries", "workspace"],
)
def test_a_late_reader_is_found_when_its_buffer_is_poisoned(monkeypatch, plant, buffers):
    plant(monkeypatch)
    assert trial.difference(trial.baseline(), trial.run(trial.engine())) == ""
    (finding,) = poisoned_runs(buffers).findings
    assert finding.code == "read-after-death"
    assert finding.what.startswith(buffers[0].name)
    assert finding.where.startswith("impl/")


def test_a_step_that_reads_the_index_rows_of_the_one_before_is_found(leave_tails):
    assert [finding.code for finding in poisoned_runs(ROWS).findings] == ["read-after-death"]


def test_reuse_where_nothing_is_dead_is_found():
    """The control that aliases the small-token path, whose programs re-read what others write."""
    (finding,) = reusing_run(f"{REUSE},residual_reuse_small_path").findings
    assert finding.code == "reuse-differs"


def test_an_arm_that_never_reuses_is_not_run():
    with pytest.raises(NotRun, match="mhc_residual_reuse"):
        reusing_run("mtp_hidden_skip")
