"""The MoE sublayer: router, routed experts and the shared expert (deepseek_v4_dspark.md, section 3.8)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from impl.dims import Dims
from impl.model.fused import replace, stack
from impl.ops import moe
from impl.ops.linear import kept_rows, linear
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace

TILE = 256
"""Token rows computed at a time."""
TILE_BYTES = 64 << 20
"""At most this much of a tile's gate and up values."""


class Moe:
    """One layer's experts. The shared expert is one more expert, of weight 1; the router's rows share their product."""

    def __init__(self, dims: Dims, layer: int, weights: Mapping[str, Tensor]) -> None:
        """`weights` is the model's flat dictionary; its entries become views of this layer's matrices."""
        at = f"layers.{layer}.moe."
        self.dims = dims
        self.n_experts = dims.n_experts + 1
        """Routed and shared."""
        width = 2 * dims.expert_width
        self.up = stack(
            weights,
            [
                (f"{at}w13", dims.n_experts * width),
                (f"{at}shared_w13", width),
                (f"{at}gate", dims.n_experts),
            ],
        )
        columns = self.n_experts * width
        self.columns = [columns, dims.n_experts, self.up.shape[0] - columns - dims.n_experts]
        """Of the one product: gates and ups, router logits, padding."""
        self.down = _stack_down(weights, f"{at}w2", f"{at}shared_w2")
        self.table = weights[f"{at}tid2eid"].long() if layer < dims.n_hash_layers else None
        self.bias = self.up.new_zeros(dims.n_experts) if self.table is not None else weights[f"{at}bias"].float()
        self.tile = max(4, min(TILE, TILE_BYTES // (4 * self.up.shape[0]) // 4 * 4))

    @torch.no_grad()
    def forward(self, x_cell: list[Tensor], token_ids: Tensor, workspace: Workspace) -> Tensor:
        """y, bf16 [N, H] in storage of its own, of the one tensor x in `x_cell`, bf16 [N, H].

        x is taken out of the cell and dropped before y is allocated. token_ids: int64 [N].
        """
        with workspace.scope():
            x = x_cell.pop()
            n, hidden, device = x.shape[0], x.shape[1], x.device
            rows = kept_rows(x, workspace)
            del x
            y = torch.empty((n, hidden), dtype=torch.bfloat16, device=device)
            for part in tiles(n, self.tile):
                with workspace.scope():
                    sums = self._tile(rows[part.start : part.start + self.tile], token_ids[part], workspace)
                    y[part].copy_(sums[: part.stop - part.start])
            return y

    def _tile(self, rows: Tensor, token_ids: Tensor, workspace: Workspace) -> Tensor:
        """fp32 [n or padded n, H] of `kept_rows`; rows beyond the n tokens hold anything."""
        dims, n, real = self.dims, rows.shape[0], token_ids.shape[0]
        projected = linear(rows, self.up, workspace)
        gate_up, logits = projected.split(self.columns, 1)[:2]
        affinity = moe.affinities_(logits[:real], workspace)
        weight = workspace.empty((n, self.n_experts), torch.float32).fill_(1.0)
        moe.route(
            affinity, self.bias, self.table, token_ids, dims.experts_per_token, dims.routed_scale,
            weight[:real, : dims.n_experts], workspace,
        )  # fmt: skip
        return moe.experts(gate_up, weight, self.down, dims.swiglu_limit, workspace)


def _stack_down(weights: Mapping[str, Tensor], routed: str, shared: str) -> Tensor:
    """fp32 [H, (E + 1) * i]: the experts' down matrices side by side, the shared one last."""
    down = torch.cat((weights[routed].float(), weights[shared].float()[None])).permute(1, 0, 2).contiguous()
    replace(weights, routed, down[:, :-1].permute(1, 0, 2))
    replace(weights, shared, down[:, -1])
    return down.flatten(1)
