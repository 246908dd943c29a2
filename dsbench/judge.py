"""From a plan and its records to the verdict. Pure: the same input gives the same answer for ever."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsbench.by_host import differs_reasons, unequal
from dsbench.claims import corrected, is_unproven_gain
from dsbench.coherence_findings import NOT_ALIKE, coherence_findings
from dsbench.compare import WITHIN_BASELINE, compare
from dsbench.comparison import merged
from dsbench.decide import overall, worst
from dsbench.effects import effects
from dsbench.engines.ended import signal_named
from dsbench.evidence import BootEvidence, gather, hosts_of
from dsbench.looks import as_reached
from dsbench.records import (
    EXIT_CODES,
    Additivity,
    Arm,
    ArmVerdict,
    ExperimentVerdict,
    Plan,
    Record,
    Verdict,
    VoidReason,
)
from dsbench.sanity import acceptance_findings, answer_findings, law_findings, toolcall_findings
from dsbench.void import void_reasons

UNKNOWN = "unknown on this platform"
REPEATED = "boots repeated after"
"""How notes on repeated boots begin."""
COLD = "they ran without their warm-up, whose engine was killed, and so are held to be cold"
VOIDED = "of a void experiment, so no evidence for or against an arm"
"""How what was found begins where nothing is compared."""
TOLD = ("device-unknown", "device-slowed")
"""Codes of findings that end no comparison and that a reader must know of."""


def judge(plan: Plan, records: Sequence[Record]) -> ExperimentVerdict:
    """Judge every arm of a plan against its baseline by the rules of the design page."""
    plan = as_reached(plan, records)
    boots = gather(plan, records)
    usable = [boot for boot in boots if boot.ok and boot.planned.phase == "measured"]
    rows = corrected(plan, [row for arm in plan.arms[1:] for row in _rows(plan, usable, arm)])
    void = [*void_reasons(plan, boots), *differs_reasons(rows), *_drift(rows), *_nothing_checked(rows)]
    hosts = hosts_of(boots, records)
    if void:
        rows = [row.model_copy(update={"word": "void"}) if row.word != "not-run" else row for row in rows]
    arms = [_arm_verdict(arm, [row for row in rows if row.arm == arm.name], bool(void)) for arm in plan.arms[1:]]
    word = worst([arm.word for arm in arms])
    additivity = [] if void else _additivity(plan, rows)
    return ExperimentVerdict(
        id=plan.id,
        suite=plan.suite,
        word=word,
        exit_code=EXIT_CODES[word],
        sentence=_sentence(plan, arms, rows, void),
        arms=arms,
        rows=rows,
        void=void,
        additivity=additivity,
        effects=[] if void else effects(plan, usable),
        hosts=hosts,
        notes=[
            *plan.notes,
            *unequal(hosts, usable),
            *_declared_notes(plan, usable),
            *(f"{VOIDED}: {finding}" if void else finding for finding in _findings(plan, usable)),
            *_boot_notes(plan, boots),
        ],
    )


def _findings(plan: Plan, boots: Sequence[BootEvidence]) -> Iterator[str]:
    """What replies and drafts show beside the rows."""
    yield from acceptance_findings(plan, boots)
    yield from law_findings(plan, boots)
    yield from coherence_findings(plan, boots)
    yield from toolcall_findings(plan, boots)
    yield from answer_findings(plan, boots)


def resolved(verdict: ExperimentVerdict) -> bool:
    """Whether more blocks could change nothing: void, a loss, or a primary and guards that are all decided.

    A primary of exact bytes is decided by two blocks, when the guards have hardly been tested.
    """
    rows = [row for row in verdict.rows if row.role in ("primary", "guard") and not _never(row)]
    return verdict.word in ("void", "regressed") or all(row.word != "inconclusive" for row in rows)


def _never(row: Verdict) -> str:
    """Why no number of blocks decides a row: the platform does not tell, or its arms were not asked alike; '' if some
    number may."""
    return next((why for why in (UNKNOWN, NOT_ALIKE) if any(note.startswith(why) for note in row.notes)), "")


def _rows(plan: Plan, boots: Sequence[BootEvidence], arm: Arm) -> list[Verdict]:
    """Rows of one arm, primary first; a metric read alike by every rank is one row."""
    rows: list[Verdict] = []
    for metric in plan.metrics:
        ranks = {rank for boot in boots for rank in boot.ranks.get(metric.key, ())} or {None}
        of_ranks = [
            compare(plan, boots, arm, metric, rank, _role(plan, arm, metric.key))
            for rank in sorted(ranks, key=lambda r: -1 if r is None else r)
        ]
        rows += merged(of_ranks)
    order = {"primary": 0, "guard": 1, "drift control": 2, "shown": 3}
    return sorted(rows, key=lambda row: order[row.role])


def _role(plan: Plan, arm: Arm, key: str) -> str:
    if key in arm.primary:
        return "primary"
    return "guard" if key in plan.guards else "drift control" if key in plan.drift_controls else "shown"


def _arm_verdict(arm: Arm, rows: Sequence[Verdict], void: bool) -> ArmVerdict:
    """Rule 5: void, else a regressed primary or guard, else the primary's word with unresolved guards listed."""
    primary = [row.word for row in rows if row.role == "primary"]
    guards = [row for row in rows if row.role == "guard"]
    word = overall(primary, [row.word for row in guards], void)
    unresolved = [row.metric for row in guards if row.word in ("inconclusive", "not-run") and not is_unproven_gain(row)]
    return ArmVerdict(arm=arm.name, toggles=arm.toggles, word=word, unresolved_guards=list(dict.fromkeys(unresolved)))


def _drift(rows: Sequence[Verdict]) -> list[VoidReason]:
    """A drift control that moved: something other than the toggle changed, too. Or one that may have."""
    found = []
    for row in rows:
        moved, open_ = row.word in ("improved", "regressed"), _moved_and_open(row)
        if row.role == "drift control" and (moved or open_):
            known = row.baseline is not None and row.candidate is not None
            how = f"{row.baseline:,.10g} -> {row.candidate:,.10g} {row.unit}" if known else "; ".join(row.notes)
            found.append(
                VoidReason(
                    code="drift",
                    text=f"{row.metric}, which {row.arm} cannot touch, moved: {how}",
                    mend="find what else changed between the arms (machine, clocks, weights) and run again",
                    arm=row.arm,
                )
                if moved
                else VoidReason(
                    code="drift-unresolved",
                    text=f"{row.metric}, which {row.arm} cannot touch, may have moved: {how}, beyond its margin",
                    mend="run more blocks, or take a drift control whose boots agree",
                    arm=row.arm,
                )
            )
    return found


def _moved_and_open(row: Verdict) -> bool:
    """Whether a row without an answer has an effect beyond its margin, where its baseline does not vary as far."""
    if row.word != "inconclusive" or row.delta is None or WITHIN_BASELINE in row.notes:
        return False
    relative = row.kind != "item" and not row.margin_absolute and row.relative is not None
    return abs((row.relative or 0.0) if relative else row.delta) > row.margin


def _nothing_checked(rows: Sequence[Verdict]) -> list[VoidReason]:
    """A row without readings passes nothing."""
    missing = sorted({row.metric for row in rows if row.word == "not-run"})
    if not missing:
        return []
    return [
        VoidReason(
            code="not-run",
            text=f"no pair of readings of {', '.join(missing)}",
            mend="see the failed boots or probes above; run again",
        )
    ]


def _additivity(plan: Plan, rows: Sequence[Verdict]) -> list[Additivity]:
    """For the arm with all toggles: its change of each exact metric against the sum of the changes alone."""
    singles = [arm for arm in plan.arms[1:] if len(arm.toggles) == 1]
    alone_toggles = {toggle for arm in singles for toggle in arm.toggles}
    together = next((arm for arm in plan.arms if len(alone_toggles) > 1 and {*arm.toggles} == alone_toggles), None)
    if together is None:
        return []
    delta = {
        (row.arm, row.metric, row.rank): row.delta for row in rows if row.kind == "exact" and row.delta is not None
    }
    found = []
    for row in rows:
        if row.arm != together.name or row.unit != "B" or row.delta is None:
            continue
        alone = {arm.name: delta.get((arm.name, row.metric, row.rank)) for arm in singles}
        known = {name: value for name, value in alone.items() if value is not None}
        if len(known) == len(singles) and (row.delta or any(known.values())):
            found.append(
                Additivity(
                    metric=row.metric,
                    unit=row.unit,
                    together=row.delta,
                    alone=known,
                    difference=row.delta - sum(known.values()),
                )
            )
    return found


def _declared_notes(plan: Plan, boots: Sequence[BootEvidence]) -> list[str]:
    """What the arms read back of the conditions in which they were to differ; toggles are in the arm's name."""
    read = {boot.planned.arm: boot.conditions[0] for boot in boots if 0 in boot.conditions}
    base = read.get(plan.baseline.name, {})
    notes = []
    for arm in plan.arms[1:]:
        mine = read.get(arm.name, {})
        changes = [
            f"{key} {str(base.get(key, 'unknown'))[:32]} -> {str(mine.get(key, 'unknown'))[:32]}"
            for key in arm.declared
            if key != "toggles" and base.get(key) != mine.get(key)
        ]
        if changes:
            notes.append(f"declared differences of {arm.name}: {', '.join(changes)}")
    return notes


def _boot_notes(plan: Plan, boots: Sequence[BootEvidence]) -> list[str]:
    """Facts that limit every row: conditions nobody could read, batch invariance that is off."""
    unknown: set[str] = set()
    variant = False
    for boot in boots:
        for values in boot.conditions.values():
            unknown |= {key for key, value in values.items() if value is None or value == "unknown"}
            variant = variant or values.get("batch_invariant") is False
    notes = [f"conditions unknown to the engine, so not compared: {', '.join(sorted(unknown))}"] if unknown else []
    if variant:
        notes.append("batch invariance is off: tokens of one request may depend on what runs beside it")
    served = plan.until == "ready"
    if served and not any(counters.values for boot in boots for counters in boot.counters):
        notes.append("the engine shows no counters: a reset inside a boot would not be seen")
    for code in TOLD:
        found = [(boot.number, finding.text) for boot in boots for finding in boot.findings if finding.code == code]
        if found:
            numbers = ", ".join(str(number) for number in sorted({number for number, _ in found}))
            notes.append(f"{found[0][1]} (boots: {numbers})")
    for after, again in (
        ("an interruption", {boot.number for boot in boots if boot.repeated}),
        (COLD, {boot.number for boot in boots if boot.ran_cold}),
    ):
        if again:
            notes.append(f"{REPEATED} {after}: {', '.join(map(str, sorted(again)))}")
    if killed := [f"{boot.number} ({signal_named(boot.killed_by)})" for boot in boots if boot.killed_by]:
        notes.append(f"{REPEATED} their engine was killed: {', '.join(dict.fromkeys(killed))}")
    return notes


def _sentence(plan: Plan, arms: Sequence[ArmVerdict], rows: Sequence[Verdict], void: Sequence[VoidReason]) -> str:
    if void:
        more = f" (and {len(void) - 1} more)" if len(void) > 1 else ""
        return f"Void, reason {void[0].code}: {void[0].text}{more}. Mend: {void[0].mend}."
    return " ".join(_arm_sentence(plan, arm, [row for row in rows if row.arm == arm.arm]) for arm in arms)


def _arm_sentence(plan: Plan, arm: ArmVerdict, rows: Sequence[Verdict]) -> str:
    if arm.word == "regressed":
        told = [row for row in rows if row.word == "regressed" and row.role in ("primary", "guard")]
    else:
        told = [row for row in rows if row.role == "primary"]
    name = arm.arm if len(arm.toggles) <= 1 else f"{arm.arm} ({' + '.join(arm.toggles)})"
    parts = [f"{name} {arm.word}: {', '.join(map(_change, told))}"]
    tokens = next((row for row in rows if row.metric == "identity.tokens"), None)
    if tokens is not None and tokens.word == "equivalent":
        parts.append("tokens identical")
    never = {row.metric: why for row in rows if row.role == "guard" and (why := _never(row))}
    if resolvable := [metric for metric in arm.unresolved_guards if metric not in never]:
        parts.append(f"guards not resolved at {plan.blocks} blocks: {', '.join(resolvable)}")
    for why in dict.fromkeys(never.values()):
        parts.append(f"guards {why}: {', '.join(metric for metric in never if never[metric] == why)}")
    return "; ".join(parts) + "."


def _change(row: Verdict) -> str:
    if row.delta is None:
        return f"{row.metric} ({'; '.join(row.notes)})"
    if row.kind == "exact":
        expected = f", expected {row.expected:+,} {row.unit}" if row.expected is not None else ""
        return (
            f"{row.metric} {row.delta:+,.10g} {row.unit}{expected}"
            if row.delta
            else f"{row.metric} unchanged{expected}"
        )
    if row.kind == "item" or row.margin_absolute:
        return f"{row.metric} {row.baseline:.4g} -> {row.candidate:.4g}"
    if row.relative is None:
        return f"{row.metric} {row.delta:+.4g} {row.unit}"
    return f"{row.metric} {row.relative * 100:+.1f} %"
