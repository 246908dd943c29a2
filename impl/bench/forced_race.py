"""The control of the race check: vLLM's small-token seam made to write over what its other programs still read.

In that kernel the programs of the first rows of fn write the new streams, each its own columns, and those of the other
rows make the same streams again for themselves, from the old ones. The new streams are therefore right even in place;
what a program that comes late gets wrong is its products.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from impl.bench.case import Inputs
from impl.bench.cases import shape
from impl.bench.mhc_cases import inputs as mhc_inputs

TOKENS = (6, 12, 16)
SURE = 6
"""The number of tokens at which every run was wrong on an H200."""


def forced_race(device: torch.device, runs: int) -> Iterator[dict[str, Any]]:
    """One event a number of tokens; a control that finds nothing at SURE tokens is a failed check.

    wrong: runs with other products or streams than fresh buffers give; wrong_streams: those with other streams.
    """
    event = {"event": "check", "check": "forced race", "op": "mhc_seam", "backend": "vllm"}
    if device.type != "cuda" or not importlib.util.find_spec("vllm"):
        return
    for n in TOKENS:
        i = mhc_inputs(shape(device.type), n, device, n)
        try:
            wanted = [t.clone() for t in products(i, torch.empty_like(i["residual"]))]
            wrong = wrong_streams = 0
            for _ in range(runs):
                old = i["residual"].clone()
                same = [torch.equal(a, b) for a, b in zip(products({**i, "residual": old}, old), wanted, strict=True)]
                wrong += not all(same)
                wrong_streams += not same[0]
        except Exception as error:
            yield {**event, "tokens": n, "ok": None, "reason": f"{type(error).__name__}: {error}"[:300]}
            continue
        yield {**event, "tokens": n, "runs": runs, "wrong": wrong, "wrong_streams": wrong_streams,
               "ok": wrong > 0 if n == SURE else None,
               "reason": "must differ" if n == SURE else "may differ"}  # fmt: skip


def products(i: Inputs, new: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The new streams, into `new`, their products with fn and their sums of squares, each fp32 by split of the columns:
    by the small-token kernel of vLLM 0.25 and 0.26, with its splits."""
    from vllm.model_executor.kernels.mhc.tilelang_kernels import mhc_fused_tilelang

    n, hc, hidden = i["residual"].shape
    width = hc * (hc + 2)
    few = n < 8
    n_splits = 8 if few and hidden <= 4096 else 4
    made = torch.empty((n_splits, n, width), device=new.device)
    squares = torch.empty((n_splits, n), device=new.device)
    mhc_fused_tilelang(
        i["comb"], i["residual"], i["post"], i["y"], i["weights"].fn.view(width, hc, hidden), made, squares, new, hc,
        hidden, width, tile_n=2 if few else 3, n_splits=n_splits,
    )  # fmt: skip
    return new, made, squares


__all__ = ["forced_race", "products"]
