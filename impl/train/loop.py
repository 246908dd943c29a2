"""One training run: AdamW with warm-up and cosine, seeded, resumable to the bit (on one machine and thread count)."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast

import torch
from torch import Tensor

from impl.dims import Dims
from impl.model.weights import random_weights, save_weights
from impl.train.data import batches
from impl.train.losses import batch_loss


@dataclass(frozen=True)
class Run:
    """What any run has. One of `steps` and `minutes` is set; minutes count training time over all resumptions."""

    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    scale: int = 1
    learning_rate: float = 4e-3
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    bias_rate: float = 1e-3
    """Step of the router biases toward an even load."""


@dataclass(frozen=True)
class Settings(Run):
    """What fixes a run of the target."""

    warmup_steps: int = 100
    index_weight: float = 0.3
    dense_until: float = 0.4
    """Share of the run in which indexed layers see every visible entry."""
    refine: bool = False
    """Start behind the curriculum: for a run from trained weights."""


@dataclass
class State:
    weights: dict[str, Tensor]
    optimizer: torch.optim.AdamW
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


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


def state_of(start: Mapping[str, Tensor], settings: Run, device: str) -> State:
    """Weights and a fresh optimizer; vectors and router biases take no weight decay, the biases no gradient."""
    weights = {name: t.to(device) for name, t in start.items()}
    matrices: list[Tensor] = []
    vectors: list[Tensor] = []
    for name, tensor in weights.items():
        if tensor.is_floating_point() and not name.endswith("moe.bias"):
            tensor.requires_grad_()
            (matrices if tensor.dim() > 1 else vectors).append(tensor)
    groups = [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return State(weights, torch.optim.AdamW(groups, lr=settings.learning_rate, betas=(0.9, 0.98), fused=True))


def progress_of(state: State, settings: Run) -> float:
    """Share of the run that is done, 0 to 1."""
    if settings.steps is not None:
        return min(1.0, state.step / settings.steps)
    assert settings.minutes is not None
    return min(1.0, state.seconds / (60 * settings.minutes))


def learning_rate(step: int, progress: float, settings: Settings) -> float:
    warm = min(1.0, (step + 1) / settings.warmup_steps)
    return settings.learning_rate * warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * progress)))


def train_step(state: State, dims: Dims, settings: Settings) -> Report:
    """One optimizer step over the step's batches; gradients are summed batch by batch."""
    progress = progress_of(state, settings)
    started = time.monotonic()
    rate = learning_rate(state.step, progress, settings)
    work = batches(settings.seed, state.step, 1.0 if settings.refine else progress, settings.scale)
    answer_loss: dict[str, float] = {}
    loss = 0.0
    index_kl: list[float] = []
    loads: dict[int, list[Tensor]] = {}
    for name, batch in work.items():
        dense = progress < settings.dense_until
        part = batch_loss(state.weights, batch, dims, 1 / len(work), settings.index_weight, dense)
        part.loss.backward()
        answer_loss[name] = part.answer_loss
        loss += part.loss.item()
        index_kl.append(part.index_kl)
        for layer, load in part.expert_load.items():
            loads.setdefault(layer, []).append(load)
        state.tokens += sum(map(len, batch.ids))
    apply_gradients(state, rate, settings)
    even_loads(state.weights, loads, settings.bias_rate)
    state.step += 1
    state.seconds += time.monotonic() - started
    return Report(state.step, progress, state.tokens, state.seconds / 60, rate, loss, answer_loss,
                  sum(index_kl) / len(index_kl))  # fmt: skip


def apply_gradients(state: State, rate: float, settings: Run) -> None:
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    torch.nn.utils.clip_grad_norm_(parameters, settings.clip_norm)
    state.optimizer.step()
    state.optimizer.zero_grad()


def even_loads(weights: Mapping[str, Tensor], loads: dict[int, list[Tensor]], rate: float) -> None:
    """Move each router's selection bias a fixed step toward an even load; hash-routed layers have none."""
    for layer, seen in loads.items():
        bias = weights.get(f"layers.{layer}.moe.bias")
        if bias is not None:
            load = torch.stack(seen).mean(0)
            bias += rate * torch.sign(load.mean() - load)


def save_checkpoint(path: Path, state: State, dims: Dims, settings: Run) -> None:
    content = {
        "dims": dims.to_json(), "settings": asdict(settings), "step": state.step, "tokens": state.tokens,
        "seconds": state.seconds, "weights": {k: v.detach() for k, v in state.weights.items()},
        "optimizer": state.optimizer.state_dict(),
    }  # fmt: skip
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    os.replace(partial, path)


def load_checkpoint(path: Path, dims: Dims, settings: Settings, device: str) -> State:
    """The state saved in `path`. Raises ValueError when it is missing or belongs to other settings."""
    return restored(path, new_state(dims, settings, device), dims, settings, device)


def restored(path: Path, state: State, dims: Dims, settings: Run, device: str) -> State:
    """`state`, fresh, brought to where `path` was saved. Raises ValueError as `load_checkpoint` does."""
    if not path.exists():
        raise ValueError(f"no checkpoint at {path}: start without --resume")
    content: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    wanted = {"dims": dims.to_json(), **asdict(settings)}
    found = {"dims": content["dims"], **content["settings"]}
    for name, value in wanted.items():
        if found.get(name) != value:
            detail = "" if name == "dims" else f" {found.get(name)}, not {value}"
            raise ValueError(f"{path} was trained with another {name}{detail}: give the same options to resume")
    with torch.no_grad():
        for name, tensor in state.weights.items():
            tensor.copy_(content["weights"][name])
    state.optimizer.load_state_dict(content["optimizer"])
    state.step, state.tokens, state.seconds = content["step"], content["tokens"], content["seconds"]
    return state


class Progress(Protocol):
    """What a report must hold for the loop to watch the run."""

    @property
    def step(self) -> int: ...
    @property
    def loss(self) -> float: ...


Point = TypeVar("Point")
Mean = TypeVar("Mean", bound=Progress)


def train(
    state: State, dims: Dims, settings: Settings, out: Path, on_report: Callable[[Report], None],
    report_every: int = 25, checkpoint_seconds: float = 60.0,
) -> None:  # fmt: skip
    """Run to the end of `settings`; writes `checkpoint.pt`, `curve.jsonl` (appended) and `<name>.safetensors`."""
    run(state, dims, settings, out, lambda: train_step(state, dims, settings), mean_report, on_report,
        report_every, checkpoint_seconds)  # fmt: skip
    save_weights(out / f"{dims.name}.safetensors", saved(state), dims)


def run(
    state: State, dims: Dims, settings: Run, out: Path, step: Callable[[], Point], mean: Callable[[list[Point]], Mean],
    on_report: Callable[[Mean], None], report_every: int, checkpoint_seconds: float,
) -> None:  # fmt: skip
    """Step to the end of `settings`, reporting the mean of every `report_every` steps; a checkpoint now and then."""
    out.mkdir(parents=True, exist_ok=True)
    saved_at = time.monotonic()
    window: list[Point] = []
    with open(out / "curve.jsonl", "a") as curve, interrupts_held() as asked_to_stop:
        while progress_of(state, settings) < 1.0:
            window.append(step())
            if asked_to_stop():
                save_checkpoint(out / "checkpoint.pt", state, dims, settings)
                raise KeyboardInterrupt
            if state.step % report_every == 0 or progress_of(state, settings) >= 1.0:
                report = mean(window)
                window = []
                curve.write(json.dumps(asdict(cast(Any, report))) + "\n")
                curve.flush()
                on_report(report)
                if not math.isfinite(report.loss):
                    raise ValueError(f"the loss became {report.loss} at step {report.step}: lower --learning-rate")
            if time.monotonic() - saved_at > checkpoint_seconds:
                save_checkpoint(out / "checkpoint.pt", state, dims, settings)
                saved_at = time.monotonic()
    save_checkpoint(out / "checkpoint.pt", state, dims, settings)


@contextmanager
def interrupts_held() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for the end of a step, so that what is saved is a whole one; a second Ctrl-C does not wait."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield lambda: bool(seen)
    finally:
        signal.signal(signal.SIGINT, before)


def saved(state: State) -> dict[str, Tensor]:
    """The weights as a file holds them."""
    return {name: tensor.detach().cpu() for name, tensor in state.weights.items()}


def mean_report(window: list[Report]) -> Report:
    last = window[-1]

    def mean(values: list[float]) -> float:
        return round(sum(values) / len(values), 4)

    return Report(
        last.step, round(last.progress, 4), last.tokens, round(last.minutes, 3), round(last.learning_rate, 7),
        mean([r.loss for r in window]),
        {name: mean([r.answer_loss[name] for r in window if name in r.answer_loss]) for name in last.answer_loss},
        mean([r.index_kl for r in window]),
    )  # fmt: skip
