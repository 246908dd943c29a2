"""The Sinkhorn kernel against the torch operations, and both against finite differences."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
import torch

from impl.train.sinkhorn import sinkhorn


def test_gradient_equals_finite_differences() -> None:
    logits = torch.randn(3, 4, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: sinkhorn(x, 6, 1e-6), logits)


def test_rows_and_columns_sum_to_one() -> None:
    comb = sinkhorn(torch.randn(50, 4, 4, generator=torch.Generator().manual_seed(0)), 20, 1e-6)
    torch.testing.assert_close(comb.sum(1), torch.ones(50, 4), atol=1e-5, rtol=0)
    torch.testing.assert_close(comb.sum(2), torch.ones(50, 4), atol=1e-2, rtol=0)


KERNEL_CASE = """
    import torch
    from impl.train.sinkhorn import sinkhorn
    from impl.train.sinkhorn_triton import scaled_softmax

    gen = torch.Generator().manual_seed(1)
    for n, iters, spread in ((5, 20, 2.0), (64, 6, 4.0), (131, 20, 6.0), (7, 1, 1.0)):
        logits = (spread * torch.randn(n, 4, 4, generator=gen)).requires_grad_()
        pull = torch.randn(n, 4, 4, generator=gen)
        wanted = sinkhorn(logits, iters, 1e-6)
        (wanted_grad,) = torch.autograd.grad(wanted, logits, pull)
        got = scaled_softmax(logits, iters, 1e-6)
        (grad,) = torch.autograd.grad(got, logits, pull)
        torch.testing.assert_close(got, wanted, atol=2e-6, rtol=2e-5)
        torch.testing.assert_close(grad, wanted_grad, atol=5e-6, rtol=2e-4)
        traced = torch.compile(lambda x: scaled_softmax(2 * x, iters, 1e-6), backend="aot_eager", fullgraph=True)
        (grad,) = torch.autograd.grad(traced(logits / 2), logits, pull)
        torch.testing.assert_close(grad, wanted_grad, atol=5e-6, rtol=2e-4)
    assert scaled_softmax(logits.detach(), 3, 1e-6).shape == (7, 4, 4)
"""


def test_kernel_equals_the_operations() -> None:
    """In Triton's interpreter, which the environment must ask for before the kernel is made."""
    pytest.importorskip("triton", reason="Triton is not installed")
    environment = os.environ | {"TRITON_INTERPRET": "1", "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])}
    command = [sys.executable, "-c", textwrap.dedent(KERNEL_CASE)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
