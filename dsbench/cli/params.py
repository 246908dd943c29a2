"""Parameters that several commands share: options of an experiment, byte sizes, shapes and compression ratios."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from impl.dims import FLASH, SHAPES, Dims

Function = TypeVar("Function", bound=Callable[..., Any])


class NumberRange(click.FloatRange):
    """Numbers of a range; NaN lies in none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = float(super().convert(value, param, ctx))
        if math.isnan(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


COUNT = click.IntRange(min=1, max=1 << 24)
BLOCKS = click.IntRange(min=1, max=10_000)
SECONDS = NumberRange(min=0, min_open=True, max=1_000_000)
FOLDER = click.Path(path_type=Path, file_okay=False)
FILE = click.Path(path_type=Path, dir_okay=False)
ENGINES = ("embedded", "vllm", "command", "endpoint")
MATRICES = ("single", "one-at-a-time", "ladder", "leave-one-out", "full", "half")


def group(*options: Callable[[Function], Function]) -> Callable[[Function], Function]:
    """Several options as one decorator, in the order in which help shows them."""

    def decorate(command: Function) -> Function:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


arm_options: Callable[[Function], Function] = group(
    click.option(
        "-t", "--toggle", "toggles", metavar="NAME", multiple=True, help="Toggle to measure; repeat for several."
    ),
    click.option(
        "--matrix",
        type=click.Choice(MATRICES),
        help="Which combinations of the toggles are arms. [default: each alone, and all together]",
    ),
    click.option(
        "--arm",
        "arms",
        metavar="NAME=SPEC",
        multiple=True,
        help="An arm that is a build: 'speculative=dspark;toggles=a,b;args=--eager;env=X=1;python=VENV'. "
        "The first is the baseline.",
    ),
    click.option("--a-python", metavar="VENV", help="Baseline's environment: its folder, or its interpreter."),
    click.option("--b-python", metavar="VENV", help="Candidate's environment. [default of both: this one]"),
    click.option("--a", metavar="URL", help="Baseline: a running server. With --b, short for two --endpoint."),
    click.option("--b", metavar="URL", help="Candidate: a running server; the baseline's URL again is an A/A."),
    click.option("--controls", is_flag=True, help="Allow planted defects as toggles."),
)
"""What the arms are."""

suite_options: Callable[[Function], Function] = group(
    click.option(
        "-s", "--suite", "suite_name", metavar="NAME|FILE", default="quick", show_default=True, help="What to run."
    ),
    click.option(
        "--until", type=click.Choice(["profile", "ready"]), help="'profile' stops each boot early: KV metrics only."
    ),
    click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Deadline of a boot and of a probe."),
)
"""What is measured in each boot."""

build_options: Callable[[Function], Function] = group(
    click.option(
        "--engine",
        type=click.Choice(ENGINES),
        help="Ours, `vllm serve`, your own commands, or servers that run. [default: the recipe's, else embedded]",
    ),
    click.option("--vllm-python", metavar="VENV", help="vllm: environment to serve from. [default: this one]"),
    click.option("--serve-args", metavar="ARGS", help="vllm: 'MODEL --flag value ...', as for `vllm serve`."),
    click.option(
        "--env", metavar="NAME[=VALUE]", multiple=True, help="Variable of every boot; a bare name is not stored."
    ),
    click.option("--rig", type=FILE, metavar="FILE", help="command: TOML with start, stop, health, url and ranks."),
    click.option("--endpoint", "endpoints", metavar="NAME=URL", multiple=True, help="endpoint: a running server."),
    click.option(
        "--declare",
        metavar="CONDITION",
        multiple=True,
        help="endpoint: condition in which the servers may differ, such as served_model; repeat for several.",
    ),
    click.option(
        "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of order, prompts and engine."
    ),
    click.option(
        "--dims", "shape", type=click.Choice(list(SHAPES)), default="micro", show_default=True, help="Model shape."
    ),
    click.option("-T", "--max-num-batched-tokens", type=COUNT, metavar="N", help="Tokens one step may process."),
    click.option("--max-model-len", type=COUNT, metavar="N", help="Longest request in tokens."),
    click.option("--hidden-size", type=COUNT, metavar="N", help="Width of the model; needs --load-format dummy."),
    click.option(
        "--load-format",
        type=click.Choice(["auto", "dummy"]),
        default="auto",
        show_default=True,
        help="Shipped weights, or random ones.",
    ),
    click.option(
        "--speculative",
        type=click.Choice(["none", "mtp", "dspark"]),
        help="Draft method of every arm. [default: none, or what a toggle needs]",
    ),
    click.option("--eager", is_flag=True, help="Run eagerly, without captured graphs, in every arm."),
    click.option(
        "--capture",
        type=click.Choice(["draft", "rounds", "steps"]),
        help="What graphs of the embedded engine hold: the draft's passes, the target's too, or whole decode steps. "
        "[default: steps on CUDA, else draft]",
    ),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), help="Where the embedded engine runs. [default: cpu]"),
    click.option(
        "--draft-load-format",
        type=click.Choice(["auto", "dummy"]),
        help="The draft's weights. [default: as the model's]",
    ),
    click.option(
        "--synthetic-acceptance-rates", metavar="R,R,...", help="Accept drafts at these rates, one a position."
    ),
    click.option(
        "--synthetic-acceptance-length",
        type=NumberRange(min=1, max=1000),
        metavar="L",
        help="Accept drafts to this mean length.",
    ),
)
"""What every boot is started with."""

out_option: Callable[[Function], Function] = click.option(
    "-o", "--out", type=FOLDER, default=Path("results"), show_default=True, help="Folder of results."
)

reuse_option: Callable[[Function], Function] = click.option(
    "--reuse-baseline",
    metavar="RESULT",
    help="Take the baseline's boots from an earlier result of this machine, build and suite; not for speed.",
)

SIX_LAYER = FLASH.with_changes(
    name="flash6", compress_ratios=(0, 0, 4, 128, 4, 128), aux_layers=(3, 4, 5), n_experts=16, n_hash_layers=1
)
"""Six target layers at the flash widths and three draft layers: what fits one GPU for a measurement."""

NAMED_SHAPES: dict[str, Dims] = {**SHAPES, SIX_LAYER.name: SIX_LAYER}
SHAPE_NAMES = "|".join(NAMED_SHAPES)

_UNITS = {"": 1, "b": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate("kmgt", start=1)
    for suffix, base in (("ib", 1024), ("b", 1000))
}


def byte_size(text: str) -> int:
    """A whole number of bytes: `63586506240`, `63,586,506,240`, `10.54GiB`, `512 MiB`, `1.5GB`."""
    match = re.fullmatch(r"([\d,_]+|\d*\.\d+)\s*([A-Za-z]*)", text.strip())
    digits, unit = (re.sub("[,_]", "", match[1]), match[2].lower()) if match else ("", "")
    if not digits or unit not in _UNITS:
        raise click.BadParameter(f"'{text}' is no size in bytes; write 63586506240, 10.54GiB or 512MiB")
    return int(digits) * _UNITS[unit] if digits.isdigit() else int(float(digits) * _UNITS[unit])


def ratios(text: str) -> tuple[int, ...]:
    """Compression ratios, one a layer: `0,0,4,128`."""
    try:
        return tuple(int(part) for part in text.strip("[]").split(","))
    except ValueError:
        raise click.BadParameter(f"'{text}' is no list of ratios; write one number a layer, as in 0,0,4,128") from None


def shape(name: str) -> Dims:
    """A model shape by name."""
    if name in NAMED_SHAPES:
        return NAMED_SHAPES[name]
    near = difflib.get_close_matches(name, NAMED_SHAPES, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(NAMED_SHAPES)}"
    raise click.BadParameter(f"unknown shape '{name}': {hint}")
