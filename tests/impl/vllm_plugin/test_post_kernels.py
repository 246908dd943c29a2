"""The fused Triton kernels against torch: on a GPU, or on the CPU by Triton's interpreter where Triton is installed."""

import os

import pytest
import torch

if not torch.cuda.is_available() and os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("run by tests/impl/ops/test_by_interpreter.py, in a process of their own", allow_module_level=True)
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.vllm_plugin import post_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HIDDEN = 2048


def inputs(n, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator).to(DEVICE)

    x, residual = normal(n, HIDDEN).bfloat16(), normal(n, 4, HIDDEN).bfloat16()
    return x, residual, torch.sigmoid(normal(n, 4, 1)), torch.softmax(normal(n, 4, 4), -1)


def streams(x, residual, post, comb):
    """In fp64, so that it sides with nobody's rounding order."""
    new = post.double() * x.double()[:, None] + torch.einsum("nij,nih->njh", comb.double(), residual.double())
    return new.to(torch.bfloat16)


def bound(expected):
    """Two roundings to bf16 of the largest value; Triton's interpreter cuts bits off where the GPU rounds."""
    return (2**-7 if DEVICE == "cuda" else 2**-6) * expected.abs().max().item()


@pytest.mark.parametrize("n", [1, 5])
def test_mean(n):
    step = inputs(n)
    expected = streams(*step).double().mean(1)
    found = post_kernels.post_mean(*step)
    assert found.shape == (n, HIDDEN)
    assert found.dtype == torch.bfloat16
    assert (found.double() - expected).abs().max() <= bound(expected)


@pytest.mark.parametrize("n", [1, 5])
def test_head(n):
    step = inputs(n)
    generator = torch.Generator().manual_seed(9)
    fn = (torch.randn(4, 4 * HIDDEN, generator=generator) / 64).to(DEVICE)
    scale, base = torch.tensor([0.7]).to(DEVICE), torch.randn(4, generator=generator).to(DEVICE)
    new = streams(*step).double()
    z = new.flatten(1)
    mix = (z @ fn.double().T) * torch.rsqrt(z.square().mean(-1, keepdim=True) + 1e-6)
    gate = torch.sigmoid(mix * scale.double() + base.double()) + 1e-5
    expected = (gate[:, :, None] * new).sum(1)
    found = post_kernels.post_head(*step, fn, scale, base, 1e-6, 1e-5)
    assert (found.double() - expected).abs().max() <= bound(expected)


def test_no_tokens():
    assert post_kernels.post_mean(*inputs(0)).shape == (0, HIDDEN)


@pytest.mark.parametrize(
    ("shape", "word"), [((3, 4, 1000), "multiple of 1024"), ((3, 2, 2048), "take 4 streams"), ((3, 4, 2048), "")]
)
def test_shapes_that_do_not_fit_are_refused(shape, word):
    n, hc, hidden = shape
    residual = torch.zeros(shape)
    reason = post_kernels.fits(torch.zeros(n, hidden), residual, torch.zeros(n, hc, 1), torch.zeros(n, hc, hc))
    assert word in reason if word else reason == ""
    if not word:
        step = (torch.zeros(n, hidden), residual.transpose(0, 1).contiguous().transpose(0, 1))
        assert "not contiguous" in post_kernels.fits(*step, torch.zeros(n, hc, 1), torch.zeros(n, hc, hc))
