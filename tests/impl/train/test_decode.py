"""Greedy decoding in drafted passes is the argmax, one token at a time, whatever the drafts say."""

from __future__ import annotations

import pytest
import torch

from impl.dims import Dims
from impl.tokenizer import BOS, EOS, NEWLINE, PAD, decode, encode
from impl.train import decode as module
from impl.train.decode import chunks, continue_rows, greedy
from impl.train.forward import forward

Weights = dict[str, torch.Tensor]
PROMPTS = ("7*8=", "1+2=3", "kx=4\nb", "9-3=", "Q: 3\nA:")


def one_at_a_time(weights: Weights, dims: Dims, prompt: str, count: int) -> list[int]:
    ids, wanted = [BOS, *encode(prompt)], []
    for _ in range(count):
        token = int(forward(weights, torch.tensor([ids]), dims)[0, -1].argmax())
        if token in (NEWLINE, EOS, PAD):
            break
        ids, wanted = [*ids, token], [*wanted, token]
    return wanted


@pytest.mark.parametrize("draft", ["none", "right", "wrong", "half right", "too long"])
def test_rows_are_argmax_one_at_a_time(tiny: Dims, tiny_weights: Weights, draft: str) -> None:
    wanted = [one_at_a_time(tiny_weights, tiny, prompt, 6) for prompt in PROMPTS]
    drafts = {
        "none": None, "right": wanted, "wrong": [encode("zebra") for _ in PROMPTS],
        "half right": [row[:3] + encode("x\n") for row in wanted],
        "too long": [row + encode("abcdefgh") for row in wanted],
    }[draft]  # fmt: skip
    rows = continue_rows(tiny_weights, tiny, [[BOS, *encode(prompt)] for prompt in PROMPTS], 6, drafts)
    assert rows == wanted
    assert len({tuple(row) for row in rows}) > 1


def test_small_passes_give_the_same(tiny: Dims, tiny_weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    together = greedy(tiny_weights, tiny, PROMPTS, 5)
    monkeypatch.setitem(module.PASS_TOKENS, "cpu", 20)
    assert greedy(tiny_weights, tiny, PROMPTS, 5) == together
    assert together == [decode(one_at_a_time(tiny_weights, tiny, prompt, 5)) for prompt in PROMPTS]


def test_a_right_draft_takes_one_pass(tiny: Dims, tiny_weights: Weights, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = greedy(tiny_weights, tiny, PROMPTS, 6)
    passes: list[int] = []

    def counted(*args: object, **kwargs: object) -> torch.Tensor:
        passes.append(1)
        return forward(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "forward", counted)
    assert greedy(tiny_weights, tiny, PROMPTS, 6, texts) == texts
    assert len(passes) == 1


def test_chunks_fit() -> None:
    lengths = [5, 10, 4000, 4000, 9000]
    found = chunks(lengths, "cpu")
    assert [place for chunk in found for place in chunk] == list(range(5))
    assert all(len(c) * max(lengths[i] for i in c) <= module.PASS_TOKENS["cpu"] or len(c) == 1 for c in found)
    assert len(found) == 3
