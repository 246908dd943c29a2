"""Parameters that several commands share: byte sizes, shapes and compression ratios."""

from __future__ import annotations

import difflib
import re

import click

from impl.dims import FLASH, SHAPES, Dims

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
