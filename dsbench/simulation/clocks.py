"""Simulated samples: one noisy value a boot, in blocks and without."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from dsbench.metrics import Metric, metric
from dsbench.records import Word
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
from dsbench.table_input import Table, TableArm
from dsbench.table_judge import judge_table

Order = Callable[[Rng, int, int], Bools]

METRICS = {
    "decode.tps": metric("decode.tps.c1"),
    "prefill.tps": metric("prefill.tps.1024"),
    "kv.device_bytes": Metric(
        key="kv.device_bytes", unit="GiB", better="up", kind="sample", margin=0.01, scope="device",
        summary="KV memory as the serve line tells it, on a device that others use too",
    ),
    "decode.ttft_ms": metric("decode.ttft_ms.c1"),
    "decode.itl_ms": metric("decode.itl_ms.c1"),
}  # fmt: skip
"""By the name of their noise; what the embedded engine does not measure is defined here."""


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
        """Smallest effect with 80 % power on a rig of this spread, as a fraction of the mean."""
        spread, margin = self.spread, self.metric.margin
        of_mean = 1 / spread.mean if spread.absolute else 1.0
        if not self.blocked:
            between = noise.shuffled_sd(spread, sd, 2 * self.boots) * of_mean
            return smallest_effect_unblocked(between, self.boots, self.boots, ALPHA, margin)
        # A block's difference is that of logarithms; a loss is farther from no change than a gain of its size.
        between = noise.difference_sd(spread, sd) * of_mean
        found = smallest_effect(between, self.boots, ALPHA, -math.log1p(-margin))
        return None if found is None else math.expm1(found)

    def claim(self) -> float | None:
        """The claimed effect of a middling rig."""
        return self.claimed(float(np.mean(self.spread.boot)))

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        """n experiments; with `planted`, losses and gains of the claimed effect in turn."""
        spread = self.spread
        sd = noise.draw_between(rng, spread.boot, n)
        where = self.order(rng, n, self.boots)
        effects = np.zeros(n)
        if planted:
            effects = np.array([self.claimed(float(s)) or 0.0 for s in sd])
            # Blocks are compared by their logarithms, and so a loss is planted that has a gain's.
            effects[::2] = -effects[::2] / (1 + effects[::2]) if self.blocked else -effects[::2]
        shift = effects * spread.mean if spread.absolute else np.log1p(effects)
        values = noise.requests(rng, spread, sd, 2 * self.boots, shift[:, None] * where)
        readings = noise.boot_readings(values)
        judge = self._row if self.blocked else self._table
        t: list[bool | None] = [None] * n
        u = t
        if spread.requests > 1:
            a, b = of_arm(values, ~where), of_arm(values, where)
            t, u = t_rejects(a, b, ALPHA).tolist(), u_rejects(a, b, ALPHA).tolist()
        return [
            replace(judge(readings[i], where[i], float(effects[i])), t_over_requests=t[i], u_over_requests=u[i])
            for i in range(n)
        ]

    def _row(self, readings: Floats, candidate: Bools, effect: float) -> Outcome:
        """By `compare`, as an experiment's metric is judged."""
        boots = [
            boot(
                i + 1, CANDIDATE if candidate[i] else BASELINE, i // 2 + 1, [reading(self.metric, i + 1, float(value))]
            )
            for i, value in enumerate(readings)
        ]
        row = row_of(two_arms(self.metric, self.boots), boots)
        covered = covers(row, effect, effect * self.spread.mean)
        return self._outcome(row.word, rejects(row), covered, row.confidence, effect)

    def _table(self, readings: Floats, candidate: Bools, effect: float) -> Outcome:
        """By `judge_table`, as readings without blocks are judged."""
        table = Table(
            metric=self.metric.key,
            unit=self.metric.unit,
            higher_is_better=self.metric.better == "up",
            practical_margin=self.metric.margin * self.spread.mean,
            alpha=ALPHA,
            arms={
                name: TableArm(boots=readings[where].tolist())
                for name, where in ((BASELINE, ~candidate), (CANDIDATE, candidate))
            },
        )
        verdict = judge_table(table)
        span, p = verdict.figures["interval_90"], verdict.figures["p"]
        covered = None if span is None else span[0] <= effect * self.spread.mean <= span[1]
        attained = verdict.figures["interval_confidence_attained"]
        return self._outcome(verdict.word, p is not None and p <= ALPHA, covered, attained, effect)

    def _outcome(
        self, word: Word, rejected: bool, covered: bool | None, attained: float | None, effect: float
    ) -> Outcome:
        rises_well = (effect > 0) == (self.metric.better == "up")
        right = effect != 0 and word == ("improved" if rises_well else "regressed")
        return Outcome(word, rejected, covered, attained, right)


def blocked(name: str, blocks: int) -> Clock:
    return Clock(name, blocks, True, block_order)


def unblocked(name: str, boots: int) -> Clock:
    return Clock(name, boots, False, random_order)


def in_sequence(name: str, boots: int) -> Clock:
    return Clock(name, boots, False, one_after_the_other)
