"""Training text made ahead of the steps that use it, in worker processes (torch-free: workers start fast)."""

from __future__ import annotations

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing

import numpy as np
from numpy.typing import NDArray

from impl.train import data
from impl.train.packing import Batch

Rows = tuple[NDArray[np.int16], NDArray[np.float32]]
"""Token ids and loss weights, `[rows, length]` both."""

AHEAD = 3
"""Steps in the making for each worker."""


def batches(name: str, seed: int, step: int, progress: float, scale: int) -> dict[str, Batch]:
    """The batches of a step of the shape called `name`: micro has text of its own, all others learn from pico's."""
    if name == "micro":
        from impl.train.micro.batches import batches as of_micro

        return of_micro(seed, step, progress, scale)
    return data.batches(seed, step, progress, scale)


def step_rows(name: str, seed: int, step: int, progress: float, scale: int) -> dict[str, Rows]:
    """`batches` as arrays."""
    work = batches(name, seed, step, progress, scale)
    return {kind: (np.array(b.ids, np.int16), np.array(b.weights, np.float32)) for kind, b in work.items()}


def stream(
    name: str, seed: int, first_step: int, scale: int, workers: int, progress: Callable[[int], float] = lambda step: 1.0
) -> Generator[dict[str, Rows], None, None]:
    """`step_rows` of first_step, first_step + 1, ... without end; close the iterator to end the workers.

    `progress` tells how far a run will be at a step. It is asked when the step's text is begun: with workers, a little
    ahead of its time.
    """
    if not workers:
        step = first_step
        while True:
            yield step_rows(name, seed, step, progress(step), scale)
            step += 1
    # Fresh interpreters: a process that uses CUDA cannot be forked.
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), leave_signals_to_the_parent)
    try:
        pending: deque[Future[dict[str, Rows]]] = deque()
        step = first_step
        while True:
            while len(pending) < AHEAD * workers:
                pending.append(pool.submit(step_rows, name, seed, step, progress(step), scale))
                step += 1
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def begun(made: Generator[dict[str, Rows], None, None]) -> Generator[dict[str, Rows], None, None]:
    """The same, its first step made by now: workers take seconds to start."""
    first = next(made)

    def rest() -> Generator[dict[str, Rows], None, None]:
        with closing(made):
            yield first
            yield from made

    return rest()


def leave_signals_to_the_parent() -> None:
    """Ctrl-C and `timeout` signal the whole group; the parent ends the workers when its step is done."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
