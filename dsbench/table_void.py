"""Reasons why a table of readings is no comparison: the rules of `void.py`, as far as a table can show them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from dsbench.records import VoidReason
from dsbench.table_input import Table

MARKER = "toggle_marker_seen"
PINNED = ("pinned", "override", "startup plan")
LOGS = ("log", "log_file", "log_path", "log_sha256")
MEASURED = ("_gib", "_mib", "_bytes", "_ms", "_seconds", "_per_second", "_percent", "_pp")
"""Endings of conditions that are companion readings: they may differ, and are shown."""
EVENTS = {
    "counter_reset": ("counter-reset", "its counters fell", "nothing may reset counters during a boot"),
    "engine_restarted": ("engine-restarted", "the engine restarted", "a boot is one process from start to end"),
    "other_gpu_process": ("foreign-process", "another process used the GPU", "measure on a GPU that is yours alone"),
    "fatal": ("fatal-finding", "its log has a fatal finding", "read the log, mend the engine and run again"),
}
CHECKS = ("checks_planned", "checks_run")
OWN_RULES = (MARKER, *EVENTS, *LOGS, *CHECKS, "kv_source")
"""Conditions that have a rule of their own."""
TIMES = {"s", "ms", "us", "µs", "μs", "ns", "sec", "second", "seconds", "milliseconds", "microseconds", "minutes"}
"""Words of a unit that tell of a clock, in `ms`, `tok/s` and `tokens per second`; `items` and `menus` do not."""


def table_void(table: Table) -> list[VoidReason]:
    """Every reason, in a fixed order; a table of single builds or of a ladder declares its difference."""
    if table.arms is None:
        return [*_pinned(table), *_events(table)]
    rules = (_markers, _differences, _logs, _identical, _checks, _events, _pinned)
    return [reason for rule in rules for reason in rule(table)]


def by_arm(table: Table, key: str) -> dict[str, Any] | None:
    """A condition that is given by arm, build or step, None for one that it leaves out; None if it is one for all."""
    value = table.conditions.get(key)
    return {name: value.get(name) for name in table.names} if isinstance(value, dict) else None


def companions(table: Table) -> dict[str, dict[str, float]]:
    """Readings given among the conditions, by arm."""
    found = {}
    for key in table.conditions:
        values = by_arm(table, key)
        if values and _is_companion(key, values) and None not in values.values():
            found[key] = values
    return found


def _is_companion(key: str, values: dict[str, Any]) -> bool:
    return key.endswith(MEASURED) and all(v is None or isinstance(v, int | float) for v in values.values())


def _markers(table: Table) -> Iterator[VoidReason]:
    arms = list(table.arms or ())
    if MARKER not in table.conditions or MARKER in table.declared:
        return
    seen = _of_arms(table, MARKER)
    for arm in arms[1:]:
        if not seen.get(arm):
            yield VoidReason(
                code="marker-missing",
                text=f"arm {arm} never showed its marker: whatever moved, it was not this toggle",
                mend="meet the toggle's preconditions, or restore its branch, and run again",
                arm=arm,
            )
    if seen.get(arms[0]) is None or seen[arms[0]]:
        what = "showed the toggle's marker" if seen.get(arms[0]) else "does not say that the marker was absent"
        yield VoidReason(
            code="marker-misplaced",
            text=f"arm {arms[0]}, the baseline, {what}",
            mend="look for a switch that is read from elsewhere than the arm's own settings",
            arm=arms[0],
        )


def _differences(table: Table) -> Iterator[VoidReason]:
    arms = table.arms or {}
    settings = {name: arm.settings for name, arm in arms.items()}
    keys = {
        key: {name: of.get(key, "unknown") for name, of in settings.items()} for of in settings.values() for key in of
    }
    for key in table.conditions:
        values = by_arm(table, key)
        if values is not None and key not in OWN_RULES and not _is_companion(key, values):
            keys[key] = {name: "unknown" if value is None else value for name, value in values.items()}
    for key, values in keys.items():
        if key not in table.declared and len(set(map(repr, values.values()))) > 1:
            yield VoidReason(
                code="condition-differs",
                text=f"undeclared difference of {key}: {', '.join(f'{v} in {arm}' for arm, v in values.items())}",
                mend=f'make {key} the same in every arm, or add it to "declared"',
            )


def _logs(table: Table) -> Iterator[VoidReason]:
    logs = [log for arm in (table.arms or {}).values() for log in arm.logs or ()]
    for key in LOGS:
        values = by_arm(table, key)
        given = list(values.values()) if values else [table.conditions[key]] * 2 if key in table.conditions else []
        logs += [f"{key} {value}" for value in given if value is not None]
    shared = sorted({log for log in logs if logs.count(log) > 1})
    if shared:
        yield VoidReason(
            code="shared-log",
            text=f"two boots have one log: {', '.join(shared[:3])}",
            mend="give every boot its own log and read only that",
        )


def _identical(table: Table) -> Iterator[VoidReason]:
    """Clock readings of two arms that agree in every figure are one file read twice."""
    if TIMES.isdisjoint(re.findall(r"[^\W\d_]+", table.unit.lower())):
        return
    seen: dict[str, str] = {}
    for name, arm in (table.arms or {}).items():
        given = [one for one in arm.boots or () if one is not None]
        key = repr(given)
        if key in seen and len(given) > 1:
            yield VoidReason(
                code="identical-readings",
                text=f"arms {seen[key]} and {name} read the same figures in the same order",
                mend="a clock never does that: look for a result that was read twice or copied",
                arm=name,
            )
        seen.setdefault(key, name)


def _checks(table: Table) -> Iterator[VoidReason]:
    arms = list(table.arms or ())
    planned, run = (_of_arms(table, key) for key in CHECKS)
    for arm in arms:
        if planned.get(arm) is not None and (run.get(arm) or 0) < planned[arm]:
            yield VoidReason(
                code="check-missing",
                text=f"arm {arm} ran {run.get(arm) or 0} of {planned[arm]} checks",
                mend="run the rest: a check that did not run passes nothing",
                arm=arm,
            )


def _events(table: Table) -> Iterator[VoidReason]:
    for key, (code, text, mend) in EVENTS.items():
        for arm, value in _of_arms(table, key).items():
            if value:
                told = f": {', '.join(map(str, value))}" if isinstance(value, list) else ""
                yield VoidReason(code=code, text=f"{arm}: {text}{told}", mend=mend, arm=arm)


def _of_arms(table: Table, key: str) -> dict[str, Any]:
    values = by_arm(table, key)
    return values if values is not None else dict.fromkeys(table.arms or ["the table"], table.conditions.get(key))


def _pinned(table: Table) -> Iterator[VoidReason]:
    sources = _of_arms(table, "kv_source")
    if table.is_kv and any(str(value).lower() in PINNED for value in sources.values()):
        yield VoidReason(
            code="kv-pinned",
            text="KV memory was pinned, which skips the profiling: equal by construction, not equivalent",
            mend="leave out the flag that fixes KV bytes or blocks",
        )
