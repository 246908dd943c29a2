"""Runs in parts: what any training run has, its loop, its checkpoints, and how it stops and goes on."""

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

import numpy as np
import torch
from torch import Tensor

from impl.dims import Dims
from impl.train.graphs import Eager, Graphed, Timed, Work


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
class Call:
    """What one call of a run may take; the run goes on in the next one."""

    steps: int | None = None
    minutes: float | None = None
    """Wall clock, from the first step on"""
    last: bool = False
    """The rest of a run planned in minutes is spread over this call's minutes."""
    compact: bool = False
    """Checkpoints hold the optimizer's moments as bf16: half the size, and no longer to the bit."""


@dataclass(frozen=True)
class Means:
    """How steps are computed; results differ by rounding only."""

    graphs: bool = False
    """CUDA graphs, one for each shape of batch"""
    compiled: bool = False
    """Kernels made by torch.compile"""
    workers: int = 0
    """Processes that make text ahead"""


@dataclass
class State:
    weights: dict[str, Tensor]
    optimizer: torch.optim.AdamW
    step: int = 0
    tokens: int = 0
    seconds: float = 0.0


def state_of(start: Mapping[str, Tensor], settings: Run, device: str) -> State:
    """Weights and a fresh optimizer; vectors and router biases take no weight decay, the biases no gradient."""
    weights = {name: start[name].to(device) for name in sorted(start)}  # a checkpoint's moments go by this order
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


def timed(state: State, means: Means, make: Callable[[bool], Work]) -> Timed:
    """The work that `make` gives, with or without compiled parts, run by the wanted means."""
    if not means.graphs:
        return Eager(make(means.compiled))
    return Graphed(make(means.compiled), parameters(state), make(False) if means.compiled else None)


def on_device(rows: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    tensor = torch.from_numpy(rows)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def parameters(state: State) -> list[Tensor]:
    return [p for group in state.optimizer.param_groups for p in group["params"]]


def apply_gradients(state: State, rate: float, settings: Run) -> None:
    for group in state.optimizer.param_groups:
        group["lr"] = rate
    torch.nn.utils.clip_grad_norm_(parameters(state), settings.clip_norm)
    state.optimizer.step()
    on_gpu = parameters(state)[0].is_cuda
    state.optimizer.zero_grad(set_to_none=not on_gpu)  # graphs add to where the gradients were at their capture


def even_loads(weights: Mapping[str, Tensor], loads: dict[int, list[Tensor]], rate: float) -> None:
    """Move each router's selection bias a fixed step toward an even load; hash-routed layers have none."""
    for layer, seen in loads.items():
        bias = weights.get(f"layers.{layer}.moe.bias")
        if bias is not None:
            load = torch.stack(seen).mean(0)
            bias += rate * torch.sign(load.mean() - load)


def save_checkpoint(path: Path, state: State, dims: Dims, settings: Run, *, compact: bool = False) -> None:
    moments = state.optimizer.state_dict()
    if compact:
        moments["state"] = {
            of: {name: t.bfloat16() if t.dim() else t for name, t in each.items()}
            for of, each in moments["state"].items()
        }
    content = {
        "dims": dims.to_json(), "settings": asdict(settings), "step": state.step, "tokens": state.tokens,
        "seconds": state.seconds, "weights": {k: v.detach() for k, v in state.weights.items()},
        "optimizer": moments,
    }  # fmt: skip
    partial = path.with_suffix(".partial")
    torch.save(content, partial)
    os.replace(partial, path)


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


Step = TypeVar("Step")
Mean = TypeVar("Mean", bound=Progress)


def run(
    state: State, dims: Dims, settings: Run, out: Path, step: Callable[[], Step],
    mean: Callable[[list[Step], State], Mean], on_report: Callable[[Mean], None], call: Call, work: Timed,
    report_every: int, checkpoint_seconds: float,
) -> bool:  # fmt: skip
    """Step to the end of `settings` or of the call, reporting the mean of every `report_every` steps.

    Checkpoints are written now and then and at the end. True when the run is done.
    """
    out.mkdir(parents=True, exist_ok=True)
    began = now = saved_at = time.monotonic()
    deadline = began + 60 * call.minutes if call.minutes is not None else math.inf
    last_step = state.step + call.steps if call.steps is not None else math.inf
    window: list[Step] = []
    with open(out / "curve.jsonl", "a") as curve, interrupts_held() as asked_to_stop:
        while progress_of(state, settings) < 1.0 and now < deadline and state.step < last_step:
            started, set_up = now, work.setup_seconds
            window.append(step())
            now, idle = time.monotonic(), work.setup_seconds - set_up  # setting up is no training
            spent = max(0.0, now - started - idle)
            if call.last and settings.minutes is not None:
                left = 60 * settings.minutes - state.seconds
                state.seconds += left * min(1.0, spent / max(deadline - started - idle, 1e-9))
            else:
                state.seconds += spent
            stopping = asked_to_stop()
            if stopping or now - saved_at > checkpoint_seconds:
                save_checkpoint(out / "checkpoint.pt", state, dims, settings, compact=call.compact)
                saved_at = now
            if stopping:
                raise Terminated if stopping == signal.SIGTERM else KeyboardInterrupt
            over = progress_of(state, settings) >= 1.0 or now >= deadline or state.step >= last_step
            if state.step % report_every == 0 or over:
                report = mean(window, state)
                window = []
                curve.write(json.dumps(asdict(cast(Any, report))) + "\n")
                curve.flush()
                on_report(report)
                if not math.isfinite(report.loss):
                    raise ValueError(
                        f"the loss became {report.loss} at step {report.step}: lower --learning-rate; if compiled, "
                        "try --no-compile (python -m impl.train.speed --check compares them)"
                    )
    save_checkpoint(out / "checkpoint.pt", state, dims, settings, compact=call.compact)
    return progress_of(state, settings) >= 1.0


class Terminated(KeyboardInterrupt):
    """SIGTERM came; what there was is saved."""


@contextmanager
def interrupts_held() -> Iterator[Callable[[], int]]:
    """Ctrl-C and SIGTERM wait for the end of a step, so that what is saved is a whole one; a second does not wait.

    Gives a function that says which signal came, 0 for none.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: 0
        return
    seen: list[int] = []

    def note(number: int, _: object) -> None:
        if seen:
            raise KeyboardInterrupt
        seen.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: seen[0] if seen else 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def saved(state: State, dims: Dims) -> dict[str, Tensor]:
    """The weights as a file holds them: pico's as they are, the matrices of larger shapes as bf16."""
    return {name: kept(tensor.detach().cpu(), dims) for name, tensor in state.weights.items()}


def kept(tensor: Tensor, dims: Dims) -> Tensor:
    small = dims.name != "micro" or tensor.dim() < 2 or not tensor.is_floating_point()
    return tensor if small else tensor.bfloat16()
