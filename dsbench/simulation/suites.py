"""A/A experiments of a shipped suite, planned and judged by the real functions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dsbench.builds import parse_arm
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.records import Plan
from dsbench.simulation.boots import simulated_records
from dsbench.simulation.noise import Rng
from dsbench.simulation.tally import Outcome
from dsbench.suite import load_suite
from impl.dims import MICRO


@dataclass(frozen=True)
class Whole:
    """Experiments of one suite, with a draft or without."""

    suite: str
    speculative: str = "none"

    def claim(self) -> float | None:
        return None

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        """The experiments' words; each has its own order of boots. Nothing is planted here."""
        found = []
        for _ in range(n):
            plan = planned(self.suite, self.speculative, int(rng.integers(16)))
            verdict = judge(plan, simulated_records(plan, rng))
            lost = [row for row in verdict.rows if row.word == "regressed" and row.role in ("primary", "guard")]
            blamed = [f"{row.role} {row.metric}" for row in lost]
            blamed += [f"void {reason.code}" for reason in verdict.void]
            found.append(Outcome(verdict.word, False, None, blamed=tuple(dict.fromkeys(blamed))))
        return found


@cache
def planned(suite: str, speculative: str, seed: int) -> Plan:
    """The plan of two equal builds; the seed gives the order of the boots."""
    arms = [parse_arm(f"{name}=speculative={speculative}") for name in ("a", "b")]
    return plan_experiment([], load_suite(suite), MICRO, arms=arms, seed=seed, alike=True)
