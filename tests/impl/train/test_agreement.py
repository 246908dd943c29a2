"""The check that means of training agree: silent when they do, and naming the part when one does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from impl.dims import Dims
from impl.train import agreement, loop
from impl.train.forward import PLAIN, Parts
from impl.train.prefetch import Rows
from impl.train.runs import Means


@pytest.fixture
def _two_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a narrow window and the whole one, with two short rows a step."""
    monkeypatch.setitem(loop.RECIPES, "tiny", {"narrow": ((0.1, 3),)})

    def short(*arguments: Any) -> dict[str, Rows]:
        ids = np.random.default_rng(arguments[2]).integers(0, 100, (2, 49)).astype(np.int16)
        return {"text": (ids, np.ones(ids.shape, np.float32))}

    monkeypatch.setattr(agreement, "step_rows", short)


@pytest.mark.usefixtures("_two_reaches")
def test_equal_means_agree(tiny: Dims, capsys: pytest.CaptureFixture[str]) -> None:
    assert agreement.agree(tiny, 1, "cpu", {"plain": Means(), "again": Means()}, steps=2)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[::2]] == ["reach 3", "reach 8"]
    assert all("again agrees" in line for line in lines[1::2])
    assert lines[0] != lines[2].replace("reach 8", "reach 3")


@pytest.mark.usefixtures("_two_reaches")
def test_the_part_that_breaks_is_named(
    tiny: Dims, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The part is right forward, and gives no number backward: it shows one step later."""

    def miscompiled(parts: Parts) -> Parts:
        def moe(*arguments: object) -> tuple[Tensor, Tensor]:
            y, load = PLAIN.moe(*arguments)
            y.register_hook(lambda grad: grad * torch.nan)
            return y, load

        return parts._replace(moe=moe)

    monkeypatch.setattr(agreement, "compile_parts", miscompiled)
    monkeypatch.setattr(agreement, "compiled", lambda: miscompiled(PLAIN))
    means = {"plain": Means(), "compiled": Means(compiled=True)}
    assert not agreement.agree(tiny, 1, "cpu", means, steps=2)
    told = capsys.readouterr().out.splitlines()
    assert sum("compiled LEAVES at step 1" in line for line in told) == 2
    alone = [line.split(";")[0].strip() for line in told if "alone" in line]
    assert len(alone) == len(Parts._fields)
    assert [line.startswith("moe") for line in alone] == ["LEAVES" in line for line in alone]
