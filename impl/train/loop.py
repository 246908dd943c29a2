"""One training run of the target: AdamW with warm-up and cosine, seeded, resumable to the bit (on one machine)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from impl.dims import Dims
from impl.model.weights import random_weights, save_weights
from impl.train.attention import View
from impl.train.forward import Parts, compiled, worth_compiling
from impl.train.graphs import Timed, Work
from impl.train.losses import Part, batch_loss
from impl.train.packing import WITHOUT_C4A
from impl.train.prefetch import Rows, begun, stream
from impl.train.runs import (
    Call,
    Means,
    Run,
    State,
    apply_gradients,
    even_loads,
    on_device,
    progress_of,
    restored,
    run,
    saved,
    state_of,
    timed,
)


@dataclass(frozen=True)
class Settings(Run):
    """What fixes a run of the target."""

    warmup_steps: int = 100
    index_weight: float = 0.3
    dense_until: float = 0.4
    """Share of the run in which indexed layers see every visible entry."""
    narrow: tuple[tuple[float, int], ...] = ()
    """Up to each share of the run, the rows that the sliding window shows. What lies a little further back is then
    found through compressed entries, while these are few: there looking far back begins."""
    row_floor: float | None = None
    """With it the indexer learns from a row by its target's weight, but at least by this."""
    refine: bool = False
    """Text from behind the curriculum: for a run from trained weights."""


RECIPES: dict[str, dict[str, Any]] = {
    "micro": {
        "learning_rate": 2e-3,
        "warmup_steps": 200,
        "index_weight": 1.0,
        "dense_until": 0.5,
        "row_floor": 0.05,
        "narrow": ((0.10, 8), (0.16, 16), (0.22, 32)),
    },
}
"""Dims name -> the settings in which its run differs from pico's."""
REFINED: dict[str, Any] = {"refine": True, "dense_until": 0.0, "narrow": ()}
"""The settings of a run from trained weights, which sees what the engine shows from its first step on."""


@dataclass(frozen=True)
class Point:
    """One step. Tensors stay on the device until a report wants them."""

    progress: float
    learning_rate: float
    loss: Tensor
    answer_loss: dict[str, Tensor]
    index_kl: Tensor


@dataclass(frozen=True)
class Report:
    """Means since the last report, for the curve and the progress line."""

    step: int
    progress: float
    tokens: int
    minutes: float
    learning_rate: float
    loss: float
    answer_loss: dict[str, float]
    index_kl: float


def initial_weights(dims: Dims, seed: int) -> dict[str, Tensor]:
    """Random weights with embeddings of the streams' scale and small sublayer outputs, so that early steps are calm."""
    weights = random_weights(dims, seed)
    for name, tensor in weights.items():
        if name == "embed":
            tensor.mul_(25.0)
        elif name.endswith(("wo_b", "moe.w2", "moe.shared_w2")):
            tensor.mul_((2 * dims.n_layers) ** -0.5)
    return weights


def new_state(dims: Dims, settings: Settings, device: str, start: dict[str, Tensor] | None = None) -> State:
    """A run's state before its first step, from random weights or from `start`."""
    return state_of(start or initial_weights(dims, settings.seed), settings, device)


def learning_rate(step: int, progress: float, settings: Settings) -> float:
    warm = min(1.0, (step + 1) / settings.warmup_steps)
    return settings.learning_rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def reach_at(progress: float, settings: Settings) -> int | None:
    """Rows that the sliding window shows; None is all of it."""
    return next((rows for until, rows in settings.narrow if progress < until), None)


def differentiate(state: State, dims: Dims, settings: Settings, parts: Parts | None = None) -> Work:
    """Work on one batch, ids and token weights: its gradients are added up, its `Part` returned."""

    def work(ids: Tensor, token_weights: Tensor, *, share: float, dense: bool, view: View) -> Part:
        part = batch_loss(state.weights, ids, token_weights, dims, share, settings.index_weight, dense,
                          settings.row_floor, parts if worth_compiling(ids) else None, view)  # fmt: skip
        part.loss.backward()
        return part._replace(loss=part.loss.detach())

    return work


def train_step(state: State, settings: Settings, batches: Mapping[str, Rows], work: Timed) -> Point:
    """One optimizer step over the step's batches; gradients are summed batch by batch."""
    progress = progress_of(state, settings)
    rate = learning_rate(state.step, progress, settings)
    answer_loss: dict[str, Tensor] = {}
    losses: list[Tensor] = []
    index_kl: list[Tensor] = []
    loads: dict[int, list[Tensor]] = {}
    device = state.weights["embed"].device
    for name, (ids, weights) in batches.items():
        view = View(reach_at(progress, settings), "C4A" if name in WITHOUT_C4A else "")
        part: Part = work(on_device(ids, device).long(), on_device(weights, device), share=1 / len(batches),
                          dense=progress < settings.dense_until, view=view)  # fmt: skip
        answer_loss[name] = part.answer_loss
        losses.append(part.loss)
        index_kl.append(part.index_kl)
        for layer, load in part.expert_load.items():
            loads.setdefault(layer, []).append(load)
        state.tokens += ids.size
    apply_gradients(state, rate, settings)
    even_loads(state.weights, loads, settings.bias_rate)
    state.step += 1
    return Point(progress, rate, torch.stack(losses).sum(), answer_loss, torch.stack(index_kl).mean())


def load_checkpoint(path: Path, dims: Dims, settings: Settings, device: str) -> State:
    """The state saved in `path`. Raises ValueError when it is missing or belongs to other settings."""
    return restored(path, new_state(dims, settings, device), dims, settings, device)


def train(
    state: State, dims: Dims, settings: Settings, out: Path, on_report: Callable[[Report], None], *,
    call: Call | None = None, means: Means | None = None, report_every: int = 25, checkpoint_seconds: float = 60.0,
) -> bool:  # fmt: skip
    """Run to the end of `settings` or of the call; True when the run is done.

    Writes `checkpoint.pt`, `curve.jsonl` (appended) and `<name>.safetensors`.
    """
    means = means or Means()
    work = timed(state, means, lambda use: differentiate(state, dims, settings, compiled() if use else None))
    how_far = progress_ahead(state, settings)
    with closing(begun(stream(dims.name, settings.seed, state.step, settings.scale, means.workers, how_far))) as data:
        done = run(state, dims, settings, out, lambda: train_step(state, settings, next(data), work),
                   mean_report, on_report, call or Call(), work, report_every, checkpoint_seconds)  # fmt: skip
    save_weights(out / f"{dims.name}.safetensors", saved(state, dims), dims)
    return done


def progress_ahead(state: State, settings: Settings) -> Callable[[int], float]:
    """How far the run will be at a step; where minutes count, how far it is now."""
    if settings.refine:
        return lambda step: 1.0
    if settings.steps is None:
        return lambda step: progress_of(state, settings)
    steps = settings.steps
    return lambda step: min(1.0, step / steps)


def mean_report(window: list[Point], state: State) -> Report:
    last = window[-1]

    def mean(values: list[Tensor]) -> float:
        return round(torch.stack(values).mean().item(), 4)

    return Report(
        state.step, round(last.progress, 4), state.tokens, round(state.seconds / 60, 3), round(last.learning_rate, 7),
        mean([p.loss for p in window]),
        {name: mean([p.answer_loss[name] for p in window if name in p.answer_loss]) for name in last.answer_loss},
        mean([p.index_kl for p in window]),
    )  # fmt: skip
