"""Queries and cache entries in Triton against the torch reference: on a GPU, or by Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.dims import FLASH, MICRO, PICO
from impl.ops import query
from impl.ops.packed_kv import StateLayout
from impl.ops.rope import RopeTable
from impl.ops.triton import kv_insert as insert_kernel
from impl.ops.triton import query as query_kernel
from impl.ops.workspace import Workspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEP = 2**-7 if DEVICE == "cuda" else 2**-6
"""One rounding to bf16, as a share of the value; Triton's interpreter cuts bits off where the GPU rounds."""


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def table(dims):
    return RopeTable(dims.with_changes(max_model_len=256), 4, DEVICE).rows


@pytest.mark.parametrize("dims", [PICO, MICRO, FLASH], ids=lambda d: d.name)
@pytest.mark.parametrize("heads", [2, 8])
def test_queries_are_the_references_within_one_rounding(dims, heads):
    n, n_heads = 5, min(dims.n_heads, 6)
    q = normal(n, n_heads, dims.head_dim).bfloat16()
    positions = torch.tensor([0, 3, 250, 17, 3], device=DEVICE)
    eps = torch.tensor([1e-6], device=DEVICE)
    wanted = query.query_norm_rope(q, positions, table(dims), eps, Workspace(DEVICE), torch.empty_like(q))
    before = q.clone()
    fresh = query_kernel.query_norm_rope(q, positions, table(dims), eps, out=torch.empty_like(q), heads=heads)
    assert torch.equal(q, before)
    assert ((fresh.float() - wanted.float()).abs() <= STEP * wanted.float().abs() + 1e-6).all()
    found = query_kernel.query_norm_rope(q, positions, table(dims), eps, heads=heads)
    assert found.data_ptr() == q.data_ptr()
    assert torch.equal(q, fresh)


def test_heads_that_are_not_dense_are_refused():
    q = normal(2, 4, 32).bfloat16().transpose(0, 1)
    with pytest.raises(ValueError, match="dense"):
        query_kernel.query_norm_rope(q, torch.zeros(4), table(PICO), torch.ones(1))


def inserted(insert, dims, kv, slots, **options):
    layout = StateLayout.of(dims)
    per_page = 4
    width = per_page * (layout.data_bytes + layout.scale_bytes) + 6
    pages = torch.zeros((5, width), dtype=torch.uint8, device=DEVICE)
    positions = torch.arange(len(kv), device=DEVICE) * 7
    packing = layout.packing(per_page)
    insert(kv, positions, table(dims), slots, pages, layout, packing, Workspace(DEVICE), **options)
    return pages, packing, layout


def entries(pages, packing, layout):
    """Codes, rope values and scales of every entry."""
    page = torch.arange(packing.per_page, device=DEVICE)
    data = pages[:, page[:, None] * layout.data_bytes + torch.arange(layout.data_bytes, device=DEVICE)]
    at = packing.scale.first + page[:, None] * layout.scale_bytes + torch.arange(layout.scale_bytes, device=DEVICE)
    return data[..., : layout.nope], data[..., layout.nope :].contiguous().view(torch.bfloat16), pages[:, at]


def exact_rows(dims, n, seed=1):
    """Entries whose quantized part is e4m3 numbers under some power of two, so that no rounding is asked of it."""
    kv = normal(n, dims.head_dim, seed=seed)
    codes = kv[:, : dims.nope_dim].clamp(-4, 4).to(torch.float8_e4m3fn).float()
    codes[:, :: dims.quant_group] = 448 / 2**6  # the largest: the scale is a power of two at which all others are codes
    kv[:, : dims.nope_dim] = codes
    return kv.bfloat16()


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("dims", [PICO, MICRO, FLASH], ids=lambda d: d.name)
def test_entries_are_the_references(dims, rows):
    kv = exact_rows(dims, 7)
    slots = torch.tensor([5, 18, -1, 9, 4, 2, 19], device=DEVICE)
    wanted, packing, layout = inserted(query.kv_insert, dims, kv, slots)
    found, *_ = inserted(insert_kernel.kv_insert, dims, kv, slots, rows=rows)
    codes, rope, scales = entries(wanted, packing, layout)
    own_codes, own_rope, own_scales = entries(found, packing, layout)
    assert torch.equal(codes, own_codes)
    assert torch.equal(scales, own_scales)
    assert ((own_rope.float() - rope.float()).abs() <= STEP * rope.float().abs() + 1e-6).all()
    assert not found[0].any(), "block 0 holds zeros"
    assert torch.equal(wanted[:, -6:], found[:, -6:]), "bytes behind the entries"


def test_scales_follow_the_largest_value():
    """Over the whole range, and at 448 times a power of two and just beyond, where the scale doubles."""
    largest = torch.tensor([1e-6, 1e-4, 448 / 2**10, 450 / 2**10, 1.0, 1.75, 1.7578125, 3.5, 1000.0], device=DEVICE)
    kv = torch.zeros((len(largest), FLASH.head_dim), device=DEVICE)
    kv[:, 0] = largest
    slots = torch.arange(4, 4 + len(largest), device=DEVICE)
    wanted, packing, layout = inserted(query.kv_insert, FLASH, kv.bfloat16(), slots)
    found, *_ = inserted(insert_kernel.kv_insert, FLASH, kv.bfloat16(), slots)
    assert torch.equal(entries(wanted, packing, layout)[2], entries(found, packing, layout)[2])


def test_rows_behind_the_slots_are_padding():
    kv = exact_rows(PICO, 6)
    slots = torch.tensor([6, 7, 8], device=DEVICE)
    found, *_ = inserted(insert_kernel.kv_insert, PICO, kv, slots)
    alone, *_ = inserted(insert_kernel.kv_insert, PICO, kv[:3], slots)
    assert torch.equal(found, alone)


def test_widths_that_do_not_fit_are_refused():
    layout = StateLayout(40, 8, 16)
    packing = layout.packing(4)
    pages = torch.zeros((2, 400), dtype=torch.uint8)
    with pytest.raises(ValueError, match="do not fit"):
        insert_kernel.kv_insert(torch.zeros(1, 48), torch.zeros(1), table(PICO), torch.zeros(1), pages, layout, packing)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda whole: whole[1:], "out must be q itself or apart from it"),
        (lambda whole: whole[:4, :1].expand(-1, 2, -1), "query heads must be dense"),
        (lambda whole: whole[:1].expand(4, -1, -1), "query heads must be dense"),
        (lambda whole: whole[:3].clone(), r"out must be torch.bfloat16 \(4, 2, 32\)"),
        (lambda whole: whole[:4].float(), "out must be torch.bfloat16"),
    ],
)
def test_queries_that_would_be_written_elsewhere_are_refused(change, message):
    whole = normal(5, 2, PICO.head_dim).bfloat16()
    before, eps = whole.clone(), torch.tensor([1e-6], device=DEVICE)
    with pytest.raises(ValueError, match=message):
        query_kernel.query_norm_rope(
            whole[:4], torch.arange(4, device=DEVICE), table(PICO), eps, out=change(whole)
        )
    assert torch.equal(whole, before)


def test_heads_of_a_wider_buffer_and_spread_positions_are_the_dense_result():
    q, eps = normal(4, 2, PICO.head_dim).bfloat16(), torch.tensor([1e-6], device=DEVICE)
    positions = torch.tensor([[3, 9], [250, 9], [0, 9], [17, 9]], device=DEVICE)[:, 0]
    wanted = query_kernel.query_norm_rope(q, positions.contiguous(), table(PICO), eps, out=torch.empty_like(q))
    wide = torch.full((4, 3, PICO.head_dim), -7.0, dtype=torch.bfloat16, device=DEVICE)
    query_kernel.query_norm_rope(q, positions, table(PICO), eps, out=wide[:, :2])
    assert torch.equal(wide[:, :2], wanted)
    assert (wide[:, 2] == -7).all()
