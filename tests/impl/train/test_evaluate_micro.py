"""Scores of micro: families against their targets, and compressed entries that can be masked kind by kind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from impl.dims import MICRO, Dims
from impl.model.weights import random_weights, save_weights
from impl.train import evaluate
from impl.train.attention import View
from impl.train.evaluate_micro import Family, families, judged
from impl.train.forward import forward
from impl.train.scores import score, table


@pytest.fixture(scope="module")
def small() -> Dims:
    """micro's layer kinds at a small width."""
    return MICRO.with_changes(
        hidden_size=32, n_heads=2, head_dim=32, rope_dim=16, q_lora_rank=16, o_lora_rank=16, index_heads=2,
        index_dim=16, expert_width=16, sinkhorn_iters=2,
    )  # fmt: skip


def test_every_family_can_be_answered_within_its_tokens() -> None:
    found = list(families())
    assert len({family.name for family in found}) == len(found)
    for family in found:
        items = family.items()
        assert len(items) >= 60
        assert all(item.right(item.reply) for item in items)
        assert max(len(item.reply) for item in items) < family.max_tokens
        assert not family.below or family.below in [other.name for other in found]


def test_masking_one_kind_changes_what_lies_behind_its_first_entry(small: Dims) -> None:
    weights = random_weights(small, 0)
    ids = torch.randint(0, 96, (1, 320), generator=torch.Generator().manual_seed(0))
    whole = forward(weights, ids, small)
    for kind, first in (("C4A", 3), ("C128A", 127)):
        masked = forward(weights, ids, small, view=View(hidden=kind))
        torch.testing.assert_close(masked[:, :first], whole[:, :first])
        assert not torch.equal(masked[:, first], whole[:, first])
        assert torch.isfinite(masked).all()


def test_targets() -> None:
    share = Family("recall", list, 4, (0.6, 0.98))
    assert judged(share, score(97, 100), {})["met"]
    assert not judged(share, score(99, 100), {})["met"]
    assert not judged(share, score(59, 100), {})["met"]
    worse = Family("recall, no C4A", list, 4, below="recall")
    assert judged(worse, score(80, 100), {"recall": score(98, 100)})["met"]
    assert not judged(worse, score(95, 100), {"recall": score(98, 100)})["met"]
    assert "MISSED" in table({"recall": judged(share, score(1, 100), {})})


def test_command_scores_a_weights_file(small: Dims, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "micro.safetensors"
    save_weights(path, random_weights(small, 1), small)
    assert evaluate.main([str(path), "--json", "--sample", "3", "--only", "12x12"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert list(rows) == ["products to 12x12, completion", "products to 12x12, chat"]
    assert all(row["n"] == 3 and row["target"] == "100%" for row in rows.values())
    with pytest.raises(SystemExit, match="2"):
        evaluate.main([str(path), "--only", "no such family"])
