"""The DSpark draft: context states from the target's aux means, and a block of K query rows a request.

Its layers are ordinary window-only decoder layers behind the same seams as the target's, so the reuse toggles act on
them too. Source: deepseek_v4_dspark.md sections 1.2 and 4.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.draft_step import draft_step
from impl.engine.pages import LayerPages
from impl.engine.step import Step
from impl.handshake import Markers
from impl.model.draft_logits import DraftLogits
from impl.model.draft_weights import draft_dims
from impl.model.target import Layer, enter
from impl.ops import mhc
from impl.ops.insert import Places, insert_states
from impl.ops.linear import linear
from impl.ops.norm import rms_norm, rms_norm_
from impl.ops.rope import RopeTable, table_rows
from impl.ops.sampling import SamplingRows
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

TILE = 256
"""Context rows inserted at a time."""


class Proposal(NamedTuple):
    tokens: Tensor
    """int64 [R, K]"""
    confidence: Tensor
    """fp32 [R, K]: estimated chance that each draft is accepted, given that those before it were"""


class Draft:
    """The draft on one device.

    `weights`: the draft's flat dictionary without its prefix; entries become views of the layers' matrices.
    embed, lm_head: the target's, fp32 [V, H].
    """

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
        *,
        platform: str = "cpu",
    ) -> None:
        self.dims, self.workspace, self.markers = dims, workspace, markers
        self.embed, self.lm_head, self.draft_logits = embed, lm_head, logits
        # A query row's window is the target's and its own block.
        of_layers = draft_dims(dims).with_changes(window=dims.window + dims.draft_tokens)
        rope = RopeTable(of_layers, 0, device)
        self.rope = rope
        self.layers = [
            Layer(of_layers, i, weights, rope, toggles, markers, workspace, platform)
            for i in range(dims.n_draft_layers)
        ]
        rows = slice(dims.q_lora_rank, dims.q_lora_rank + dims.head_dim)
        self.context_kv = [weights[f"layers.{i}.attn.wqkv_a"][rows] for i in range(dims.n_draft_layers)]
        self.main_proj, self.main_norm = weights["main_proj"], weights["main_norm"]
        self.head = mhc.HeadWeights(
            weights["hc_head.fn"], weights["hc_head.scale"], weights["hc_head.base"], dims.hc_eps, dims.rms_norm_eps
        )
        self.norm = weights["norm"]
        self.markov_in, self.markov_out = weights["markov.w1"], weights["markov.w2"]
        self.confidence = weights["confidence"]
        self.eps = self.norm.new_full((1,), dims.rms_norm_eps)
        self.staging: Tensor | None = None
        """bf16 [T, H]: the mixed context, in a place of its own between its making and its insertion."""
        if not toggles.on("dflash_staging_skip"):
            shape = (dims.max_num_batched_tokens, dims.hidden_size)
            self.staging = torch.zeros(shape, dtype=torch.bfloat16, device=device)

    @torch.no_grad()
    def insert_context(self, aux: Tensor, step: Step, keep: Tensor, pages: list[LayerPages]) -> None:
        """States of a target step's rows, for every draft layer.

        aux: bf16 [N, n_aux * H]. keep: bool [N]; rows of rejected drafts go to the null block.
        """
        for part in tiles(step.n_tokens, TILE):
            with self.workspace.scope():
                main_x = self._mix(aux[part], part)
                turn = self.workspace.empty((len(main_x), self.dims.rope_dim // 2), torch.complex64)
                table_rows(self.rope.rows, step.positions[part], turn)
                for layer, matrix, layer_pages in zip(self.layers, self.context_kv, pages, strict=True):
                    slots = step.swa_slots[layer_pages.swa_group][part] * keep[part]
                    packing = layer.attention.window_packing
                    place = Places(step.positions[part], slots, layer_pages.swa, packing)
                    self._insert(main_x, matrix, layer, turn, place)
        if self.staging is None:
            self.markers.take("dflash_staging_skip")

    def _mix(self, aux: Tensor, part: slice) -> Tensor:
        """main_x, bf16 [n, H]: one mix of the aux means that all layers read."""
        main_x = self.workspace.empty((aux.shape[0], self.dims.hidden_size), torch.bfloat16)
        with self.workspace.scope():
            mixed = linear(aux, self.main_proj, self.workspace)
            main_x.copy_(rms_norm_(mixed, self.eps, self.workspace, self.main_norm))
        return main_x if self.staging is None else self.staging[part].copy_(main_x)

    def _insert(self, main_x: Tensor, matrix: Tensor, layer: Layer, turn: Tensor, place: Places) -> None:
        with self.workspace.scope():
            states = rms_norm_(
                linear(main_x, matrix, self.workspace), self.eps, self.workspace, layer.attention.kv_norm
            )
            insert_states(states, turn, self.rope.rows, [place], layer.attention.layout, self.workspace)

    @torch.no_grad()
    def propose(
        self,
        anchors: Tensor,
        first: Tensor,
        limits: Tensor,
        request_rows: Tensor,
        slots: Tensor,
        how: SamplingRows,
        block_tables: dict[str, Tensor],
        pages: list[LayerPages],
    ) -> Proposal:
        """K drafts for each of R requests; their logits go to `draft_logits`.

        anchors: the token at position `first`, which the target has not computed. limits: `draft_step`. slots: places
        in the draft logits. All int64 [R]. `how.position` is `first`.
        """
        groups = [layer_pages.swa_group for layer_pages in pages]
        step = draft_step(self.dims, anchors, first, limits, request_rows, block_tables, groups)
        streams = enter(self.embed, step.token_ids, self.dims.hc_mult)
        for layer, layer_pages in zip(self.layers, pages, strict=True):
            layer.forward(streams, step, layer_pages, self.workspace)
        final = streams.added(self.dims.name)
        streams.clear()
        hidden = mhc.head(final, self.head)
        del final
        return self._draw(hidden, anchors, slots, how)

    def _draw(self, hidden: Tensor, anchors: Tensor, slots: Tensor, how: SamplingRows) -> Proposal:
        """Left to right: each draft's logits add the Markov head's opinion on the one before it."""
        n, k, workspace = anchors.shape[0], self.dims.draft_tokens, self.workspace
        with workspace.scope():
            normed = rms_norm(hidden, self.norm, self.dims.rms_norm_eps)
            logits = linear(normed, self.lm_head, workspace).view(n, k, -1)
            previous, drafts, embeddings = anchors, [], []
            for i in range(k):
                embedding = self.markov_in[previous]
                with workspace.scope():
                    logits[:, i] += linear(embedding, self.markov_out, workspace)
                    previous = self.draft_logits.draw(logits[:, i], i, how, slots, workspace)
                drafts.append(previous)
                embeddings.append(embedding)
            self.draft_logits.drawn(logits)
            read = torch.cat((hidden.view(n, k, -1).float(), torch.stack(embeddings, 1)), -1)
            confidence = torch.sigmoid(linear(read.view(n * k, -1), self.confidence, workspace)).view(n, k)
            return Proposal(torch.stack(drafts, 1), confidence)
