"""Attention over packed states in Triton against the torch reference: on a GPU, or by Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.dims import MICRO, PICO
from impl.ops import packed_kv
from impl.ops.attention import padded_columns, sink_attention
from impl.ops.packed_kv import StateLayout
from impl.ops.rope import RopeTable, conjugate_rows, rotate_, table_rows
from impl.ops.triton.attention import attend
from impl.ops.workspace import Workspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WINDOW, BLOCKS = 21, 6


def pages_of(layout, packing, gen):
    """Random states in every entry of every block but the null one."""
    width = packing.scale.first + packing.per_page * layout.scale_bytes + 2
    pages = torch.zeros((BLOCKS, width + width % 2), dtype=torch.uint8, device=DEVICE)
    slots = torch.arange(packing.per_page, BLOCKS * packing.per_page, device=DEVICE)
    workspace = Workspace(DEVICE)
    states = torch.randn(len(slots), layout.nope + layout.rope, generator=gen).to(DEVICE)
    with workspace.scope():
        data, scales = packed_kv.pack_states(states, layout, workspace)
        packed_kv.store(pages, slots, packing, data, scales, workspace)
    return pages


@pytest.mark.parametrize("dims", [PICO, MICRO], ids=lambda d: d.name)
@pytest.mark.parametrize("selected", [0, 12])
def test_results_are_the_references_within_one_rounding(dims, selected):
    gen = torch.Generator().manual_seed(2)
    n, heads, d, layout = 5, dims.n_heads, dims.head_dim, StateLayout.of(dims)
    packings = layout.packing(8), layout.packing(4)
    pages = [pages_of(layout, packing, gen) for packing in packings]
    slots = [
        torch.randint(0, BLOCKS * packing.per_page, (n, count), generator=gen).to(DEVICE)
        for packing, count in zip(packings, (WINDOW, selected), strict=True)
    ]
    columns = padded_columns(WINDOW + selected)
    hidden = (torch.rand(n, columns, generator=gen) < 0.3).to(DEVICE)
    hidden[:, WINDOW + selected :] = True
    hidden[0, :] = True  # sees nothing: the sink takes all
    q = torch.randn(n, heads, d, generator=gen).bfloat16().to(DEVICE)
    sink = torch.randn(heads, generator=gen).to(DEVICE)
    positions = torch.tensor([0, 3, 250, 17, 9], device=DEVICE)
    table = RopeTable(dims.with_changes(max_model_len=256), 4, DEVICE).rows

    workspace = Workspace(DEVICE)
    with workspace.scope():
        states = torch.zeros(n, columns, d, device=DEVICE)
        ends = (0, WINDOW, WINDOW + selected)
        for i, packing in enumerate(packings):
            flat = slots[i].reshape(-1)
            data = workspace.empty((len(flat), layout.data_bytes), torch.uint8)
            scales = workspace.empty((len(flat), layout.scale_bytes), torch.uint8)
            packed_kv.gather(pages[i], flat, flat // packing.per_page, packing, data, scales, workspace)
            packed_kv.unpack_states(data, scales, layout, [states[:, ends[i] : ends[i + 1]]], workspace)
        wanted = torch.empty(n, heads, d, device=DEVICE)
        sink_attention(q, states, hidden, sink, wanted, workspace)
        turn = table_rows(table, positions, torch.empty((n, table.shape[1]), dtype=torch.complex64, device=DEVICE))
        rotate_(wanted, conjugate_rows(turn, workspace))

    def found(rows):
        window = slots[0][rows].contiguous(), pages[0], packings[0]
        entries = (slots[1][rows].contiguous(), pages[1], packings[1]) if selected else None
        out = torch.empty(len(q[rows]), heads, d, dtype=torch.bfloat16, device=DEVICE)
        return attend(
            q[rows], window, entries, hidden[rows].contiguous(), sink, positions[rows].contiguous(), table, layout, out
        )

    together = found(slice(None))
    assert ((together.float() - wanted).abs() <= 2**-7 * wanted.abs() + 2e-6).all()
    assert together[1:].abs().max() > 0.1
    assert not together[0].any()
    for row in range(n):
        assert torch.equal(found(slice(row, row + 1))[0], together[row])
