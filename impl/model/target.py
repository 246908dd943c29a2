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
from impl.engine.step import Step
from impl.handshake import Markers
from impl.model.attention import Attention
from impl.model.moe import Moe
from impl.model.streams import Seam, Streams
from impl.ops import mhc
from impl.ops.linear import linear
from impl.ops.norm import rms_norm
from impl.ops.rope import RopeTable
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet


class TargetOutput(NamedTuple):
    hidden: Tensor
    """bf16 [N, H] after the final norm"""
    aux: list[Tensor]
    """bf16 [N, H] a captured layer, in layer order: what a DSpark draft reads"""


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
    ) -> None:
        at = f"layers.{index}."
        self.attention_seam = Seam(
            _seam_weights(dims, weights, f"{at}hc_attn", f"{at}attn_norm"), toggles, markers, workspace
        )
        self.attention = Attention(dims, index, weights, rope)
        self.moe_seam = Seam(_seam_weights(dims, weights, f"{at}hc_ffn", f"{at}ffn_norm"), toggles, markers, workspace)
        self.moe = Moe(dims, index, weights)


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
    ) -> None:
        self.dims = dims
        self.workspace = workspace
        self.markers = markers
        self.embed, self.lm_head, self.norm = weights["embed"], weights["lm_head"], weights["norm"]
        ropes = {ratio: RopeTable(dims, ratio, device) for ratio in sorted(set(dims.compress_ratios))}
        self.layers = [
            Layer(dims, i, weights, ropes[ratio], toggles, markers, workspace)
            for i, ratio in enumerate(dims.compress_ratios)
        ]
        self.head = mhc.HeadWeights(
            weights["hc_head.fn"], weights["hc_head.scale"], weights["hc_head.base"], dims.hc_eps, dims.rms_norm_eps
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
        streams = self._enter(step.token_ids)
        captured: Tensor | None = None
        aux: list[Tensor] = []
        last = len(self.layers) - 1
        for i, (layer, layer_pages) in enumerate(zip(self.layers, pages, strict=True)):
            cell = layer.attention_seam(streams)
            streams.y = layer.attention.forward(cell, step, layer_pages, self.workspace)
            cell = layer.moe_seam(streams)
            streams.y = layer.moe.forward(cell, step.token_ids, self.workspace)
            if i not in self.dims.aux_layers or (self.fuse_final and i == last):
                continue
            if self.fuse_final:
                aux.append(mhc.post_mean(*streams.pending()))
                self.markers.take("mhc_final_fused")
            else:
                # Kept until the next capture: after the last layer the head reads it too.
                captured = None
                captured = mhc.post_streams(*streams.pending())
                if i == last:
                    streams.clear()
                aux.append(mhc.stream_mean(captured))
        if self.fuse_final:
            return self._fused_final(streams, aux, with_mean=last in self.dims.aux_layers)
        if last not in self.dims.aux_layers:
            captured = None
            captured = mhc.post_streams(*streams.pending())
            streams.clear()
        assert captured is not None
        return self._final(captured, aux)

    def logits(self, rows: Tensor) -> Tensor:
        """fp32 [n, V] of hidden rows bf16 [n, H], in workspace memory: call inside a workspace scope."""
        return linear(rows, self.lm_head, self.workspace)

    def _enter(self, token_ids: Tensor) -> Streams:
        """Every stream starts as the embedding, in storage of its own: seams may write over it."""
        rows = self.embed[token_ids].to(torch.bfloat16)
        residual = rows.new_empty(rows.shape[0], self.dims.hc_mult, rows.shape[1])
        residual.copy_(rows[:, None, :])
        return Streams(residual)

    def _final(self, final: Tensor, aux: list[Tensor]) -> TargetOutput:
        if self.mtp_hidden is not None:
            self.mtp_hidden[: final.shape[0]].copy_(final.flatten(1))
        elif self.skip_mtp_hidden:
            self.markers.take("mtp_hidden_skip")
        return TargetOutput(self._normed(mhc.head(final, self.head)), aux)

    def _fused_final(self, streams: Streams, aux: list[Tensor], *, with_mean: bool) -> TargetOutput:
        hidden, mean = mhc.post_head(*streams.pending(), self.head, with_mean=with_mean)
        streams.clear()
        self.markers.take("mhc_final_fused")
        self.markers.take("mtp_hidden_skip")
        if mean is not None:
            aux.append(mean)
        return TargetOutput(self._normed(hidden), aux)

    def _normed(self, hidden: Tensor) -> Tensor:
        """Final RMSNorm, tile by tile, in place: `hidden` is this step's own."""
        for start in range(0, hidden.shape[0], mhc.TILE):
            rows = slice(start, start + mhc.TILE)
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
