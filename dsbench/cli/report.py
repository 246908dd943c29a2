"""`dsbench report`: a stored experiment as a page for a pull request and as one HTML file."""

from __future__ import annotations

from pathlib import Path

import click

from dsbench.errors import InputError

FORMATS = ("md", "html")


@click.command(short_help="Write a stored experiment as Markdown and as one HTML file.")
@click.argument("result")
@click.option(
    "-o", "--out", type=click.Path(path_type=Path, file_okay=False), help="Folder to write to. [default: the result's]"
)
@click.option("--format", "formats", default="md,html", show_default=True, help="What to write: md, html, or both.")
def report(result: str, out: Path | None, formats: str) -> int:
    """Write a stored experiment as Markdown and as one HTML file.

    \b
    dsbench report results/h200/vllm-kv -o pages

    report.md has the tables of a pull request; report.html is one file that fetches nothing and runs no script, with
    plots, the answers that differ side by side, conditions, and the command that runs the experiment again. The
    stored verdict is shown, with a note where the records say another word; where there is none, the records are
    judged. Nothing is stored but the report.
    """
    from dsbench.judge import judge
    from dsbench.report.html import html
    from dsbench.report.markdown import markdown
    from dsbench.report.page import page
    from dsbench.store import load_plan, load_records, load_verdict, replace_bytes, resolve

    wanted = _formats(formats)
    folder = resolve(result)
    plan = load_plan(folder)
    records, notices = load_records(folder)
    verdict, now = load_verdict(folder), judge(plan, records)
    if verdict is None:
        notices.append(f"{folder} has no stored verdict: judged from its records")
        verdict = now
    elif now.word != verdict.word:
        told = f"the verdict that is stored and shown is {verdict.word}; judged again, its records say {now.word}"
        notices.append(f"{folder}: {told}")
        verdict = verdict.model_copy(update={"notes": [*verdict.notes, told]})
    for notice in notices:
        click.echo(notice, err=True)
    found = page(plan, records, verdict)
    write = {"md": markdown, "html": html}
    texts = {f"report.{name}": write[name](found) for name in wanted}
    target = out or folder
    try:
        target.mkdir(parents=True, exist_ok=True)
        if taken := [str(target / name) for name in texts if (target / name).is_dir()]:
            raise InputError(f"cannot write the report: {taken[0]} is a folder")
        for name, text in texts.items():
            replace_bytes(target / name, text.encode())
            click.echo(target / name)
    except OSError as error:
        raise InputError(f"cannot write the report to {target}: {error.strerror or error}") from None
    return 0


def _formats(text: str) -> list[str]:
    wanted = [part.strip() for part in text.split(",") if part.strip()]
    for name in wanted:
        if name not in FORMATS:
            raise InputError(f"--format '{name}' is unknown: write md, html, or md,html")
    if not wanted:
        raise InputError("--format is empty: write md, html, or md,html")
    return list(dict.fromkeys(wanted))
