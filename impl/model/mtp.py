"""The serial MTP method: one decoder layer, applied K times, that goes on from the target's last streams.

At position t it mixes the token at t + 1 with the streams before the head of position t, and predicts the token at
t + 2. The first application runs over the target step's own rows (a prompt's too, so that its window is filled); each
further one takes its own streams and the token just drafted. Drafts never decide greedy output, so untrained weights
serve the same text, with fewer tokens accepted. Source: deepseek_v4_dspark.md section 2.3 (what MTP reads).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.pages import LayerPages
from impl.engine.step import PageShape, Step, window_step
from impl.handshake import Markers
from impl.model.draft_logits import DraftLogits
from impl.model.streams import Streams
from impl.model.target import Layer
from impl.model.weights import fill, parameter_shapes, read
from impl.ops import mhc
from impl.ops.linear import linear
from impl.ops.norm import rms_norm
from impl.ops.rope import RopeTable
from impl.ops.sampling import SamplingRows
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

PREFIX = "mtp."


def mtp_dims(dims: Dims) -> Dims:
    """The MTP layer as a model of its own."""
    return dims.with_changes(compress_ratios=(0,), n_hash_layers=0, aux_layers=())


def mtp_parameter_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every MTP parameter; embedding and lm_head are the target's."""
    h = dims.hidden_size
    own = {name: s for name, s in parameter_shapes(mtp_dims(dims)).items() if name not in ("embed", "lm_head")}
    shapes = {"proj": (h, 2 * h), "embed_norm": (h,), "hidden_norm": (h,), **own}
    return {f"{PREFIX}{name}": shape for name, shape in shapes.items()}


def random_mtp_weights(dims: Dims, seed: int = 0) -> dict[str, Tensor]:
    """Untrained weights of the right scale."""
    return fill(mtp_parameter_shapes(dims), dims, seed)


def load_mtp_weights(path: Path) -> tuple[dict[str, Tensor], Dims]:
    """Raises ValueError with one line when the file is not a whole set of MTP parameters."""
    return read(path, mtp_parameter_shapes, "none are shipped: use --draft-load-format dummy")


class Mtp:
    """The MTP layer on one device. `weights`: its flat dictionary without the prefix. embed, lm_head: the target's."""

    def __init__(
        self,
        dims: Dims,
        weights: dict[str, Tensor],
        embed: Tensor,
        lm_head: Tensor,
        logits: DraftLogits,
        toggles: ToggleSet,
        markers: Markers,
        workspace: Workspace,
        device: torch.device,
    ) -> None:
        self.dims, self.workspace = dims, workspace
        self.embed, self.lm_head, self.draft_logits = embed, lm_head, logits
        one = mtp_dims(dims)
        self.layer = Layer(one, 0, weights, RopeTable(one, 0, device), toggles, markers, workspace)
        self.proj, self.embed_norm, self.hidden_norm = weights["proj"], weights["embed_norm"], weights["hidden_norm"]
        self.head = mhc.HeadWeights(
            weights["hc_head.fn"], weights["hc_head.scale"], weights["hc_head.base"], dims.hc_eps, dims.rms_norm_eps
        )
        self.norm = weights["norm"]

    @torch.no_grad()
    def read_step(
        self, target_streams: Tensor, next_ids: Tensor, step: Step, keep: Tensor, pages: LayerPages
    ) -> Tensor:
        """Run over a target step's rows: states into the cache, streams bf16 [N, hc, H] back.

        target_streams: bf16 [N, hc * H], the target's staged pre-head streams. next_ids: int64 [N], the token behind
        each row. keep: bool [N]; rows of rejected drafts write to the null block.
        """
        slots = {pages.swa_group: step.swa_slots[pages.swa_group] * keep}
        own = replace(step, token_ids=next_ids, swa_slots=slots)
        return self._apply(target_streams.unflatten(1, (self.dims.hc_mult, -1)), own, pages)

    @torch.no_grad()
    def propose(
        self,
        streams: Tensor,
        first: Tensor,
        limits: Tensor,
        request_rows: Tensor,
        slots: Tensor,
        how: SamplingRows,
        block_tables: dict[str, Tensor],
        shape: PageShape,
        pages: LayerPages,
    ) -> Tensor:
        """K drafts int64 [R, K] from streams bf16 [R, hc, H] at each request's last context row, position first - 1.

        The other arguments are those of `Draft.propose`.
        """
        n, k = first.shape[0], self.dims.draft_tokens
        logits = torch.empty((n, k, self.lm_head.shape[0]), dtype=torch.float32, device=first.device)
        drafts: list[Tensor] = []
        for i in range(k):
            if i:
                at = first + (i - 1)
                step = window_step(
                    drafts[-1], at, limits, request_rows, block_tables, [pages.swa_group], shape,
                    self.dims.max_model_len,
                )  # fmt: skip
                streams = self._apply(streams, step, pages)
            with self.workspace.scope():
                normed = rms_norm(mhc.head(streams, self.head), self.norm, self.dims.rms_norm_eps)
                logits[:, i] = linear(normed, self.lm_head, self.workspace)
                drafts.append(self.draft_logits.draw(logits[:, i], i, how, slots, self.workspace))
        self.draft_logits.drawn(logits)
        return torch.stack(drafts, 1)

    def _apply(self, before: Tensor, step: Step, pages: LayerPages) -> Tensor:
        """Streams bf16 [N, hc, H] after the layer."""
        streams = Streams(self._mix(before, step.token_ids))
        del before
        self.layer.forward(streams, step, pages, self.workspace)
        final = streams.added(self.dims.name)
        streams.clear()
        return final

    def _mix(self, before: Tensor, token_ids: Tensor) -> Tensor:
        """Every stream with the token's embedding beside it, through one projection."""
        out = torch.empty_like(before, memory_format=torch.contiguous_format)
        for start in range(0, before.shape[0], mhc.TILE):
            part = slice(start, start + mhc.TILE)
            with self.workspace.scope():
                n, hc, h = before[part].shape
                both = self.workspace.empty((n, hc, 2 * h), torch.float32)
                embedded = self.embed[token_ids[part]].to(torch.bfloat16)
                both[..., :h] = rms_norm(embedded, self.embed_norm, self.dims.rms_norm_eps)[:, None]
                both[..., h:] = rms_norm(before[part], self.hidden_norm, self.dims.rms_norm_eps)
                out[part] = linear(both.view(n * hc, 2 * h), self.proj, self.workspace).view(n, hc, h)
        return out
