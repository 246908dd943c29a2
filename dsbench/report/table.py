"""One table and one sentence: an experiment in the terminal, plain when piped."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dsbench import by_host
from dsbench.floors import Floor
from dsbench.records import Arm, ExperimentVerdict, Plan, Verdict
from dsbench.report.columns import PIPE_WIDTH, wrapped
from dsbench.report.columns import console as standard_output
from dsbench.report.effects import effect_lines

UNKNOWN = "unknown on this platform"

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
    console = console or standard_output()
    numbered = footnotes(verdict.rows)

    def line(text: str, style: str = "") -> None:
        for part in wrapped(text, console.width):
            console.print(Text(part, style=style), soft_wrap=True)

    line(head(plan), "bold")
    for arm in plan.arms[1:]:
        rows = [row for row in verdict.rows if row.arm == arm.name]
        line("")
        line(arm_line(plan, arm))
        table = _table(rows, numbered, plan)
        if console.measure(table, options=console.options.update(max_width=PIPE_WIDTH)).maximum <= console.width:
            console.print(table)
        else:
            _print_paragraphs(console, rows, numbered, plan)
        for told in (*expected_lines(rows), *interval_lines(rows), *power_lines(rows), *host_lines(rows)):
            line(f"  {told}")
    for told in additivity_lines(verdict):
        line(f"  {told}")
    if plan.floors:
        line("  floor: 95 % of A/A experiments of so many blocks differ by less, on this machine with this build")
    for told in effect_lines(verdict.effects):
        line(f"  {told}")
    for note, mark in numbered.items():
        line(f"  [{mark}] {note}")
    for note in verdict.notes:
        line(f"  note: {note}")
    for reason in verdict.void:
        where = f" in boot{'s' if len(reason.boots) > 1 else ''} {ranges(reason.boots)}" if reason.boots else ""
        line(f"  void, {reason.code}{where}: {reason.text}", STYLES["void"])
        line(f"    mend: {reason.mend}")
    line("")
    line(verdict.sentence, STYLES[verdict.word])


def head(plan: Plan) -> str:
    warmups = Counter(boot.arm for boot in plan.boots if boot.phase == "warm-up")[plan.baseline.name]
    # An engine that is not ours tells of its shape what its arguments say.
    widths = (("T", "max_num_batched_tokens"), ("H", "hidden_size"))
    known = [f"{letter}={plan.dims[key]:,}" for letter, key in widths if key in plan.dims]
    shape = " ".join([str(plan.dims.get("name", plan.engine)), *known])
    blocks = f"{plan.blocks} block{'s' if plan.blocks > 1 else ''}"
    return (
        f"{plan.id} · suite {plan.suite} · {plan.engine} {shape} · {len(plan.arms)} arms x {blocks}"
        f" + {warmups} warm-up an arm · seed {plan.seed} · dsbench {plan.harness_version}"
    )


def arm_line(plan: Plan, arm: Arm) -> str:
    common = [name for name in plan.baseline.takes if name in arm.on]
    shared = f" (both with {', '.join(common)})" if common else ""
    changes = [*arm.toggles, *build_changes(plan.baseline, arm)]
    return f"{plan.baseline.name} -> {arm.name}: {' + '.join(changes) or 'the same build'}{shared}"


def declared_lines(plan: Plan) -> list[str]:
    """What is to differ between the arms, told before the first boot."""
    lines = []
    for arm in plan.arms[1:]:
        conditions = [name for name in arm.declared if name != "toggles"]
        may = f"; conditions that may differ: {', '.join(conditions)}" if conditions else ""
        lines.append(f"{arm_line(plan, arm)}{may}")
    return lines


def build_changes(baseline: Arm, arm: Arm) -> list[str]:
    """What the arm's build has that the baseline's has not, and the other way round."""
    changes = []
    if arm.python != baseline.python:
        changes.append(f"python {baseline.python or 'this one'} -> {arm.python or 'this one'}")
    if arm.speculative != baseline.speculative:
        changes.append(f"speculative {baseline.speculative} -> {arm.speculative}")
    if arm.args != baseline.args:
        changes.append(f"args '{' '.join(baseline.args)}' -> '{' '.join(arm.args)}'")
    if arm.env != baseline.env:
        changes.append(f"env {baseline.env} -> {arm.env}")
    if arm.url != baseline.url:
        changes.append(f"server {baseline.url} -> {arm.url}")
    return changes


def _table(rows: Sequence[Verdict], footnotes: dict[str, int], plan: Plan) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), collapse_padding=True)
    table.add_column("metric")
    table.add_column("baseline -> candidate", justify="right")
    table.add_column("difference", justify="right")
    if plan.floors:
        table.add_column("floor", justify="right")
    table.add_column("judged")
    table.add_column("verdict")
    table.add_column("")
    for row in rows:
        table.add_row(
            _name(row),
            change(row),
            difference(row),
            *([floor(plan, row)] if plan.floors else []),
            how(row),
            Text(verdict_words(row), style=STYLES[row.word]),
            Text(_role(row, footnotes)),
        )
    return table


def _print_paragraphs(console: Console, rows: Sequence[Verdict], footnotes: dict[str, int], plan: Plan) -> None:
    """The rows of a table that is wider than the terminal: the verdict of each, and its figures below it."""
    longest = max((len(_name(row)) for row in rows), default=0)
    for row in rows:
        first = Text(f"{_name(row):<{longest}}  ").append(f"{verdict_words(row):<12}", STYLES[row.word])
        console.print(first.append(f"  {_role(row, footnotes)}".rstrip()), soft_wrap=True)
        moved, beyond = difference(row), floor(plan, row)
        apart = "difference 0" if moved == "0" else moved
        cells = (change(row), apart, f"floor {beyond}" if beyond else "", how(row))
        for line in wrapped("  " + "  ".join(cell for cell in cells if cell not in ("", "-")), console.width):
            console.print(Text(line), soft_wrap=True)


def _name(row: Verdict) -> str:
    return row.metric if row.rank is None else f"{row.metric} rank {row.rank}"


def _role(row: Verdict, footnotes: dict[str, int]) -> str:
    role = "" if row.role == "shown" else row.role.split()[0]
    return f"{role} {''.join(f'[{footnotes[note]}]' for note in row.notes)}".strip()


def change(row: Verdict) -> str:
    """`1,234 -> 1,202`; a sample carries its unit, since its difference is a percentage."""
    if row.baseline is None and row.candidate is None:
        return "unknown" if UNKNOWN in row.notes else "-"
    unit = f" {row.unit}" if row.kind == "sample" or (row.kind == "counter-ratio" and not row.margin_absolute) else ""
    return f"{number(row.baseline)} -> {number(row.candidate)}{unit}"


def difference(row: Verdict) -> str:
    """`-32,768 B` for what is compared exactly, `+0.1 % [-0.9 %, +1.0 %]` for samples."""
    if row.delta is None:
        return "-"
    if row.kind in ("exact", "item") or row.margin_absolute:
        unit = "" if row.kind == "item" else f" {row.unit}"
        span = f" [{signed(row.interval[0])}, {signed(row.interval[1])}]" if row.interval else ""
        return (f"{signed(row.delta)}{unit}" if row.delta else "0") + span
    if row.interval_of == "difference" or row.relative is None:
        span = f" [{signed(row.interval[0])}, {signed(row.interval[1])}]" if row.interval else ""
        return f"{signed(row.delta)} {row.unit}{span}"
    span = f" [{percent(row.interval[0])}, {percent(row.interval[1])}]" if row.interval else ""
    return percent(row.relative) + span


def how(row: Verdict) -> str:
    """`(exact, n=5+5)`; for samples and items the test, the pairs, and p where the test could fire."""
    if row.word == "not-run" or (row.baseline is None and row.delta is None and not row.n_baseline):
        return ""
    if row.kind == "exact" or row.test == "equal counts":
        return f"(exact, n={row.n_baseline}+{row.n_candidate})"
    if row.kind == "counter-ratio":
        fired = f", p={row.p:.2g}" if row.p is not None else ""
        n = f"{row.n_baseline}+{row.n_candidate} boots" if row.test.startswith("permutation") else f"{row.blocks} pairs"
        return f"({_short(row.test)}, n={n}{fired})"
    if row.kind == "sample":
        n = f"{row.blocks} pairs" if row.blocks else f"{row.n_baseline}+{row.n_candidate} boots"
        parts = [_short(row.test), f"n={n}"]
    else:
        pairs = [f"n={row.blocks} pairs"] if row.blocks else []
        parts = [*([_short(row.test)] if row.test else []), *pairs, f"{row.n_baseline} items"]
    if row.p is not None:
        parts.append(f"p={row.p:.2g}")
    return f"({', '.join(parts)})"


def _short(test: str) -> str:
    """`sign-flip` for `sign-flip over blocks, log ratio`."""
    return test.removeprefix("exact ").partition(",")[0].partition(" over ")[0].partition(" of ")[0]


def verdict_words(row: Verdict) -> str:
    """The word, with the margin that an equivalence holds within."""
    if row.word == "equivalent" and row.margin_absolute:
        if row.unit != "share":
            return f"equivalent within {row.margin:,.10g} {row.unit}"
        return f"equivalent within {row.margin * 100:g} point{'' if row.margin == 0.01 else 's'}"
    if row.word == "equivalent" and row.margin:
        return f"equivalent within {row.margin * 100:g} %"
    return row.word


def expected_lines(rows: Sequence[Verdict]) -> list[str]:
    return [
        f"{row.metric}: expected {row.expected:+,} {row.unit}, measured {signed(row.delta)} {row.unit}"
        for row in rows
        if row.expected is not None and row.delta is not None
    ]


def interval_lines(rows: Sequence[Verdict]) -> list[str]:
    """What the brackets are: test and confidence attained, once each."""
    kinds = dict.fromkeys((row.test, row.confidence) for row in rows if row.confidence is not None)
    return [f"[low, high]: {confidence * 100:.1f} % interval, {test}" for test, confidence in kinds if confidence]


def power_lines(rows: Sequence[Verdict]) -> list[str]:
    """What the open rows could have seen, and what they need."""
    open_rows = [row for row in rows if row.word == "inconclusive"]
    sees = [f"{row.metric} {_effect(row, row.smallest_effect)}" for row in open_rows if row.smallest_effect is not None]
    lines = [f"smallest change seen with 80 % power at this n: {', '.join(sees)}"] if sees else []
    needs: dict[str, list[str]] = {}
    for row in open_rows:
        if row.blocks_needed is not None:
            needs.setdefault(f"{row.needed_unit} {_need(row)}", []).append(f"{row.metric} {row.blocks_needed:,}")
    return [*lines, *(f"{what}: {', '.join(told)}" for what, told in needs.items())]


def _need(row: Verdict) -> str:
    """What so many blocks, boots or items are for."""
    if row.needed_effect is None:
        return "at which a claim can stand among so many"
    how = "call equivalent within" if row.needed_for == "equivalence" else "see"
    return f"to {how} {_effect(row, row.needed_effect)} with 80 % power"


def host_lines(rows: Sequence[Verdict]) -> list[str]:
    """What judged rows moved by on each host of a pool, and whether a test could tell the hosts apart."""
    lines = []
    for row in rows:
        if row.by_host is not None and row.kind == "sample" and row.role != "shown":
            least = row.by_host.smallest_p or 1.0
            p = f"p={row.by_host.p:.2g}" if row.by_host.p is not None else f"not tested, p >= {least:.2g} at this n"
            lines.append(f"{row.metric} by host: {by_host.told(row)}; toggle by host: {p}")
    return lines


def _effect(row: Verdict, effect: float) -> str:
    """In the terms of the row's interval: a fraction of the baseline, points of a share, or the unit."""
    if row.kind == "item" or row.unit == "share":
        points = f"{effect * 100:.3g}"
        return f"{points} point{'' if points == '1' else 's'}"
    return f"{effect * 100:.3g} %" if row.interval_of == "relative" else f"{effect:.3g} {row.unit}"


def percent(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


def number(value: float | None) -> str:
    """Whole numbers with separators, others with four digits, `?` where boots disagree."""
    if value is None:
        return "?"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.1f}"


def signed(value: float) -> str:
    return f"{value:+,.0f}" if float(value).is_integer() else f"{value:+,.4g}"


def floor(plan: Plan, row: Verdict) -> str:
    """What 95 % of A/A experiments with as many blocks stay below, on this machine with this build."""
    found = floor_noise(plan, row)
    if found is None:
        return ""
    stored, noise = found
    return f"±{noise:.1%}".replace("%", " %") if stored.relative and noise else f"±{number(noise)} {stored.unit}"


def floor_noise(plan: Plan, row: Verdict) -> tuple[Floor, float] | None:
    """The row's floor and its noise at this number of blocks; None where no floor is stored."""
    of_metric = {f.rank: f for f in plan.floors if f.metric == row.metric}
    found = of_metric.get(row.rank) or of_metric.get(0 if row.rank is None else None)
    return (found, found.noise(row.blocks or plan.blocks)) if found else None


def footnotes(rows: Sequence[Verdict]) -> dict[str, int]:
    """Notes of all rows, each once, numbered in order of appearance."""
    notes = dict.fromkeys(note for row in rows for note in row.notes)
    return {note: n for n, note in enumerate(notes, start=1)}


def additivity_lines(verdict: ExperimentVerdict) -> list[str]:
    lines = []
    for entry in verdict.additivity:
        parts = " ".join(f"{signed(value)} ({name})" for name, value in entry.alone.items())
        answer = (
            "additive to the byte"
            if entry.difference == 0
            else f"not additive by {signed(entry.difference)} {entry.unit}"
        )
        lines.append(f"all together {entry.metric} {signed(entry.together)} {entry.unit} = {parts}: {answer}")
    return lines


def ranges(numbers: Sequence[int]) -> str:
    """`2, 4-7`."""
    spans: list[list[int]] = []
    for value in sorted(set(numbers)):
        if spans and value == spans[-1][1] + 1:
            spans[-1][1] = value
        else:
            spans.append([value, value])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
