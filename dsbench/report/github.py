"""GitHub Actions: annotations for what did not pass, and a summary of the step in Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from dsbench.gate import Check, Outcome
from dsbench.report.gate import MARKS, place, told
from dsbench.report.table import change, difference, how
from dsbench.report.visible import visible


def annotation_lines(outcome: Outcome) -> Iterator[str]:
    """Workflow commands, one line each: the sentence first, as GitHub shows the first ten of a level and no more."""
    yield _command("notice" if outcome.word == "passed" else "error", "dsbench gate", outcome.sentence)
    for reason in outcome.void:
        yield _command("error", f"dsbench: void, {reason.code}", f"{reason.text}. Mend: {reason.mend}")
    for check in outcome.checks:
        if check.status in ("failed", "missing", "rerun"):
            level = "warning" if check.status == "rerun" else "error"
            yield _command(level, f"dsbench: {check.arm} {place(check)}", f"{told(check)}. What to do: {check.mend}")


def step_summary(name: str, outcome: Outcome) -> str:
    """Markdown for the file that GITHUB_STEP_SUMMARY names."""
    lines = [
        f"### dsbench gate: {outcome.word}",
        "",
        _cell(outcome.sentence),
        "",
        f"Result `{name.replace('`', '')}`",
        "",
    ]
    if outcome.checks:
        lines += [
            "| outcome | arm | metric | baseline -> candidate | difference | judged | must | why |",
            "|---|---|---|---:|---:|---|---|---|",
            *(_row(check) for check in outcome.checks),
            "",
        ]
    lines += [f"- void, {reason.code}: {_cell(reason.text)}. Mend: {_cell(reason.mend)}" for reason in outcome.void]
    lines += [f"- {check.arm} {place(check)}: {_cell(check.mend)}" for check in outcome.checks if check.mend]
    return visible("\n".join(lines).rstrip()) + "\n\n"


def _row(check: Check) -> str:
    figures = ("-", "-", "") if check.row is None else (change(check.row), difference(check.row), how(check.row))
    cells = (MARKS[check.status], check.arm, place(check), *figures, check.must, check.why)
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    """Text that Markdown shows as it is, in one cell."""
    for sign in ("\\", "|", "*", "_", "`", "<", "[", "~", "&", "$"):
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())


def _command(level: str, title: str, message: str) -> str:
    return f"::{level} title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
