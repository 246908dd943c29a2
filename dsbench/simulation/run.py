"""Simulated experiments in parts over processes; the same seed gives the same counts on any number of them."""

from __future__ import annotations

import multiprocessing
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass

import numpy as np

from dsbench.simulation.catalogue import CASES, Case
from dsbench.simulation.tally import Tally, tally

PART = 50
"""Experiments of one part, which has a random stream of its own."""
QUICK = 800
"""Experiments of a case with --quick; dear cases run at least an eighth of it."""
FULL = 2000


@dataclass(frozen=True)
class Result:
    """What one case came to."""

    case: Case
    alike: Tally
    """A/A experiments."""
    planted: Tally
    """With the claimed effect; empty where none is claimed."""


@dataclass(frozen=True)
class _Part:
    case: int
    seed: int
    number: int
    experiments: int
    planted: bool


def simulate(
    cases: Sequence[Case],
    seeds: Sequence[int],
    experiments: Callable[[Case], int],
    progress: Callable[[int], None] = lambda done: None,
    processes: int | None = None,
) -> list[Result]:
    """Run `experiments(case)` A/A experiments of every case, shared out over the seeds, and as many with the effect.

    `progress` is told how many experiments have just ended.
    """
    parts = [
        part
        for case in cases
        for seed in seeds
        for planted in ((False, True) if case.experiment.claim() is not None else (False,))
        for part in _parts(CASES.index(case), seed, -(-experiments(case) // len(seeds)), planted)
    ]
    # Dear parts first, so that no process is left alone with one at the end.
    parts.sort(key=lambda part: -CASES[part.case].cost)
    found: dict[tuple[int, bool], Tally] = {}
    for part, counted in _done(parts, processes or os.cpu_count() or 1):
        key = part.case, part.planted
        found[key] = found.get(key, Tally()) + counted
        progress(part.experiments)
    return [
        Result(case, found[CASES.index(case), False], found.get((CASES.index(case), True), Tally())) for case in cases
    ]


def _parts(case: int, seed: int, experiments: int, planted: bool) -> list[_Part]:
    sizes = [min(PART, experiments - first) for first in range(0, experiments, PART)]
    return [_Part(case, seed, number, size, planted) for number, size in enumerate(sizes)]


def _done(parts: Sequence[_Part], processes: int) -> Iterator[tuple[_Part, Tally]]:
    if processes == 1:
        for part in parts:
            yield part, _run(part)
        return
    # The processes share the cores; a matrix product that takes them all would only wait for the others.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        waiting = {pool.submit(_run, part): part for part in parts}
        try:
            for future in as_completed(waiting):
                yield waiting[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run(part: _Part) -> Tally:
    case = CASES[part.case]
    name = zlib.crc32(f"{case.kind} {case.name} {case.design}".encode())
    rng = np.random.default_rng([part.seed, name, part.number, int(part.planted)])
    return tally(case.experiment.run(rng, part.experiments, part.planted))


def quick_experiments(case: Case) -> int:
    """Fewer of what is dear."""
    return max(QUICK // 8, int(QUICK / max(1.0, case.cost / 3)))
