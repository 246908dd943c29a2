"""Logs of scripts that drive engines: arms side by side, cells of gates, and serves with their markers.

What such a script did not run is `not run`, and what its log does not mention is None: neither is a pass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dsbench.parse.health import GATE_NOT_RUN
from dsbench.parse.lines import Line, number_word

ITEMS_AT_MOST = 20_000
"""Largest test set whose size is looked for behind a printed share."""

_ARM = re.compile(r"\barm=([\w.+-]{1,60})")
_CELL = re.compile(r"\bCELL: ([\w.+-]{1,60})")
_OF_CELL = re.compile(r"\bof the ([\w.+-]{1,60}) cell\b")
_SERVE_CODE = re.compile(r"\bserve rc=(\d{1,3})\b")
_AVAILABLE = re.compile(r"Available KV cache memory: (\d{1,9}(?:\.\d{1,9})?) GiB")
_TOKENS = re.compile(r"KV cache size: (\d[\d,]{0,20}) tokens")
_SPEED = re.compile(r"-> (\d{1,9}(?:\.\d{1,9})?) tok/s")
_COHERENCE = re.compile(r"coherence: passed=(\d{1,6}/\d{1,6}) concurrency=(\d{1,6})\b")
_FLEXIBLE = re.compile(r'"exact_match_flexible": (\d(?:\.\d{1,20})?)')
_SERVE = re.compile(r"^\s*(SERVE\d{1,6})\s")
_PASSED = re.compile(r"\b(\w{1,40})=passed=(\d{1,9})/(\d{1,9})")
_MARKERS = re.compile(r"\b\w{0,40}markers?=(\d{1,9})\b")
_RULE = re.compile(r"rule: all \w{1,20} (\w{1,40}) in \[(\d{1,9}),(\d{1,9})\].{0,100}any <=(\d{1,9})")

GATES = {"draft_acceptance": ("draft acceptance", "acceptance probe"), "tool_call": ("tool-call", "toolcall")}
"""Words of a section about a gate, by the gate's key."""


@dataclass
class ArmLog:
    """One arm of a script that starts an engine an arm."""

    served: bool | None = None
    available_kv_gib: float | None = None
    speeds: list[float] = field(default_factory=list)
    dirty_start: bool = False
    """Whether an older server was still up when it began."""

    def to_json(self) -> dict[str, Any]:
        return {
            "boot_ok": self.served,
            "available_kv_gib": self.available_kv_gib,
            "decode_tokens_per_second": self.speeds or None,
            "dirty_start": self.dirty_start,
        }


@dataclass
class CellLog:
    """One cell of a script that runs gates."""

    available_kv_gib: float | None = None
    kv_tokens: int | None = None
    coherence: dict[str, str] = field(default_factory=dict)
    gsm8k_flexible: float | None = None
    gates: dict[str, str | None] = field(default_factory=lambda: dict.fromkeys(GATES))

    def to_json(self) -> dict[str, Any]:
        return {
            "available_kv_gib": self.available_kv_gib,
            "kv_tokens": self.kv_tokens,
            "coherence_c1": None,
            **self.coherence,
            "gsm8k_flexible": self.gsm8k_flexible,
            **self.gates,
        }


def read_driver(lines: Iterable[Line]) -> dict[str, Any]:
    """What a driver's log says, by the keys of its kind; empty for any other log."""
    lines = list(lines)
    return {**_arms(lines), **_cells(lines), **_serves(lines)}


def _arms(lines: Sequence[Line]) -> dict[str, Any]:
    arms: dict[str, ArmLog] = {}
    arm: ArmLog | None = None
    for line in lines:
        if line.header is not None and (name := _ARM.search(line.header)):
            arm = arms.setdefault(name[1], ArmLog())
        elif arm:
            _read_arm(line.text[:2000], arm)
    if not arms:
        return {}
    broken = any(arm.dirty_start or not arm.served for arm in arms.values())
    # One boot an arm: without a replicate nothing can be told from noise.
    return {
        "arms": {name: arm.to_json() for name, arm in arms.items()},
        "verdict": "void" if broken else "inconclusive",
    }


def _read_arm(text: str, arm: ArmLog) -> None:
    if "still running on" in text:
        arm.dirty_start = True
    elif code := _SERVE_CODE.search(text):
        arm.served = int(code[1]) == 0
    elif figure := _AVAILABLE.search(text):
        arm.available_kv_gib = float(figure[1])
    elif speed := _SPEED.search(text):
        arm.speeds.append(float(speed[1]))


def _cells(lines: Sequence[Line]) -> dict[str, Any]:
    cells: dict[str, CellLog] = {}
    cell: CellLog | None = None
    gate: str | None = None
    for line in lines:
        text = line.text[:2000]
        if line.header is not None:
            gate = next((key for key, words in GATES.items() if any(word in line.header for word in words)), None)
            if name := _CELL.search(line.header):
                cell = cells.setdefault(name[1], CellLog())
            elif (other := _OF_CELL.search(line.header)) and other[1] in cells:
                cell = cells[other[1]]
            if cell and gate:
                # A section is empty until something in it shows otherwise.
                cell.gates[gate] = cell.gates[gate] or "not run"
        elif cell:
            _read_cell(text, cell, gate)
    if not cells:
        return {}
    return {"cells": {name: cell.to_json() for name, cell in cells.items()}, **_between(list(cells.values()))}


def _read_cell(text: str, cell: CellLog, gate: str | None) -> None:
    if figure := _AVAILABLE.search(text):
        cell.available_kv_gib = float(figure[1])
    elif tokens := _TOKENS.search(text):
        cell.kv_tokens = int(tokens[1].replace(",", ""))
    elif coherence := _COHERENCE.search(text):
        cell.coherence[f"coherence_c{coherence[2]}"] = coherence[1]
    elif share := _FLEXIBLE.search(text):
        cell.gsm8k_flexible = float(share[1])
    elif gate and GATE_NOT_RUN.search(text):
        cell.gates[gate] = "not run"
    elif gate:
        cell.gates[gate] = text.strip()[:200]


def _between(cells: Sequence[CellLog]) -> dict[str, Any]:
    """Second cell minus first, where both have the figure."""
    if len(cells) != 2:
        return {}
    first, second = cells
    found: dict[str, Any] = {}
    if first.available_kv_gib is not None and second.available_kv_gib is not None:
        found["kv_delta_gib"] = round(second.available_kv_gib - first.available_kv_gib, 6)
    if first.gsm8k_flexible is not None and second.gsm8k_flexible is not None:
        found["gsm8k_verdict"] = _compare_shares(first.gsm8k_flexible, second.gsm8k_flexible)
    return found


def _compare_shares(first: float, second: float, margin: float = 0.01) -> str:
    """Verdict on two shares of one test set, whose size is what both are whole counts of."""
    from dsbench.stats.proportions import compare_proportions

    if max(first, second) > 1:
        return "inconclusive"
    counts = [Fraction(share).limit_denominator(ITEMS_AT_MOST) for share in (first, second)]
    n = math.lcm(counts[0].denominator, counts[1].denominator)
    right = [round(share * n) for share in (first, second)]
    if n > ITEMS_AT_MOST or any(abs(k / n - s) > 1e-9 for k, s in zip(right, (first, second), strict=True)):
        return "inconclusive"
    found = compare_proportions(right[0], n, right[1], n)
    low, high = found.interval.low, found.interval.high
    if found.fisher_p <= 0.05 and abs(found.difference) > margin:
        return "improved" if found.difference > 0 else "regressed"
    return "equivalent" if -margin < low and high < margin else "inconclusive"


def _serves(lines: Sequence[Line]) -> dict[str, Any]:
    """Serves that passed so many of a check each, the written rule about them, and their markers."""
    names: list[str] = []
    passed: dict[str, list[int]] = {}
    of: dict[str, int] = {}
    markers: list[int] = []
    rule: re.Match[str] | None = None
    for line in lines:
        text = line.text[:2000]
        if name := _SERVE.match(text):
            names.append(name[1])
            for check, right, total in _PASSED.findall(text):
                passed.setdefault(check, []).append(int(right))
                of[check] = int(total)
            markers += [int(count) for count in _MARKERS.findall(text)[:1]]
        rule = rule or (_RULE.search(text) if "rule:" in text else None)
    if not passed:
        return {}
    found: dict[str, Any] = {}
    for check, right in passed.items():
        mean = round(sum(right) / len(right), 3)
        found |= {f"{check}_passed": right, f"{check}_of": of[check], f"{check}_mean": mean}
    found |= {"marker_counts": markers, **_rule(rule, passed)}
    if markers and not any(markers):
        found["arm_identity"] = f"unverified (marker 0 on all {number_word(len(markers))})"
    if "c1" in passed and len(passed["c1"]) == len(names):
        found["discriminator_failures"] = [
            f"{name} {right}/{of['c1']}" for name, right in zip(names, passed["c1"], strict=True) if right < of["c1"]
        ]
    return found


def _rule(rule: re.Match[str] | None, passed: dict[str, list[int]]) -> dict[str, Any]:
    """Whether the readings fit either outcome of the rule; readings that fit neither decide nothing."""
    if rule is None or rule[1] not in passed:
        return {}
    right = passed[rule[1]]
    gone = all(int(rule[2]) <= count <= int(rule[3]) for count in right)
    persists = any(count <= int(rule[4]) for count in right)
    found: dict[str, Any] = {"rule_low_mode_gone": gone, "rule_low_mode_persists": persists}
    return found if gone or persists else {**found, "verdict": "inconclusive"}
