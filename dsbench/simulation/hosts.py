"""What more hosts buy: wall time, boots and power, with effects and noise of hosts, and where returns stop."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_1samp

from dsbench.simulation import noise

Floats = NDArray[np.float64]

BLOCK_MINUTES = 12.0
"""Two boots of a large model with their probes. Assumed."""
WARMUP_MINUTES = 10.0
"""Warm-ups of both arms, once a host. Assumed."""
HOST_SPREAD = 0.05
"""Standard deviation of the level between hosts, which blocks cancel. Assumed; measurement.md, section 8: runners apart
by 13 % and more."""
INTERACTION = 0.005
"""Standard deviation of the effect itself between hosts: more blocks on one host do not average it away. Assumed."""
EFFECT = 0.02
"""The change to be seen: the default margin of speed."""
METRIC = "decode.itl_ms"
BLOCKS = 24
"""Of the experiment with a fixed number of blocks."""
HOURS = 2.0
"""Of the experiment with a fixed time."""
ALPHA = 0.05
WORTH_IT = 0.02
"""Power that twice the hosts must add, at least."""


@dataclass(frozen=True)
class Point:
    """One number of hosts in one design."""

    design: str
    hosts: int
    blocks: int
    boots: int
    """With the warm-ups of every host."""
    hours: float
    false_claims: float
    """Share of A/A experiments whose test rejects."""
    false_unpaired: float
    """The same where each host runs one arm: what a pool must not do."""
    power: float


def simulate_hosts(counts: Sequence[int], experiments: int, seed: int) -> list[Point]:
    """Experiments of a fixed number of blocks and of a fixed time, on each number of hosts; the same for one seed."""
    found = []
    for design in ("fixed blocks", "fixed time"):
        for hosts in counts:
            each = (HOURS * 60 - WARMUP_MINUTES) / BLOCK_MINUTES
            blocks = BLOCKS if design == "fixed blocks" else hosts * int(each)
            rng = np.random.default_rng([seed, hosts, blocks])
            found.append(_point(design, hosts, blocks, experiments, rng))
    return found


def _point(design: str, hosts: int, blocks: int, experiments: int, rng: np.random.Generator) -> Point:
    used = min(hosts, blocks)
    rounds = math.ceil(blocks / used)
    alike, split = _differences(used, blocks, experiments, 0.0, rng)
    moved, _ = _differences(used, blocks, experiments, EFFECT, rng)
    return Point(
        design=design,
        hosts=hosts,
        blocks=blocks,
        boots=2 * (blocks + used),
        hours=(WARMUP_MINUTES + rounds * BLOCK_MINUTES) / 60,
        false_claims=_rejected(alike),
        false_unpaired=_rejected(split),
        power=_rejected(moved, EFFECT),
    )


def _differences(
    hosts: int, blocks: int, experiments: int, effect: float, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """[experiments, blocks] log ratios of blocks that are whole, and of arms on hosts of their own."""
    spread = noise.SPREADS[METRIC]
    sd = noise.difference_sd(spread, float(np.mean(spread.boot)))
    where = np.arange(blocks) % hosts
    level = HOST_SPREAD * rng.standard_normal((experiments, hosts))
    other = HOST_SPREAD * rng.standard_normal((experiments, hosts))
    own = INTERACTION * rng.standard_normal((experiments, hosts)) if effect else np.zeros((experiments, hosts))
    noises = sd * rng.standard_normal((experiments, blocks))
    whole: Floats = math.log1p(effect) + own[:, where] + noises
    return whole, whole + (level - other)[:, where]


def _rejected(differences: Floats, effect: float = 0.0) -> float:
    """Share whose test over blocks rejects, in the direction of the effect; by t, which the sign-flip test comes to."""
    tested = ttest_1samp(differences, 0.0, axis=1)
    right = differences.mean(axis=1) * effect > 0 if effect else True
    return float(np.mean((tested.pvalue <= ALPHA) & right))


def sentence(points: Sequence[Point]) -> str:
    """Where more hosts add less than they cost."""
    told = []
    for design in dict.fromkeys(point.design for point in points):
        of_design = [point for point in points if point.design == design]
        stop = of_design[-1]
        for now, more in pairwise(of_design):
            gain = more.power - now.power >= WORTH_IT if design == "fixed time" else more.hours < 0.75 * now.hours
            if not gain:
                stop = now
                break
        what = "power" if design == "fixed time" else "time"
        if design == "fixed blocks" and stop.hosts > BLOCKS:
            where = f"returns stop at {BLOCKS} hosts, one a block: others stand idle"
        elif stop is of_design[-1]:
            where = f"returns do not stop up to {stop.hosts} hosts"
        else:
            where = f"there is little more {what} to win beyond {stop.hosts} hosts"
        told.append(f"{design}: {where}")
    return (
        f"{'; '.join(told)}. Warm-ups are paid once a host, and an effect of its own on each host is not averaged away."
    )


COLUMNS = ("design", "hosts", "blocks", "boots", "hours", "false claims", "arms on hosts of their own", "power at 2 %")


def cells(points: Sequence[Point]) -> list[list[str]]:
    return [
        [p.design, str(p.hosts), f"{p.blocks:,}", f"{p.boots:,}", f"{p.hours:.1f}", f"{p.false_claims:.3f}",
         f"{p.false_unpaired:.3f}", f"{p.power:.3f}"]
        for p in points
    ]  # fmt: skip


def markdown(points: Sequence[Point], command: str) -> str:
    rows = [COLUMNS, ["---"] * len(COLUMNS), *cells(points)]
    spread = noise.SPREADS[METRIC]
    return "\n".join([
        "# Hosts, simulated", "",
        f"Made by `{command}`. {sentence(points)}", "",
        *(f"| {' | '.join(row)} |" for row in rows), "",
        f"- Noise of {METRIC}: {spread.boot[0]:.1%} to {spread.boot[1]:.1%} between boots ({spread.source}).",
        f"- Assumed: {BLOCK_MINUTES:g} minutes a block, {WARMUP_MINUTES:g} minutes of warm-ups a host; hosts apart by "
        f"{HOST_SPREAD:.0%}; an effect that differs by {INTERACTION:.1%} between hosts.",
        "- false claims: A/A experiments in which the test over whole blocks rejects at 5 %.",
        "- arms on hosts of their own: the same without blocks that are whole: hosts are taken for the change.", "",
    ])  # fmt: skip


def as_json(points: Sequence[Point], seed: int) -> dict[str, Any]:
    return {"seed": seed, "sentence": sentence(points), "points": [asdict(point) for point in points]}
