"""Which of a suite's probes, guards and drift controls make sense for the builds that are compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from dsbench.metrics import Metric, metric
from dsbench.probe_settings import INDEX_MAPS, SP_ACTIVE, Probes
from dsbench.records import Arm
from dsbench.suite import Suite

CHECKOUT = Path(__file__).resolve().parent.parent
"""The folder around this package."""
SERVED_PEAK = "kv.runtime_peak_bytes"


@dataclass(frozen=True)
class Fitted:
    """What is left of a suite, and why the rest is not."""

    probes: Probes
    metrics: list[Metric]
    guards: list[str]
    drift_controls: list[str]
    not_run: dict[str, str]
    """Reasons, by probe."""
    notes: list[str]


def fit(suite: Suite, arms: Sequence[Arm], *, synthetic: bool) -> Fitted:
    """The suite for these arms. `synthetic`: drafts are accepted at rates that were asked for."""
    reasons = _not_run(arms, synthetic) | _without_tests(suite)
    not_run = {name: why for name, why in reasons.items() if getattr(suite.probes, name) is not None}
    probes = suite.probes.without(*not_run)
    if probes.kv is not None and any(SP_ACTIVE in arm.primary for arm in arms):
        probes = probes.model_copy(update={"kv": probes.kv.model_copy(update={"sequence_parallel": True})})
    told = dict(not_run)
    if probes.concurrency is not None and "acceptance" in reasons:
        uncounted = probes.concurrency.model_copy(update={"acceptance": False})
        probes = probes.model_copy(update={"concurrency": uncounted})
        told["concurrency.accept.*"] = reasons["acceptance"]
    metrics = [metric(key) for name in probes.names() for key in probes.metrics(name)]
    if synthetic:
        metrics = [m.model_copy(update={"better": "same"}) if _counts_drafts(m) else m for m in metrics]
    notes = [f"{', '.join(names)}: not-run, {why}" for why, names in _by_reason(told).items()]
    if synthetic and probes.identity is not None:
        notes.append("identity: with synthetic acceptance many of its tokens are drafts that no target has verified")
    guards, controls = _expand(suite.guards, metrics), _expand(suite.drift_controls, metrics)
    if any(arm.build != arms[0].build for arm in arms):
        moved = [key for key in (*guards, *controls) if key.startswith("kv.")]
        guards, controls = ([key for key in keys if key not in moved] for keys in (guards, controls))
        if moved:
            notes.append("the arms are different builds, which may need different memory: kv.* is shown, not guarded")
    return Fitted(probes, metrics, guards, controls, not_run, notes)


def for_vllm(suite: Suite) -> tuple[Suite, list[str]]:
    """The suite without guards that no boot of vLLM can answer, which would stay open for good; and notes of them."""
    notes = []
    if suite.probes.kv is not None and suite.probes.kv.index_maps:
        kv = suite.probes.kv.model_copy(update={"index_maps": False})
        suite = suite.model_copy(update={"probes": suite.probes.model_copy(update={"kv": kv})})
        notes.append(f"{INDEX_MAPS}: not-applicable, vLLM's memory profile runs no attention, nobody counts its maps")
    if suite.until == "profile" and SERVED_PEAK in suite.guards:
        suite = suite.model_copy(update={"guards": [key for key in suite.guards if key != SERVED_PEAK]})
        notes.append(f"{SERVED_PEAK}: not a guard, boots of vLLM that stop at the profile serve nothing")
    return suite, notes


def _not_run(arms: Sequence[Arm], synthetic: bool) -> dict[str, str]:
    silent = [arm.name for arm in arms if not arm.speculates]
    reasons = {}
    if len(silent) == len(arms):
        reasons = dict.fromkeys(("acceptance", "output_law"), "no arm has speculation")
    elif silent:
        reasons["acceptance"] = f"{', '.join(silent)} has no speculation, so there is nothing to compare with"
    if synthetic:
        graded = ("smoke", "gsm8k", "instruction", "coherence", "toolcall", "output_law")
        reasons |= dict.fromkeys(graded, "with synthetic acceptance the output is not the target's")
    return reasons


def _without_tests(suite: Suite) -> dict[str, str]:
    """Probes that ask our own tests, where this package was installed without them."""
    if (CHECKOUT / "tests" / "impl").is_dir():
        return {}
    asked = {"kernels": suite.probes.kernels, "unit": suite.probes.unit}
    usual = [name for name, probe in asked.items() if probe and not probe.selection and probe.checkout is None]
    return dict.fromkeys(usual, "this package is installed without its tests: run from a checkout")


def _counts_drafts(metric: Metric) -> bool:
    return metric.key.startswith(("accept.", "concurrency.accept."))


def _by_reason(not_run: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, why in not_run.items():
        found.setdefault(why, []).append(name)
    return found


def _expand(patterns: Sequence[str], metrics: Sequence[Metric]) -> list[str]:
    return [m.key for m in metrics if any(fnmatchcase(m.key, pattern) for pattern in patterns)]
