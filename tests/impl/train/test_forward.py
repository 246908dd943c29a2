"""The trained forward against a float64 version that knows nothing of it, part by part and whole."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.dims import FLASH, PICO, Dims
from impl.train import forward as fast
from impl.train.attention import View, compress, select_entries, tables
from impl.train.rope import inverse_frequencies, rope_table
from impl.train.rounding import EXACT, Served, e4m3
from tests.impl.train import plain_model as plain

Weights = dict[str, torch.Tensor]


def as_numpy(weights: Weights) -> dict[str, np.ndarray]:
    return {name: t.numpy().astype(np.float64) for name, t in weights.items()}


def random_ids(count: int, seed: int = 0) -> list[int]:
    return torch.randint(0, 100, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def test_whole_model_equals_float64(tiny: Dims, tiny_weights: Weights) -> None:
    ids = random_ids(45)
    wanted = plain.logits(as_numpy(tiny_weights), ids, tiny)
    got = fast.forward(tiny_weights, torch.tensor([ids]), tiny, quantize=False)[0].double().numpy()
    assert np.abs(wanted).max() > 1.0
    np.testing.assert_allclose(got, wanted, atol=2e-4)


@pytest.mark.parametrize("iters", [1, 6, 20])
def test_seam_with_a_lopsided_mixing_matrix(tiny: Dims, iters: int) -> None:
    dims = dataclasses.replace(tiny, sinkhorn_iters=iters)
    rng = np.random.default_rng(0)
    streams, y = rng.normal(size=(5, 4, 16)), rng.normal(size=(5, 16))
    fn, scale, base = rng.normal(size=(24, 64)), np.array([0.7, 1.3, 0.9]), rng.normal(size=24) * 2
    weights = fast.Seam(*(torch.tensor(v).float() for v in (fn, scale, base, np.ones(16))))
    r = torch.tensor(streams).float()
    pre, post, comb = fast.gates(weights, r, dims)
    mixed = fast.seam_out(r, torch.tensor(y).float(), post, comb, EXACT)
    assert (comb - comb.transpose(1, 2)).abs().max() > 0.1
    for t in range(5):
        want_pre, want_post, want_comb = plain.seam_gates(streams[t], fn, scale, base, dims)
        np.testing.assert_allclose(pre[t], want_pre, atol=1e-5)
        np.testing.assert_allclose(post[t], want_post, atol=1e-5)
        np.testing.assert_allclose(comb[t], want_comb, atol=1e-5)
        np.testing.assert_allclose(mixed[t], plain.post_mix(streams[t], y[t], want_post, want_comb), atol=1e-4)


@pytest.mark.parametrize("dims", [PICO, FLASH], ids=["pico", "flash"])
@pytest.mark.parametrize("ratio", [0, 4])
def test_rope_frequencies(dims: Dims, ratio: int) -> None:
    got = inverse_frequencies(dims.rope_dim, ratio > 0, dims).numpy()
    np.testing.assert_allclose(got, plain.frequencies(dims.rope_dim, ratio, dims), rtol=1e-6)


@pytest.mark.parametrize("ratio", [4, 8])
@pytest.mark.parametrize("length", [3, 8, 21])
def test_compressor_rows(tiny: Dims, ratio: int, length: int) -> None:
    gen = torch.Generator().manual_seed(1)
    columns = 24 if ratio == 4 else 12
    weights = {
        "c.wkv_gate": torch.randn(2 * columns, 16, generator=gen), "c.ape": torch.randn(ratio, columns, generator=gen),
        "c.norm": torch.randn(12, generator=gen),
    }  # fmt: skip
    x = torch.randn(1, length, 16, generator=gen)
    turn = rope_table(length // ratio, ratio, True, tiny.rope_dim, tiny, x.device)
    got = compress(weights, "c.", x, ratio, 12, turn, tiny.rms_norm_eps)[0]
    freqs = plain.frequencies(tiny.rope_dim, ratio, tiny)
    wanted = plain.compressed_rows(as_numpy(weights), "c.", list(x[0].double().numpy()), ratio, 12, freqs)
    assert len(got) == len(wanted) == length // ratio
    for row, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(row, want, atol=1e-4)


@pytest.mark.parametrize("hashed", [True, False])
def test_moe(tiny: Dims, tiny_weights: Weights, hashed: bool) -> None:
    layer = 0 if hashed else 1
    x = 4 * torch.randn(9, 16, generator=torch.Generator().manual_seed(2))
    ids = random_ids(9)
    got, _ = fast.moe(fast.of_layer(tiny_weights, layer), x, torch.tensor(ids), tiny, EXACT)
    for row, token, y in zip(x.double().numpy(), ids, got, strict=True):
        wanted = plain.moe(as_numpy(tiny_weights), f"layers.{layer}.moe.", row, token, tiny)
        np.testing.assert_allclose(y, wanted, atol=2e-4)


def test_router_bias_selects_only(tiny: Dims) -> None:
    x = torch.randn(6, 16)
    weights = {"r.gate": torch.randn(4, 16), "r.bias": torch.tensor([0.0, 0.0, 50.0, 60.0])}
    route = fast.router(weights, "r.", x, torch.zeros(6, dtype=torch.long), tiny)
    assert (route[:, :2] == 0).all()
    torch.testing.assert_close(route.sum(1), torch.full((6,), 1.5))
    assert (route[:, 2] - route[:, 3]).abs().max() > 1e-3


def test_topk_takes_the_lowest_index_of_a_tie() -> None:
    scores = torch.tensor([[[0.0, 0.0, 1.0, 0.0, 0.0], [0.0] * 5]])
    visible = torch.tensor([[True] * 5, [True, True, True, False, False]])
    picked = select_entries(scores, visible, 2)[0].tolist()
    assert picked == [[True, False, True, False, False], [True, True, False, False, False]]


@settings(max_examples=12, deadline=None)
@given(cut=st.integers(1, 39), quantize=st.booleans(), seed=st.integers(0, 5))
def test_causality(tiny: Dims, tiny_weights: Weights, cut: int, quantize: bool, seed: int) -> None:
    ids = random_ids(40, seed)
    changed = ids[:cut] + [(i + 1) % 100 for i in ids[cut:]]
    got = fast.forward(tiny_weights, torch.tensor([ids, changed]), tiny, quantize=quantize)
    torch.testing.assert_close(got[0, :cut], got[1, :cut], atol=1e-5, rtol=0)
    assert (got[0, cut] - got[1, cut]).abs().max() > 1e-3


def e4m3_values() -> np.ndarray:
    """Every finite non-negative e4m3 number: 3 mantissa bits, exponent bias 7, subnormals at 2^-9."""
    normal = [(1 + m / 8) * 2.0 ** (e - 7) for e in range(1, 16) for m in range(8) if (e, m) != (15, 7)]
    return np.array([m / 8 * 2.0**-6 for m in range(8)] + normal)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-900, 900, width=16), min_size=8, max_size=8), st.sampled_from([1.0, 1e-3, 1e-6]))
def test_e4m3_is_the_nearest_code_under_the_group_scale(values: list[float], size: float) -> None:
    x = (torch.tensor(values) * size).bfloat16().float()
    absmax = max(float(x.abs().max()), 1e-4)
    scale = next(2.0**e for e in range(-40, 40) if absmax / 2.0**e <= 448)
    got = e4m3(x[None])[0].double().numpy() / scale
    codes = e4m3_values()
    for value, code in zip(np.abs(x.double().numpy()) / scale, np.abs(got), strict=True):
        assert code in codes
        assert abs(value - code) <= np.abs(codes - value).min() + 1e-12


def test_state_rounds_its_parts_apart_and_passes_gradients() -> None:
    x = torch.randn(7, 32, generator=torch.Generator().manual_seed(0)).requires_grad_()
    out = Served().state(x, 16, 16)
    torch.testing.assert_close(out[:, 16:], x[:, 16:].bfloat16().float(), atol=0, rtol=0)
    assert len(out[:, :16].unique()) < len(out[:, 16:].unique())
    out.sum().backward()
    assert (x.grad == 1).all()


@pytest.mark.parametrize("reach", [None, 1, 2, 5, 7, 8])
def test_window_mask_is_the_last_rows_at_every_position(tiny: Dims, reach: int | None) -> None:
    """Against every pair of positions of four blocks: a block reads its own rows and those of the block before."""
    window, length = tiny.window, 4 * tiny.window
    mask = tables(length, 0, tiny, torch.device("cpu"), View(reach)).window
    assert mask.shape == (4, window, 1, 2 * window)
    for query in range(length):
        block, row = divmod(query, window)
        seen = {(block - 1) * window + column for column in range(2 * window) if mask[block, row, 0, column]}
        assert seen == {key for key in range(length) if 0 <= query - key < (reach or window)}


@pytest.mark.parametrize("hidden", ["", "C4A", "C128A"])
@pytest.mark.parametrize("reach", [1, 3, 8])
def test_what_a_view_hides_reaches_no_logit(tiny: Dims, tiny_weights: Weights, reach: int, hidden: str) -> None:
    """Behind the first entries; the plain model has the same window once its dims say so."""
    ids = random_ids(24)
    seen = View(reach, hidden)
    got = fast.forward(tiny_weights, torch.tensor([ids]), tiny, quantize=False, view=seen)[0]
    first = {"": 24, "C4A": 3, "C128A": 7}[hidden]
    wanted = plain.logits(as_numpy(tiny_weights), ids, dataclasses.replace(tiny, window=reach))
    np.testing.assert_allclose(got[:first].double().numpy(), wanted[:first], atol=2e-4)
    if hidden:
        assert np.abs(got[first].double().numpy() - wanted[first]).max() > 1e-3


def test_nothing_in_sight_makes_no_nan(tiny: Dims, tiny_weights: Weights) -> None:
    """Rows that see no entry at all, in values and in gradients."""
    weights = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in tiny_weights.items()}
    trace = fast.Trace([], {})
    ids = torch.tensor([random_ids(40)])
    logits = fast.forward(weights, ids, tiny, trace=trace, view=View(1, "C4A"))
    (logits.square().mean() + torch.stack(trace.index_kl).sum()).backward()
    assert torch.stack(trace.index_kl).isfinite().all()
    assert all(t.grad.isfinite().all() for t in weights.values() if t.grad is not None)


def test_dense_warm_up_shows_more(tiny: Dims, tiny_weights: Weights) -> None:
    ids = torch.tensor([random_ids(40)])
    hard = fast.forward(tiny_weights, ids, tiny)
    dense = fast.forward(tiny_weights, ids, tiny, dense=True)
    # Up to the position that first sees more than 3 entries, (p + 1) // 4 > 3, both see all.
    torch.testing.assert_close(hard[:, :15], dense[:, :15], atol=1e-5, rtol=0)
    assert (hard[:, 15:] - dense[:, 15:]).abs().max() > 1e-3


def test_index_loss_reaches_the_indexer_alone(tiny: Dims, tiny_weights: Weights) -> None:
    weights = {k: v.clone().requires_grad_(v.is_floating_point()) for k, v in tiny_weights.items()}
    trace = fast.Trace([], {})
    fast.forward(weights, torch.tensor([random_ids(40)]), tiny, trace=trace)
    torch.stack(trace.index_kl).sum().backward()
    reached = {name for name, t in weights.items() if t.grad is not None and t.grad.abs().sum() > 0}
    assert reached == {name for name in weights if ".indexer." in name}
