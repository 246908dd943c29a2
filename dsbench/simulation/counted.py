"""Simulated exact metrics, counter ratios, items and output laws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from dsbench.evidence import BootEvidence
from dsbench.metrics import Metric, metric
from dsbench.probes.output_law import ALPHA as LAW_ALPHA
from dsbench.records import Observation
from dsbench.simulation import noise
from dsbench.simulation.comparing import (
    ALPHA,
    BASELINE,
    CANDIDATE,
    block_order,
    boot,
    covers,
    reading,
    rejects,
    row_of,
    two_arms,
)
from dsbench.simulation.noise import DraftNoise, Floats, Ints, ItemNoise, LawNoise, Rng
from dsbench.simulation.requests import shares_reject
from dsbench.simulation.tally import Outcome
from dsbench.stats.holm import holm
from dsbench.stats.items import mcnemar_p
from dsbench.stats.law import EXPECTED_AT_LEAST, Context, LawTest, compare_law, together
from dsbench.stats.power import (
    POWER,
    REPEAT_LEVEL,
    smallest_effect,
    smallest_effect_unblocked,
    smallest_law,
    smallest_share,
)
from dsbench.stats.samples import blocks_to_fire

LAYOUT_BYTES = 63_586_506_240
"""Available KV bytes of one exclusive GPU, the same on four boots (measurement.md, section 2)."""


@dataclass(frozen=True)
class Exact:
    """Process-local bytes; `one_fault_in` boots one reads otherwise, or none if it is 0."""

    boots: int
    one_fault_in: int = 0
    metric = metric("kv.available_bytes")

    def claim(self) -> float | None:
        """Any change is seen."""
        return 0.0

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        plan = two_arms(self.metric, self.boots)
        outcomes = []
        for i in range(n):
            step = (1 if i % 2 else -1) * planted
            faults = rng.random(2 * self.boots) < (1 / self.one_fault_in if self.one_fault_in else 0)
            values = [LAYOUT_BYTES - 2**28 * int(fault) for fault in faults]
            row = row_of(plan, _two(self.metric, [[v] for v in values[: self.boots]],
                                    [[v + step] for v in values[self.boots :]]))  # fmt: skip
            word = "improved" if step > 0 else "regressed"
            outcomes.append(Outcome(row.word, rejects(row), covers(row, step / LAYOUT_BYTES, step), row.confidence,
                                    bool(step) and row.word == word))  # fmt: skip
        return outcomes


@dataclass(frozen=True)
class Drafts:
    """Mean acceptance length, from counters of boots in blocks."""

    boots: int
    drafts: DraftNoise = noise.DRAFTS
    metric = metric("accept.length")

    def claimed(self, between: float) -> float:
        """Smallest change of the length with 80 % power, in tokens a round."""
        length, per_logit = self._length(0.0), (self._length(1e-3) - self._length(-1e-3)) / 2e-3
        sd, margin = math.hypot(self._counting_sd(), between * per_logit), self.metric.margin
        if self.boots >= blocks_to_fire(ALPHA):
            found = smallest_effect(math.sqrt(2) * sd / length, self.boots, ALPHA, math.log1p(margin))
            return math.expm1(found or 0.0) * length
        sd = math.hypot(sd, self.drafts.blocks * per_logit)
        unpaired = smallest_effect_unblocked(sd, self.boots, self.boots, ALPHA, margin * length)
        assert unpaired is not None
        return unpaired

    def claim(self) -> float | None:
        return self.claimed(float(np.mean(self.drafts.between))) / self._length(0.0)

    def _prefix(self, shift: float) -> Floats:
        """[depth] chances that draft k and all before it are accepted."""
        chance = np.clip(self.drafts.conditional - self.drafts.fade * np.arange(self.drafts.depth), 0.01, 0.99)
        prefix: Floats = np.cumprod(1 / (1 + (1 / chance - 1) * np.exp(-shift)))
        return prefix

    def _length(self, shift: float) -> float:
        return 1.0 + float(self._prefix(shift).sum())

    def _counting_sd(self) -> float:
        prefix = self._prefix(0.0)
        variance = float((2 * np.arange(1, len(prefix) + 1) - 1) @ prefix - prefix.sum() ** 2)
        return math.sqrt(variance / self.drafts.drafts)

    def _shift(self, change: float) -> float:
        """The shift in logits that changes the length by `change`."""
        grid = np.linspace(-1.5, 1.5, 601)
        return float(np.interp(self._length(0.0) + change, [self._length(s) for s in grid], grid))

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        plan, outcomes = two_arms(self.metric, self.boots), []
        order = block_order(rng, n, self.boots)
        for i, between in enumerate(noise.draw_between(rng, self.drafts.between, n)):
            change = self.claimed(float(between)) * (1 if i % 2 else -1) * planted
            where = order[i]
            shift = np.where(where, self._shift(change) if planted else 0.0, 0.0)
            shift = shift + noise.block_levels(rng, self.drafts, [b // 2 + 1 for b in range(2 * self.boots)])
            counts = noise.accepted_counts(rng, self.drafts, float(between), 2 * self.boots, shift)
            boots = [
                boot(b + 1, CANDIDATE if where[b] else BASELINE, b // 2 + 1, [self._reading(b + 1, counts[b])])
                for b in range(2 * self.boots)
            ]
            row = row_of(plan, boots)
            drawn = [
                (float(counts[w, 1:].sum()), float(counts[w, 0].sum() * self.drafts.depth)) for w in (~where, where)
            ]
            outcomes.append(
                Outcome(
                    row.word,
                    rejects(row),
                    covers(row, change / self._length(0.0), change),
                    row.confidence,
                    planted and row.word == ("improved" if change > 0 else "regressed"),
                    None,
                    shares_reject(drawn[0], drawn[1], ALPHA),
                )
            )
        return outcomes

    def _reading(self, number: int, counts: Floats) -> Observation:
        raw = [float(counts.sum()), float(counts[0])]
        return reading(self.metric, number, raw[0] / raw[1], item="prose t=1", raw=raw)


@dataclass(frozen=True)
class Items:
    """Graded questions, the same in every boot; some answers flip from boot to boot."""

    key: str
    boots: int
    questions: ItemNoise
    margin: float

    @property
    def metric(self) -> Metric:
        return Metric(
            key=self.key, unit="items", better="up", kind="item", margin=self.margin, scope="process",
            summary="simulated questions",
        )  # fmt: skip

    @property
    def _clustered(self) -> bool:
        return self.questions.clusters < self.questions.items

    def claimed(self, flips: float) -> float:
        """Smallest change of the share that is right with 80 % power."""
        if self._clustered:
            found: float | None = 0.0
            for _ in range(4):  # the loss itself makes the clusters differ more
                sd = _cluster_sd(self.questions, self.boots, round(flips, 3), round(found or 0.0, 3))
                seen_by = POWER / (1 - REPEAT_LEVEL)
                found = smallest_effect(sd, self.questions.clusters, ALPHA, self.margin, seen_by)
        else:
            found = smallest_share(self.questions.items, flips, ALPHA, self.boots, self.margin)
        assert found is not None
        return found

    def claim(self) -> float | None:
        """None where boots have luck of their own, of which the items say nothing."""
        return None if self.questions.boot else self.claimed(float(np.mean(self.questions.flips)))

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        plan, outcomes = two_arms(self.metric, self.boots), []
        for flips in noise.draw_between(rng, self.questions.flips, n):
            loss = self.claimed(float(flips)) if planted else 0.0
            a, b = _answers(rng, self.questions, float(flips), self.boots, loss)
            row = row_of(plan, _two(self.metric, a, b, noise.cluster_of(self.questions) if self._clustered else None))
            outcomes.append(
                Outcome(
                    row.word,
                    rejects(row),
                    covers(row, math.nan, -loss),
                    row.confidence,
                    planted and row.word == "regressed",
                    None,
                    mcnemar_p(int((b > a).sum()), int((b < a).sum())) <= ALPHA,
                )
            )
        return outcomes


def _answers(rng: Rng, questions: ItemNoise, flips: float, boots: int, loss: float) -> tuple[Ints, Ints]:
    """[boots, items] of both arms; the candidate's share that is right is less by `loss` on average.

    Only items that flip anyhow change: their chance, whose mean is 3/4, is raised to a power k, which makes the
    mean 3 / (3 + k).
    """
    chances = noise.item_chances(rng, questions, flips)
    power = 3 / (0.75 - loss / noise.uncertain_share(flips)) - 3
    return noise.answers(rng, questions, chances, boots), noise.answers(rng, questions, chances**power, boots)


@cache
def _cluster_sd(questions: ItemNoise, boots: int, flips: float, loss: float) -> float:
    """Standard deviation of a cluster's difference between two arms, from a simulation with its own seed."""
    rng, found = np.random.default_rng(7), []
    for _ in range(300):
        a, b = _answers(rng, questions, flips, boots, loss)
        difference = b.mean(axis=0) - a.mean(axis=0)
        found.append(difference.reshape(questions.clusters, -1).mean(axis=1))
    return float(np.std(found))


@dataclass(frozen=True)
class Law:
    """Sampled tokens against the target's own law, as the output_law probe grades them."""

    boots: int
    law: LawNoise = noise.LAW
    metric = metric("output_law")

    def claim(self) -> float | None:
        """Total variation in one prompt's tokens that one boot sees."""
        degrees, n = self._size()
        return smallest_law(degrees, n, LAW_ALPHA / (self.law.prompts + 1))

    def _size(self) -> tuple[int, int]:
        test = self._test(np.random.default_rng(5), 0.0)
        return test.degrees, test.n

    def _test(self, rng: Rng, variation: float) -> LawTest:
        """One prompt of one boot. With a departure of its law by so much total variation."""
        positions = []
        for _ in range(self.law.positions):
            shares = rng.dirichlet(np.full(self.law.contexts, 5.0))
            sizes = rng.multinomial(self.law.requests // self.law.prompts, shares)
            contexts = []
            for size in sizes:
                chances = rng.permutation(1.0 / np.arange(1, self.law.vocabulary + 1))
                chances /= chances.sum()
                drawn = rng.multinomial(size, _departed(chances, int(size), variation))
                names = [str(token) for token in range(self.law.vocabulary)]
                contexts.append(
                    Context({t: int(c) for t, c in zip(names, drawn, strict=True) if c},
                            dict(zip(names, chances.tolist(), strict=True)))
                )  # fmt: skip
            positions.append(contexts)
        return compare_law(positions)

    def run(self, rng: Rng, n: int, planted: bool) -> list[Outcome]:
        plan, outcomes = two_arms(self.metric, self.boots), []
        variation = (self.claim() or 0.0) if planted else 0.0
        for _ in range(n):
            a = [self._graded(rng, 0.0) for _ in range(self.boots)]
            b = [self._graded(rng, variation) for _ in range(self.boots)]
            row = row_of(plan, _two(self.metric, a, b))
            outcomes.append(
                Outcome(row.word, rejects(row), None, None, planted and row.word == "regressed")
            )  # fmt: skip
        return outcomes

    def _graded(self, rng: Rng, variation: float) -> list[int]:
        """1 or 0 for each prompt and for all of them; the departure, if any, is in the first."""
        tests = [self._test(rng, variation if prompt == 0 else 0.0) for prompt in range(self.law.prompts)]
        return [int(p > LAW_ALPHA) for p in holm([test.p for test in [*tests, together(tests)]])]


def _departed(chances: Floats, size: int, variation: float) -> Floats:
    """The law with its frequent tokens, which are cells of their own, less likely by one fraction and the others more
    likely by another: a departure that pooling does not hide."""
    frequent = chances * size >= EXPECTED_AT_LEAST
    if not variation or frequent.all() or chances[frequent].sum() <= variation:
        return chances
    rare = ~frequent
    departed = chances.copy()
    departed[frequent] *= 1 - variation / chances[frequent].sum()
    departed[rare] *= 1 + variation / chances[rare].sum()
    return departed


def _two(
    of: Metric, baseline: Ints | list[list[int]], candidate: Ints | list[list[int]], clusters: Ints | None = None
) -> list[BootEvidence]:
    """Boots of two arms side by side in blocks, from [boots, items] values; one item has no name."""
    boots, number = [], 0
    for block, pair in enumerate(zip(baseline, candidate, strict=True), start=1):
        for arm, values in zip((BASELINE, CANDIDATE), pair, strict=True):
            number += 1
            named = len(values) > 1
            seen = [
                reading(of, number, int(value), item=f"item {i}" if named else None,
                        cluster=f"cluster {clusters[i]}" if clusters is not None else None)
                for i, value in enumerate(values)
            ]  # fmt: skip
            boots.append(boot(number, arm, block, seen))
    return boots
