"""One engine projected: boot, profile and serve at full size, with tensors that have shapes and no bytes.

The engine's own code runs: `Target`, `Draft`, their dispatch of operations, the workspace and the index rows, under
torch's FakeTensorMode, with live storages counted as in a real boot. So what is projected is what this engine
allocates; where an operation goes to a kernel, its fake implementation must allocate what the kernel does: register it
(`torch.library.register_fake`) beside the kernel in `impl/ops`, and the forward's dispatch will find it here too.

Fake tensors name the device `cpu`: torch built for the CPU cannot index fake CUDA tensors.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from impl.dims import Dims
from impl.engine import step as steps
from impl.engine.index_rows import IndexRows
from impl.engine.pages import BlockTables, allocate_pool, draft_pages, layer_pages, page_shape
from impl.engine.profile import LiveBytes, PeakTensor
from impl.handshake import Markers
from impl.kv_geometry import KvGeometry
from impl.model.draft import Draft
from impl.model.draft_logits import DraftLogits
from impl.model.draft_weights import PREFIX, draft_parameter_shapes
from impl.model.target import Target, TargetOutput
from impl.model.weights import parameter_shapes
from impl.ops.rejection import rejection_sample
from impl.ops.sampling import SamplingRows, cut_logits_, logprobs
from impl.ops.workspace import Workspace
from impl.projection.rank import Rank
from impl.projection.record import ArmProjection, Phase, PhaseName, Site
from impl.projection.repeats import Repeats, skip_repeated
from impl.projection.weights import ExpertFormat, weight_lines
from impl.toggles import ToggleSet

DEVICE = torch.device("cpu")
SITES = 8
"""Tensors named for a phase."""
LIMITLESS = 1 << 50
"""Bytes of the workspace, which cost nothing here: it never grows, and its high-water mark is what it needs."""


def project(
    rank: Rank, toggles: ToggleSet, *, experts: ExpertFormat = "fp4", every_layer: bool = False
) -> ArmProjection:
    """Bytes by phase of one rank's engine with `toggles` on and the DSpark draft.

    `every_layer` runs also the layers whose effect is known from two like them.
    """
    weights_bytes = sum(line.bytes for line in weight_lines(rank.model, rank.tp, experts))
    with fake_tensors(), LiveBytes() as live, torch.no_grad():
        boot = _Boot(rank, toggles, live)
        if not every_layer:
            boot.skip_repeated_layers()
        profile, serve = boot.widest_step()
        return ArmProjection(
            toggles=_optimizations(toggles),
            weights_bytes=weights_bytes,
            workspace_bytes=boot.workspace.high_water,
            phases=(boot.load, boot.init, profile, boot.after_profile(), serve),
            modelled_reservation_bytes=boot.padded_query_bytes(),
            index_maps_per_step=boot.rows.maps if boot.rows is not None else 0,
            markers=boot.markers.to_json(),
        )


class _Boot:
    def __init__(self, rank: Rank, toggles: ToggleSet, live: LiveBytes) -> None:
        self.rank, self.toggles, self.live = rank, toggles, live
        # Sinkhorn's iterations work in place, and each allocates what the first does.
        self.dims = rank.dims.with_changes(sinkhorn_iters=min(2, rank.dims.sinkhorn_iters))
        self.markers = Markers()
        self.workspace = Workspace(DEVICE)
        self.workspace.buffer = torch.empty(LIMITLESS, dtype=torch.uint8, device=DEVICE)
        self.geometry = KvGeometry.of(self.dims)
        target_weights = _fake_weights(parameter_shapes(self.dims))
        draft_weights = {
            name.removeprefix(PREFIX): weight
            for name, weight in _fake_weights(draft_parameter_shapes(self.dims)).items()
        }
        self._uncounted: list[PeakTensor] = []
        """What stands for weights, which are counted by rule."""
        before = self._alive()
        self.target = Target(
            self.dims, target_weights, toggles, self.markers, self.workspace, DEVICE, method="dspark",
            platform=rank.platform,
        )  # fmt: skip
        self._leave_out(target_weights)
        self.load = self._resident("load", before, on_line=True)

        before = self._alive()
        logits = DraftLogits(self.dims, toggles.on("draft_logits_persistent"), True, self.markers, DEVICE)
        self.draft = Draft(
            self.dims, draft_weights, self.target.embed, self.target.lm_head, logits, toggles, self.markers,
            self.workspace, DEVICE, platform=rank.platform,
        )  # fmt: skip
        self.tables = BlockTables(self.geometry.groups, self.dims.max_num_seqs, self.dims.max_model_len, DEVICE)
        self._leave_out(draft_weights)
        self.init = self._resident("init", before, on_line=True)

        self.rows = self._index_rows()
        pool = allocate_pool(self.geometry, 1, DEVICE)
        self.pages = layer_pages(self.dims, self.geometry, pool, self.rows)
        self.draft_pages = draft_pages(self.dims, self.geometry, pool)

    def skip_repeated_layers(self) -> None:
        self.repeats = Repeats(self.live)
        skip_repeated(self.target.layers, "target", self.repeats)
        skip_repeated(self.draft.layers, "draft", self.repeats)

    def widest_step(self) -> tuple[Phase, Phase]:
        """The peaks of the largest step there is, with its sampling and drafting: what a profile sees, and the rest."""
        # Built once before, as an engine runs it twice: what a step leaves for the next ones is no part of its peak.
        _widest_step(self.dims, self.tables.tables, self.geometry)
        resident, before = list(self._alive().values()), self.live.live
        self.live.reset_peak()
        step = _widest_step(self.dims, self.tables.tables, self.geometry)
        output = self.target.forward(step, self.pages)
        self._round(step, output)
        known = {id(tensor) for tensor in resident}
        fresh = [tensor for tensor in self.live.peak_tensors if id(tensor) not in known]
        return (
            Phase("profile", self.live.peak - before, True, _largest(fresh)),
            Phase("serve", self.live.runtime_peak, False, _largest(self.live.runtime_tensors)),
        )

    def _round(self, step: steps.Step, output: TargetOutput) -> None:
        """Verify K drafts of every request, cut and logged, insert the context, and draft again."""
        dims, workspace = self.dims, self.workspace
        n, width = min(dims.max_num_seqs, step.n_tokens), dims.draft_tokens + 1
        how = SamplingRows.of([(1.0, 1, 0.5, 0)] * n, [0] * n, DEVICE)
        each = SamplingRows.of([(1.0, 1, 0.5, 0)] * n * width, [0] * n * width, DEVICE)
        whole = torch.zeros(n, dtype=torch.int64, device=DEVICE)
        with workspace.scope():
            raw = self.target.logits(output.hidden[torch.arange(n * width, device=DEVICE) % step.n_tokens])
            logits = workspace.empty(tuple(raw.shape), torch.float32).copy_(raw)
            cut_logits_(logits, each, workspace)
            drafts = torch.zeros(n, dims.draft_tokens, dtype=torch.int64, device=DEVICE)
            verdict = rejection_sample(
                logits.view(n, width, -1), drafts, self.draft.draft_logits.values, how.temperature, how.seed,
                how.position, whole + dims.draft_tokens, draft_logits_index_mapping=whole, workspace=workspace,
            )  # fmt: skip
            logprobs(raw, verdict.tokens.clamp_min(0).view(-1), min(20, dims.vocab_size), workspace)
            keep = torch.ones(step.n_tokens, dtype=torch.bool, device=DEVICE)
            self.draft.insert_context(output.aux, step, keep, self.draft_pages)
            self.draft.propose(
                verdict.tokens[:, 0], whole, whole + dims.max_model_len, whole, whole, how, self.tables.tables,
                self.draft_pages,
            )  # fmt: skip

    def after_profile(self) -> Phase:
        """The metadata's buffers: a profile is over when they come."""
        before = self._alive()
        again = self._index_rows()
        phase = self._resident("after profile", before, on_line=False)
        del again
        return phase

    def padded_query_bytes(self) -> int:
        """The query scratch that the step has allocated while it served; 0 where none was."""
        shape = (self.dims.max_num_batched_tokens, self.rank.heads, self.dims.head_dim)
        seen = (tensor.bytes for tensor in self.live.runtime_tensors if tensor.shape == shape)
        return max(seen, default=0)

    def _index_rows(self) -> IndexRows | None:
        if not any(ratio > 4 for ratio in self.dims.compress_ratios):
            return None
        return IndexRows(self.dims, self.toggles, self.markers, DEVICE)

    def _alive(self) -> dict[int, PeakTensor]:
        return {key: tensor for key, (_, tensor) in self.live._storages.items()}

    def _leave_out(self, weights: Mapping[str, Tensor]) -> None:
        alive = self._alive()
        self._uncounted += [alive[key] for key in {w.untyped_storage()._cdata for w in weights.values()}]

    def _resident(self, name: PhaseName, before: dict[int, PeakTensor], *, on_line: bool) -> Phase:
        """Storages that have come since `before` and stay. (Keys are no names: those of freed ones come again.)"""
        left_out = {id(tensor) for tensor in (*self._uncounted, *before.values())}
        stay = [tensor for tensor in self._alive().values() if id(tensor) not in left_out]
        return Phase(name, sum(tensor.bytes for tensor in stay), on_line, _largest(stay))


@contextmanager
def fake_tensors() -> Iterator[None]:
    """FakeTensorMode, with nothing of it left in the step's cache of small constants.

    No cycles are collected: objects live as long as they are referred to, so that every run counts the same.
    """
    steps._last.cache_clear()
    collecting = gc.isenabled()
    gc.disable()
    try:
        with FakeTensorMode():
            yield
    finally:
        steps._last.cache_clear()
        if collecting:
            gc.enable()


def _fake_weights(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """The engine's own dictionary, in fp32 as its matrices are."""
    return {
        name: torch.empty(shape, dtype=torch.int32 if name.endswith("tid2eid") else torch.float32, device=DEVICE)
        for name, shape in shapes.items()
    }


def _widest_step(dims: Dims, tables: dict[str, Tensor], geometry: KvGeometry) -> steps.Step:
    """The step that an engine profiles (`impl.engine.runner`): T rows as deep as the longest context, none a decode."""
    n_seqs = min(dims.max_num_seqs, dims.max_num_batched_tokens)
    length = dims.max_num_batched_tokens - n_seqs + 1
    period = max((4, *dims.compress_ratios))
    completing = max(dims.max_model_len - length, period) // period * period - 1
    positions = [completing] * (n_seqs - 1) + [(completing + i) % dims.max_model_len for i in range(length)]
    rows = [*range(n_seqs - 1)] + [n_seqs - 1] * length
    step = steps.build_step([0] * len(rows), positions, rows, 0, tables, page_shape(dims, geometry), DEVICE)
    step.max_position = dims.max_model_len - 1
    return step


def _largest(tensors: list[PeakTensor] | tuple[PeakTensor, ...]) -> tuple[Site, ...]:
    chosen = sorted(tensors, key=lambda tensor: -tensor.bytes)[:SITES]
    return tuple(Site(tensor.site, tensor.shape, tensor.dtype, tensor.bytes) for tensor in chosen)


def _optimizations(toggles: ToggleSet) -> tuple[str, ...]:
    default = ToggleSet().names()
    return tuple(name for name in toggles.names() if name not in default)


__all__ = ["fake_tensors", "project"]
