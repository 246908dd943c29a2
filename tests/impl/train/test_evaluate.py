from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from impl.dims import Dims
from impl.train import evaluate
from impl.train.heldout import Item
from impl.train.scores import wilson


@given(st.integers(1, 2000), st.data())
def test_wilson_interval(n: int, draw: st.DataObject) -> None:
    right = draw.draw(st.integers(0, n))
    wanted = binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right, n) == pytest.approx((wanted.low, wanted.high), abs=1e-9)


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
