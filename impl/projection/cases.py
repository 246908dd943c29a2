"""The operations behind each memory toggle, one layer at a time at the shapes of a model: what there is to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine import step as steps
from impl.engine.index_rows import IndexRows
from impl.engine.pages import BlockTables, LayerPages, allocate_pool, layer_pages, page_shape
from impl.handshake import Markers
from impl.kv_geometry import KvGeometry
from impl.model.attention import Attention
from impl.model.draft import Draft
from impl.model.draft_logits import DraftLogits
from impl.model.draft_weights import PREFIX, draft_parameter_shapes
from impl.model.streams import Seam, Streams
from impl.model.target import Target
from impl.model.weights import parameter_shapes
from impl.ops import mhc
from impl.ops.rope import RopeTable
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

VOCABULARY = 256
EXPERTS = 4
"""Both are cut: no toggle's operation depends on them."""


@dataclass(frozen=True)
class Bench:
    """Where one case runs."""

    dims: Dims
    """Of one rank, with one target layer and one draft layer."""
    large_ratio: int
    """Of the model's dense layers."""
    platform: str
    device: torch.device
    toggles: ToggleSet
    markers: Markers
    workspace: Workspace

    @classmethod
    def of(cls, dims: Dims, platform: str, device: torch.device, toggles: ToggleSet) -> Bench:
        return cls(one_layer(dims), dims.large_ratio, platform, device, toggles, Markers(), Workspace(device))

    def with_ratio(self, ratio: int) -> Dims:
        return self.dims.with_changes(compress_ratios=(ratio,))

    def zeros(self, *shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def weights(self, shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
        return {
            name: self.zeros(*shape, dtype=torch.int32 if name.endswith("tid2eid") else torch.float32)
            for name, shape in shapes.items()
        }


@dataclass(frozen=True)
class Case:
    """One toggle's operation. `prepare` gives what is to be run, or what is to be kept alive."""

    toggle: str
    operation: str
    figure: Literal["peak", "resident"]
    """Most bytes while the operation runs, or bytes that stay after it was prepared."""
    prepare: Callable[[Bench], Any]
    requires: tuple[str, ...] = ()


def one_layer(dims: Dims) -> Dims:
    """The widths of `dims` with a single layer of each model, few experts and few tokens to choose from."""
    return dims.with_changes(
        compress_ratios=(0,), aux_layers=(0,), n_draft_layers=1, n_hash_layers=0, n_experts=EXPERTS,
        experts_per_token=2, vocab_size=VOCABULARY, noise_token_id=1,
    )  # fmt: skip


def seam(bench: Bench) -> Callable[[], object]:
    """POST and PRE between two sublayers, streams and sublayer output of its own."""
    dims = bench.dims
    weights = bench.weights({"fn": (dims.n_mix, dims.hc_mult * dims.hidden_size), "norm": (dims.hidden_size,)})
    small = bench.weights({"scale": (3,), "base": (dims.n_mix,)})
    of_seam = mhc.SeamWeights(
        weights["fn"], small["scale"], small["base"], weights["norm"], dims.hc_eps, dims.rms_norm_eps,
        dims.sinkhorn_iters,
    )  # fmt: skip
    run = Seam(of_seam, bench.toggles, bench.markers, bench.workspace)

    def once() -> object:
        streams = Streams(None)
        _pend(bench, streams)
        return run(streams), streams

    return once


def final(bench: Bench) -> Callable[[], object]:
    """From the last sublayer's output to the final hidden states and the aux mean."""
    target = _target(bench)
    step, pages = _step(bench, bench.dims)

    class LastLayer:
        def forward(self, streams: Streams, *_: object) -> None:
            streams.clear()
            _pend(bench, streams)

    target.layers = [LastLayer()]  # type: ignore[list-item]
    return lambda: target.forward(step, pages)


def attention(*, dense: bool) -> Callable[[Bench], Callable[[], object]]:
    """One attention sublayer that sees its window, or all compressed entries too; input of its own."""

    def prepare(bench: Bench) -> Callable[[], object]:
        dims = bench.with_ratio(bench.large_ratio if dense else 0)
        table = RopeTable(dims, dims.compress_ratios[0], bench.device)
        layer = Attention(
            dims, 0, bench.weights(parameter_shapes(dims)), table, bench.toggles, bench.markers,
            platform=bench.platform,
        )  # fmt: skip
        step, (pages,) = _step(bench, dims)

        def once() -> object:
            if pages.index_rows is not None:
                pages.index_rows.build(step, bench.workspace)
            cell = [bench.zeros(step.n_tokens, dims.hidden_size)]
            return layer.forward(cell, step, pages, bench.workspace)

        return once

    return prepare


def draft(bench: Bench) -> object:
    """The draft's buffers."""
    dims = bench.dims
    weights = {n.removeprefix(PREFIX): w for n, w in bench.weights(draft_parameter_shapes(dims)).items()}
    shared = bench.zeros(VOCABULARY, dims.hidden_size, dtype=torch.float32)
    logits = DraftLogits(dims, True, True, bench.markers, bench.device)
    return Draft(
        dims, weights, shared, shared, logits, bench.toggles, bench.markers, bench.workspace, bench.device,
        platform=bench.platform,
    )  # fmt: skip


def index_rows(bench: Bench) -> IndexRows:
    """The buffers of dense index rows."""
    return IndexRows(bench.with_ratio(bench.large_ratio), bench.toggles, bench.markers, bench.device)


def _target(bench: Bench) -> Target:
    return Target(
        bench.dims, bench.weights(parameter_shapes(bench.dims)), bench.toggles, bench.markers, bench.workspace,
        bench.device, method="dspark", platform=bench.platform,
    )  # fmt: skip


def _pend(bench: Bench, streams: Streams) -> None:
    """The state between a sublayer and its seam."""
    n, hc, hidden = bench.dims.max_num_batched_tokens, bench.dims.hc_mult, bench.dims.hidden_size
    streams.residual, streams.y = bench.zeros(n, hc, hidden), bench.zeros(n, hidden)
    streams.post = bench.zeros(n, hc, dtype=torch.float32)
    streams.comb = bench.zeros(n, hc, hc, dtype=torch.float32)


def _step(bench: Bench, dims: Dims) -> tuple[steps.Step, list[LayerPages]]:
    """T rows of one prefill behind a long context, over pages that hold nothing."""
    geometry, n = KvGeometry.of(dims), dims.max_num_batched_tokens
    rows = index_rows(bench) if dims.compress_ratios[0] > 4 else None
    pages = layer_pages(dims, geometry, allocate_pool(geometry, 1, bench.device), rows)
    tables = BlockTables(geometry.groups, dims.max_num_seqs, dims.max_model_len, bench.device)
    positions = [dims.max_model_len - n + i for i in range(n)]
    shape = page_shape(dims, geometry)
    return steps.build_step([0] * n, positions, [0] * n, 0, tables.tables, shape, bench.device), pages


CASES = (
    Case("mtp_hidden_skip", "target: load", "resident", _target),
    Case("dflash_staging_skip", "draft: load", "resident", draft),
    Case("c128a_topk_shared", "index rows", "resident", index_rows),
    Case("q_in_place", "attention, window only", "peak", attention(dense=False)),
    Case("c128_indices_in_place", "attention, dense", "peak", attention(dense=True)),
    Case("mhc_final_fused", "final", "peak", final, requires=("mtp_hidden_skip",)),
    Case("mhc_residual_reuse", "seam", "peak", seam),
    Case("mhc_input_reuse", "seam", "peak", seam),
)

__all__ = ["CASES", "Bench", "Case"]
