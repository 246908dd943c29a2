"""One rank's engine: boot (weights, profile, pages) and step (schedule, forward, sample, append)."""

from __future__ import annotations

import logging
import platform
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from impl import __version__
from impl.engine.blocks import BlockAllocator, least_blocks
from impl.engine.build import batch_invariant, sources_digest
from impl.engine.config import EngineConfig, check_weights, load_draft_parameters, load_parameters
from impl.engine.faults import Faults
from impl.engine.index_rows import IN_PLACE, SHARED, IndexRows
from impl.engine.pages import BlockTables, Pool, allocate_pool, draft_pages, layer_pages, page_shape
from impl.engine.profile import MemoryMeter, MemoryProfile
from impl.engine.request import FinishReason, Request, TokenLogprobs
from impl.engine.rounds import Drawn, Rounds, Rows, token_logprobs
from impl.engine.scheduler import Chunk, Plan, Scheduler
from impl.engine.step import Step, build_step
from impl.engine.step_replay import StepReplay
from impl.engine.step_times import StepTimes
from impl.engine.target_replay import TargetReplay
from impl.handshake import Handshake, Markers
from impl.kv_geometry import Capacity, KvGeometry, Rule
from impl.model.target import Target
from impl.ops import dispatch
from impl.ops.sampling import Logprobs, SamplingRows, logprobs, sample
from impl.ops.workspace import Workspace

log = logging.getLogger("impl.engine.runner")

KV_RULE: Rule = "0.25.1"
"""Tokens and concurrency by the version that, like this engine, has one batch in flight."""
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """News of a request: a token, its end, or (without a token) the error that ended it."""

    request: Request
    token: int | None
    text: str = ""
    """Text that may be handed out now; a token that might begin a stop string adds none yet."""
    logprobs: TokenLogprobs | None = None
    previous_time: float | None = None
    """When the token before this one was appended."""
    finish_reason: FinishReason | None = None
    """Set on a request's last event. (The request itself may be further on than the event.)"""
    error: str = ""
    follows: bool = False
    """Whether it came out of the same step as the token before it, as an accepted draft does."""


class Runner:
    """Weights, pages and scheduler of one rank. Not thread-safe: one thread boots it and steps it."""

    def __init__(self, config: EngineConfig, handshake: Handshake) -> None:
        """Boot: load, measure, cut the rest of the budget into pages; writes the handshake's files.

        Raises ValueError, with one line, for weights or a budget that cannot work.
        """
        torch.set_num_threads(config.threads)
        self.config = config
        self.dims = dims = config.dims
        self.device = torch.device(config.device)
        self.handshake = handshake
        self.markers = Markers()
        self.faults = Faults(config.toggles, self.markers, self.device)
        self.workspace = Workspace(self.device)
        self.target_replay: TargetReplay | None = None
        self.step_replay: StepReplay | None = None
        self.step_times = StepTimes()
        self.geometry = KvGeometry.of(dims, n_draft_layers=config.n_draft_layers)
        self.page_shape = page_shape(dims, self.geometry)
        with MemoryMeter(self.device) as meter:
            start = time.monotonic()
            weights, what = load_parameters(config, self.device)
            drafting, draft_what = load_draft_parameters(config, self.device)
            self.target = Target(
                dims, weights, config.toggles, self.markers, self.workspace, self.device, method=config.speculative
            )
            self.tables = BlockTables(self.geometry.groups, dims.max_num_seqs, dims.max_model_len, self.device)
            self.rounds: Rounds | None = None
            if config.speculative != "none":
                self.rounds = Rounds(
                    config, self.target, drafting, self.tables.tables, self.page_shape, self.markers, self.workspace,
                    self.device,
                )  # fmt: skip
            elif config.toggles.on("dflash_staging_skip"):
                self.markers.refuse("dflash_staging_skip", "inert: there is no draft without --speculative dspark")
            n_bytes = sum(tensor.nbytes for tensor in (*weights.values(), *drafting.values()))
            log.info("Model loading took %.2f GiB and %.6f seconds", n_bytes / GIB, time.monotonic() - start)
            # The profile's step reads and writes the null block only. It stays: it is the pool's block 0.
            null_block, rows = allocate_pool(self.geometry, 1, self.device), self._new_index_rows()
            self._use_pool(null_block, rows)
            self.batch_invariant = batch_invariant(weights, dims, self.device)
            handshake.conditions(self._conditions(what, draft_what))
            parameters = [*weights.values(), *drafting.values()]
            self.profile = meter.profile(
                parameters, self.workspace, self._whole_profile_step, rows.nbytes if rows is not None else 0
            )
            self.index_maps_per_step = rows.maps if rows is not None else 0
            # As in vLLM, the metadata's buffers come after the profile, and the profile does not know them.
            rows = None
            self._use_pool(null_block, None)
            self.index_rows = self._new_index_rows()
            self._use_pool(null_block, self.index_rows)
            self.resident_bytes = meter.allocated_bytes() - sum(t.nbytes for t in null_block.values())
        self.capacity = self._capacity()
        self.n_blocks = self.capacity.blocks
        self._log_capacity()
        if computed := dispatch.asked():
            log.info("Operations by backend: %s", ", ".join(f"{op} {'/'.join(by)}" for op, by in computed.items()))
        # Graphs are captured over the final pages, so a replaying engine does not know their bytes yet.
        self._write_profile(0 if config.graph_mode == "eager" else None)
        self.write_markers()

    def allocate_pages(self) -> None:
        """Allocate the pool and start with an empty one; before this the engine knows its memory only."""
        dims, n_blocks = self.dims, self.n_blocks + 1
        self.pool = allocate_pool(self.geometry, n_blocks, self.device)
        self._use_pool(self.pool, self.index_rows)
        self.blocks = BlockAllocator(self.geometry.groups, n_blocks, dims.max_num_seqs)
        self.scheduler = Scheduler(
            self.blocks, dims.max_num_batched_tokens, dims.max_num_seqs, self.config.draft_tokens
        )

        if self.config.graph_mode == "replay":
            self._capture()

    def _capture(self) -> None:
        """Capture the graphs, over the final pages, and report their bytes."""
        start, graph_bytes = time.monotonic(), 0
        if self.config.capture == "steps":
            self.step_replay = StepReplay(
                self.config, self.target, self.rounds, self.tables, self.page_shape, self.pages, self.markers,
                self.workspace, self.step_times, self.device,
            )  # fmt: skip
            graph_bytes += self.step_replay.nbytes
        elif self.rounds is not None:
            self.rounds.proposer.capture()
            graph_bytes += self.rounds.proposer.graph_bytes
        if self.config.capture == "rounds":
            self.target_replay = TargetReplay(
                self.dims, 1 + self.config.draft_tokens, self.target, self.tables.tables, self.page_shape, self.pages,
                self.markers, self.device,
            )  # fmt: skip
            graph_bytes += self.target_replay.nbytes
        log.info("Graph capturing finished in %.2f secs, took %d bytes", time.monotonic() - start, graph_bytes)
        self._write_profile(graph_bytes)

    def _write_profile(self, graph_bytes: int | None) -> None:
        profile = kv_profile(self.profile, self.capacity, self.config.memory_budget, self.device)
        known = {"resident_bytes": self.resident_bytes, "index_maps_per_step": self.index_maps_per_step}
        self.handshake.kv_profile({**profile, **known, "graph_bytes": graph_bytes})

    def _new_index_rows(self) -> IndexRows | None:
        if not any(ratio > 4 for ratio in self.dims.compress_ratios):
            for toggle in filter(self.config.toggles.on, (SHARED, IN_PLACE)):
                self.markers.refuse(toggle, "inert: no layer of this shape reads dense compressed entries")
            return None
        return IndexRows(
            self.dims, self.config.toggles, self.markers, self.device, mixed_graphs=TargetReplay.mixes_rows
        )

    def _use_pool(self, pool: Pool, index_rows: IndexRows | None) -> None:
        self.pages = layer_pages(self.dims, self.geometry, pool, index_rows)
        if self.rounds is not None:
            self.rounds.pages = draft_pages(self.dims, self.geometry, pool)

    def write_markers(self, at_most_every_s: float = 0.0) -> None:
        self.handshake.markers(self.markers, at_most_every_s=at_most_every_s)

    def step(self) -> list[TokenEvent]:
        """Run one step and append its tokens. An error ends the requests of that step, and only them."""
        plan = self.scheduler.plan()
        if not plan.chunks:
            return []
        try:
            with self.faults.around_step():
                events = self._append(plan, self._run(plan))
        except Exception as error:
            log.exception("A step of %d tokens has failed", plan.n_tokens)
            return self._fail(plan, f"{type(error).__name__}: {error}")
        self.scheduler.complete(plan)
        return events

    @torch.no_grad()
    def _run(self, plan: Plan) -> Drawn:
        """Forward and sample: tokens, and logprobs where they are wanted, for each chunk that samples."""
        if self.step_replay is not None:
            drawn = self.step_replay.run(plan, self.blocks.changes)
            if drawn is not None:
                return drawn
        with self.step_times.around(plan, replayed=False):
            return self._run_launching(plan)

    def _run_launching(self, plan: Plan) -> Drawn:
        """The step whose operations are launched one by one, or with graphs for parts of it."""
        self.tables.apply(self.blocks.changes)
        replayed = self.target_replay.run(plan) if self.target_replay is not None else None
        if replayed is None:
            step = self._step_of(plan)
            output, rows = self.target.forward(step, self.pages), Rows.of(plan)
        else:
            assert self.target_replay is not None
            step, output = replayed.step, replayed.output
            rows = Rows.even(plan, self.target_replay.width, replayed.n_padded)
        if self.rounds is not None:
            return self.rounds.finish(plan, step, output, rows)
        if not rows.sampled:
            return Drawn([], [])
        params = [chunk.request.sampling for chunk in rows.sampled]
        how = SamplingRows.of(
            [(p.temperature, p.top_k, p.top_p, p.seed) for p in params],
            [chunk.end - 1 for chunk in rows.sampled],
            self.device,
        )
        n_top = max((p.logprobs for p in params if p.logprobs is not None), default=None)
        tokens, logs = self._sample(output.hidden, rows.last, how, n_top)
        return Drawn([[t] for t in tokens], [[token_logprobs(logs, i, p.logprobs)] for i, p in enumerate(params)])

    def _step_of(self, plan: Plan) -> Step:
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for chunk in plan.chunks:
            ids += chunk.request.tokens(chunk.start, chunk.end - chunk.n_drafted)
            ids += chunk.request.drafts[: chunk.n_drafted]
            positions += range(chunk.start, chunk.end)
            rows += [chunk.request.row or 0] * (chunk.end - chunk.start)
        return self._build(ids, positions, rows, plan.n_decode_rows)

    def _build(self, ids: list[int], positions: list[int], rows: list[int], n_decode: int) -> Step:
        return build_step(ids, positions, rows, n_decode, self.tables.tables, self.page_shape, self.device)

    def _sample(
        self, hidden: Tensor, ends: list[int], how: SamplingRows, n_top: int | None
    ) -> tuple[list[int], Logprobs | None]:
        with self.workspace.scope():
            logits = self.target.logits(hidden[torch.tensor(ends).to(self.device)])
            tokens = sample(logits, how, self.workspace)
            logs = logprobs(logits, tokens, n_top, self.workspace) if n_top is not None else None
        return tokens.tolist(), logs

    def _append(self, plan: Plan, drawn: Drawn) -> list[TokenEvent]:
        """Append each request's tokens up to the one that ends it."""
        events = []
        sampled = (chunk.request for chunk in plan.chunks if chunk.samples)
        for request, tokens, logprobs_ in zip(sampled, drawn.tokens, drawn.logprobs, strict=True):
            for i, (token, logs) in enumerate(zip(tokens, logprobs_, strict=True)):
                before = request.last_token_time
                request.append(token, request.text_of([token]))
                text, end = request.new_text(), request.finish_reason
                events.append(TokenEvent(request, token, text, logs, before, end, follows=i > 0))
                if request.finish_reason:
                    break
        return events

    def _fail(self, plan: Plan, why: str) -> list[TokenEvent]:
        for chunk in plan.chunks:
            self.scheduler.finish(chunk.request, "error")
        return [TokenEvent(chunk.request, None, finish_reason="error", error=why) for chunk in plan.chunks]

    def _whole_profile_step(self) -> None:
        with self.faults.around_step():
            self._profile_step()

    @torch.no_grad()
    def _profile_step(self) -> None:
        """The largest step there is: T rows in as many requests as may run, sampled and with logprobs.

        All but one request have one row, and each starts where every ratio completes an entry, so that no step
        has more entries; rows reach as far back as the longest context.
        """
        dims = self.dims
        n_seqs = min(dims.max_num_seqs, dims.max_num_batched_tokens)
        length = dims.max_num_batched_tokens - n_seqs + 1
        period = max((4, *dims.compress_ratios))
        completing = max(dims.max_model_len - length, period) // period * period - 1
        positions = [completing] * (n_seqs - 1) + [(completing + i) % dims.max_model_len for i in range(length)]
        rows = [*range(n_seqs - 1)] + [n_seqs - 1] * length
        # Single rows are the last of a prompt each: no row is a decode, so that every row of indices is mapped.
        step = self._build([0] * len(rows), positions, rows, 0)
        step.max_position = dims.max_model_len - 1
        output = self.target.forward(step, self.pages)
        if self.rounds is not None:
            self.rounds.profile(step, output)
            return
        how = SamplingRows.of([(1.0, 1, 0.5, 0)] * n_seqs, [0] * n_seqs, self.device)
        self._sample(output.hidden, list(range(n_seqs)), how, min(20, dims.vocab_size))

    def _capacity(self) -> Capacity:
        dims, budget = self.dims, self.config.memory_budget
        available = self.profile.available_bytes(budget)
        least = least_blocks(self.geometry.groups, 1)
        needed = least * self.geometry.bucket_bytes
        if available < needed:
            raise ValueError(
                f"--memory-budget {budget} leaves {available} bytes for KV pages, one token needs {needed}: "
                f"give at least {budget - available + needed}"
            )
        return self.geometry.capacity(available, dims.max_num_batched_tokens, dims.max_model_len, KV_RULE)

    def _log_capacity(self) -> None:
        kind = "GPU" if self.device.type == "cuda" else "CPU"
        longest = self.dims.max_model_len
        log.info("Available KV cache memory: %.2f GiB", self.capacity.available_bytes / GIB)
        log.info("%s KV cache size: %s tokens", kind, f"{self.capacity.tokens:,}")
        log.info("Maximum concurrency for %s tokens per request: %.2fx", f"{longest:,}", self.capacity.max_concurrency)
        if least_blocks(self.geometry.groups, longest) > self.n_blocks:
            log.warning("The KV pool cannot hold one request of %s tokens; longer ones are refused", f"{longest:,}")

    def _conditions(self, weights: str, draft_weights: str) -> dict[str, Any]:
        dims, config = self.dims, self.config
        return {
            "engine": "embedded",
            "impl_version": __version__,
            "impl_sources": sources_digest(),
            "torch": torch.__version__,
            "python": platform.python_version(),
            "device": torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "cpu",
            "dims": dims.to_json(),
            "weights": weights,
            "load_format": config.load_format,
            "toggles": list(config.toggles.names()),
            "seed": config.seed,
            "threads": torch.get_num_threads(),
            "cache_state": "none",
            "graph_mode": config.graph_mode,
            "capture": config.capture if config.graph_mode == "replay" else "none",
            "batch_invariant": self.batch_invariant,
            "speculative": config.speculative,
            "draft_tokens": config.draft_tokens,
            "draft_weights": draft_weights,
            "draft_sample_method": config.draft_sample_method if self.rounds else "none",
            "rejection_sample_method": "synthetic" if config.synthetic_rates is not None else "strict",
            "synthetic_rates": list(config.synthetic_rates or ()),
            "max_num_batched_tokens": dims.max_num_batched_tokens,
            "max_model_len": dims.max_model_len,
            "max_num_seqs": dims.max_num_seqs,
            "kv_rule": KV_RULE,
            "requested_bytes": config.memory_budget,
        }


def kv_profile(
    profile: MemoryProfile, capacity: Capacity, requested_bytes: int, device: torch.device
) -> dict[str, Any]:
    """The handshake's kv_profile: bytes by component, and what they are worth by the rule."""
    return {
        "device": str(device),
        "requested_bytes": requested_bytes,
        **profile.to_json(),
        "available_bytes": capacity.available_bytes,
        "block_bytes": capacity.block_bytes,
        "blocks": capacity.blocks,
        "blocks_per_max_request": capacity.blocks_per_max_request,
        "max_model_len": capacity.max_model_len,
        "tokens": capacity.tokens,
        "max_concurrency": capacity.max_concurrency,
    }


__all__ = ["Chunk", "EngineConfig", "Runner", "TokenEvent", "batch_invariant", "check_weights", "kv_profile"]
