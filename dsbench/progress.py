"""The progress bar of everything that takes longer than two seconds: on standard error, and on terminals alone."""

from __future__ import annotations

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from dsbench.report.columns import Output


def progress_bar(*, quiet: bool = False) -> Progress:
    console = Output(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, disable=quiet or not console.is_terminal)
