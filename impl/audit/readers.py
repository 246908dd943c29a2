"""No layer mixes readers of local and of global index rows, the fallback gate included.

Once the rows of a step are mapped in place, a reader that expects local indices reads nonsense, and a layer that maps
them again does too. So every dense layer of every step must get the global slots of its tokens; a layer that takes a
path with local indices turns mapping in place off for the whole model. Source: source_pr.md section 6.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from impl.audit import trial
from impl.audit.bits import same
from impl.audit.dead_readers import patched
from impl.audit.partition import sample_step
from impl.audit.report import Finding, NotRun, Outcome
from impl.audit.source import Source, place, sources
from impl.audit.trial import DIMS
from impl.engine.index_rows import IN_PLACE, GlobalRows, IndexRows
from impl.engine.step import Step
from impl.handshake import Markers
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

OWN = "impl/engine/index_rows.py"
N_DENSE = sum(ratio > 4 for ratio in DIMS.compress_ratios)


class Readings:
    """What the dense layers of a run were given."""

    def __init__(self) -> None:
        self.layers = 0
        self.most_rows = 0
        """Rows of the largest step served."""
        self.wrong: Counter[str] = Counter()
        self.maps: Counter[int] = Counter()
        """Steps by how often their prefill rows were mapped."""


def check(control: str = "") -> Outcome:
    """`control`: one more toggle of the arm that maps in place."""
    findings: list[Finding] = []
    evidence: dict[str, int | float | str] = {"dense layers": N_DENSE}
    for toggles, maps in (("", N_DENSE), (",".join(filter(None, (IN_PLACE, control))), 1)):
        readings, arm, runner = Readings(), toggles or "baseline", trial.engine(toggles)
        with _reading(readings):  # of what it serves, not of its profile
            trial.serve(runner)
        if not readings.maps:
            raise NotRun(f"{arm}: no step of the trial has prefill rows")
        if readings.most_rows != DIMS.max_num_batched_tokens:
            raise NotRun(f"{arm}: no step of the trial has all {DIMS.max_num_batched_tokens} rows")
        evidence[f"{arm}: rows of the largest step"] = readings.most_rows
        evidence[f"{arm}: readings"] = readings.layers
        evidence[f"{arm}: maps a step"] = ", ".join(map(str, sorted(readings.maps)))
        where = place(IndexRows.for_layer)
        findings += [
            Finding("mixed-readers", f"{arm}: {what}, {count} times", where, "map a step's rows once, for all layers")
            for what, count in readings.wrong.items()
        ]
        if set(readings.maps) != {maps}:
            what = f"{arm}: steps map their prefill rows {sorted(readings.maps)} times, not {maps}"
            findings.append(Finding("maps-a-step", what, where, "keep the map's flag with the step"))
    findings += _gate()
    unnamed = list(local_readers(sources()))
    findings += unnamed
    return Outcome(tuple(findings), {**evidence, "readers of local rows": len(unnamed)})


@contextmanager
def _reading(readings: Readings) -> Iterator[None]:
    """Look at what each dense layer gets, beside the slots worked out from its step alone."""
    for_layer, build = IndexRows.for_layer, IndexRows.build
    open_steps: dict[int, IndexRows] = {}

    def close() -> None:
        for rows in open_steps.values():
            if rows.maps:
                readings.maps[rows.maps] += 1
        open_steps.clear()

    def building(self: IndexRows, step: Step, workspace: Workspace) -> None:
        close()
        build(self, step, workspace)
        open_steps[id(self)] = self
        readings.most_rows = max(readings.most_rows, step.n_tokens)

    def layer(self: IndexRows, step: Step, workspace: Workspace) -> GlobalRows:
        given = for_layer(self, step, workspace)
        expected = _global(step, self)
        n_decode = step.n_decode
        for name, got, truth in (
            ("decode", given.decode, expected[:n_decode]),
            ("prefill", given.prefill, expected[n_decode:]),
        ):
            if not same(got, truth):
                readings.wrong[f"a dense layer's {name} rows are not its tokens' global slots"] += 1
        if not same(given.lens, (expected >= 0).sum(1, dtype=torch.int32)):
            readings.wrong["a dense layer's lens do not count its tokens' slots"] += 1
        readings.layers += 1
        return given

    with patched(IndexRows, "for_layer", layer), patched(IndexRows, "build", building):
        yield
    close()


def _global(step: Step, rows: IndexRows) -> torch.Tensor:
    """Slots of all visible entries, int32 [N, W], -1 behind them."""
    visible = step.visible[rows.ratio][:, None]
    local = torch.where(rows.columns < visible, rows.columns, -1).long()
    return torch.where(local >= 0, step.compressed_slots(rows.ratio, local, rows.per_page), -1).int()


def _gate() -> Iterator[Finding]:
    """One local reader turns mapping in place off for every layer, and says so; mapped rows refuse a local reader."""
    where, workspace, step = place(IndexRows.__init__), Workspace(), sample_step(3, 20)
    markers = Markers()
    rows = IndexRows(DIMS, ToggleSet.parse(IN_PLACE), markers, "cpu", local_readers=(2,))
    with workspace.scope():
        rows.build(step, workspace)
        before = rows.local(step).clone()
        for _ in range(N_DENSE):
            rows.for_layer(step, workspace)
        try:
            kept = same(rows.local(step), before)
        except RuntimeError:
            kept = False
        if not kept:
            what = "with a layer that reads local indices, the other layers' map takes them away"
            yield Finding("gate-open", what, where, "turn mapping in place off for the whole model")
        if not markers.refused[IN_PLACE]:
            what = f"with a layer that reads local indices, {IN_PLACE} is not refused with a reason"
            yield Finding("silent-refusal", what, where, "refuse the toggle with the layers' numbers")
        rows = IndexRows(DIMS, ToggleSet.parse(IN_PLACE), Markers(), "cpu")
        rows.build(step, workspace)
        rows.for_layer(step, workspace)
        try:
            rows.local(step)
        except RuntimeError:
            return
    what = "rows that are global already are handed to a reader of local ones"
    yield Finding("local-after-map", what, place(IndexRows.local), "raise, and name the layers that read local rows")


def local_readers(tree: list[Source]) -> Iterator[Finding]:
    """Code that reads local rows while the engine's index rows are made without naming such readers."""
    calls = [node for source in tree for node in ast.walk(source.tree) if isinstance(node, ast.Call)]
    named = any(
        keyword.arg == "local_readers"
        for node in calls
        if isinstance(node.func, ast.Name) and node.func.id == "IndexRows"
        for keyword in node.keywords
        if not (isinstance(keyword.value, ast.Tuple | ast.List) and not keyword.value.elts)
    )
    for source in tree:
        for node in ast.walk(source.tree) if source.name != OWN and not named else ():
            if _is_local(node):
                what = "a layer reads local index rows, and the engine's index rows do not know of it"
                yield Finding("unnamed-local-reader", what, source.at(node), "name its layers in local_readers")


def _is_local(node: ast.AST) -> bool:
    """`x.local`, called or kept for later, whatever x is called: the package has no other attribute of that name."""
    return isinstance(node, ast.Attribute) and node.attr == "local" and ast.unparse(node.value) != "threading"
