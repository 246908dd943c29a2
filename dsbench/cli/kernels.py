"""`dsbench kernels`: every operation on every backend, timed or checked side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from dsbench.cli.params import NumberRange

EXIT_DIFFERS = 1
EXIT_NOT_RUN = 4


def _tokens(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and not all(re.fullmatch(r"\s*0*[1-9][0-9]{0,8}\s*", part) for part in value.split(",")):
        raise click.BadParameter(f"'{value}' is no list of whole numbers from 1, such as 1,64,8192")
    return value


@click.command(short_help="Time or check every operation on every backend, side by side.")
@click.option("--op", "ops", multiple=True, metavar="OP", help="Only this operation; may be repeated.")
@click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this backend; may be repeated.")
@click.option("--tokens", metavar="LIST", callback=_tokens, help="Numbers of tokens, such as 1,64,8192.")
@click.option(
    "--seconds", type=NumberRange(min=0, max=1_000_000), default=0.2, show_default=True, help="Time for each figure."
)
@click.option("--variants", is_flag=True, help="Time every point of the backends' tuning, not only the table's.")
@click.option("--times", is_flag=True, help="Time operations. [default: so without --check and --toggles]")
@click.option("--check", is_flag=True, help="Compare results: in place, race, reference, vLLM.")
@click.option("--toggles", is_flag=True, help="Time each toggle's operation on and off, by turns.")
@click.option("--python", metavar="PATH", help="Interpreter that has torch, and vLLM. [default: this one]")
@click.option(
    "-o", "out", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Append records to DIR/kernels.jsonl as they come, and draw kernels.svg and kernels.png there.",
)  # fmt: skip
@click.option(
    "--read", "stored", type=click.Path(path_type=Path), metavar="PATH", help="Show stored records; measure nothing."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def kernels(
    ops: tuple[str, ...], backends: tuple[str, ...], tokens: str | None, seconds: float, variants: bool, times: bool,
    check: bool, toggles: bool, python: str | None, out: Path | None, stored: Path | None, as_json: bool,
) -> int:  # fmt: skip
    """Time or check every operation on every backend, side by side.

    \b
    dsbench kernels --python ~/vllm/bin/python -o results/kernels
    dsbench kernels --op mhc_seam --tokens 64,8192 --variants
    dsbench kernels --check --op mhc_seam
    dsbench kernels --read results/kernels

    On a GPU a figure is the median of graph replays over rotating inputs that no cache holds. Bytes are counted once
    in and once out, beside an eager copy of 4 GiB in the same run, and beside vLLM's own operation where vLLM can be
    imported. These are kernel results: no step of a model. On a CPU only the torch reference runs, at small sizes, and
    its times are no GPU figures.

    Exit code 0; 1 where a check found a difference; 4 where something has not run.
    """
    from dsbench.cli.table import print_json
    from dsbench.kernels import FILE, best_rows, interpreter, machine, measure, read

    _check_names(ops, backends)
    if stored is not None:
        events = read(stored)
    else:
        arguments = [*_repeated("--op", ops), *_repeated("--backend", backends), f"--seconds={seconds}"]
        arguments += [f"--tokens={tokens}"] if tokens else []
        flags = {"--variants": variants, "--times": times, "--check": check, "--toggles": toggles}
        arguments += [name for name, on in flags.items() if on]
        file = out / FILE if out is not None else None
        events = list(measure(interpreter(python), arguments, file, on_start=_progress))
    rows = best_rows(events)
    checks = [event for event in events if event["event"] == "check"]
    sides = [event for event in events if event["event"] == "toggle"]
    absent = [event for event in events if event["event"] == "absent"]
    notes = [event["text"] for event in events if event["event"] == "note"]
    stopped = [event["reason"] for event in events if event["event"] == "stopped"]
    if as_json:
        content = {"machine": machine(events), "rows": rows, "checks": checks, "toggles": sides, "absent": absent}
        print_json({**content, "notes": notes, "stopped": stopped})
    else:
        _print(machine(events), rows, checks, sides, absent, [*notes, *stopped])
    folder = out or (stored if stored is not None and stored.is_dir() else None)
    if folder is not None and rows:
        _draw(rows, machine(events), folder)
    if any(row["ok"] is False for row in checks):
        return EXIT_DIFFERS
    return EXIT_NOT_RUN if stopped or any("error" in row for row in (*rows, *sides)) else 0


def _check_names(ops: Sequence[str], backends: Sequence[str]) -> None:
    import difflib

    from dsbench.errors import InputError
    from impl.ops.dispatch import BACKENDS, REFERENCES

    for option, names, known in (("--op", ops, [*REFERENCES]), ("--backend", backends, [*BACKENDS, "vllm"])):
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
                raise InputError(f"{option} '{name}': {hint}")


def _repeated(option: str, values: Sequence[str]) -> Iterator[str]:
    return (f"{option}={value}" for value in values)


def _progress(event: dict[str, Any]) -> None:
    click.echo(f"{event['op']}, {event['form']}: {event['backend']}, {event['tokens']:,} ...", err=True)


def _draw(rows: Sequence[dict[str, Any]], machine: Any, folder: Path) -> None:
    from dsbench.errors import InputError
    from dsbench.kernel_plot import plot

    try:
        for file in plot(rows, machine, folder):
            click.echo(f"drawn: {file}", err=True)
    except InputError as error:  # the figures are stored and shown; the plot can be drawn later
        click.echo(f"dsbench: {error}", err=True)


def _print(machine: Any, rows: Any, checks: Any, sides: Any, absent: Any, notes: Sequence[str]) -> None:
    from dsbench.cli.table import print_note, print_table

    rate = machine.get("copy_bytes_per_second")
    versions = [f"{name} {machine[name]}" for name in ("torch", "triton", "vllm", "tilelang") if machine.get(name)]
    driver = f", driver {machine['driver']}" if machine.get("driver") else ""
    print_note(f"{machine.get('card', 'unknown machine')}{driver}; {', '.join(versions)}")
    if rows:
        gpu = machine.get("device") == "cuda"
        if rate:
            print_note(f"kernel results; an eager device copy of 4 GiB moves {rate / 1e9:,.0f} GB/s")
        elif not gpu:
            print_note("times of the torch reference on a CPU: no GPU figures")
        print_table(
            "Operations",
            ("operation", "form", "tokens", "backend", "ms", "of copy", "vs vLLM", "eager ms", "note"),
            [_row(row) for row in rows],
        )
    if checks:
        print_table(
            "Checks", ("check", "operation", "backend", "tokens", "result", "figure"), [_check(c) for c in checks]
        )
    if sides:
        print_table(
            "Toggles by turns (kernel results)",
            ("toggle", "off ms", "on ms", "off / on", "quartiles", "sides"),
            [_sides(side) for side in sides],
        )
    for line in dict.fromkeys(f"{a['backend']}: {a['reason']}" for a in absent):
        print_note(f"no {line}", 3)
    for note in notes:
        print_note(note)


def _row(row: dict[str, Any]) -> tuple[str, ...]:
    head = (row["op"], row["form"], f"{row['tokens']:,}", row["backend"])
    if "ms" not in row:
        return (*head, "-", "-", "-", "-", row["error"])
    note = f"no graph: {row['no_graph']}" if row.get("no_graph") else ""
    share = f"{row['of_copy']:.3f}" if row.get("of_copy") else "-"
    ratio = f"{row['vs_vllm']:.2f}x" if row.get("vs_vllm") else "-"
    return (*head, f"{row['ms']:.4f}", share, ratio, f"{row['eager_ms']:.4f}", note)


def _check(event: dict[str, Any]) -> tuple[str, ...]:
    result = {True: "passed", False: "FAILED", None: "told"}[event["ok"]]
    figures = []
    if "inputs" in event:
        figures.append(f"{event['equal']} of {event['inputs']} bitwise equal")
    if event.get("runs"):
        figures.append(f"{event['wrong']} of {event['runs']:,} runs differ")
    if "worst" in event:
        bound = "must be bitwise" if event["bitwise"] else f"{event['worst']:.2f} of the bound"
        figures.append(f"{event['differ']:.2e} of elements differ, {bound}")
    if event.get("reason"):
        figures.append(event["reason"])
    return event["check"], event["op"], event["backend"], f"{event['tokens']:,}", result, "; ".join(figures)


def _sides(event: dict[str, Any]) -> tuple[str, ...]:
    if "error" in event:
        return event["toggle"], "-", "-", "-", "-", event["error"]
    times = (f"{event['off_ms']:.4f}", f"{event['on_ms']:.4f}", f"{event['off_over_on']:.3f}")
    return event["toggle"], *times, f"{event['low']:.3f} to {event['high']:.3f}", event["what"]
