"""CPU stand-ins for the kernels that vLLM's mHC functions launch: same arguments, row by row like the real ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

HIDDEN, STREAMS = 64, 4
WIDTH = STREAMS * (STREAMS + 2)
EPS = {"rms_eps": 1e-6, "pre_eps": 1e-5, "sinkhorn_eps": 1e-5, "post_mult": 2.0, "repeat": 3}


def post(comb: Tensor, residual: Tensor, gate: Tensor, x: Tensor, out: Tensor, hc: int, hidden: int) -> None:
    """Loads a token whole before it stores it, so `out` may be `residual`."""
    for token in range(residual.shape[0]):
        old = residual[token].float()
        new = gate[token][:, None] * x[token].float() + comb[token].T @ old
        out[token] = new.to(torch.bfloat16)


def prenorm_gemm(z: Tensor, fn: Tensor, products: Tensor, squares: Tensor, *rest: Any) -> None:
    products.zero_()
    squares.zero_()
    products[0] = z.float() @ fn.T
    squares[0] = z.float().square().sum(-1)


def big_fuse(
    products: Tensor, squares: Tensor, scale: Tensor, base: Tensor, residual: Tensor, post_out: Tensor,
    comb_out: Tensor, layer_input: Tensor, norm: Tensor | None, hidden: int, gates: tuple[Any, ...], norm_eps: float,
) -> None:  # fmt: skip
    mix = products.sum(0) * torch.rsqrt(squares.sum(0) / (STREAMS * hidden) + gates[0])[:, None]
    pre = torch.sigmoid(mix[:, :STREAMS] * scale[0] + base[:STREAMS]) + gates[1]
    post_out.copy_(gates[3] * torch.sigmoid(mix[:, STREAMS : 2 * STREAMS] * scale[1] + base[STREAMS : 2 * STREAMS]))
    comb = torch.softmax((mix[:, 2 * STREAMS :] * scale[2] + base[2 * STREAMS :]).view(-1, STREAMS, STREAMS), -1)
    comb_out.copy_(comb.flatten(1))
    mixed = (pre[:, :, None] * residual.float()).sum(1)
    if norm is not None:
        mixed = mixed * torch.rsqrt(mixed.square().mean(-1, keepdim=True) + norm_eps) * norm.float()
    layer_input.copy_(mixed.to(torch.bfloat16))


def big_fuse_026(*a: Any) -> None:
    inputs, (hidden, *gates), (_, _) = a[:8], a[8:14], a[14:]
    big_fuse(*inputs, None, hidden, tuple(gates), 0.0)


def big_fuse_with_norm_026(*a: Any) -> None:
    inputs, norm, (hidden, *gates), (norm_eps, _, _) = a[:8], a[8], a[9:15], a[15:]
    big_fuse(*inputs, norm, hidden, tuple(gates), norm_eps)


def big_fuse_033(*a: Any, norm_weight: Tensor | None, norm_eps: float) -> None:
    big_fuse(*a[:8], norm_weight, a[4].shape[-1], tuple(a[8:]), norm_eps)


def head(
    streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, out: Tensor, hidden: int, rms_eps: float, hc_eps: float,
    hc: int,
) -> None:  # fmt: skip
    z = streams.float().flatten(1)
    mix = (z @ fn.T) * torch.rsqrt(z.square().mean(-1, keepdim=True) + rms_eps)
    gate = torch.sigmoid(mix * scale + base) + hc_eps
    out.copy_((gate[:, :, None] * streams.float()).sum(1).to(torch.bfloat16))


def random_step(n_tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """Inputs of one seam: x, residual, post, comb."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return {
        "x": normal(n_tokens, HIDDEN).bfloat16(),
        "residual": normal(n_tokens, STREAMS, HIDDEN).bfloat16(),
        "post": torch.sigmoid(normal(n_tokens, STREAMS, 1)),
        "comb": torch.softmax(normal(n_tokens, STREAMS, STREAMS), -1),
    }


def random_weights(seed: int = 1) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "fn": torch.randn(WIDTH, STREAMS * HIDDEN, generator=generator) / 16,
        "scale": torch.rand(3, generator=generator),
        "base": torch.randn(WIDTH, generator=generator) / 4,
        "norm": torch.rand(HIDDEN, generator=generator).bfloat16(),
        "head_fn": torch.randn(STREAMS, STREAMS * HIDDEN, generator=generator) / 16,
        "head_scale": torch.rand(1, generator=generator),
        "head_base": torch.randn(STREAMS, generator=generator) / 4,
    }
