"""Products in Triton against float64, and a row's bits alone and beside others: on a GPU, or by its interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.ops.triton.linear import linear

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def normal(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def product(x, weight, **options):
    out = torch.full((x.shape[0], *weight.shape[:2]), torch.nan, device=DEVICE)
    return linear(x, weight, out, **options)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("n", "groups", "columns", "k"), [(1, 1, 1, 32), (6, 1, 200, 256), (17, 2, 33, 288)])
def test_products_have_fp32s_precision(n, groups, columns, k, dtype, whole):
    x, weight = normal(n, groups, k).to(dtype), normal(groups, columns, k, seed=1)
    weight = weight.bfloat16().float() if whole else weight
    wanted = torch.einsum("ngk,gok->ngo", x.double(), weight.double())
    found = product(x, weight, whole=whole).double()
    scale = torch.einsum("ngk,gok->ngo", x.double().abs(), weight.double().abs())
    assert ((found - wanted).abs() <= 2**-21 * scale).all()


def test_weights_that_are_not_bf16_are_seen_to_be_rounded_where_that_is_claimed():
    x, weight = normal(4, 1, 256), normal(1, 64, 256, seed=1)
    wanted, scale = x[:, 0].double() @ weight[0].double().T, x[:, 0].double().abs() @ weight[0].double().abs().T
    assert ((product(x, weight, whole=True)[:, 0].double() - wanted).abs() > 2**-15 * scale).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_row_has_the_same_bits_alone_and_in_any_batch(dtype):
    x, weight = normal(37, 1, 288).to(dtype), normal(1, 72, 288, seed=1)
    together = product(x, weight, whole=False)
    # The interpreter's tile is a product of numpy, which sums a row by its place in the tile: there the place is kept.
    elsewhere = ((5, 6), (36, 37), (3, 9), (15, 33)) if DEVICE == "cuda" else ()
    for first, end in ((0, 1), (16, 17), (32, 37), (16, 30), *elsewhere):
        assert torch.equal(product(x[first:end], weight, whole=False), together[first:end])


def test_rows_and_results_may_be_strided():
    x, weight = normal(5, 3, 96)[:, 1:2, 16:80], normal(1, 40, 64, seed=1)
    out = torch.full((5, 1, 100), torch.nan, device=DEVICE)
    linear(x, weight, out[:, :, 8:48], whole=False)
    assert torch.equal(out[:, :, 8:48], product(x.contiguous(), weight, whole=False))
    assert out[:, :, :8].isnan().all()
    assert out[:, :, 48:].isnan().all()


@pytest.mark.parametrize(
    ("x", "weight"), [((2, 1, 8), (1, 4, 9)), ((2, 2, 8), (1, 4, 8))], ids=["inner width", "groups"]
)
def test_shapes_that_do_not_fit_are_refused(x, weight):
    with pytest.raises(ValueError, match="do not fit"):
        product(torch.zeros(x), torch.zeros(weight), whole=True)
