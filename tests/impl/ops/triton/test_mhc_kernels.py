"""mHC in Triton against the torch reference: on a GPU, or by Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.ops import mhc as reference
from impl.ops.triton import mhc as kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEP = 2**-8 if DEVICE == "cuda" else 2**-7
"""One rounding to bf16 as a share of the largest value added up; the interpreter cuts bits off where the GPU rounds."""
HIDDEN = 128
TOKENS = [1, 7, 8, 16, 17, 32, 33]
SMALL_TILES = {"tokens": 16, "columns": 32, "span": 64}


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def acts(n, seed=0):
    """Mixing matrices far from symmetric, so that a transposed one is seen."""
    comb = torch.softmax(3 * normal(n, 4, 4, seed=seed + 3), -1)
    post = 2 * torch.sigmoid(normal(n, 4, seed=seed + 2))
    return normal(n, 4, HIDDEN, seed=seed).bfloat16(), normal(n, HIDDEN, seed=seed + 1).bfloat16(), post, comb


def seam_weights(iters=20):
    norm = 1 + 0.1 * normal(HIDDEN, seed=14)
    fn = normal(24, 4 * HIDDEN, seed=11) / 16
    return reference.SeamWeights(fn, 1 + 0.1 * normal(3, seed=12), normal(24, seed=13), norm, 1e-6, 1e-6, iters)


def head_weights():
    fn = normal(4, 4 * HIDDEN, seed=21) / 16
    return reference.HeadWeights(fn, 1 + 0.1 * normal(1, seed=22), normal(4, seed=23), 1e-6, 1e-6)


def close(found, expected, size, roundings=1):
    return bool(((found.float() - expected.float()).abs() <= roundings * STEP * size + 1e-6).all())


@pytest.mark.parametrize("n", TOKENS)
def test_streams_and_means(n):
    residual, y, post, comb = acts(n)
    expected = reference.post_streams(residual, y, post, comb)
    found = kernels.post_streams(residual, y, post, comb, tokens=8)
    size = reference.post_rows(residual.abs(), y.abs(), post, comb).float()
    assert close(found, expected, size)
    mean = torch.empty_like(y)
    kernels.post_mean(residual, y, post, comb, mean, tokens=8, columns=32)
    assert close(mean, found.float().mean(1), size.mean(1))
    kernels.post_streams(residual, y, post, comb, out=residual, tokens=8)
    assert torch.equal(residual, found)


@pytest.mark.parametrize("n", TOKENS)
def test_the_seam_and_its_own_streams(n):
    """Gates and layer input against PRE of the streams that the kernel itself wrote: no rounding to argue about."""
    residual, y, post, comb = acts(n, seed=50)
    found = kernels.seam(residual, y, post, comb, seam_weights(), **SMALL_TILES)
    assert torch.equal(found.residual, kernels.post_streams(residual, y, post, comb, tokens=8))
    expected = reference.pre(found.residual, seam_weights())
    torch.testing.assert_close(found.post, expected.post, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.comb, expected.comb, atol=1e-4, rtol=0)
    largest = expected.layer_input.float().abs().amax(1, keepdim=True)
    assert close(found.layer_input, expected.layer_input, largest, roundings=2)


@pytest.mark.parametrize("n", [1, 16, 17])
def test_the_seam_in_place_is_bitwise_the_fresh_one(n):
    """At small numbers of tokens too: a program overwrites what it alone reads."""
    residual, y, post, comb = acts(n, seed=60)
    fresh = kernels.seam(residual, y, post, comb, seam_weights())
    placed = kernels.seam(residual, y, post, comb, seam_weights(), residual_out=residual, input_out=y)
    assert placed.residual.data_ptr() == residual.data_ptr()
    assert placed.layer_input.data_ptr() == y.data_ptr()
    assert all(torch.equal(a, b) for a, b in zip(placed, fresh, strict=True))


@pytest.mark.parametrize("tuning", [{"chunk": 16}, {"tokens": 32, "columns": 64, "span": 128}])
def test_tuning_changes_the_gates_by_rounding_only(tuning):
    residual, y, post, comb = acts(33, seed=70)
    plain = kernels.seam(residual, y, post, comb, seam_weights(), **SMALL_TILES)
    tuned = kernels.seam(residual, y, post, comb, seam_weights(), **{**SMALL_TILES, **tuning})
    assert torch.equal(plain.residual, tuned.residual)
    torch.testing.assert_close(plain.comb, tuned.comb, atol=1e-5, rtol=0)
    torch.testing.assert_close(plain.post, tuned.post, atol=1e-5, rtol=0)


def test_a_row_has_the_same_bits_alone_and_in_a_batch():
    residual, y, post, comb = acts(17, seed=80)
    batch = kernels.seam(residual, y, post, comb, seam_weights(), **SMALL_TILES)
    alone = kernels.seam(residual[9:10], y[9:10], post[9:10], comb[9:10], seam_weights(), **SMALL_TILES)
    assert torch.equal(batch.residual[9:10], alone.residual)
    # The interpreter's products are numpy's, whose order of summation depends on the place of a row in its tile.
    bound = {"atol": 0, "rtol": 0} if DEVICE == "cuda" else {"atol": 1e-6, "rtol": STEP}
    for a, b in zip(batch[1:], alone[1:], strict=True):
        torch.testing.assert_close(a[9:10], b, **bound)


@pytest.mark.parametrize("n", [1, 17])
def test_pre(n):
    residual = acts(n, seed=90)[0]
    found, expected = kernels.pre(residual, seam_weights(iters=3)), reference.pre(residual, seam_weights(iters=3))
    assert found.residual is residual
    torch.testing.assert_close(found.post, expected.post, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.comb, expected.comb, atol=1e-4, rtol=0)
    largest = expected.layer_input.float().abs().amax(1, keepdim=True)
    assert close(found.layer_input, expected.layer_input, largest, roundings=2)


@pytest.mark.parametrize("n", [1, 8])
def test_the_head_with_and_without_the_mean(n):
    residual, y, post, comb = acts(n, seed=100)
    streams = kernels.post_streams(residual, y, post, comb, tokens=8)
    alone, beside, mean = (torch.empty_like(y) for _ in range(3))
    kernels.post_head(residual, y, post, comb, head_weights(), alone, **SMALL_TILES)
    kernels.post_head(residual, y, post, comb, head_weights(), beside, mean, **SMALL_TILES)
    assert torch.equal(alone, beside)
    size = streams.float().abs().sum(1)
    assert close(alone, reference.head(streams, head_weights()), size)
    assert close(mean, streams.float().mean(1), size / 4)
    kernels.post_head(residual, y, post, comb, head_weights(), y, **SMALL_TILES)
    assert torch.equal(y, alone)


def test_shapes_that_the_kernels_do_not_take_are_refused():
    residual, y, post, comb = acts(2)
    with pytest.raises(ValueError, match="4 streams, got 3"):
        kernels.post_streams(residual[:, :3], y, post, comb)
    with pytest.raises(ValueError, match="residual must be contiguous"):
        kernels.post_streams(residual[..., ::2], y, post, comb)


def columns_of(n, count):
    """`count` outputs side by side, and a column beside them that nobody may write: bf16 [n, count + 1, HIDDEN]."""
    return torch.full((n, count + 1, HIDDEN), -7.0, dtype=torch.bfloat16, device=DEVICE)


@pytest.mark.parametrize("n", [1, 7, 33])
def test_means_and_heads_into_columns_of_a_wider_buffer_are_the_dense_ones(n):
    residual, y, post, comb = acts(n, seed=110 + n)
    mean, out, beside = (torch.empty_like(y) for _ in range(3))
    kernels.post_mean(residual, y, post, comb, mean, tokens=8, columns=32)
    kernels.post_head(residual, y, post, comb, head_weights(), out, beside, **SMALL_TILES)
    rows = columns_of(n, 3)
    kernels.post_mean(residual, y, post, comb, rows[:, 1], tokens=8, columns=32)
    assert torch.equal(rows[:, 1], mean)
    kernels.post_head(residual, y, post, comb, head_weights(), rows[:, 0], rows[:, 2], chunk=16, **SMALL_TILES)
    assert torch.equal(rows[:, 0], out)
    assert torch.equal(rows[:, 1], mean)
    assert torch.equal(rows[:, 2], beside)
    assert (rows[:, 3] == -7).all()


def test_the_mean_in_the_place_of_y_is_the_fresh_one():
    residual, y, post, comb = acts(17, seed=120)
    fresh = torch.empty_like(y)
    kernels.post_mean(residual, y, post, comb, fresh)
    kernels.post_mean(residual, y, post, comb, y)
    assert torch.equal(y, fresh)


def test_a_mean_in_the_place_of_y_is_refused_where_y_is_read_again():
    residual, y, post, comb = acts(5, seed=130)
    with pytest.raises(ValueError, match="mean must lie apart from y, which is read again"):
        kernels.post_head(residual, y, post, comb, head_weights(), torch.empty_like(y), y)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a, y: kernels.post_mean(*a, y[:-1]), "mean must be torch.bfloat16"),
        (lambda a, y: kernels.post_mean(*a, y.float()), "mean must be torch.bfloat16"),
        (lambda a, y: kernels.post_mean(*a, y.t().contiguous().t()), "mean must be dense along its rows"),
        (lambda a, y: kernels.post_mean(*a, a[0][:, 1]), "mean must lie apart from residual"),
        (lambda a, y: kernels.post_streams(*a, out=y[:, None].expand(-1, 4, -1)), "streams must be dense, got"),
        (lambda a, y: kernels.post_head(*a, head_weights(), y, y), "mean and out must be two places"),
        (lambda a, y: kernels.seam(*a, seam_weights(), input_out=columns_of(5, 1)[:, 0]), "input_out must be dense"),
        (lambda a, y: kernels.seam(*a, seam_weights(), input_out=y[:, :64]), "input_out must be torch.bf"),
    ],
)  # fmt: skip
def test_outputs_that_would_be_written_wrongly_are_refused(call, message):
    a = acts(5, seed=140)
    with pytest.raises(ValueError, match=message):
        call(a, torch.empty_like(a[1]))


def test_outputs_a_token_beside_their_inputs_are_refused():
    whole = torch.zeros(6, 4, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    _, y, post, comb = acts(5)
    with pytest.raises(ValueError, match="residual_out must be residual itself or apart from it"):
        kernels.seam(whole[:5], y, post, comb, seam_weights(), residual_out=whole[1:])
    with pytest.raises(ValueError, match="streams must be residual itself or apart from it"):
        kernels.post_streams(whole[:5], y, post, comb, out=whole[1:])
    rows = torch.zeros(6, HIDDEN, dtype=torch.bfloat16, device=DEVICE)
    with pytest.raises(ValueError, match="out must be y itself or apart from it"):
        kernels.post_head(whole[:5], rows[:5], post, comb, head_weights(), rows[1:])
