"""mHC against float64 versions written from the reference's formulas, and against itself: rows, paths, reuse."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.ops import mhc

TOKEN_COUNTS = [1, 16, 17, 32, 33, 128, 256, 1000]


def seam_weights(hidden: int, seed: int = 0, hc: int = 4, iters: int = 6) -> mhc.SeamWeights:
    gen = torch.Generator().manual_seed(seed)
    rows = hc * (hc + 2)
    return mhc.SeamWeights(
        fn=torch.randn(rows, hc * hidden, generator=gen) * (hc * hidden) ** -0.5,
        scale=torch.tensor([0.7, 1.3, 1.9]),
        base=torch.randn(rows, generator=gen),
        norm=torch.rand(hidden, generator=gen) + 0.5,
        hc_eps=1e-6,
        rms_eps=1e-6,
        sinkhorn_iters=iters,
    )


def head_weights(hidden: int, seed: int = 0, hc: int = 4) -> mhc.HeadWeights:
    gen = torch.Generator().manual_seed(seed + 100)
    fn = torch.randn(hc, hc * hidden, generator=gen) * (hc * hidden) ** -0.5
    return mhc.HeadWeights(fn, torch.tensor([1.7]), torch.randn(hc, generator=gen), 1e-6, 1e-6)


def pending(n: int, hidden: int, seed: int = 0, hc: int = 4) -> tuple[torch.Tensor, ...]:
    """Streams, sublayer output and gates with a mixing matrix far from symmetric."""
    gen = torch.Generator().manual_seed(seed)
    residual = torch.randn(n, hc, hidden, generator=gen).bfloat16()
    y = torch.randn(n, hidden, generator=gen).bfloat16()
    return residual, y, 2 * torch.rand(n, hc, generator=gen), torch.rand(n, hc, hc, generator=gen)


def mean_of(streams: torch.Tensor) -> torch.Tensor:
    out = streams.new_empty(streams.shape[0], streams.shape[2])
    mhc.stream_mean(streams, out)
    return out


def fused_head(state: tuple[torch.Tensor, ...], weights: mhc.HeadWeights) -> tuple[torch.Tensor, torch.Tensor]:
    out, mean = torch.empty_like(state[1]), torch.empty_like(state[1])
    mhc.post_head(*state, weights, out, mean)
    return out, mean


# --- float64, straight from the formulas -------------------------------------------------------


def post_64(residual, y, post, comb):
    r, y, post, comb = (t.double() for t in (residual, y, post, comb))
    out = torch.empty_like(r)
    for j in range(r.shape[1]):
        out[:, j] = post[:, j, None] * y + sum(comb[:, i, j, None] * r[:, i] for i in range(r.shape[1]))
    return out


def gates_64(streams, w: mhc.SeamWeights):
    z = streams.double().flatten(1)
    hc = streams.shape[1]
    m = (z @ w.fn.double().T) / torch.sqrt((z**2).mean(1, keepdim=True) + w.rms_eps)
    s, b = w.scale.double(), w.base.double()
    pre = 1 / (1 + torch.exp(-(m[:, :hc] * s[0] + b[:hc]))) + w.hc_eps
    post = 2 / (1 + torch.exp(-(m[:, hc : 2 * hc] * s[1] + b[hc : 2 * hc])))
    c = (m[:, 2 * hc :] * s[2] + b[2 * hc :]).reshape(-1, hc, hc)
    c = torch.exp(c - c.max(2, keepdim=True).values)
    c = c / c.sum(2, keepdim=True) + w.hc_eps
    c = c / (c.sum(1, keepdim=True) + w.hc_eps)
    for _ in range(w.sinkhorn_iters - 1):
        c = c / (c.sum(2, keepdim=True) + w.hc_eps)
        c = c / (c.sum(1, keepdim=True) + w.hc_eps)
    return pre, post, c


def norm_64(x, weight, eps):
    return x / torch.sqrt((x**2).mean(-1, keepdim=True) + eps) * weight.double()


@given(
    n=st.integers(1, 40), hidden=st.sampled_from([8, 24, 64, 100]), hc=st.sampled_from([2, 4]), seed=st.integers(0, 999)
)
@settings(max_examples=40, deadline=None)
def test_seam_follows_the_formulas(n, hidden, hc, seed):
    w = seam_weights(hidden, seed, hc, iters=20)
    state = pending(n, hidden, seed, hc)
    out = mhc.seam(*state, w)
    streams = post_64(*state)
    bound = 2.0**-8 * streams.abs() + 1e-6
    assert ((out.residual.double() - streams).abs() <= bound).all()
    pre, post, comb = gates_64(out.residual, w)
    torch.testing.assert_close(out.post.double(), post, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(out.comb.double(), comb, atol=2e-5, rtol=2e-5)
    x = (pre[:, :, None] * out.residual.double()).sum(1)
    rounding = 2.0**-8 * x.abs().amax(-1, keepdim=True)
    expected = norm_64(x, w.norm, w.rms_eps)
    scale = expected.abs().amax(-1, keepdim=True) / x.abs().amax(-1, keepdim=True).clamp_min(1e-9)
    assert ((out.layer_input.double() - expected).abs() <= 2.1 * rounding * scale + 1e-4).all()


def test_a_transposed_mixing_matrix_is_noticed():
    state = pending(5, 16)
    transposed = (*state[:3], state[3].transpose(1, 2).contiguous())
    right = post_64(*state)
    wrong = mhc.post_streams(*transposed)
    assert (wrong.double() - right).abs().max() > 0.1


def test_sinkhorn_ends_on_columns_and_need_not_be_doubly_stochastic():
    logits = torch.randn(64, 4, 4, generator=torch.Generator().manual_seed(3)) * 8
    comb = mhc.sinkhorn(logits, 20, 1e-6)
    torch.testing.assert_close(comb.sum(1), torch.ones(64, 4), atol=2e-5, rtol=0)
    assert (comb.sum(2) - 1).abs().max() > 1e-3


@given(n=st.integers(1, 40), hidden=st.sampled_from([8, 64, 100]), seed=st.integers(0, 999))
@settings(max_examples=30, deadline=None)
def test_head_and_mean_follow_the_formulas(n, hidden, seed):
    w = head_weights(hidden, seed)
    streams = pending(n, hidden, seed)[0]
    z = streams.double().flatten(1)
    m = (z @ w.fn.double().T) / torch.sqrt((z**2).mean(1, keepdim=True) + w.rms_eps)
    g = 1 / (1 + torch.exp(-(m * w.scale.double() + w.base.double()))) + w.hc_eps
    out = (g[:, :, None] * streams.double()).sum(1)
    assert ((mhc.head(streams, w).double() - out).abs() <= 2.0**-8 * out.abs() + 1e-5).all()
    mean = streams.double().mean(1)
    assert ((mean_of(streams).double() - mean).abs() <= 2.0**-8 * mean.abs() + 1e-6).all()


# --- rows and paths -----------------------------------------------------------------------------


def rows_equal(a: mhc.SeamOutput, b: mhc.SeamOutput, rows: slice) -> bool:
    return all(torch.equal(one, other[rows]) for one, other in zip(a, b, strict=True))


@given(n=st.integers(1, 300), start=st.integers(0, 700), threads=st.sampled_from([1, 2]), seed=st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_a_row_has_the_same_bits_in_any_batch_and_either_path(n, start, threads, seed):
    w, state = seam_weights(64, seed), pending(1000, 64, seed)
    torch.set_num_threads(threads)
    try:
        whole = mhc.seam(*state, w)
        rows = slice(start, start + n)
        part = mhc.seam(*(t[rows].clone() for t in state), w)
        assert rows_equal(part, whole, rows)
        head, mean = fused_head(tuple(t[rows].clone() for t in state), head_weights(64, seed))
        whole_head, whole_mean = fused_head(state, head_weights(64, seed))
        assert torch.equal(head, whole_head[rows])
        assert torch.equal(mean, whole_mean[rows])
        first = mhc.pre(state[0][rows].clone(), w)
        assert torch.equal(first.layer_input, mhc.pre(state[0], w).layer_input[rows])
    finally:
        torch.set_num_threads(1)


# --- reuse and fusion ---------------------------------------------------------------------------


@pytest.mark.parametrize("n", TOKEN_COUNTS)
@pytest.mark.parametrize(("residual", "layer_input"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("hidden", [64, 256])
def test_reuse_is_bitwise_above_the_threshold_and_wrong_below(n, residual, layer_input, hidden):
    w, state = seam_weights(hidden, n), pending(n, hidden, n)
    fresh = mhc.seam(*(t.clone() for t in state), w)
    old, y, post, comb = (t.clone() for t in state)
    out = mhc.seam(old, y, post, comb, w, residual_out=old if residual else None, input_out=y if layer_input else None)
    assert (out.residual.data_ptr() == old.data_ptr()) == residual
    assert (out.layer_input.data_ptr() == y.data_ptr()) == layer_input
    same = rows_equal(out, fresh, slice(None))
    assert same == (n > mhc.SMALL_TOKENS), "aliasing must be exact on the large path and fail on the small one"


@pytest.mark.parametrize("n", TOKEN_COUNTS)
def test_fused_final_is_bitwise(n):
    head, state = head_weights(64, n), pending(n, 64, n)
    streams = mhc.post_streams(*state)
    out, mean = fused_head(state, head)
    assert torch.equal(out, mhc.head(streams, head))
    assert torch.equal(mean, mean_of(streams))
    alone = torch.empty_like(state[1])
    mhc.post_mean(*state, alone)
    assert torch.equal(alone, mean)


@pytest.mark.parametrize("n", TOKEN_COUNTS)
def test_the_head_may_take_the_place_of_y(n):
    head, state = head_weights(64, n), pending(n, 64, n)
    out, _ = fused_head(state, head)
    residual, y, post, comb = (t.clone() for t in state)
    mhc.post_head(residual, y, post, comb, head, y)
    assert torch.equal(y, out)


def test_mean_of_unrounded_streams_is_another_number():
    """The bound of section 2.3, and why fusion rounds first: one fp32 pass differs, within 2^-8 (mean |R'| + |aux|)."""
    residual, y, post, comb = pending(1000, 64, 5)
    streams = post_64(residual, y, post, comb)
    one_pass = streams.mean(1)
    aux = torch.empty_like(y)
    mhc.post_mean(residual, y, post, comb, aux)
    rounded = aux.double()
    assert not torch.equal(one_pass.bfloat16(), rounded.bfloat16())
    bound = 2.0**-8 * (streams.abs().mean(1) + one_pass.abs())
    assert ((one_pass - rounded).abs() <= bound).all()
