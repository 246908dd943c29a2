"""Training text made ahead of the steps that use it, in worker processes (torch-free: workers start fast)."""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Generator
from concurrent.futures import Future, ProcessPoolExecutor

import numpy as np
from numpy.typing import NDArray

from impl.train.data import batches

Rows = tuple[NDArray[np.int16], NDArray[np.float32]]
"""Token ids and loss weights, `[rows, length]` both."""

AHEAD = 3
"""Steps in the making for each worker."""


def step_rows(seed: int, step: int, scale: int) -> list[Rows]:
    """The batches of a step behind the curriculum, all kinds and sizes alike."""
    work = batches(seed, step, 1.0, scale)
    return [(np.array(b.ids, np.int16), np.array(b.weights, np.float32)) for b in work.values()]


def stream(seed: int, first_step: int, scale: int, workers: int) -> Generator[list[Rows], None, None]:
    """`step_rows` of first_step, first_step + 1, ... without end; close the iterator to end the workers."""
    if not workers:
        step = first_step
        while True:
            yield step_rows(seed, step, scale)
            step += 1
    # Fresh interpreters: a process that uses CUDA cannot be forked.
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        pending: deque[Future[list[Rows]]] = deque()
        step = first_step
        while True:
            while len(pending) < AHEAD * workers:
                pending.append(pool.submit(step_rows, seed, step, scale))
                step += 1
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
