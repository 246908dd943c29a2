"""The shipped pico weights do what their card says."""

from __future__ import annotations

import hashlib
import json
import re

import pytest
import torch

from impl.dims import PICO, Dims
from impl.model.weights import SHIPPED, load_weights
from impl.train import evaluate, heldout
from impl.train.scores import wilson

CARD = SHIPPED / "pico.md"
FILE = SHIPPED / "pico.safetensors"


@pytest.fixture(scope="module")
def shipped() -> dict[str, torch.Tensor]:
    weights, dims = load_weights(FILE)
    assert dims == PICO
    return weights


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [("7*8=", "56"), ("17+25=", "42"), ("Q: 7*8\nA:", " 56"), ("Q: 17+25\nA:", " 42")],
)
def test_shown_prompts(shipped: dict[str, torch.Tensor], prompt: str, answer: str) -> None:
    assert evaluate.greedy(shipped, PICO, [prompt], max_tokens=6) == [answer]


@pytest.mark.parametrize("form", ["completion", "chat"])
def test_held_out_sums(shipped: dict[str, torch.Tensor], form: str) -> None:
    items = heldout.sums(form)[::5]
    assert len(items) > 160
    assert evaluate.count_right(shipped, PICO, items, 6) >= 0.95 * len(items)


def test_card_names_this_file() -> None:
    digest = hashlib.sha256(FILE.read_bytes()).hexdigest()
    record = json.loads((SHIPPED / "pico.json").read_text())
    assert record["sha256"] == digest
    assert digest in CARD.read_text()
    assert Dims.from_json(record["dims"]) == PICO
    for row in record["scores"].values():
        assert wilson(row["right"], row["n"]) == pytest.approx((row["low"], row["high"]))
        assert re.search(rf"{row['right']} of {row['n']}\b", CARD.read_text())
