"""The DeepSeek V4 target: embedding, layers of attention and MoE between mHC seams, head.

A sublayer takes its input in a one-element list and drops it before it allocates its output, so
the tensors alive at each point are those of the liveness timeline (deepseek_v4_dspark.md 2.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.pages import LayerPages
from impl.engine.profile import serve_only
from impl.engine.step import Step
from impl.handshake import Markers
from impl.model.attention import Attention
from impl.model.moe import Moe
from impl.model.streams import Seam, Streams, reuse_refusal
from impl.ops import dispatch, mhc
from impl.ops.linear import linear
from impl.ops.norm import rms_norm
from impl.ops.rope import RopeTable
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet


class TargetOutput(NamedTuple):
    hidden: Tensor
    """bf16 [N, H] after the final norm"""
    aux: Tensor
    """bf16 [N, n_aux * H]: the stream means after the captured layers, side by side in layer order.

    What a DSpark draft reads; a view of the model's own buffer, overwritten by the next step."""


class Layer:
    """One decoder layer: attention and MoE, each behind its seam."""

    def __init__(
        self,
        dims: Dims,
        index: int,
        weights: Mapping[str, Tensor],
        rope: RopeTable,
        toggles: ToggleSet,
        markers: Markers,
        workspace: Workspace,
        platform: str = "cpu",
    ) -> None:
        at = f"layers.{index}."
        self.attention_seam = Seam(
            _seam_weights(dims, weights, f"{at}hc_attn", f"{at}attn_norm"), toggles, markers, workspace, dims.name
        )
        self.attention = Attention(dims, index, weights, rope, toggles, markers, platform=platform)
        self.moe_seam = Seam(
            _seam_weights(dims, weights, f"{at}hc_ffn", f"{at}ffn_norm"), toggles, markers, workspace, dims.name
        )
        self.moe = Moe(dims, index, weights)

    def forward(self, streams: Streams, step: Step, pages: LayerPages, workspace: Workspace) -> None:
        """Advance `streams` over the layer; its MoE output is left in `streams.y`, for the next seam to add."""
        cell = self.attention_seam(streams)
        streams.y = self.attention.forward(cell, step, pages, workspace)
        cell = self.moe_seam(streams)
        streams.y = self.moe.forward(cell, step.token_ids, workspace)


def enter(embed: Tensor, token_ids: Tensor, hc_mult: int) -> Streams:
    """Every stream starts as the embedding, in storage of its own: seams may write over it."""
    rows = embed[token_ids].to(torch.bfloat16)
    residual = rows.new_empty(rows.shape[0], hc_mult, rows.shape[1])
    residual.copy_(rows[:, None, :])
    return Streams(residual)


class Target:
    """The model on one device. `weights` is the flat dictionary of `impl.model.weights`."""

    def __init__(
        self,
        dims: Dims,
        weights: Mapping[str, Tensor],
        toggles: ToggleSet,
        markers: Markers,
        workspace: Workspace,
        device: torch.device,
        *,
        method: str = "none",
        platform: str = "cpu",
    ) -> None:
        """`platform` says to how many heads the attention kernels pad the queries."""
        self.dims = dims
        self.workspace = workspace
        self.markers = markers
        self.embed, self.lm_head, self.norm = weights["embed"], weights["lm_head"], weights["norm"]
        ropes = {ratio: RopeTable(dims, ratio, device) for ratio in sorted(set(dims.compress_ratios))}
        self.layers = [
            Layer(dims, i, weights, ropes[ratio], toggles, markers, workspace, platform)
            for i, ratio in enumerate(dims.compress_ratios)
        ]
        self.head = mhc.HeadWeights(
            weights["hc_head.fn"], weights["hc_head.scale"], weights["hc_head.base"], dims.hc_eps, dims.rms_norm_eps
        )
        self.aux = torch.zeros(
            dims.max_num_batched_tokens, len(dims.aux_layers), dims.hidden_size, dtype=torch.bfloat16, device=device
        )
        self.skip_mtp_hidden = toggles.on("mtp_hidden_skip") and method != "mtp"
        if toggles.on("mtp_hidden_skip") and method == "mtp":
            markers.refuse("mtp_hidden_skip", "inert: the mtp method reads the staged hidden states")
        self.mtp_hidden: Tensor | None = None
        if not self.skip_mtp_hidden:
            self.mtp_hidden = torch.zeros(
                dims.max_num_batched_tokens, dims.hc_mult * dims.hidden_size, dtype=torch.bfloat16, device=device
            )
        self.fuse_final = toggles.on("mhc_final_fused") and self.mtp_hidden is None
        if toggles.on("mhc_final_fused") and not self.fuse_final:
            markers.refuse("mhc_final_fused", "the mtp buffer wants the final streams")

    @torch.no_grad()
    def forward(self, step: Step, pages: list[LayerPages]) -> TargetOutput:
        """One step of N <= T rows. Writes their cache entries into `pages`."""
        for rows in dict.fromkeys(own.index_rows for own in pages if own.index_rows is not None):
            with serve_only():
                rows.build(step, self.workspace)
        streams = enter(self.embed, step.token_ids, self.dims.hc_mult)
        aux = self.aux[: step.n_tokens]
        captured: Tensor | None = None
        last = len(self.layers) - 1
        for i, (layer, layer_pages) in enumerate(zip(self.layers, pages, strict=True)):
            layer.forward(streams, step, layer_pages, self.workspace)
            if i not in self.dims.aux_layers:
                continue
            mean = aux[:, self.dims.aux_layers.index(i)]
            if not self.fuse_final:
                # Kept until the next capture: after the last layer the head reads it too.
                captured = None
                captured = streams.added(self.dims.name)
                if i == last:
                    streams.clear()
                mhc.stream_mean(captured, mean)
            elif i != last:
                add = dispatch.kernel("mhc_post_mean", mean.device, self.dims, mean.shape[0]) or mhc.post_mean
                add(*streams.pending(), mean)
                self.markers.take("mhc_final_fused")
        if self.fuse_final:
            hidden = self._fused_final(streams, aux[:, -1] if last in self.dims.aux_layers else None)
        else:
            if last not in self.dims.aux_layers:
                captured = None
                captured = streams.added(self.dims.name)
                streams.clear()
            assert captured is not None
            hidden = self._final(captured)
        return TargetOutput(self._normed(hidden), aux.flatten(1))

    def logits(self, rows: Tensor) -> Tensor:
        """fp32 [n, V] of hidden rows bf16 [n, H], in workspace memory: call inside a workspace scope."""
        return linear(rows, self.lm_head, self.workspace)

    def _final(self, final: Tensor) -> Tensor:
        if self.mtp_hidden is not None:
            self.mtp_hidden[: final.shape[0]].copy_(final.flatten(1))
        elif self.skip_mtp_hidden:
            self.markers.take("mtp_hidden_skip")
        return mhc.head(final, self.head)

    def _fused_final(self, streams: Streams, mean: Tensor | None) -> Tensor:
        """The head and the last mean in one pass; the head's output takes the place of y, which dies here."""
        residual, y, post, comb = streams.pending()
        streams.clear()
        hidden = torch.empty_like(y) if reuse_refusal(y, self.workspace, holders=1) else y
        op = "mhc_post_head" if mean is None else "mhc_post_mean_head"
        finish = dispatch.kernel(op, y.device, self.dims, y.shape[0]) or mhc.post_head
        finish(residual, y, post, comb, self.head, hidden, mean)
        self.markers.take("mhc_final_fused")
        self.markers.take("mtp_hidden_skip")
        return hidden

    def _normed(self, hidden: Tensor) -> Tensor:
        """Final RMSNorm, tile by tile, in place: `hidden` is this step's own."""
        for rows in tiles(hidden.shape[0], mhc.TILE):
            hidden[rows] = rms_norm(hidden[rows], self.norm, self.dims.rms_norm_eps)
        return hidden


def _seam_weights(dims: Dims, weights: Mapping[str, Tensor], seam: str, norm: str) -> mhc.SeamWeights:
    return mhc.SeamWeights(
        fn=weights[f"{seam}.fn"],
        scale=weights[f"{seam}.scale"],
        base=weights[f"{seam}.base"],
        norm=weights[norm],
        hc_eps=dims.hc_eps,
        rms_eps=dims.rms_norm_eps,
        sinkhorn_iters=dims.sinkhorn_iters,
        post_mult=dims.post_mult,
    )
