"""Simulated samples: one noisy value a boot, in blocks and without."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dsbench.metrics import Metric, metric
from dsbench.records import Plan, Verdict
from dsbench.simulation import noise
from dsbench.simulation.comparing import (
    ALPHA,
    BASELINE,
    CANDIDATE,
    Bools,
    block_order,
    boot,
    covers,
    of_arm,
    one_after_the_other,
    random_order,
    reading,
    rejects,
    row_of,
    two_arms,
)
from dsbench.simulation.noise import Floats, Rng, Spread
from dsbench.simulation.requests import t_rejects, u_rejects
from dsbench.simulation.tally import Outcome
from dsbench.stats.power import smallest_effect, smallest_effect_unblocked

Order = Callable[[Rng, int, int], Bools]

METRICS = {
    "decode.tps": metric("decode.tps.c1"),
    "prefill.tps": metric("prefill.tps.1024"),
    "kv.device_bytes": Metric(
        key="kv.device_bytes", unit="GiB", better="up", kind="sample", margin=0.01, scope="device",
        summary="KV memory as the serve line tells it, on a device that others use too",
    ),
    "ttft": Metric(
        key="ttft", unit="ms", better="down", kind="sample", margin=0.05, scope="process",
        summary="time to the first token",
    ),
    "itl": Metric(
        key="itl", unit="ms", better="down", kind="sample", margin=0.03, scope="process",
        summary="time between tokens",
    ),
}  # fmt: skip
"""By the name of their noise; what the registry does not have is defined here."""


@dataclass(frozen=True)
class Clock:
    """Experiments on one sample metric."""

    noise: str
    boots: int
    """An arm; blocks, if there are any."""
    blocked: bool
    order: Order

    @property
    def metric(self) -> Metric:
        return METRICS[self.noise]

    @property
    def spread(self) -> Spread:
        return noise.SPREADS[self.noise]

    def claimed(self, sd: float) -> float | None:
        """Smallest effect with 80 % power on a rig of this spread, in the unit or as a logarithm."""
        share = self.metric.margin
        margin = share * self.spread.mean if self.spread.absolute else -math.log1p(-share)
        if self.blocked:
            return smallest_effect(noise.difference_sd(self.spread, sd), self.boots, ALPHA, margin)
        between = noise.shuffled_sd(self.spread, sd, 2 * self.boots)
        return smallest_effect_unblocked(between, self.boots, self.boots, ALPHA, margin)

    def claim(self) -> float | None:
        """The claimed effect of a middling rig, as a fraction."""
        effect = self.claimed(float(np.mean(self.spread.boot)))
        if effect is None:
            return None
        return effect / self.spread.mean if self.spread.absolute else math.expm1(effect)

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        """n experiments; with `planted`, losses and gains of the claimed effect in turn."""
        spread, plan = self.spread, two_arms(self.metric, self.boots)
        sd = noise.draw_between(rng, spread.boot, n)
        where = self.order(rng, n, self.boots)
        effects = np.zeros(n)
        if planted:
            effects = np.array([self.claimed(float(s)) or 0.0 for s in sd]) * np.where(np.arange(n) % 2, 1, -1)
        values = noise.requests(rng, spread, sd, 2 * self.boots, effects[:, None] * where)
        readings = noise.boot_readings(values)
        rows = [self._row(plan, readings[i], where[i]) for i in range(n)]
        t = u = np.zeros(n, dtype=np.bool_)
        if spread.requests > 1:
            a, b = of_arm(values, ~where), of_arm(values, where)
            t, u = t_rejects(a, b, ALPHA), u_rejects(a, b, ALPHA)
        return [
            self._outcome(row, float(effect), (bool(by_t), bool(by_u)) if spread.requests > 1 else (None, None))
            for row, effect, by_t, by_u in zip(rows, effects, t, u, strict=True)
        ]

    def _row(self, plan: Plan, readings: Floats, candidate: Bools) -> Verdict:
        boots = [
            boot(
                i + 1,
                CANDIDATE if candidate[i] else BASELINE,
                i // 2 + 1 if self.blocked else None,
                [reading(self.metric, i + 1, float(value))],
            )
            for i, value in enumerate(readings)
        ]
        return row_of(plan, boots)

    def _outcome(self, row: Verdict, effect: float, over_requests: tuple[bool | None, bool | None]) -> Outcome:
        relative = effect / self.spread.mean if self.spread.absolute else math.expm1(effect)
        rises_well = (effect > 0) == (self.metric.better == "up")
        return Outcome(
            word=row.word,
            rejected=rejects(row),
            covered=covers(row, relative, relative * self.spread.mean),
            attained=row.confidence,
            right=effect != 0 and row.word == ("improved" if rises_well else "regressed"),
            t_over_requests=over_requests[0],
            u_over_requests=over_requests[1],
        )


def blocked(name: str, blocks: int) -> Clock:
    return Clock(name, blocks, True, block_order)


def unblocked(name: str, boots: int) -> Clock:
    return Clock(name, boots, False, random_order)


def in_sequence(name: str, boots: int) -> Clock:
    return Clock(name, boots, False, one_after_the_other)
