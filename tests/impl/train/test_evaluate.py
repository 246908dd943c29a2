from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from impl.dims import Dims
from impl.tokenizer import BOS, EOS, NEWLINE, PAD, encode
from impl.train import evaluate
from impl.train.forward import forward
from impl.train.heldout import Item


@given(st.integers(1, 2000), st.data())
def test_wilson_interval(n: int, draw: st.DataObject) -> None:
    right = draw.draw(st.integers(0, n))
    wanted = binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert evaluate.wilson(right, n) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


def test_greedy_rows_are_argmax_one_at_a_time(tiny: Dims, tiny_weights: dict[str, torch.Tensor]) -> None:
    prompts = [[BOS, *encode(text)] for text in ("7*8=", "1+2=3", "kx=4\nb", "9-3=")]
    rows = evaluate.continue_rows(tiny_weights, tiny, prompts, 5)
    for prompt, row in zip(prompts, rows, strict=True):
        ids, wanted = prompt, []
        for _ in range(5):
            token = int(forward(tiny_weights, torch.tensor([ids]), tiny)[0, -1].argmax())
            if token in (NEWLINE, EOS, PAD):
                break
            ids, wanted = [*ids, token], [*wanted, token]
        assert row[: len(wanted)] == wanted
    assert len({tuple(row) for row in rows}) > 1


def test_greedy_keeps_the_order_of_prompts(tiny: Dims, tiny_weights: dict[str, torch.Tensor]) -> None:
    prompts = ["7*8=", "17+25=", "1+2=", "Q: 3\nA:"]
    together = evaluate.greedy(tiny_weights, tiny, prompts, max_tokens=5)
    assert together == [evaluate.greedy(tiny_weights, tiny, [prompt], max_tokens=5)[0] for prompt in prompts]


def test_problems_count_by_what_follows_the_hashes(
    tiny: Dims, tiny_weights: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [" 1+2=3. 3+4=7. #### 7", " 1+2=7. 7-0=7. #### 8", " 7"]
    monkeypatch.setattr(evaluate, "greedy", lambda *args: answers)
    items = [Item("", "7")] * 3
    assert evaluate.count_right(tiny_weights, tiny, items, 9, problem=True) == 1


def test_missing_weights_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert evaluate.main([str(tmp_path / "none.safetensors")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no weights at")
    assert error.count("\n") == 1
