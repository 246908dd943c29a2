"""Router and experts (deepseek_v4_dspark.md, section 3.8).

Every expert computes every token, as two matrix products, and an expert that was not picked gets weight 0. For the 4 or
8 experts of the shapes that run here this needs fewer operations than sorting tokens by expert; shapes are static, and
the sum over experts has one order for every token, whoever else is in the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.ops.linear import linear
from impl.ops.workspace import Workspace


def affinities_(logits: Tensor, workspace: Workspace) -> Tensor:
    """sqrt(softplus(logits)) in place; fp32.

    Written with exp and log1p: torch's softplus and sigmoid differ in the last bit between the vectorized part of a
    tensor and its tail, so a token's bits would depend on where it stands.
    """
    with workspace.scope():
        small = workspace.empty(logits.shape, torch.float32)
        torch.abs(logits, out=small).neg_().exp_().log1p_()
        return logits.clamp_min_(0.0).add_(small).sqrt_()


def route(
    affinity: Tensor, bias: Tensor, table: Tensor | None, token_ids: Tensor, picked: int, scale: float, out: Tensor,
    workspace: Workspace,
) -> None:  # fmt: skip
    """Weight of every expert for every token.

    affinity: fp32 [n, E]. bias: fp32 [E], which only selects (lowest index wins ties). A hash layer has a `table`
    int64 [V, picked] by token id, which selects instead. out: fp32 [n, E]; zero for experts not picked, else
    scale * affinity / sum of the picked.
    """
    n, experts = affinity.shape
    with workspace.scope():
        if table is not None:
            ids = workspace.empty((n, picked), torch.int64)
            torch.index_select(table, 0, token_ids, out=ids)
        else:
            biased = workspace.empty((n, experts), torch.float32)
            ranked = workspace.empty((n, experts), torch.float32)
            order = workspace.empty((n, experts), torch.int64)
            torch.sort(torch.add(affinity, bias, out=biased), stable=True, descending=True, out=(ranked, order))
            ids = order[:, :picked]
        chosen = workspace.empty((n, picked), torch.float32)
        torch.gather(affinity, 1, ids, out=chosen)
        total = workspace.empty((n, 1), torch.float32)
        torch.sum(chosen, 1, keepdim=True, out=total)
        out.zero_().scatter_(1, ids, chosen.div_(total).mul_(scale))


def gated_(gate: Tensor, up: Tensor, limit: float, out: Tensor, workspace: Workspace) -> None:
    """silu(min(gate, limit)) * clamp(up, -limit, limit); fp32, all of one shape; gate and up are overwritten."""
    with workspace.scope():
        below = workspace.empty(gate.shape, torch.float32)
        torch.neg(gate.clamp_max_(limit), out=below)
        gate.div_(below.exp_().add_(1.0))
        torch.mul(gate, up.clamp_(-limit, limit), out=out)


def experts(gate_up: Tensor, weight: Tensor, down: Tensor, limit: float, workspace: Workspace) -> Tensor:
    """Sum over experts of weight * W2 (silu(min(gate, limit)) * clamp(up)).

    gate_up: fp32 [n, E * 2 * i], each expert's gate, then its up; overwritten. weight: fp32 [n, E].
    down: fp32 [H, E * i]. On a CPU n is a multiple of four. Returns fp32 [n, H] in the workspace's present scope.
    """
    n, count = weight.shape
    result = workspace.empty((n, down.shape[0]), torch.float32)
    with workspace.scope():
        gate, up = gate_up.unflatten(1, (count, 2, -1)).unbind(2)
        hidden = workspace.empty(gate.shape, torch.float32)
        gated_(gate, up, limit, hidden, workspace)
        hidden.mul_(weight[:, :, None])
        linear(hidden.view(n, -1), down, workspace, result)
    return result
