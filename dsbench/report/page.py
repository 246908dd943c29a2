"""Everything that a report says of one experiment, as data for the HTML template and the Markdown page. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dsbench.evidence import BootEvidence, gather
from dsbench.records import ExperimentVerdict, Plan, Record, Verdict, VoidReason
from dsbench.report import charts, rerun, table
from dsbench.report.conditions import ConditionsRead, conditions, machine
from dsbench.report.effects import effect_lines
from dsbench.report.flips import Flips, flips
from dsbench.report.memory import KvRow, Memory, compare_memory, kv_rows
from dsbench.report.readings import Curves, by_boot, by_load, by_position, measured, shown_arms
from dsbench.report.units import gain
from impl.toggles import REGISTRY

RUN_CHARTS = 12
"""Metrics shown in the order of time; the judged ones come first."""
VERSIONS = ("engine", "impl_version", "impl_sources", "vllm", "served_version", "torch", "python")
"""Conditions that say which programs ran."""


@dataclass(frozen=True)
class Row:
    """One verdict row in words, as the terminal prints it."""

    metric: str
    change: str
    difference: str
    floor: str
    how: str
    word: str
    words: str
    role: str
    notes: list[int]
    """Numbers of footnotes."""


@dataclass(frozen=True)
class ArmPage:
    name: str
    line: str
    word: str
    rows: list[Row]
    lines: list[str]
    intervals: str | None
    """SVG"""


@dataclass(frozen=True)
class Changed:
    """One toggle that the arms differ in."""

    name: str
    summary: str
    reference: str


@dataclass(frozen=True)
class BootRow:
    number: int
    arm: str
    block: str
    status: str
    seconds: str
    findings: list[str]


@dataclass(frozen=True)
class Page:
    """Sections; an empty list or None is left out."""

    id: str
    baseline: str
    head: str
    measured_on: str
    word: str
    sentence: str
    by_arm: list[str]
    """The sentence in parts, one an arm, where there are several; empty otherwise."""
    floors: bool
    changes: list[Changed]
    arms: list[ArmPage]
    footnotes: list[str]
    notes: list[str]
    effects: list[str]
    void: list[tuple[VoidReason, str]]
    """With the boots they were seen in."""
    run_charts: list[tuple[str, str]]
    """Metric and SVG."""
    steady: list[str]
    """Metrics that every boot of an arm repeats."""
    ladder: bool
    kv: list[KvRow]
    kv_chart: str | None
    memory: list[tuple[Memory, str | None]]
    acceptance: list[tuple[str, str]]
    acceptance_curves: list[Curves]
    loads: list[tuple[str, str]]
    load_curves: list[Curves]
    left_out_arms: int
    """Arms that the plots leave out."""
    flips: list[Flips]
    conditions: ConditionsRead
    machine: list[tuple[str, str]]
    boots: list[BootRow]
    command: str
    caveats: list[str]
    versions: list[tuple[str, str]]


def page(plan: Plan, records: Sequence[Record], verdict: ExperimentVerdict) -> Page:
    """What there is to say, section by section."""
    boots = gather(plan, records)
    shown = shown_arms(plan, verdict)
    numbered = table.footnotes(verdict.rows)
    judged = list(dict.fromkeys(row.metric for row in verdict.rows if row.role in ("primary", "guard")))
    series, steady = by_boot(plan, boots, judged)
    acceptance, loads = by_position(plan, boots, shown), by_load(plan, boots, shown)
    kv = kv_rows(plan, boots)
    read, on = conditions(plan, boots), machine(plan, boots)
    return Page(
        id=plan.id,
        baseline=plan.baseline.name,
        measured_on=_measured_on(plan, on),
        head=table.head(plan).removeprefix(f"{plan.id} · "),
        word=verdict.word,
        sentence=verdict.sentence,
        by_arm=by_arm(verdict),
        floors=bool(plan.floors),
        changes=_changes(plan),
        arms=_arms(plan, verdict, numbered),
        footnotes=list(numbered),
        notes=[*plan.notes, *(note for note in verdict.notes if note not in plan.notes)],
        effects=[*table.additivity_lines(verdict), *effect_lines(verdict.effects)],
        void=[(reason, table.ranges(reason.boots) if reason.boots else "") for reason in verdict.void],
        run_charts=[(s.metric, charts.run_order(s, shown)) for s in series[:RUN_CHARTS]],
        steady=steady,
        ladder=plan.matrix is not None and plan.matrix.kind == "ladder",
        kv=kv,
        kv_chart=_kv_chart(kv),
        memory=[
            (found, charts.memory_line(found.moments, (plan.baseline.name, arm)) if found.moments else None)
            for arm in shown[1:]
            if (found := compare_memory(plan, boots, arm))
        ],
        acceptance=[(found.title, charts.curves(found, shown)) for found in acceptance],
        acceptance_curves=acceptance,
        loads=[(found.title, charts.curves(found, shown)) for found in loads],
        load_curves=loads,
        left_out_arms=len(plan.arms) - len(shown),
        flips=flips(plan, boots),
        conditions=read,
        machine=on,
        boots=[_boot(boot) for boot in boots],
        command=rerun.line(plan),
        caveats=rerun.caveats(plan),
        versions=_versions(plan, boots),
    )


def by_arm(verdict: ExperimentVerdict) -> list[str]:
    """The verdict's sentence cut before the name and word of each arm; [] for one arm, and where it is not by arm."""
    text = verdict.sentence
    starts: list[int] = []
    for arm in verdict.arms:
        named = re.compile(rf"(?:^|(?<=\. )){re.escape(arm.arm)}(?: \([^)]*\))? {arm.word}: ")
        found = named.search(text, starts[-1] + 1 if starts else 0)
        if found is None:
            return []
        starts.append(found.start())
    if len(starts) < 2 or starts[0]:
        return []
    return [text[start:end].strip() for start, end in pairwise([*starts, len(text)])]


def _changes(plan: Plan) -> list[Changed]:
    names = dict.fromkeys(toggle for arm in plan.arms for toggle in arm.toggles)
    known = {name: REGISTRY.get(name.partition("=")[0].partition(":")[0]) for name in names}
    return [Changed(name, toggle.summary, toggle.reference) for name, toggle in known.items() if toggle]


def _arms(plan: Plan, verdict: ExperimentVerdict, numbered: Mapping[str, int]) -> list[ArmPage]:
    words = {arm.arm: arm.word for arm in verdict.arms}
    pages = []
    for arm in plan.arms[1:]:
        rows = [row for row in verdict.rows if row.arm == arm.name]
        drawn = [found for row in rows if (found := interval(plan, row))]
        pages.append(
            ArmPage(
                name=arm.name,
                line=table.arm_line(plan, arm),
                word=words.get(arm.name, verdict.word),
                rows=[_row(plan, row, numbered) for row in rows],
                lines=[*table.expected_lines(rows), *table.interval_lines(rows), *table.power_lines(rows)],
                intervals=charts.intervals(drawn) if drawn else None,
            )
        )
    return pages


def _row(plan: Plan, row: Verdict, numbered: Mapping[str, int]) -> Row:
    return Row(
        metric=_label(row),
        change=table.change(row),
        difference=table.difference(row),
        floor=table.floor(plan, row),
        how=table.how(row).strip("()"),
        word=row.word,
        words=table.verdict_words(row),
        role="" if row.role == "shown" else row.role,
        notes=[numbered[note] for note in row.notes],
    )


def _label(row: Verdict) -> str:
    return row.metric if row.rank is None else f"{row.metric} rank {row.rank}"


def interval(plan: Plan, row: Verdict) -> charts.Interval | None:
    """The row in margins; None for what has no interval, or no margin to hold it against."""
    if row.interval is None or not row.margin:
        return None
    unit = 1.0
    relative = not (row.margin_absolute or row.kind == "item")
    if relative and row.interval_of == "difference":
        unit = abs(row.baseline or 0.0)
    if not unit:
        return None
    low, high = (value / unit / row.margin for value in row.interval)
    middle = row.relative if relative and row.interval_of == "relative" else row.delta
    stored = table.floor_noise(plan, row)
    noise = None
    if stored:
        of_margin = 1.0 if stored[0].relative == relative else abs(row.baseline or 1.0) ** (-1 if relative else 1)
        noise = stored[1] * of_margin / row.margin
    return charts.Interval(
        label=_label(row),
        figure=table.difference(row),
        word=row.word,
        low=low,
        mid=(low + high) / 2 if middle is None else middle / unit / row.margin,
        high=high,
        floor=noise,
    )


def _kv_chart(rows: Sequence[KvRow]) -> str | None:
    candidates = rows[1:]
    if not any(row.gain_bytes for row in candidates):
        return None
    names = [row.state if row.state.startswith("after ") else row.arm for row in candidates]
    return charts.gains(
        [(name, gain(row.gain_bytes), row.gain_bytes) for name, row in zip(names, candidates, strict=True)]
    )


def _boot(boot: BootEvidence) -> BootRow:
    ended = boot.ended
    failed = [f"{c.probe} {c.status}: {c.reason}" for c in boot.checks.values() if c.status != "done"]
    return BootRow(
        number=boot.number,
        arm=boot.planned.arm,
        block="warm-up" if boot.planned.block is None else str(boot.planned.block),
        status=f"{ended.status}{f': {ended.reason}' if ended.reason else ''}" if ended else "did not run",
        seconds=f"{ended.seconds:.1f} s" if ended else "-",
        findings=[*failed, *(f"{finding.code}: {finding.text}" for finding in boot.findings)],
    )


def _versions(plan: Plan, boots: Sequence[BootEvidence]) -> list[tuple[str, str]]:
    """The harness's version, and what the engines say of theirs, by arm where they differ."""
    told = [("dsbench", plan.harness_version)]
    for key in VERSIONS:
        by_value: dict[str, list[str]] = {}
        for boot in measured(boots):
            for values in boot.conditions.values():
                if values.get(key) is not None:
                    by_value.setdefault(_short_digest(values[key]), []).append(boot.planned.arm)
        if len(by_value) == 1:
            told.append((key, next(iter(by_value))))
        told += [
            (key, f"{value} in {', '.join(dict.fromkeys(a))}") for value, a in by_value.items() if len(by_value) > 1
        ]
    return told


def _short_digest(value: Any) -> str:
    text = str(value)
    return text[:12] if len(text) == 64 else text


def _cards(plan: Plan) -> str:
    """The host's cards, alike ones counted: the engine may have run on some of them."""
    cards = Counter(plan.fingerprint.gpus if plan.fingerprint else [])
    told = "; ".join(f"{count} x {card}" if count > 1 else card for card, count in cards.items())
    return f"a host with {told}" if cards.total() > 1 else told


def _measured_on(plan: Plan, read: Sequence[tuple[str, str]]) -> str:
    """Machine and build in one line, as the source document heads its tables."""
    facts = dict(read)
    where = _cards(plan) or facts.get("device") or f"{facts.get('cpu', '?')}, {facts.get('cores', '?')} cores"
    limits = {"max_model_len": "max model len", "max_num_batched_tokens": "T", "max_num_seqs": "sequences"}
    told = [f"{name} {plan.dims[key]}" for key, name in limits.items() if key in plan.dims]
    method = plan.baseline.speculative
    drafts = [f"speculative {method}"] if method and method != "none" else []
    return ", ".join([where, f"{plan.engine} engine", str(plan.dims.get("name", "")), *drafts, *told]).replace(
        ", ,", ","
    )
