"""One training run of the draft against a frozen target; the loop, checkpoints and curve are the target's."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from impl.dims import Dims
from impl.model.draft_weights import PREFIX, random_draft_weights, save_draft_weights
from impl.train.draft_forward import Context, block_rows, draft, target_context
from impl.train.draft_losses import draft_loss, survival
from impl.train.forward import Trace, Weights
from impl.train.loop import Run, State, apply_gradients, even_loads, progress_of, restored, run, saved, state_of
from impl.train.prefetch import Rows


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
    anchor_floor: float = 0.1
    """Least chance of a text row to be an anchor, relative to an answer row's: served rounds are in answers."""


@dataclass(frozen=True)
class Point:
    """One step. Tensors stay on the device until a report wants them."""

    step: int
    progress: float
    tokens: int
    minutes: float
    learning_rate: float
    terms: Tensor
    """`[4]`: loss, CE, distance, confidence"""
    survival: Tensor
    """`[K]`: a_k at temperature 1, on the training text"""


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


def pick_anchors(context: Context, label_weights: Tensor, settings: DraftSettings, step: int) -> Tensor:
    """Row numbers, int64 `[N]`, drawn without repeat by the loss weight of the row after; N depends on T only.

    `label_weights` `[T]`: 0 marks rows that are no label. Rows after which nothing can be drafted, and position 0,
    which has no context, have no chance (unless too few others are left: the loss then skips their drafts).
    """
    next_weight = torch.cat((label_weights[1:], label_weights.new_zeros(1)))
    last = torch.cat((context.positions[1:], context.positions.new_zeros(1))) == 0
    chance = next_weight.clamp_min(settings.anchor_floor)
    chance = chance.masked_fill(last | (next_weight == 0) | (context.positions == 0), 1e-30)
    gen = torch.Generator(chance.device).manual_seed(settings.seed * 1_000_003 + step)
    uniform = torch.rand(len(chance), generator=gen, device=chance.device).clamp(1e-7, 1 - 1e-7)
    gumbel = -(-uniform.log()).log()
    count = max(1, int(len(chance) * settings.anchor_share))
    return (chance.log() + gumbel).topk(count, sorted=False).indices


def draft_step(
    state: State, target: Weights, dims: Dims, settings: DraftSettings, data: Iterator[list[Rows]]
) -> Point:  # fmt: skip
    """One optimizer step on the next batches of `data`."""
    progress = progress_of(state, settings)
    started = time.monotonic()
    rate = learning_rate(progress, settings)
    device = target["embed"].device
    work = [(on_device(ids, device).long(), on_device(weights, device)) for ids, weights in next(data)]
    context = target_context(target, [ids for ids, _ in work], dims)
    label_weights = torch.cat([weights.flatten() for _, weights in work])
    anchors = pick_anchors(context, label_weights, settings, state.step)
    trace = Trace([], {})
    drafted = draft(state.weights, target, context, anchors, dims, trace=trace)
    rows, inside = block_rows(context, anchors, dims.draft_tokens + 1)
    labels, valid = context.ids[rows[:, 1:]], inside[:, 1:] & (label_weights[rows[:, 1:]] > 0)
    target_logits = context.logits[rows[:, :-1]]
    terms = draft_loss(drafted.logits, drafted.confidence, target_logits, labels, valid, settings.gamma)
    terms.loss.backward()
    apply_gradients(state, rate, settings)
    own = {name.removeprefix(PREFIX): tensor for name, tensor in state.weights.items()}
    even_loads(own, {layer: [load] for layer, load in trace.expert_load.items()}, settings.bias_rate)
    alive = survival(drafted.logits, target_logits, labels, valid)
    state.step += 1
    state.tokens += len(context.ids)
    state.seconds += time.monotonic() - started
    return Point(state.step, progress, state.tokens, state.seconds / 60, rate, torch.stack(terms).detach(), alive)


def on_device(rows: object, device: torch.device) -> Tensor:
    tensor = torch.as_tensor(rows)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def mean_point(window: list[Point]) -> DraftReport:
    last = window[-1]
    terms = torch.stack([point.terms for point in window]).mean(0).tolist()
    length = 1 + torch.stack([point.survival for point in window]).mean(0).sum().item()
    loss, ce, distance, confidence = (round(term, 4) for term in terms)
    return DraftReport(last.step, round(last.progress, 4), last.tokens, round(last.minutes, 3),
                       round(last.learning_rate, 7), loss, ce, distance, confidence, round(length, 3))  # fmt: skip


def train_draft(
    state: State, target: Weights, dims: Dims, settings: DraftSettings, out: Path, data: Iterator[list[Rows]],
    on_report: Callable[[DraftReport], None], report_every: int = 25, checkpoint_seconds: float = 60.0,
) -> Path:  # fmt: skip
    """Run to the end of `settings`; writes `checkpoint.pt`, `curve.jsonl` (appended) and the draft; returns its path.

    `data` starts at the state's step.
    """
    run(state, dims, settings, out, lambda: draft_step(state, target, dims, settings, data), mean_point, on_report,
        report_every, checkpoint_seconds)  # fmt: skip
    path = out / f"{dims.name}-dspark.safetensors"
    save_draft_weights(path, saved(state), dims)
    return path
