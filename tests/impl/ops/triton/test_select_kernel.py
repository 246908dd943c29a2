"""The indexer's choice by Triton against the torch reference: on a GPU, or by Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.dims import MICRO, PICO
from impl.model.select import Candidates, Query, choose
from impl.ops.dispatch import FORCE
from impl.ops.packed_kv import key_packing
from impl.ops.workspace import Workspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("dims", [PICO, MICRO], ids=lambda d: d.name)
@pytest.mark.parametrize("visible", [[0, 1, 40], [63, 64, 200]])
def test_the_same_entries_are_chosen(dims, visible, monkeypatch):
    gen = torch.Generator().manual_seed(1)
    n, heads, d, per_page, n_pages = len(visible), 4, dims.index_dim, 16, 13
    packing = key_packing(dims, per_page)
    pages = torch.randint(0, 120, (20, per_page * (d + 4)), generator=gen, dtype=torch.uint8)
    pages ^= torch.randint(0, 2, pages.shape, generator=gen, dtype=torch.uint8) << 7  # signs; no NaN
    scales = 2.0 ** torch.randint(-4, 2, (20, per_page), generator=gen)
    pages[:, packing.scale.first :] = scales.view(torch.uint8)
    codes = torch.randint(0, 120, (n, heads, d), generator=gen, dtype=torch.uint8)
    weight = torch.rand(n, heads, generator=gen)
    weight[:, 3] = 0  # a padding head
    blocks = torch.stack([torch.randperm(19, generator=gen)[:n_pages] + 1 for _ in range(n)])
    query = Query(codes.to(DEVICE), weight.to(DEVICE), 3)
    entries = torch.arange(256, device=DEVICE)
    candidates = Candidates(pages.to(DEVICE), blocks.to(DEVICE), packing, 128, entries)
    found = {}
    for kernels in ("torch", "triton"):
        monkeypatch.setenv(FORCE, kernels)
        workspace, out = Workspace(DEVICE), torch.empty((n, 16), dtype=torch.int64, device=DEVICE)
        choose(query, candidates, torch.tensor(visible, device=DEVICE), None, out, workspace)
        found[kernels] = out.cpu()
    assert torch.equal(found["triton"], found["torch"])
    assert [int((row >= 0).sum()) for row in found["triton"]] == [min(16, v) for v in visible]
