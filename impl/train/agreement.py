"""Do all means of training compute the same? Their losses side by side, step by step, at each reach of the window."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence

import torch

from impl.dims import Dims
from impl.train import loop
from impl.train.forward import PLAIN, Parts, compile_parts, compiled
from impl.train.loop import Settings, new_state, train_step
from impl.train.prefetch import Rows, step_rows
from impl.train.runs import Means, parameters, timed

STEPS = 30
EQUAL = 0.02
"""Most relative difference of two losses of a step; what rounding makes is about a tenth of it."""
STAGE = 0.05, 0.4
"""Progress of the text: first stage for narrow windows, all kinds of text for the whole window."""

Texts = Sequence[Mapping[str, Rows]]


def agree(dims: Dims, scale: int, device: str, means: Mapping[str, Means], steps: int = STEPS) -> bool:
    """Print what each means makes of the same steps, and where it leaves the first; True when none does.

    Where compiled steps first leave the others, each part of the forward is compiled alone, which names the culprit.
    The whole window goes with the indexer's own selection, narrow ones with every entry, as in a run.
    """
    names = list(means)
    recipe = loop.RECIPES.get(dims.name, {})
    fine = True
    for reach in [*(rows for _, rows in recipe.get("narrow", ())), None]:
        narrowed = {"narrow": ((1.0, reach),)} if reach else {"narrow": (), "dense_until": 0.0}
        settings = Settings(**recipe | {"steps": 1_000_000, "scale": scale} | narrowed)
        stage = STAGE[0] if reach else STAGE[1]
        texts = [step_rows(dims.name, 0, n, stage, scale) for n in range(steps)]
        wanted = losses(dims, settings, device, means[names[0]], compiled, texts)
        print(f"reach {reach or dims.window}: {names[0]} {summary(wanted)}", flush=True)
        for name in names[1:]:
            left = compared(name, wanted, losses(dims, settings, device, means[name], compiled, texts))
            if left and fine and means[name].compiled:
                for part, parts in alone().items():
                    one = losses(dims, settings, device, means[name], parts, texts)
                    compared(f"  {part} compiled alone", wanted, one)
            fine = fine and not left
    return fine


def losses(
    dims: Dims, settings: Settings, device: str, means: Means, parts: Callable[[], Parts], texts: Texts
) -> list[float]:  # fmt: skip
    """The loss of each step, from the run's first weights; nan where a gradient is not finite."""
    state = new_state(dims, settings, device)
    work = timed(state, means, lambda use: loop.differentiate(state, dims, settings, parts() if use else None))
    found = [train_step(state, settings, batches, work).loss for batches in texts]
    whole = torch.stack([p.detach().isfinite().all() for p in parameters(state)]).all().item()
    return torch.stack(found).tolist() + ([] if whole else [math.nan])


def alone() -> dict[str, Callable[[], Parts]]:
    """Name -> the parts of a forward, that one compiled."""

    def only(name: str) -> Callable[[], Parts]:
        return lambda: PLAIN._replace(**{name: getattr(compile_parts(PLAIN), name)})

    return {name: only(name) for name in Parts._fields}


def compared(name: str, wanted: Sequence[float], found: Sequence[float]) -> bool:
    """Print one line; True when `found` leaves `wanted`."""
    near = [abs(a - b) <= EQUAL * abs(a) for a, b in zip(wanted, found, strict=False)]
    left = near.index(False) if False in near else None
    if left is None and len(found) != len(wanted):
        left = len(wanted) - 1
    told = "agrees" if left is None else f"LEAVES at step {left}: {found[left]} for {wanted[left]}"
    print(f"  {name} {told}; {summary(found)}", flush=True)
    return left is not None


def summary(found: Sequence[float]) -> str:
    return f"first {found[0]:.5f} last {found[-1]:.5f}"


def checked(dims: Dims, scale: int, device: str, means: Mapping[str, Means]) -> int:
    """Exit code of the check."""
    fine = agree(dims, scale, device, means)
    if not fine:
        print("the means disagree: train with those that agree (--no-compile, --no-graphs)", file=sys.stderr)
    return 0 if fine else 1
