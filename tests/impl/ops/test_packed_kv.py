"""Packed pages byte by byte against section 3.6 in plain Python, at flash's layout and at odd widths."""

import math
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.dims import FLASH, PICO
from impl.kv_geometry import KvGeometry
from impl.ops import packed_kv
from impl.ops.packed_kv import StateLayout, decode_e4m3, gather_rows, pack_states, store, store_rows, unpack_states
from impl.ops.workspace import Workspace

E4M3 = [
    (-1) ** (b >> 7) * (2.0**-6 * (b & 7) / 8 if b >> 3 & 15 == 0 else 2.0 ** ((b >> 3 & 15) - 7) * (1 + (b & 7) / 8))
    for b in range(256)
]
"""Value of each code; 0x7F and 0xFF are NaN and never written."""

LAYOUTS = st.builds(
    lambda nope, rope, group: StateLayout(2 * nope, 2 * rope, min(group, 2 * nope)),
    st.integers(1, 40), st.integers(1, 8), st.sampled_from([8, 14, 64]),
)  # fmt: skip


def random_states(n: int, layout: StateLayout, seed: int) -> torch.Tensor:
    """Groups of very different size, some of them zero, some values exactly at a power of two times 448."""
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, layout.nope + layout.rope, generator=gen)
    x = x * torch.exp2(torch.randint(-24, 12, (n, 1), generator=gen))
    x[torch.rand(n, generator=gen) < 0.1] = 0.0
    exact = 448.0 * 2.0 ** torch.randint(-9, 9, (n,), generator=gen)
    x[:, 0] = torch.where(torch.rand(n, generator=gen) < 0.2, exact, x[:, 0])
    return x


def bf16(value: float) -> float:
    return torch.tensor(value, dtype=torch.float32).bfloat16().item()


def nearest_code(value: float) -> int:
    """Nearest e4m3 code, even mantissa on a tie."""
    sign = 0x80 if math.copysign(1, value) < 0 else 0
    return sign | min(range(0x7F), key=lambda b: (abs(E4M3[b] - abs(value)), b & 1))


def plain_state(x: list[float], layout: StateLayout) -> tuple[bytes, bytes]:
    codes, scales = [], []
    for start in range(0, layout.nope, layout.group):
        group = [bf16(v) for v in x[start : min(start + layout.group, layout.nope)]]
        e = math.ceil(math.log2(max(max(map(abs, group)), 1e-4) / 448))
        scales.append(e + 127)
        codes += [nearest_code(min(max(v * 2.0**-e, -448.0), 448.0)) for v in group]
    rope = b"".join(struct.pack("<f", bf16(v))[2:] for v in x[layout.nope :])
    return bytes(codes) + rope, bytes([*scales, 0])


def packed(x: torch.Tensor, layout: StateLayout) -> tuple[torch.Tensor, torch.Tensor]:
    workspace = Workspace()
    with workspace.scope():
        data, scales = pack_states(x.clone(), layout, workspace)
        return data.clone(), scales.clone()


@settings(max_examples=25, deadline=None)
@given(LAYOUTS, st.integers(0, 1000))
def test_states_pack_to_the_bytes_of_the_formula(layout, seed):
    x = random_states(3, layout, seed)
    data, scales = packed(x, layout)
    for row, d, s in zip(x.tolist(), data, scales, strict=True):
        wanted_data, wanted_scales = plain_state(row, layout)
        assert bytes(s.tolist()) == wanted_scales
        assert bytes(d.tolist()) == wanted_data


def test_flash_states_are_584_bytes_and_64_of_them_fill_a_page_of_37440():
    layout = StateLayout.of(FLASH)
    assert (layout.data_bytes, layout.scale_bytes) == (576, 8)
    packing = layout.packing(64)
    page_bytes = KvGeometry.of(FLASH).formats["swa"].page_bytes
    assert page_bytes == 37440
    x = random_states(64, layout, 5)
    pages = torch.zeros(3, page_bytes, dtype=torch.uint8)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    data, scales = packed(x, layout)
    store(pages, 2 * 64 + order, packing, data, scales, Workspace())
    assert not pages[:2].any()
    for i, at in enumerate(order.tolist()):
        wanted_data, wanted_scales = plain_state(x[i].tolist(), layout)
        assert bytes(pages[2, at * 576 : (at + 1) * 576].tolist()) == wanted_data
        assert bytes(pages[2, 64 * 576 + at * 8 : 64 * 576 + (at + 1) * 8].tolist()) == wanted_scales
    assert not pages[2, 64 * 584 :].any()


@settings(max_examples=40, deadline=None)
@given(LAYOUTS, st.integers(1, 5), st.integers(1, 20), st.integers(0, 3), st.integers(0, 1000))
def test_states_come_back_as_the_values_their_bytes_mean(layout, per_page, n, spare, seed):
    packing = layout.packing(per_page)
    content = per_page * (layout.data_bytes + layout.scale_bytes)
    page_bytes = (-(-content // layout.data_bytes) + spare) * layout.data_bytes
    blocks = 2 + n // per_page
    pool = torch.zeros(3, blocks, page_bytes, dtype=torch.uint8)
    pages = pool[1]  # a layer's view in the middle of its pool
    gen = torch.Generator().manual_seed(seed)
    slots = per_page + torch.randperm((blocks - 1) * per_page, generator=gen)[:n]
    x = random_states(n, layout, seed)
    workspace = Workspace()
    data, scales = packed(x, layout)
    store(pages, slots, packing, data, scales, workspace)
    assert not pool[0].any()
    assert not pool[2].any()
    assert not pages[0].any()

    want = torch.randint(0, n, (4, 6), generator=gen)
    with workspace.scope():
        out = torch.full((4, 9, layout.nope + layout.rope), torch.nan)
        flat = slots[want].view(-1)
        data, scales = (torch.empty(24, size, dtype=torch.uint8) for size in (layout.data_bytes, layout.scale_bytes))
        packed_kv.gather(pages, flat, flat // per_page, packing, data, scales, workspace)
        unpack_states(data, scales, layout, [out[:, 2:8]], workspace)
    for i in range(4):
        for j in range(6):
            d, s = plain_state(x[want[i, j]].tolist(), layout)
            nope = [E4M3[c] * 2.0 ** (s[k // layout.group] - 127) for k, c in enumerate(d[: layout.nope])]
            wanted = torch.tensor([*nope, *map(bf16, x[want[i, j], layout.nope :].tolist())])
            assert torch.equal(out[i, 2 + j], wanted)
    assert out[:, :2].isnan().all()
    assert out[:, 8:].isnan().all()


def test_rows_of_the_null_block_become_zeros():
    layout = StateLayout.of(PICO)
    pages = torch.zeros(3, 816, dtype=torch.uint8)
    data, scales = packed(random_states(4, layout, 0), layout)
    store(pages, torch.tensor([17, 0, 33, 15]), layout.packing(16), data, scales, Workspace())
    assert not pages[0].any()
    assert pages[1].any()
    assert pages[2].any()


def test_codes_decode_to_the_values_of_e4m3():
    workspace = Workspace()
    with workspace.scope():
        got = decode_e4m3(torch.arange(256, dtype=torch.uint8).view(1, -1), workspace)[0].double() * 2.0**8
    nan = torch.tensor([0x7F, 0xFF])
    assert torch.equal(got, torch.tensor(E4M3, dtype=torch.float64))
    assert torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float().isnan().nonzero().view(-1).equal(nan)


@given(st.integers(0, 100), st.integers(1, 24), st.integers(1, 6), st.sampled_from([128, 132, 8, 10]))
def test_keys_have_one_fp32_power_of_two_scale_behind_the_page_s_rows(seed, n, per_page, page_unit):
    dims = PICO.with_changes(index_dim=2 * (seed % 9 + 4))
    packing = packed_kv.key_packing(dims, per_page)
    width = dims.index_dim
    page_bytes = -(-per_page * (width + 4) // page_unit) * page_unit
    pages = torch.zeros(n // per_page + 2, page_bytes, dtype=torch.uint8)
    gen = torch.Generator().manual_seed(seed)
    x = torch.randn(n, width, generator=gen) * torch.exp2(torch.randint(-20, 9, (n, 1), generator=gen))
    slots = per_page + torch.arange(n)
    workspace = Workspace()
    codes, scale = torch.empty(n, width, dtype=torch.uint8), torch.empty(n)
    packed_kv.quantize_(packed_kv.round_bf16_(x.clone(), workspace), scale, codes)
    store(pages, slots, packing, codes, scale.view(-1, 1).view(torch.uint8), workspace)
    for i, values in enumerate(x.tolist()):
        page, at = pages[1 + i // per_page], i % per_page
        values = [bf16(v) for v in values]
        e = math.ceil(math.log2(max(max(map(abs, values)), 1e-4) / 448))
        assert page[at * width : (at + 1) * width].tolist() == [nearest_code(v * 2.0**-e) for v in values]
        first = per_page * width + 4 * at
        assert struct.unpack("<f", bytes(page[first : first + 4].tolist()))[0] == 2.0**e


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 30), st.integers(1, 30))
def test_fp32_rows_survive_pages_of_bytes_exactly(width, per_page, spare, n):
    pages = torch.zeros(n // per_page + 2, per_page * width * 4 + spare, dtype=torch.uint8)
    gen = torch.Generator().manual_seed(n)
    values = torch.randn(n, width + 2, generator=gen)[:, 1:-1]
    slots = per_page + torch.randperm((len(pages) - 1) * per_page, generator=gen)[:n]
    workspace = Workspace()
    store_rows(pages, slots, slots // per_page, per_page, values, workspace)
    assert torch.equal(gather_rows(pages, slots.flip(0), per_page, torch.empty(n, width), workspace), values.flip(0))
    assert not pages[0].any()
    last = slots[-1].item()
    page = pages[last // per_page]
    first = last % per_page * width * 4
    assert bytes(page[first : first + 4 * width].tolist()) == struct.pack(f"<{width}f", *values[-1].tolist())


def test_an_odd_data_part_is_refused():
    with pytest.raises(ValueError, match="must be even and at least 2, got 5"):
        StateLayout.of(PICO.with_changes(head_dim=21))
