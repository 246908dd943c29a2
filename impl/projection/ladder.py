"""The memory ladder, projected: each toggle alone, and one after the other in the source document's order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

from impl.projection.rank import Rank
from impl.projection.record import ArmProjection, Step, difference
from impl.projection.weights import ExpertFormat, WeightLine, weight_lines
from impl.toggles import ToggleSet, find

ORDER = (
    "mtp_hidden_skip",
    "q_in_place",
    "c128_indices_in_place",
    "mhc_final_fused",
    "mhc_residual_reuse",
    "mhc_input_reuse",
)
"""The rows of the source document's table (source_pr.md section 3)."""
APART = ("c128a_topk_shared", "dflash_staging_skip")
"""Memory toggles that have no row there."""
Arm = frozenset[str]
Progress = Callable[[int, int], None]
"""Called with the number of arms that are done, and of all."""


@dataclass(frozen=True)
class Ladder:
    """Projected arms and the steps between them, of one rank."""

    rank: Rank
    experts: ExpertFormat
    arms: dict[Arm, ArmProjection]
    alone: tuple[Step, ...]
    """Each toggle against an engine that has what it requires, and nothing else."""
    cumulative: tuple[Step, ...]
    """Each toggle against an engine that has those before it."""
    apart: tuple[Step, ...]
    """Toggles without a row in the source document, alone."""

    def to_json(self) -> dict[str, Any]:
        model = self.rank.model
        return {
            "schema": 1,
            "kind": "projected",
            "dims": model.to_json(),
            "platform": self.rank.platform,
            "tp": self.rank.tp,
            "padded_heads": self.rank.heads,
            "local_heads": self.rank.dims.n_heads,
            "experts": self.experts,
            "weights": [_line(line) for line in weight_lines(model, self.rank.tp, self.experts)],
            "arms": [arm.to_json() for arm in self.arms.values()],
            "alone": [step.to_json() for step in self.alone],
            "cumulative": [step.to_json() for step in self.cumulative],
            "apart": [step.to_json() for step in self.apart],
        }


def ladder(
    rank: Rank,
    toggles: Iterable[str] = (*ORDER, *APART),
    experts: ExpertFormat = "fp4",
    workers: int | None = None,
    progress: Progress | None = None,
) -> Ladder:
    """Project `toggles`, each alone and those of ORDER cumulatively. Raises ToggleError for an unknown one."""
    names = [find(name).name for name in toggles]
    rows = [name for name in ORDER if name in names]
    single = [(name, _needs(name), _needs(name) | {name}) for name in names]
    prefixes = [(name, frozenset(rows[:i]), frozenset(rows[: i + 1])) for i, name in enumerate(rows)]
    prefixes = [(name, before | _needs(name), after | _needs(name)) for name, before, after in prefixes]
    wanted = dict.fromkeys([frozenset[str](), *(arm for _, *pair in (*single, *prefixes) for arm in pair)])
    arms = _projected(rank, list(wanted), experts, workers, progress)
    steps = {name: difference(name, arms[before], arms[after]) for name, before, after in single}
    return Ladder(
        rank=rank,
        experts=experts,
        arms=arms,
        alone=tuple(steps[name] for name in rows),
        cumulative=tuple(difference(name, arms[before], arms[after]) for name, before, after in prefixes),
        apart=tuple(steps[name] for name in names if name not in rows),
    )


def _projected(
    rank: Rank, arms: list[Arm], experts: ExpertFormat, workers: int | None, progress: Progress | None
) -> dict[Arm, ArmProjection]:
    # A process of its own pays off from the third arm on.
    workers = workers or max(1, min(len(arms) // 3, len(os.sched_getaffinity(0)), 4))
    found: dict[Arm, ArmProjection] = {}
    for arm, projection in zip(arms, _in_order(partial(_arm, rank, experts), arms, workers), strict=True):
        found[arm] = projection
        if progress is not None:
            progress(len(found), len(arms))
    return found


def _in_order(project: Callable[[Arm], ArmProjection], arms: list[Arm], workers: int) -> Iterator[ArmProjection]:
    if workers == 1:
        yield from map(project, arms)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from pool.map(project, arms)


def _arm(rank: Rank, experts: ExpertFormat, arm: Arm) -> ArmProjection:
    import torch

    from impl.projection.boot import project

    torch.set_num_threads(1)
    return project(rank, ToggleSet(sorted(arm)), experts=experts)


def _needs(name: str) -> Arm:
    """What a toggle requires, and what that requires."""
    direct = find(name).requires
    return frozenset(direct).union(*(_needs(other) for other in direct))


def _line(line: WeightLine) -> dict[str, Any]:
    rule = line.rule
    return {
        "name": rule.name,
        "format": rule.format,
        "split": rule.split,
        "parameters": line.parameters,
        "bytes": line.bytes,
        "source": rule.source,
    }


__all__ = ["APART", "ORDER", "Ladder", "ladder"]
