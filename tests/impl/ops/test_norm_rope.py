"""RMSNorm and RoPE against float64 versions of the formulas."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impl.dims import FLASH, MICRO, PICO
from impl.ops.norm import rms_norm, rms_norm_
from impl.ops.rope import RopeTable, conjugate_rows, frequencies, rotate_
from impl.ops.workspace import Workspace

EPS = torch.tensor([1e-6])


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 9), st.integers(1, 5), st.integers(1, 70), st.booleans())
def test_norm_in_place_is_the_formula(n, heads, d, weighted):
    wide = random(n, heads, d + 3, seed=d)
    x, weight = wide[..., :d], random(d, seed=1) if weighted else None
    doubled = x.double()
    wanted = doubled / torch.sqrt((doubled**2).mean(-1, keepdim=True) + 1e-6)
    if weight is not None:
        wanted *= weight.double()
    got = rms_norm_(x, EPS, Workspace(), weight)
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-6)
    assert got is x or got.data_ptr() == x.data_ptr()


def test_norm_of_bf16_rounds_once():
    x, weight = (random(50, 64) * 3).bfloat16(), random(64, seed=1)
    doubled = x.double()
    wanted = doubled / torch.sqrt((doubled**2).mean(-1, keepdim=True) + 1e-6) * weight.double()
    got = rms_norm(x, weight, 1e-6)
    assert got.dtype == torch.bfloat16
    assert (got != wanted.bfloat16()).float().mean() < 0.01
    torch.testing.assert_close(got.double(), wanted, rtol=2**-8, atol=0)


def test_eps_counts():
    assert rms_norm_(torch.full((1, 4), 1e-3), EPS, Workspace())[0, 0].item() == pytest.approx(2**-0.5, rel=1e-5)


@pytest.mark.parametrize("dims", [PICO, MICRO, FLASH], ids=lambda d: d.name)
def test_frequencies_are_plain_without_a_ratio_and_yarn_with_one(dims):
    width = dims.rope_dim
    plain = frequencies(dims, 0, width)
    stretched = frequencies(dims, 4, width)
    low, high = (
        round_(width * math.log(65536 / (2 * math.pi * turns)) / (2 * math.log(160000)))
        for round_, turns in ((math.floor, 32), (math.ceil, 1))
    )
    if dims is FLASH:
        assert (low, high) == (15, 25)
    for i in range(width // 2):
        assert plain[i].item() == pytest.approx(10000 ** (-2 * i / width), rel=1e-12)
        f = 160000 ** (-2 * i / width)
        ramp = min(max((i - low) / (high - low), 0.0), 1.0)
        assert stretched[i].item() == pytest.approx(f / 16 * ramp + f * (1 - ramp), rel=1e-12)
    assert torch.equal(stretched, frequencies(dims, 128, width))


def test_a_narrow_indexer_has_a_table_of_its_own_width():
    dims = PICO.with_changes(index_dim=8)
    table = RopeTable(dims, 4)
    assert table.rows.shape == (2048, 8)
    assert table.index_rows.shape == (2048, 4)
    assert torch.equal(RopeTable(PICO, 4).index_rows, RopeTable(PICO, 4).rows)


@given(st.integers(1, 5), st.integers(0, 3), st.integers(0, 5), st.integers(1, 8), st.sampled_from([0, 4, 32]))
def test_rotation_turns_interleaved_pairs_of_the_last_dims_and_back(n, heads, nope, pairs, ratio):
    dims = PICO.with_changes(rope_dim=2 * pairs, head_dim=2 * (nope + pairs))
    at = torch.arange(n) * 37 % dims.max_model_len
    rows = RopeTable(dims, ratio).rows[at]
    x = random(*((n, heads) if heads else (n,)), dims.head_dim)
    before = x.clone()
    rotate_(x, rows)
    assert torch.equal(x[..., : 2 * nope], before[..., : 2 * nope])
    turn = frequencies(dims, ratio, 2 * pairs)
    for t in range(n):
        for i in range(pairs):
            angle = at[t].item() * turn[i].item()
            a, b = before[t, ..., 2 * (nope + i)].double(), before[t, ..., 2 * (nope + i) + 1].double()
            wanted = (a * math.cos(angle) - b * math.sin(angle), a * math.sin(angle) + b * math.cos(angle))
            got = x[t, ..., 2 * (nope + i)], x[t, ..., 2 * (nope + i) + 1]
            torch.testing.assert_close(torch.stack(got).double(), torch.stack(wanted), rtol=1e-5, atol=1e-6)
    workspace = Workspace()
    with workspace.scope():
        rotate_(x, conjugate_rows(rows, workspace))
    torch.testing.assert_close(x, before, rtol=1e-5, atol=1e-6)


@given(st.integers(1, 300), st.integers(0, 299))
def test_a_rotated_and_normed_row_has_the_same_bits_in_any_batch(n, row):
    row %= n
    rows = RopeTable(PICO, 4).rows[torch.arange(n) * 7 % 2048]
    x = random(n, 4, 32, seed=n)
    alone = rotate_(rms_norm_(x[row : row + 1].clone(), EPS, Workspace()), rows[row : row + 1])
    assert torch.equal(rotate_(rms_norm_(x, EPS, Workspace()), rows)[row : row + 1], alone)
