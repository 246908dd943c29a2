"""Records of a simulated experiment: what `execute` would have written, with noise and without an effect."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from dsbench import records as r
from dsbench.metrics import Metric
from dsbench.probes.acceptance import GREEDY, KINDS, SAMPLED
from dsbench.probes.output_law import ALPHA as LAW_ALPHA
from dsbench.records import Observation, Plan, PlannedBoot, Record
from dsbench.simulation import noise
from dsbench.simulation.counted import LAYOUT_BYTES
from dsbench.simulation.noise import Floats, Rng
from dsbench.stats.holm import holm

COLD = 0.10
"""By how much a warm-up boot is slower; it is discarded. Assumed (measurement.md, section 2, row 6 of its rules)."""

Readings = list[dict[str, Any]]
"""Fields of the observations of one metric in one boot."""


def simulated_records(plan: Plan, rng: Rng) -> list[Record]:
    """Records of one A/A experiment: every arm reads from the same distributions."""
    noises = {metric.key: _noise(metric) for metric in plan.metrics}
    path = noise.drift(rng, 1, len(plan.boots))
    clocks = {key: _clock(rng, plan, spread, path) for key, spread in noises.items() if spread is not None}
    acceptance = _acceptance(rng, plan) if plan.probes.acceptance else {}
    lines: list[Record] = [r.Run(time="t", pid=1, harness_version=plan.harness_version, resumed=False)]
    for i, boot in enumerate(plan.boots):
        readings: dict[str, Readings] = {
            key: [{"value": float(np.median(runs[i])), "raw": runs[i].tolist()}] for key, runs in clocks.items()
        }
        readings |= {key: of_boots[i] for key, of_boots in acceptance.items()}
        lines += _boot(plan, boot, readings, rng)
    return lines


def _boot(plan: Plan, boot: PlannedBoot, readings: dict[str, Readings], rng: Rng) -> Iterator[Record]:
    n, arm, pid = boot.number, plan.arm(boot.arm), 1000 + boot.number
    taken = dict.fromkeys(arm.takes, 3)
    facts = {"schema": 1, "rank": 0, "pid": pid, "toggles": arm.on, "dims": plan.dims, "seed": plan.seed}
    facts |= {"speculative": arm.speculative or "none", "cache_state": "cold", "graph_mode": "replay"}
    yield r.BootStarted(boot=n, time="t", arm=boot.arm, block=boot.block, phase=boot.phase)
    yield r.Conditions(boot=n, rank=0, values=facts)
    yield r.KvProfile(boot=n, rank=0, values={"source": "live-bytes"})
    yield r.Markers(boot=n, rank=0, moment="ready", pid=pid, taken=taken, refused={})
    probes = plan.probes.due(boot.block)
    for step, probe in enumerate(probes, start=1):
        for key in plan.probes.metrics(probe):
            metric = plan.metric(key)
            for fields in readings.get(key) or _exact_or_items(plan, metric, probe, rng):
                yield Observation.model_validate(
                    {"boot": n, "metric": key, "unit": metric.unit, "phase": boot.phase, **fields}
                )
        yield r.Check(boot=n, probe=probe, status="done", seconds=1.0)
        if plan.until == "ready":
            yield r.Counters(boot=n, moment=probe, pid=pid, values={"vllm:prompt_tokens_total": 10.0 * step})
    yield r.Markers(boot=n, rank=0, moment="end", pid=pid, taken=taken, refused={})
    log = {"log": f"boots/{boot.folder}/engine.log", "log_bytes": 9, "log_sha256": f"{n:064x}"}
    yield r.BootEnded.model_validate({"boot": n, "time": "t", "status": "ok", "seconds": 3.0, **log})


def _noise(metric: Metric) -> noise.Spread | None:
    """The noise of a sample metric, by the longest name that its key begins with; decode's where there is none."""
    if metric.kind != "sample":
        return None
    known = [name for name in noise.SPREADS if metric.key.startswith(name)]
    return noise.SPREADS[max(known, key=len, default="decode.tps")]


def _clock(rng: Rng, plan: Plan, spread: noise.Spread, path: Floats) -> Floats:
    """[boots, runs] means of the runs, with the drift that all clocks of the machine share."""
    sd = noise.draw_between(rng, spread.boot, 1)
    cold = np.array([[-COLD if boot.phase == "warm-up" else 0.0 for boot in plan.boots]])
    of_runs: Floats = noise.requests(rng, spread, sd, len(plan.boots), cold, path)[0].mean(axis=2)
    return of_runs


def _acceptance(rng: Rng, plan: Plan) -> dict[str, list[Readings]]:
    """Observations by metric and boot. Greedy counts repeat; sampled ones are drawn apart in every boot, as on an
    engine whose batches differ: where boots of a block repeat each other's counts there is less noise than here."""
    drafts, found = noise.DRAFTS, dict[str, list[Readings]]()
    for kind in KINDS:
        between = float(noise.draw_between(rng, drafts.between, 1)[0])
        greedy = noise.accepted_counts(rng, drafts, 0.0, 1).repeat(len(plan.boots), axis=0)
        levels = noise.block_levels(rng, drafts, [boot.block for boot in plan.boots])
        sampled = noise.accepted_counts(rng, drafts, between, len(plan.boots), levels)
        for name, counts in ((GREEDY, greedy), (SAMPLED, sampled)):
            for i, of_boot in enumerate(counts):
                for key, fields in _ratios(f"{kind} {name}", of_boot):
                    found.setdefault(key, [[] for _ in plan.boots])[i].append(fields)
    return found


def _ratios(item: str, counts: Floats) -> Iterator[tuple[str, dict[str, Any]]]:
    """What the acceptance probe reads from the counts of one boot: rounds, then survivors of each position."""
    drafts, accepted = float(counts[0]), float(counts[1:].sum())

    def ratio(name: str, above: float, below: float) -> dict[str, Any]:
        return {"item": name, "value": above / below if below else None, "raw": [above, below]}

    yield "accept.rate", ratio(item, accepted, drafts * (len(counts) - 1))
    yield "accept.length", ratio(item, drafts + accepted, drafts)
    for k in range(len(counts) - 1):
        yield "accept.per_position", ratio(f"{item} k{k}", float(counts[k + 1]), drafts)
        yield "accept.conditional", ratio(f"{item} k{k}", float(counts[k + 1]), float(counts[k]))


def _exact_or_items(plan: Plan, metric: Metric, probe: str, rng: Rng) -> Readings:
    """What a deterministic engine repeats, and the output law, which a sound engine fails once in a thousand boots."""
    if metric.key == "output_law":
        config = plan.probes.output_law
        assert config is not None
        names = [f"prompt {number}" for number in range(1, len(config.prompts) + 1)]
        adjusted = holm([*rng.random(len(names) + 1)])
        return [
            {"item": name, "value": int(p > LAW_ALPHA)}
            for name, p in zip([*names, "all prompts"], adjusted, strict=True)
        ]
    if metric.kind == "item":
        value: Any = [1, 2, 3] if metric.key == "identity.tokens" else 1
        return [{"item": f"item {i}", "value": value} for i in range(plan.probes.items(probe) or 4)]
    if metric.kind == "counter-ratio":
        return [{"item": f"text {GREEDY}", "value": 0.6, "raw": [60.0, 100.0]}]
    return [{"value": _constant(metric.key), "rank": 0}]


@cache
def _constant(key: str) -> int:
    """Some number of bytes, the same in every boot."""
    return LAYOUT_BYTES // (1 + sum(map(ord, key)) % 7)
