"""Nested noise, boot over run over request, with drift in time; every parameter with its source.

Sources are sections of measurement.md. `assumed` marks what no source gives; such a value is chosen so that the
boot-to-boot figures, which have sources, stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit, ndtri

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Rng = np.random.Generator

DRIFT_SHARE = 0.5
"""Share of the variance between boots that is slow drift of the machine. Assumed; the sources' figures are of boots
in a row and so hold both. Section 8: order effects change the sign of a result, identical binaries 3.7 % apart."""
DRIFT_CORRELATION = 0.8
"""Correlation of the drift of neighbouring boots. Assumed: it fades over about five boots."""


@dataclass(frozen=True)
class Spread:
    """Noise of one clock reading or device-wide size, as fractions of its mean unless `absolute`."""

    unit: str
    mean: float
    boot: tuple[float, float]
    """Smallest and largest standard deviation between boots, drift included; an experiment draws one for its rig."""
    run: float
    """Standard deviation between runs of one boot, as a fraction of `boot`."""
    request: float
    """Standard deviation between requests of one run."""
    runs: int
    requests: int
    """Requests of a run; 1 where a run is one reading."""
    absolute: bool
    """Noise is added in the unit; otherwise the logarithm has it."""
    source: str


OWN_ERROR = 0.1
"""Spread of runs against that of boots. Section 2: a benchmark's own +- is 5-30 times smaller than the spread
between boots, and a recall test read 22, 22, 23 in one boot and 6, 9, 6, 8, 8 in the next."""

SPREADS: dict[str, Spread] = {
    "kv.device_bytes": Spread(
        "GiB", 20.0, (0.46, 0.46), 0.0, 0.0, 1, 1, True, "section 2: sd 0.46 GiB of four boots' serve lines"
    ),
    "decode.tps": Spread(
        "tok/s", 300.0, (0.04, 0.08), OWN_ERROR, 0.05, 3, 16, False,
        "section 2: tg128 4-7.9 % between boots; requests assumed",
    ),
    "prefill.tps": Spread(
        "tok/s", 9000.0, (0.004, 0.013), OWN_ERROR, 0.02, 3, 16, False,
        "section 2: 0.4-0.6 % with context, pp2048 1.0-1.3 % between boots; requests assumed",
    ),
    "decode.ttft_ms": Spread(
        "ms", 120.0, (0.03, 0.06), OWN_ERROR, 0.30, 3, 32, False,
        "assumed: boots as decode with context (section 2, 2.3-3.5 %) and more, requests skewed",
    ),
    "decode.itl_ms": Spread(
        "ms", 12.0, (0.023, 0.035), OWN_ERROR, 0.10, 3, 32, False,
        "section 2: decode with context 2.3-3.5 % between boots; requests assumed",
    ),
}  # fmt: skip


@dataclass(frozen=True)
class ItemNoise:
    """Items that are right or wrong: most of them always, some of them by chance in every boot."""

    items: int
    share: float
    """Mean share that is right."""
    flips: tuple[float, float]
    """Share of items that differ between two boots."""
    clusters: int
    """Clusters of equal size; as many as items where they are independent."""
    correlation: float
    """Of the luck of two items of one cluster, in one boot."""
    source: str
    boot: float = 0.0
    """Standard deviation between boots of the luck that all items of a boot share, in logits."""


GSM8K = ItemNoise(1319, 0.95, (0.02, 0.06), 1319, 0.0, "section 6.1: p = 0.952 of 1319 items, 2-6 % flip")
TOOLCALL = ItemNoise(
    135, 0.86, (0.08, 0.16), 15, 0.3,
    "section 6.3: 135 cases of 15 scenarios, 82/87/89 % seen on one build; flips and clustering assumed",
)  # fmt: skip

RECALL = {
    luck: ItemNoise(200, 0.9, (0.08, 0.12), 200, 0.0, source, luck)
    for luck, source in (
        (0.3, "assumed: 200 needles, and luck of a boot that two boots do not show"),
        (2.3, "section 2: a recall test read 22-23, 6-9 and 23-24 of 24 in three boots, which is 2.3 logits"),
    )
}
"""By the luck of a boot."""


@dataclass(frozen=True)
class DraftNoise:
    """Drafts accepted position by position; a boot's counts stay together."""

    depth: int
    conditional: float
    """Chance that a draft is accepted once all before it are."""
    fade: float
    """Its fall from one position to the next."""
    between: tuple[float, float]
    """Standard deviation of that chance between boots, beyond counting, in logits."""
    blocks: float
    """Standard deviation of that chance between blocks, in logits: boots of a block draw with the same seeds."""
    drafts: int
    """Rounds of one boot and item."""
    source: str


DRAFTS = DraftNoise(
    5, 0.75, 0.03, (0.0, 0.10), 0.15, 600,
    "section 5 has counters and definitions; rates, and spreads between boots and blocks beyond counting, assumed",
)  # fmt: skip


@dataclass(frozen=True)
class LawNoise:
    """Sampled tokens of known laws, compared by chi-square."""

    prompts: int
    positions: int
    contexts: int
    vocabulary: int
    requests: int
    """Requests a boot, shared out over the prompts."""
    source: str


LAW = LawNoise(2, 3, 3, 20, 400, "assumed: laws of Zipf's shape; the test's level is that of the output_law probe")

ONE_FAULT_IN = 20
"""Boots of which one reads otherwise, for the row that shows what happens to an exact metric that is not exact.
Section 8: a first boot that reads 5 % less KV memory. Assumed rate."""


def draw_between(rng: Rng, bounds: tuple[float, float], n: int) -> Floats:
    """[n] values, uniform between the bounds: one for the rig of each experiment."""
    return rng.uniform(*bounds, size=n)


def boot_effects(rng: Rng, sd: Floats, boots: int, path: Floats | None = None) -> Floats:
    """[n, boots] effects with standard deviation `sd` [n]: a part of its own, and drift that stays for a while.

    `path` is the machine's drift where several metrics share it.
    """
    own = rng.standard_normal((len(sd), boots))
    path = drift(rng, len(sd), boots) if path is None else path
    effects: Floats = sd[:, None] * (np.sqrt(1 - DRIFT_SHARE) * own + np.sqrt(DRIFT_SHARE) * path)
    return effects


def drift(rng: Rng, n: int, boots: int) -> Floats:
    """[n, boots] stationary first-order autoregression with variance 1, in order of time."""
    steps: Floats = rng.standard_normal((n, boots))
    for boot in range(1, boots):
        fresh = np.sqrt(1 - DRIFT_CORRELATION**2) * steps[:, boot]
        steps[:, boot] = DRIFT_CORRELATION * steps[:, boot - 1] + fresh
    return steps


def requests(
    rng: Rng, spread: Spread, sd: Floats, boots: int, shift: Floats | float = 0.0, path: Floats | None = None
) -> Floats:
    """[n, boots, runs, requests] readings of n experiments with boots in order of time.

    `sd` [n] is the spread between boots of each experiment's rig, `shift` a change a boot, [n, boots] or a number:
    added in the unit, or to the logarithm. `path` as in `boot_effects`.
    """
    n = len(sd)
    of_boot = boot_effects(rng, sd, boots, path) + shift
    of_run = spread.run * sd[:, None, None] * rng.standard_normal((n, boots, spread.runs))
    of_request = spread.request * rng.standard_normal((n, boots, spread.runs, spread.requests))
    effect = of_boot[:, :, None, None] + of_run[..., None] + of_request
    values: Floats = spread.mean + effect if spread.absolute else spread.mean * np.exp(effect)
    return values


def boot_readings(values: Floats) -> Floats:
    """[n, boots] what a probe makes of requests: the mean of a run, and the median of the runs."""
    summary: Floats = np.median(values.mean(axis=3), axis=2)
    return summary


def within_variance(spread: Spread, sd: float) -> float:
    """Variance of a boot's reading that comes from its own runs and requests: of the median of runs, each the mean of
    its requests. The median of three has 1.35 times the variance of their mean; requests are skewed unless absolute.
    """
    median_of_runs = 1.35 if spread.runs > 2 else 1.0
    of_request = spread.request**2 if spread.absolute else math.expm1(spread.request**2)
    return median_of_runs * ((spread.run * sd) ** 2 + of_request / spread.requests) / spread.runs


def difference_sd(spread: Spread, sd: float) -> float:
    """Standard deviation of the difference of two neighbouring boots, which is what a block sees."""
    between = 2 * sd**2 * (1 - DRIFT_SHARE * DRIFT_CORRELATION)
    return float(np.sqrt(between + 2 * within_variance(spread, sd)))


def shuffled_sd(spread: Spread, sd: float, boots: int) -> float:
    """Standard deviation between boots of one experiment, as far as it is left once their common drift is not."""
    lags = np.arange(1, boots)
    common = DRIFT_SHARE * 2 * ((boots - lags) @ DRIFT_CORRELATION**lags) / (boots * (boots - 1))
    return float(np.sqrt(sd**2 * (1 - common) + within_variance(spread, sd)))


def item_chances(rng: Rng, noise: ItemNoise, flips: float) -> Floats:
    """[items] chance of each item to be right: 0 or 1, or the cube root of a uniform number, with mean 3/4.

    Two boots differ on such an uncertain item with chance 0.3. ValueError for flips that the mean share forbids.
    """
    uncertain = uncertain_share(flips)
    right = noise.share - 0.75 * uncertain
    if not 0 <= right <= 1 - uncertain + 1e-9:
        raise ValueError(f"{flips:.3f} of the items cannot flip if {noise.share:.3f} are right on average")
    kind = rng.random(noise.items)
    return np.where(kind < uncertain, np.cbrt(rng.random(noise.items)), kind < uncertain + right)


def uncertain_share(flips: float) -> float:
    """Share of items that are right by chance, if `flips` of all differ between two boots."""
    return flips / 0.3


def cluster_of(noise: ItemNoise) -> Ints:
    """[items] number of each item's cluster."""
    return np.arange(noise.items) * noise.clusters // noise.items


def answers(rng: Rng, noise: ItemNoise, chances: Floats, boots: int) -> Ints:
    """[boots, items] 1 for right and 0 for wrong: every item is right as often as its chance says, and the items of
    one cluster share a part of their luck in each boot, and all items what the boot has."""
    if noise.boot:
        with np.errstate(divide="ignore"):
            chances = expit(logit(chances) + noise.boot * rng.standard_normal((boots, 1)))
    if not noise.correlation:
        return (rng.random((boots, noise.items)) < chances).astype(np.int64)
    shared = rng.standard_normal((boots, noise.clusters))[:, cluster_of(noise)]
    own = rng.standard_normal((boots, noise.items))
    luck = np.sqrt(noise.correlation) * shared + np.sqrt(1 - noise.correlation) * own
    right: Ints = (luck < ndtri(chances)).astype(np.int64)
    return right


def block_levels(rng: Rng, noise: DraftNoise, blocks: Sequence[int | None]) -> Floats:
    """[boots] shift in logits of boots of these blocks: one a block, none for a boot without."""
    drawn = {block: noise.blocks * rng.standard_normal() for block in dict.fromkeys(blocks) if block is not None}
    return np.array([0.0 if block is None else drawn[block] for block in blocks])


def accepted_counts(rng: Rng, noise: DraftNoise, between: float, boots: int, shift: Floats | float = 0.0) -> Floats:
    """[boots, depth + 1] rounds, and of these those that accepted draft k and all before it.

    `shift` moves the chances, in logits, as does a boot's own effect.
    """
    chance = np.clip(noise.conditional - noise.fade * np.arange(noise.depth), 0.01, 0.99)
    logits = np.log(chance / (1 - chance)) + (between * rng.standard_normal(boots) + shift)[:, None]
    reached = np.full(boots, noise.drafts, dtype=np.int64)
    counts = [reached]
    for k in range(noise.depth):
        reached = rng.binomial(reached, 1 / (1 + np.exp(-logits[:, k])))
        counts.append(reached)
    return np.stack(counts, axis=1).astype(np.float64)
