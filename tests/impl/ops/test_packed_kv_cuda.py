"""Packed states on a CUDA device: the CPU's bytes, and the CPU's values out of them."""

from __future__ import annotations

import pytest
import torch

from impl.dims import FLASH, MICRO, PICO, Dims
from impl.ops.packed_kv import StateLayout, gather, pack_states, store, unpack_states
from impl.ops.workspace import Workspace

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]


@pytest.mark.parametrize("dims", [PICO, MICRO, FLASH], ids=lambda dims: dims.name)
def test_states_pack_to_the_same_bytes_and_come_back_as_the_same_values(dims: Dims) -> None:
    n, per_page = 50, 16
    layout = StateLayout.of(dims)
    packing = layout.packing(per_page)
    gen = torch.Generator().manual_seed(0)
    states = torch.randn(n, dims.head_dim, generator=gen) * torch.logspace(-6, 6, n)[:, None]
    found = []
    for device in ("cpu", "cuda"):
        workspace = Workspace(device)
        pages = torch.zeros(6, per_page * (layout.data_bytes + layout.scale_bytes), dtype=torch.uint8, device=device)
        slots = (torch.arange(n, device=device) * 7 % 80 + per_page).unique()[:40]
        with workspace.scope():
            data, scales = pack_states(states[: len(slots)].to(device, copy=True), layout, workspace)
            found.append((data.cpu().clone(), scales.cpu().clone()))
            store(pages, slots, packing, data, scales, workspace)
            back = torch.empty_like(data), torch.empty_like(scales)
            gather(pages, slots, slots // per_page, packing, *back, workspace)
            values = torch.empty(1, len(slots), dims.head_dim, device=device)
            unpack_states(*back, layout, [values], workspace)
            found.append((pages.cpu(), values.cpu()))
    for ours, theirs in zip([*found[2], *found[3]], [*found[0], *found[1]], strict=True):
        assert torch.equal(ours, theirs)
    assert found[0][1][:, : layout.groups].min() > 0
