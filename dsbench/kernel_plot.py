"""Plots of timed kernels: one panel an operation, time over tokens, one line a backend, and what a copy would take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dsbench.errors import InputError

COLUMNS = 4
PANEL = (4.2, 3.1)
"""Inches of one panel."""
STYLES: Mapping[str, tuple[str, str]] = {
    "vllm": ("#555555", "s"), "triton": ("#0072b2", "o"), "cuda": ("#d55e00", "^"), "torch": ("#bbbbbb", "x"),
    "tilelang": ("#009e73", "D"), "flashinfer": ("#cc79a7", "v"),
}  # fmt: skip
"""Colour and mark of each backend; told apart without colour, too."""


def plot(rows: Sequence[Mapping[str, Any]], machine: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write kernels.svg and kernels.png into a folder. Raises InputError without matplotlib, or without a figure."""
    try:
        import matplotlib
    except ImportError:
        raise InputError("no plot: matplotlib is not installed here; pip install matplotlib, then --read") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    timed = [row for row in rows if "ms" in row]
    panels = list(dict.fromkeys((row["op"], row["form"]) for row in timed))
    if not panels:
        raise InputError("no plot: no row has a time")
    lines = -(-len(panels) // COLUMNS)
    columns = min(COLUMNS, len(panels))
    figure, axes = pyplot.subplots(
        lines, columns, figsize=(PANEL[0] * columns, PANEL[1] * lines + 0.6), squeeze=False, layout="constrained"
    )
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(axis, panel, [row for row in timed if (row["op"], row["form"]) == panel], machine)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    named = [pair for axis in axes.flat for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    handles = {label: handle for handle, label in named}
    figure.legend(handles.values(), handles.keys(), loc="outside upper center", ncols=len(handles), frameon=False)
    kind = "kernel results" if machine.get("device") == "cuda" else "no GPU figures"
    figure.supxlabel(f"tokens (requests for sampling) · {machine.get('card', 'unknown machine')} · {kind}", fontsize=9)
    figure.supylabel("milliseconds a call", fontsize=9)
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"kernels.{ending}" for ending in ("svg", "png")]
    for file in files:
        figure.savefig(file, dpi=130)
    pyplot.close(figure)
    return files


def _panel(axis: Any, panel: tuple[str, str], rows: Sequence[Mapping[str, Any]], machine: Mapping[str, Any]) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axis.set_title(", ".join(panel), fontsize=9)
    for backend in dict.fromkeys(row["backend"] for row in rows):
        colour, mark = STYLES.get(backend, ("#000000", "."))
        mine = sorted((row["tokens"], row["ms"]) for row in rows if row["backend"] == backend)
        axis.plot(*zip(*mine, strict=True), color=colour, marker=mark, markersize=4, linewidth=1.2, label=backend)
    rate = machine.get("copy_bytes_per_second")
    if rate:
        floor = sorted({(row["tokens"], row["bytes"] * 1e3 / rate) for row in rows})
        axis.plot(*zip(*floor, strict=True), color="#000000", linestyle=":", linewidth=1, label="bytes at copy rate")
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    # Steps within a decade as well: many panels span less than one.
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for ruler in (axis.xaxis, axis.yaxis):
        ruler.set_major_formatter("{x:g}")
        ruler.set_minor_formatter(NullFormatter())
    axis.tick_params(labelsize=7)
    axis.grid(True, which="major", linewidth=0.3)


__all__ = ["plot"]
