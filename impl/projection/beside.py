"""Two projected ladders of one model side by side, one tensor-parallel rank of each: which figures change, and why."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from impl.projection.ladder import Ladder
from impl.projection.record import PHASES, ArmProjection, Site, Step

BASELINE: frozenset[str] = frozenset()
WHOLE = (
    "rows without a reason rest on tokens, hidden size, streams and index rows, which every rank holds whole; split "
    "are heads, groups, columns of experts and, in the weights, the vocabulary"
)


@dataclass(frozen=True)
class Beside:
    """One figure of a rank, in bytes, in both ladders."""

    figure: str
    a: int
    b: int
    why: str
    """Why they differ; empty where they do not."""


def beside(a: Ladder, b: Ladder) -> list[Beside]:
    """Figures of the baseline, then what each toggle frees alone, in the phase where its bytes live."""
    before, after = a.arms[BASELINE], b.arms[BASELINE]
    rows = [
        _row("weights", before.weights_bytes, after.weights_bytes, _splits(a, b)),
        _row("workspace", before.workspace_bytes, after.workspace_bytes, "what experts and heads need of it is split"),
    ]
    for name in PHASES:
        ours, theirs = before.phase(name), after.phase(name)
        rows.append(_row(name, ours.bytes, theirs.bytes, _sites(ours.sites, theirs.sites)))
    theirs_by_toggle = {step.toggle: step for step in (*b.alone, *b.apart)}
    for step in (*a.alone, *a.apart):
        rows += _freed(step, theirs_by_toggle[step.toggle], before, after)
    return rows


def _freed(a: Step, b: Step, before: ArmProjection, after: ArmProjection) -> Iterator[Beside]:
    for name in PHASES:
        if name in a.phases or name in b.phases:
            refused = "; ".join(b.refused or a.refused)
            why = f"refused: {refused}" if refused else _sites(before.phase(name).sites, after.phase(name).sites)
            yield _row(f"{a.toggle}, {name}", a.phases.get(name, 0), b.phases.get(name, 0), why)
    if not a.phases and not b.phases:
        yield _row(a.toggle, a.line_bytes, b.line_bytes, "; ".join(b.refused or a.refused))


def _row(figure: str, a: int, b: int, why: str) -> Beside:
    return Beside(figure, a, b, why if a != b else "")


def _splits(a: Ladder, b: Ladder) -> str:
    """What a rank of `b` holds less of."""
    ours, theirs = a.rank.dims, b.rank.dims
    names = {"n_heads": "heads", "o_groups": "groups", "expert_width": "columns of an expert"}
    changed = (
        f"{getattr(ours, name)} -> {getattr(theirs, name)} {words}"
        for name, words in names.items()
        if getattr(ours, name) != getattr(theirs, name)
    )
    return f"{', '.join(changed)}; embedding and head by vocabulary"


def _sites(a: tuple[Site, ...], b: tuple[Site, ...]) -> str:
    """The largest tensor that is not the same in both, by the line that allocates it."""
    ours = {site.where: site for site in reversed(a)}
    for site in b:
        other = ours.get(site.where)
        if other is not None and other.shape != site.shape:
            return f"{list(other.shape)} -> {list(site.shape)} at {site.where}"
    return "tensors behind the largest"


def to_json(a: Ladder, b: Ladder) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "projected beside",
        "tp": [a.rank.tp, b.rank.tp],
        "local_heads": [a.rank.dims.n_heads, b.rank.dims.n_heads],
        "padded_heads": [a.rank.heads, b.rank.heads],
        "rows": [asdict(row) for row in beside(a, b)],
    }


def text(a: Ladder, b: Ladder) -> str:
    rows = beside(a, b)
    width = max(len(row.figure) for row in rows)
    model = a.rank.model
    lines = [
        f"projected: {model.name}, {model.n_layers} + {model.n_draft_layers} layers, {model.n_experts} experts, "
        f"{a.rank.platform}, T={model.max_num_batched_tokens:,}",
        "",
        f"{'bytes of a rank':<{width}}{f'TP={a.rank.tp}':>18}{f'TP={b.rank.tp}':>18}  why it changes",
        *(f"{row.figure:<{width}}{row.a:>18,}{row.b:>18,}  {row.why}".rstrip() for row in rows),
        "",
        WHOLE,
    ]
    return "\n".join(lines)


__all__ = ["Beside", "beside", "text", "to_json"]
