"""From simulated readings of two arms to one verdict row, by the judge's own comparison."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dsbench.compare import compare
from dsbench.evidence import BootEvidence
from dsbench.metrics import Metric
from dsbench.probe_settings import KvProbe, Probes
from dsbench.records import Arm, Observation, Plan, PlannedBoot, Verdict
from dsbench.simulation.noise import Floats, Rng
from dsbench.suite import Timeouts

Bools = NDArray[np.bool_]

ALPHA = 0.05
CONFIDENCE = 0.90
"""Of the interval that a row prints."""
BASELINE, CANDIDATE = "a", "b"


def two_arms(metric: Metric, blocks: int) -> Plan:
    """A plan of two equal arms, as far as one row needs it."""
    arms = [
        Arm(name=name, toggles=[], environment="", on=[], takes=[], primary=[metric.key], expected={}, declared=[])
        for name in (BASELINE, CANDIDATE)
    ]
    return Plan(
        id="simulated", created="", harness_version="", suite="simulated", engine="embedded", engine_args=[], dims={},
        seed=0, until="ready", arms=arms, boots=[], blocks=blocks, probes=Probes(kv=KvProbe()), metrics=[metric],
        guards=[], drift_controls=[], timeouts=Timeouts(), alpha=ALPHA, equivalence_confidence=CONFIDENCE, notes=[],
    )  # fmt: skip


def boot(number: int, arm: str, block: int | None, observations: Sequence[Observation]) -> BootEvidence:
    planned = PlannedBoot(number=number, arm=arm, block=block, phase="measured")
    return BootEvidence(planned, observations=list(observations))


def reading(metric: Metric, number: int, value: float | int, **more: object) -> Observation:
    fields = {"boot": number, "metric": metric.key, "value": value, "unit": metric.unit, "phase": "measured", **more}
    return Observation.model_validate(fields)


def row_of(plan: Plan, boots: Sequence[BootEvidence]) -> Verdict:
    """The row of the plan's one metric."""
    return compare(plan, boots, plan.arms[1], plan.metrics[0], None, "primary")


def covers(row: Verdict, relative: float, difference: float) -> bool | None:
    """Whether the printed interval holds the true change; None where none is printed."""
    if row.interval is None:
        return None
    truth = relative if row.interval_of == "relative" else difference
    return row.interval[0] <= truth <= row.interval[1]


def rejects(row: Verdict) -> bool:
    return row.p is not None and row.p <= ALPHA


def block_order(rng: Rng, n: int, blocks: int) -> Bools:
    """[n, 2 blocks] where the candidate runs: first or second in each block by a coin of its own."""
    leads = rng.random((n, blocks)) < 0.5
    return np.stack([leads, ~leads], axis=2).reshape(n, 2 * blocks)


def random_order(rng: Rng, n: int, boots: int) -> Bools:
    """[n, 2 boots] where the candidate runs, as many boots as the baseline in any order."""
    own = np.tile(np.arange(2 * boots) >= boots, (n, 1))
    return rng.permuted(own, axis=1)


def one_after_the_other(rng: Rng, n: int, boots: int) -> Bools:
    """[n, 2 boots] first all of one arm, then all of the other."""
    return np.tile(np.arange(2 * boots) >= boots, (n, 1))


def of_arm(values: Floats, where: Bools) -> Floats:
    """[n, everything else] what an arm's boots read; `values` is [n, boots, ...] and every row has as many boots."""
    n = len(values)
    return values[where].reshape(n, -1)
