"""One training run of the draft against a frozen target; the loop, checkpoints and curve are the target's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from impl.dims import Dims
from impl.model.draft_weights import PREFIX, random_draft_weights, save_draft_weights
from impl.train.draft_forward import block_rows, compiled_draft, draft, positions_of, target_context
from impl.train.draft_losses import draft_loss, survival
from impl.train.forward import Trace, Weights, compiled
from impl.train.graphs import Timed, Work
from impl.train.packing import COUNTED, TALLY
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
class DraftSettings(Run):
    """What fixes a run of the draft."""

    learning_rate: float = 4e-3
    target: str = ""
    """SHA-256 of the target's file"""
    warmup: float = 0.04
    """Share of the run"""
    gamma: float = 4.0
    """Draft k weighs exp(-k / gamma)."""
    anchor_share: float = 0.33
    """Anchors a step, as a share of its tokens"""
    anchors: int | None = None
    """Instead: anchors a step at scale 1, so that steps of any text have as many"""
    anchor_floor: float = 0.1
    """Least chance of a text row to be an anchor, relative to an answer row's: served rounds are in answers."""


UNSEEN = frozenset((COUNTED, TALLY))
"""Batches that a draft does without: a tally's letters are short answers to a long text, and few are ever served."""
RECIPES: dict[str, dict[str, Any]] = {"micro": {"learning_rate": 2e-3, "anchors": 2700, "anchor_floor": 0.2}}
"""Dims name -> the settings in which its draft's run differs from that of pico's."""


class Drafting(NamedTuple):
    """What the work of one step gives."""

    terms: Tensor
    """`[4]`: loss, CE, distance, confidence"""
    survival: Tensor
    """`[K]`: a_k at temperature 1, on the training text"""
    expert_load: dict[int, Tensor]


@dataclass(frozen=True)
class Point:
    """One step. Tensors stay on the device until a report wants them."""

    progress: float
    learning_rate: float
    terms: Tensor
    survival: Tensor


@dataclass(frozen=True)
class DraftReport:
    """Means since the last report."""

    step: int
    progress: float
    tokens: int
    minutes: float
    learning_rate: float
    loss: float
    ce: float
    distance: float
    confidence: float
    acceptance_length: float
    """At temperature 1, on the training text"""


def initial_draft_weights(dims: Dims, target: Weights, seed: int) -> dict[str, Tensor]:
    """Random layers with small outputs, the target's own final head, and no Markov bias or confidence yet."""
    weights = random_draft_weights(dims, seed)
    for name, tensor in weights.items():
        if name.endswith(("wo_b", "moe.w2", "moe.shared_w2")):
            tensor.mul_((2 * dims.n_draft_layers) ** -0.5)
        elif name.endswith(("markov.w2", "confidence")):
            tensor.zero_()
        elif (own := name.removeprefix(PREFIX)).startswith("hc_head.") or own == "norm":
            tensor.copy_(target[own])
    return weights


def new_draft_state(dims: Dims, target: Weights, settings: DraftSettings, device: str) -> State:
    return state_of(initial_draft_weights(dims, target, settings.seed), settings, device)


def load_draft_checkpoint(path: Path, dims: Dims, target: Weights, settings: DraftSettings, device: str) -> State:
    """The state saved in `path`. Raises ValueError when it is missing or its settings or target are others."""
    return restored(path, new_draft_state(dims, target, settings, device), dims, settings, device)


def learning_rate(progress: float, settings: DraftSettings) -> float:
    warm = min(1.0, 0.01 + progress / settings.warmup)
    return settings.learning_rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def pick_anchors(positions: Tensor, label_weights: Tensor, settings: DraftSettings, step: int) -> Tensor:
    """Row numbers, int64 `[N]`, drawn without repeat by the loss weight of the row after; N is the same for the same T.

    positions int64 and label_weights fp32 `[T]`; a weight of 0 marks rows that are no label. Rows after which nothing
    can be drafted, and position 0, which has no context, have no chance (unless too few others are left: the loss then
    skips their drafts).
    """
    next_weight = torch.cat((label_weights[1:], label_weights.new_zeros(1)))
    last = torch.cat((positions[1:], positions.new_zeros(1))) == 0
    chance = next_weight.clamp_min(settings.anchor_floor)
    chance = chance.masked_fill(last | (next_weight == 0) | (positions == 0), 1e-30)
    gen = torch.Generator(chance.device).manual_seed(settings.seed * 1_000_003 + step)
    uniform = torch.rand(len(chance), generator=gen, device=chance.device).clamp(1e-7, 1 - 1e-7)
    gumbel = -(-uniform.log()).log()
    fixed = settings.anchors and settings.anchors * settings.scale
    count = fixed or max(1, int(len(chance) * settings.anchor_share))
    return (chance.log() + gumbel).topk(count, sorted=False).indices


def differentiate(
    state: State, target: Weights, dims: Dims, settings: DraftSettings, use_compiler: bool = False
) -> Work:
    """Work on one step: anchors, label weights and sequences of ids; its gradients are added up."""
    of_target, of_draft = (compiled(), compiled_draft()) if use_compiler else (None, None)

    def work(anchors: Tensor, label_weights: Tensor, *sequences: Tensor) -> Drafting:
        context = target_context(target, sequences, dims, parts=of_target)
        trace = Trace([], {})
        drafted = draft(state.weights, target, context, anchors, dims, trace=trace, parts=of_draft)
        rows, inside = block_rows(context, anchors, dims.draft_tokens + 1)
        labels, valid = context.ids[rows[:, 1:]], inside[:, 1:] & (label_weights[rows[:, 1:]] > 0)
        target_logits = context.logits[rows[:, :-1]]
        terms = draft_loss(drafted.logits, drafted.confidence, target_logits, labels, valid, settings.gamma)
        terms.loss.backward()
        alive = survival(drafted.logits, target_logits, labels, valid)
        return Drafting(torch.stack(terms).detach(), alive, trace.expert_load)

    return work


def draft_step(state: State, settings: DraftSettings, batches: Mapping[str, Rows], work: Timed) -> Point:
    """One optimizer step on all of a step's batches together."""
    progress = progress_of(state, settings)
    rate = learning_rate(progress, settings)
    device = next(iter(state.weights.values())).device
    rows = [made for name, made in batches.items() if name not in UNSEEN]
    sequences = [on_device(ids, device).long() for ids, _ in rows]
    label_weights = torch.cat([on_device(weights, device).flatten() for _, weights in rows])
    anchors = pick_anchors(positions_of(sequences), label_weights, settings, state.step)
    drafting: Drafting = work(anchors, label_weights, *sequences)
    apply_gradients(state, rate, settings)
    own = {name.removeprefix(PREFIX): tensor for name, tensor in state.weights.items()}
    even_loads(own, {layer: [load] for layer, load in drafting.expert_load.items()}, settings.bias_rate)
    state.step += 1
    state.tokens += len(label_weights)
    return Point(progress, rate, drafting.terms, drafting.survival)


def mean_point(window: list[Point], state: State) -> DraftReport:
    last = window[-1]
    terms = torch.stack([point.terms for point in window]).mean(0).tolist()
    length = 1 + torch.stack([point.survival for point in window]).mean(0).sum().item()
    loss, ce, distance, confidence = (round(term, 4) for term in terms)
    return DraftReport(state.step, round(last.progress, 4), state.tokens, round(state.seconds / 60, 3),
                       round(last.learning_rate, 7), loss, ce, distance, confidence, round(length, 3))  # fmt: skip


def train_draft(
    state: State, target: Weights, dims: Dims, settings: DraftSettings, out: Path,
    on_report: Callable[[DraftReport], None], *, call: Call | None = None, means: Means | None = None,
    report_every: int = 25, checkpoint_seconds: float = 60.0,
) -> bool:  # fmt: skip
    """Run to the end of `settings` or of the call; True when the run is done.

    Writes `checkpoint.pt`, `curve.jsonl` (appended) and `<name>-dspark.safetensors`.
    """
    means = means or Means()
    work = timed(state, means, lambda use: differentiate(state, target, dims, settings, use))
    with closing(begun(stream(dims.name, settings.seed, state.step, settings.scale, means.workers))) as data:
        done = run(state, dims, settings, out, lambda: draft_step(state, settings, next(data), work), mean_point,
                   on_report, call or Call(), work, report_every, checkpoint_seconds)  # fmt: skip
    save_draft_weights(out / f"{dims.name}-dspark.safetensors", saved(state, dims), dims)
    return done
