"""`dsbench toggles`: what can be switched, what it claims, and how it is judged."""

from __future__ import annotations

import dataclasses
from typing import Any

import click

from dsbench.cli.params import SHAPE_NAMES, shape
from impl.dims import Dims
from impl.toggles import REGISTRY, Toggle, find


@click.command(short_help="List the toggles, or describe one.")
@click.argument("name", required=False)
@click.option("--dims", metavar=SHAPE_NAMES, type=shape, default="flash", show_default=True, help="Shape of the bytes.")
@click.option(
    "-T",
    "--max-num-batched-tokens",
    "batched",
    type=click.IntRange(min=1),
    help="Tokens one step may process, in place of the shape's.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def toggles(name: str | None, dims: Dims, batched: int | None, as_json: bool) -> None:
    """List the toggles, or describe one.

    Optimization toggles are off in the baseline, correctness toggles on in every arm. A control is a planted defect:
    it shows that a check can fail, and runs with --controls only.
    """
    from dsbench.cli.table import print_json

    dims = dims.with_changes(max_num_batched_tokens=batched) if batched else dims
    chosen = [find(name)] if name else list(REGISTRY.values())
    if as_json:
        content = [_to_json(toggle, dims) for toggle in chosen]
        print_json(content[0] if name else content)
    elif name:
        _describe(chosen[0], dims)
    else:
        _list(chosen, dims)


def _list(chosen: list[Toggle], dims: Dims) -> None:
    from dsbench.cli.table import print_table

    print_table(
        f"Toggles; bytes at {dims.name}, T = {dims.max_num_batched_tokens:,}",
        ("toggle", "kind", "phase", "KV line", "saves", "exactness", "requires", "judged by"),
        [
            (
                toggle.name,
                toggle.kind,
                toggle.phase,
                "moves" if toggle.moves_line else "-",
                _saving(toggle, dims),
                toggle.exactness_told,
                ", ".join(toggle.requires) or "-",
                toggle.primary,
            )
            for toggle in chosen
        ],
    )
    click.echo("dsbench toggles NAME tells what one does and needs.")


def _describe(toggle: Toggle, dims: Dims) -> None:
    from dsbench.cli.table import print_note

    print_note(f"{toggle.name}: {toggle.summary}", 2)
    click.echo()
    facts = {
        "kind": f"{toggle.kind}, {'on' if toggle.default_on else 'off'} unless named",
        "saves": f"{_saving(toggle, dims)} at {dims.name}, T = {dims.max_num_batched_tokens:,}",
        "phase": f"{toggle.phase}; {'moves' if toggle.moves_line else 'does not move'} the profiled KV line",
        "exactness": toggle.exactness_told,
        "judged by": toggle.primary,
        "needs": toggle.needs or "nothing more",
        "argument": _argument(toggle),
        "requires": ", ".join(toggle.requires) or "no other toggle",
        "conflicts": ", ".join(toggle.conflicts) or "none",
        "engines": ", ".join(toggle.engines),
        "reference": toggle.reference,
    }
    if toggle.unverified_on:
        facts["unverified"] = f"on {toggle.unverified_on}; one command on such a card checks it: {toggle.verified_by}"
    for key, value in facts.items():
        print_note(f"{key:<10} {value}", 11)


def _expected(toggle: Toggle, dims: Dims) -> int | None:
    return toggle.expected_bytes(dims) if toggle.expected_bytes else None


def _saving(toggle: Toggle, dims: Dims) -> str:
    from dsbench.cli.table import mib

    size = _expected(toggle, dims)
    return "-" if size is None else f"{size:,} B" if size < 2**20 else mib(size)


def _argument(toggle: Toggle) -> str:
    what = toggle.argument
    return f"{toggle.name}:{what.name}, {what.summary}, {what.least} to {what.most}" if what else "none"


def _to_json(toggle: Toggle, dims: Dims) -> dict[str, Any]:
    fields = {f.name: getattr(toggle, f.name) for f in dataclasses.fields(toggle)}
    argument = dataclasses.asdict(toggle.argument) if toggle.argument else None
    return {
        **fields,
        "argument": argument,
        "expected_bytes": _expected(toggle, dims),
        "dims": dims.name,
        "T": dims.max_num_batched_tokens,
    }
