"""Replay covers what is captured; stale state, work beside a graph and graph breaks are found."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from torch import Tensor

from impl.audit import graph_replay
from impl.audit.graph_replay import check
from impl.engine.draft_replay import DraftReplay
from impl.ops import mhc


def test_the_tree_is_clean():
    outcome = check()
    assert outcome.findings == ()
    assert outcome.evidence["replays"] > 10
    assert outcome.evidence["graph breaks"] == 0
    assert outcome.evidence["other operations beside replays"] == 0
    assert outcome.evidence["operations replayed"] > outcome.evidence["operations in tapes"]
    assert outcome.evidence["capture seconds"] > 0


@pytest.mark.parametrize(("toggles", "found"), [("", set()), ("draft_logits_persistent=off", {"replay-differs"})])
def test_graphs_of_whole_steps_are_covered_and_their_stale_handoff_is_found(toggles, found):
    outcome = check(toggles, {}, "steps")
    assert {finding.code for finding in outcome.findings} == found
    assert outcome.evidence["replays"] > 5
    assert outcome.evidence["other operations beside replays"] == 0
    assert outcome.evidence["copies and views beside replays"] > 0


def prints(x: Tensor) -> Tensor:
    print("a host read in the middle")
    return x.sin() + float(x.sum())


def test_planted_defects_are_found(monkeypatch):
    """Draft logits in an attribute, a product beside the draft's graph, and a function that breaks its trace."""
    propose = DraftReplay.propose

    def slow(self, round_):
        tokens = propose(self, round_)
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        return tokens

    monkeypatch.setattr(DraftReplay, "propose", slow)
    outcome = check("draft_logits_persistent=off", {"prints": (prints, (torch.ones(3),))}, "draft")
    found = {finding.code: finding for finding in outcome.findings}
    assert found.keys() == {"replay-differs", "work-outside-graph", "graph-break"}
    assert "mm x" in found["work-outside-graph"].what
    assert outcome.evidence["graph breaks"] > 0


def test_seams_are_traced_on_both_paths():
    names = {"pre", "seam", "seam, reusing both", "post_streams", "post_mean", "post_head"}
    assert set(graph_replay.seams()) == {f"mhc.{name}, {n} tokens" for name in names for n in (8, 32)}
    assert all(args[0].shape[0] == int(name.split()[-2]) for name, (_, args) in graph_replay.seams().items())


@pytest.mark.parametrize(("branch", "tokens"), [("_small_seam", 8), ("post_rows", 32)])
def test_a_break_in_either_branch_of_the_seam_is_found(monkeypatch, branch, tokens):
    plain = getattr(mhc, branch)

    def breaking(*args):
        torch._dynamo.graph_break()
        return plain(*args)

    monkeypatch.setattr(mhc, branch, breaking)
    traced = {name: seam for name, seam in graph_replay.seams().items() if name.startswith("mhc.seam, ")}
    findings, _ = graph_replay._graph_breaks(traced)
    assert findings
    assert any(f"{tokens} tokens" in finding.what for finding in findings)
