"""One table and one sentence: an experiment in the terminal, plain when piped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsbench.records import Arm, ExperimentVerdict, Plan, Verdict

PIPE_WIDTH = 200
"""Columns when the output is no terminal: no figure is cut."""

STYLES = {
    "improved": "green",
    "equivalent": "green",
    "regressed": "red",
    "inconclusive": "yellow",
    "void": "magenta",
    "not-run": "magenta",
}


def print_report(plan: Plan, verdict: ExperimentVerdict, console: Console | None = None) -> None:
    """Head, one table an arm, footnotes, void reasons, and the sentence."""
    console = console or _console()
    console.print(_head(plan), style="bold", soft_wrap=True)
    footnotes = _footnotes(verdict.rows)
    for arm in plan.arms[1:]:
        rows = [row for row in verdict.rows if row.arm == arm.name]
        console.print()
        console.print(f"{_arm_line(plan, arm)}", soft_wrap=True)
        console.print(_table(rows, footnotes))
    for line in _additivity_lines(verdict):
        console.print(line, soft_wrap=True)
    for note, number in footnotes.items():
        console.print(f"  [{number}] {note}", soft_wrap=True, markup=False)
    for note in verdict.notes:
        console.print(f"  note: {note}", soft_wrap=True, markup=False)
    for reason in verdict.void:
        where = f" in boot{'s' if len(reason.boots) > 1 else ''} {_ranges(reason.boots)}" if reason.boots else ""
        console.print(f"  void, {reason.code}{where}: {reason.text}", soft_wrap=True, markup=False, style="magenta")
        console.print(f"    mend: {reason.mend}", soft_wrap=True, markup=False)
    console.print()
    console.print(Text(verdict.sentence, style=STYLES[verdict.word]), soft_wrap=True)


def _console() -> Console:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    return console


def _head(plan: Plan) -> str:
    warmups = Counter(boot.arm for boot in plan.boots if boot.phase == "warm-up")[plan.baseline.name]
    shape = f"{plan.dims['name']} T={plan.dims['max_num_batched_tokens']:,} H={plan.dims['hidden_size']:,}"
    return (
        f"{plan.id} · suite {plan.suite} · {plan.engine} {shape} · {len(plan.arms)} arms x {plan.blocks} blocks"
        f" + {warmups} warm-up an arm · seed {plan.seed} · dsbench {plan.harness_version}"
    )


def _arm_line(plan: Plan, arm: Arm) -> str:
    shared = f" (both with {', '.join(plan.baseline.on)})" if plan.baseline.on else ""
    return f"{plan.baseline.name} -> {arm.name}: {' + '.join(arm.toggles)}{shared}"


def _table(rows: Sequence[Verdict], footnotes: dict[str, int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for name, justify in (
        ("metric", "left"),
        ("baseline -> candidate", "right"),
        ("difference", "right"),
        ("how judged", "left"),
        ("verdict", "left"),
        ("", "left"),
    ):
        table.add_column(name, justify="right" if justify == "right" else "left", overflow="fold")
    for row in rows:
        marks = "".join(f"[{footnotes[note]}]" for note in row.notes)
        table.add_row(
            row.metric if row.rank is None else f"{row.metric} rank {row.rank}",
            change(row),
            difference(row),
            how(row),
            Text(verdict_words(row), style=STYLES[row.word]),
            Text(" ".join(part for part in ("" if row.role == "shown" else row.role, marks) if part)),
        )
    return table


def change(row: Verdict) -> str:
    """`1,234 -> 1,202 B`."""
    if row.baseline is None and row.candidate is None:
        return "unknown" if "unknown on this platform" in row.notes else "-"
    if row.kind == "item":
        return f"{number(row.baseline)} -> {number(row.candidate)}"
    return f"{number(row.baseline)} -> {number(row.candidate)} {row.unit}"


def difference(row: Verdict) -> str:
    """`-32,768 B` for what is compared exactly, `+0.1 % [-0.9 %, +1.0 %]` for samples."""
    if row.delta is None:
        return "-"
    if row.kind == "exact":
        return f"{signed(row.delta)} {row.unit}" if row.delta else "0"
    if row.kind == "item" or row.relative is None or row.interval_of == "difference":
        unit = "" if row.kind == "item" else f" {row.unit}"
        span = f" [{signed(row.interval[0])}, {signed(row.interval[1])}]" if row.interval else ""
        return (f"{signed(row.delta)}{unit}" if row.delta else "0") + span
    span = f" [{row.interval[0]:+.1%}, {row.interval[1]:+.1%}]" if row.interval else ""
    return f"{row.relative:+.1%}{span}".replace("%", " %")


def how(row: Verdict) -> str:
    """`exact, n=5+5, expected -32,768 B`, or the named test with its n, p and confidence."""
    if row.word == "not-run":
        return ""
    if row.kind == "exact":
        parts = ["exact", f"n={row.n_baseline}+{row.n_candidate}"]
        if row.expected is not None:
            parts.append(f"expected {row.expected:+,} {row.unit}")
        return ", ".join(parts)
    parts = [row.test, f"{row.n_baseline} items"] if row.kind == "item" else ["sign-flip", f"n={row.blocks} blocks"]
    if row.p is not None:
        parts.append(f"p={row.p:.3g}")
    if row.confidence is not None:
        parts.append(f"{row.confidence:.1%}".replace("%", " %"))
    return ", ".join(part for part in parts if part)


def verdict_words(row: Verdict) -> str:
    """The word, with the margin it holds within or the blocks it would take."""
    if row.kind == "sample" and row.word == "equivalent":
        return (
            f"equivalent within {row.margin:.3g}"
            if row.interval_of != "relative"
            else f"equivalent within {row.margin * 100:g} %"
        )
    if row.kind == "sample" and row.word == "inconclusive":
        parts = []
        if row.smallest_effect is not None:
            parts.append(f"sees {row.smallest_effect:.1%}".replace("%", " %"))
        if row.blocks_needed is not None and row.margin:
            parts.append(f"{row.margin * 100:g} % needs {row.blocks_needed:,} blocks")
        return "inconclusive" + (f": {', '.join(parts)}" if parts else "")
    return row.word


def number(value: float | None) -> str:
    """Whole numbers with separators, others with four digits, `?` where boots disagree."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.1f}"


def signed(value: float) -> str:
    return f"{value:+,.0f}" if float(value).is_integer() else f"{value:+,.4g}"


def _footnotes(rows: Sequence[Verdict]) -> dict[str, int]:
    """Notes of all rows, each once, numbered in order of appearance."""
    notes = dict.fromkeys(note for row in rows for note in row.notes)
    return {note: n for n, note in enumerate(notes, start=1)}


def _additivity_lines(verdict: ExperimentVerdict) -> list[str]:
    lines = []
    for entry in verdict.additivity:
        parts = " ".join(f"{signed(value)} ({name})" for name, value in entry.alone.items())
        answer = (
            "additive to the byte"
            if entry.difference == 0
            else f"not additive by {signed(entry.difference)} {entry.unit}"
        )
        lines.append(f"  all together {entry.metric} {signed(entry.together)} {entry.unit} = {parts}: {answer}")
    return lines


def _ranges(numbers: Sequence[int]) -> str:
    """`2, 4-7`."""
    spans: list[list[int]] = []
    for value in sorted(set(numbers)):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
