"""The report as Markdown for a pull request: the tables have the form of the source document's (source_pr.md, 2-4)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from dsbench.report.memory import KvRow
from dsbench.report.page import ArmPage, Page
from dsbench.report.readings import Curves, Spread
from dsbench.report.units import gain, short, size
from dsbench.report.visible import visible

_SPECIAL = re.compile(r"([\\`*\[\]<|~#&$]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")


def markdown(page: Page) -> str:
    """The page from its data; every text of the experiment is escaped."""
    sections = [
        _head(page), _changes(page), _kv(page), _verdicts(page), _curves(page), _flips(page), _void(page),
        _conditions(page), _rerun(page),
    ]  # fmt: skip
    return visible("\n".join("\n".join(lines) + "\n" for lines in map(list, sections) if lines))


def plain(text: str) -> str:
    """One line in which nothing is markup."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def table(columns: Sequence[str], rows: Sequence[Sequence[str]], words: int = 0) -> Iterator[str]:
    """A table; names stand left, figures right, and the last `words` columns left."""
    figures = len(columns) - 1 - words
    yield f"| {' | '.join(columns)} |"
    yield f"|{'|'.join(['---', *['---:'] * figures, *['---'] * words])}|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def _head(page: Page) -> Iterator[str]:
    yield f"# {page.word}: {plain(page.id)}"
    yield ""
    if page.by_arm:
        yield from (f"- {plain(part)}" for part in page.by_arm)
    else:
        yield plain(page.sentence)
    yield ""
    yield plain(page.head)


def _changes(page: Page) -> Iterator[str]:
    if page.changes:
        yield "## Main changes"
        yield ""
        for number, change in enumerate(page.changes, start=1):
            yield f"{number}. `{change.name}`: {plain(change.summary)}"


def _kv(page: Page) -> Iterator[str]:
    if not page.kv:
        return
    yield "## Live memory result"
    yield ""
    yield f"Measured on {plain(page.measured_on)}."
    yield ""
    rows = [
        [
            plain(row.state),
            size(row.available_bytes),
            "?" if row.tokens is None else f"{row.tokens:,}",
            "?" if row.concurrency is None else f"{row.concurrency:.2f}x",
        ]
        for row in page.kv
    ]
    yield from table(["State", "KV memory", "KV tokens", "Max concurrency"], rows)
    base, *others = page.kv
    if others:
        yield ""
        for row in [others[-1]] if page.ladder else others:
            yield _net(base, row)


def _net(base: KvRow, row: KvRow) -> str:
    tokens = "" if row.tokens is None or base.tokens is None else f" and {_signed(row.tokens - base.tokens)} KV tokens"
    exact = f" ({row.gain_bytes:+,} B)" if row.gain_bytes else ""
    return f"- {plain(row.state)}, net from baseline: **{gain(row.gain_bytes)} available KV{tokens}**{exact}"


def _signed(count: float) -> str:
    return f"{count:+,}" if count else "0"


def _verdicts(page: Page) -> Iterator[str]:
    yield "## Validation"
    for arm in page.arms:
        yield ""
        yield f"### {plain(arm.name)}: {arm.word}"
        yield ""
        yield plain(arm.line)
        yield ""
        yield from _rows(page, arm)
        if arm.lines:
            yield ""
            yield from (f"- {plain(line)}" for line in arm.lines)
    if page.footnotes:
        yield ""
        yield from (f"{number}. {plain(note)}" for number, note in enumerate(page.footnotes, start=1))
    told = [*page.effects, *page.notes]
    if told:
        yield ""
        yield from (f"- {plain(line)}" for line in told)


def _rows(page: Page, arm: ArmPage) -> Iterator[str]:
    columns = ["metric", "baseline -> candidate", "difference", *(["floor"] if page.floors else []), "judged",
               "verdict", "role"]  # fmt: skip
    rows = [
        [
            plain(row.metric),
            plain(row.change),
            plain(row.difference),
            *([plain(row.floor) or "-"] if page.floors else []),
            plain(row.how) or "-",
            f"**{plain(row.words)}**" if row.word in ("improved", "regressed") else plain(row.words),
            " ".join([row.role or "shown", *(f"({mark})" for mark in row.notes)]),
        ]
        for row in arm.rows
    ]
    yield from table(columns, rows, words=3)


def _curves(page: Page) -> Iterator[str]:
    """One table a family: loads or draft positions down, arms across."""
    for title, curves in (("Speed against load", page.load_curves), ("Acceptance", page.acceptance_curves)):
        for number, given in enumerate(curves):
            if number == 0:
                yield f"{'' if title == 'Speed against load' or not page.load_curves else chr(10)}## {title}"
            yield ""
            yield f"{plain(given.title)}, {given.unit}"
            yield ""
            yield from _curve(given)


def _curve(given: Curves) -> Iterator[str]:
    def cell(spread: Spread | None) -> str:
        return "-" if spread is None else short(spread.mid, given.unit).removesuffix(f" {given.unit}")

    rows = [[f"{step:,}", *(cell(spreads[i]) for spreads in given.arms.values())] for i, step in enumerate(given.steps)]
    yield from table([given.axis, *map(plain, given.arms)], rows)


def _flips(page: Page) -> Iterator[str]:
    if not page.flips:
        return
    yield "## Answers that differ"
    yield ""
    rows = [
        [plain(found.arm), plain(found.metric), str(found.items), *(str(found.counts.get(w, 0)) for w in WORDS)]
        for found in page.flips
    ]
    yield from table(["arm", "metric", "items", *WORDS], rows)


WORDS = ("lost", "gained", "changed")


def _void(page: Page) -> Iterator[str]:
    if page.void:
        yield "## Why this is no comparison"
        yield ""
    for reason, boots in page.void:
        where = f" in boot{'s' if len(reason.boots) > 1 else ''} {boots}" if boots else ""
        yield f"- **{reason.code}**{where}: {plain(reason.text)} Mend: {plain(reason.mend)}."


def _conditions(page: Page) -> Iterator[str]:
    read = page.conditions
    yield "## Conditions"
    yield ""
    yield from (f"- declared: {plain(line)}" for line in read.declared)
    for fact in read.differing:
        values = "; ".join(f"{plain(value)} in {plain(where)}" for value, where in fact.values)
        yield f"- {fact.how}: {plain(fact.name)}: {values}"
    yield f"- read back alike in every boot: {len(read.same)} conditions"
    if read.unknown:
        yield f"- unknown: {plain(', '.join(read.unknown))}"
    if page.machine:
        yield f"- machine: {plain(', '.join(f'{name} {value}' for name, value in page.machine))}"


def _rerun(page: Page) -> Iterator[str]:
    yield "## How to run it again"
    yield ""
    yield "```sh"
    yield " ".join(page.command.split("\n"))
    yield "```"
    yield ""
    yield from (f"- {plain(told)}" for told in page.caveats)
    yield f"- versions: {plain(', '.join(f'{name} {value}' for name, value in page.versions))}"
