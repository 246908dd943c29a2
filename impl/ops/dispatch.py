"""Which backend computes an operation: a committed table of what was measured, and `python -m impl.ops.dispatch`.

A backend is a package `impl.ops.NAME` whose modules map operations to functions. Each takes what the torch reference
takes (but for a workspace, where it needs none) and means the same; by keyword it takes what it alone has: its tuning,
POST's `out`, the index map's `valid`. Rejection's arguments go by keyword. Rows of `tuning.json` are read in order: the
first that fits the card (by name, or by the compute capability of the card that was measured), the shape and the
tokens, and whose backend can be imported here, is taken; the reference where none is.
On a CPU everything is the reference. DSBENCH_OPS=torch, or DSBENCH_OPS=mhc_seam=cuda,index_map=torch, forces backends.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import importlib.util
import json
import os
import pkgutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

TABLE = Path(__file__).with_name("tuning.json")
FORCE = "DSBENCH_OPS"
ANY = "*"
TORCH = "torch"
BACKENDS = (TORCH, "triton", "cuda")

REFERENCES: Mapping[str, str] = {
    "mhc_pre": "impl.ops.mhc:pre",
    "mhc_post": "impl.ops.mhc:post_streams",
    "mhc_seam": "impl.ops.mhc:seam",
    "mhc_post_mean": "impl.ops.mhc:post_mean",
    "mhc_post_head": "impl.ops.mhc:post_head",
    "mhc_post_mean_head": "impl.ops.mhc:post_head",
    "index_map": "impl.ops.index_map:to_global",
    "topk_metadata": "impl.ops.topk_metadata:topk_metadata",
    "query_norm_rope": "impl.ops.query:query_norm_rope",
    "kv_insert": "impl.ops.query:kv_insert",
    "draft_sample": "impl.ops.draft_sample:draft_sample",
    "rejection": "impl.ops.rejection:rejection_sample",
}
"""Every operation, and the torch function that says what it means."""


class DispatchError(ValueError):
    """A name that is none, or a backend that is not here; one line."""


class Operation(NamedTuple):
    """One backend's way to compute an operation."""

    backend: str
    function: Callable[..., Any]
    parameters: Mapping[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs, **self.parameters)


class Card(NamedTuple):
    """What rows are matched by."""

    name: str
    capability: tuple[int, int] | None = None
    processors: int = 0


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    card: str
    """The name, as CUDA gives it, of the card that was measured; or * for any."""
    op: str
    backend: str
    """Empty: nothing is written for this backend, and `note` says why."""
    dims: str = ANY
    """A shape's name, or * for any."""
    tokens: tuple[int, int] = (1, 1 << 30)
    """Fewest and most tokens."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    ms: float | None = None
    """Measured at the most tokens of the range; None where nobody has."""
    record: str = ""
    """The file under results/ that holds the figure."""
    note: str = ""
    capability: tuple[int, int] | None = None
    """Cards of this compute capability take the row as well, by what is nearest to a figure of their own."""
    processors: int = 0
    """Fewest multiprocessors of such a card: as many as were measured, since a point may part them by number."""

    def fits(self, op: str, card: Card, dims: str, tokens: int) -> bool:
        least, most = self.tokens
        alike = self.capability == card.capability is not None and card.processors >= self.processors
        suits = (self.card in (ANY, card.name) or alike) and self.dims in (ANY, dims)
        return bool(self.backend) and self.op == op and suits and least <= tokens <= most


@cache
def table(path: Path = TABLE) -> tuple[Row, ...]:
    """The rows of a tuning table. Raises DispatchError for a row with an unknown operation or backend."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    for row in rows:
        _known("operation", row["op"], REFERENCES)
        if row["backend"]:
            _known("backend", row["backend"], BACKENDS)
    pairs = ("tokens", "capability")
    return tuple(Row(**row | {name: tuple(row[name]) for name in pairs if name in row}) for row in rows)


def backend(op: str, device: Any, dims: Any, tokens: int) -> Operation:
    """What computes `op` on a device ("cpu", "cuda:0", a torch.device), for a shape (Dims or its name), for `tokens`.

    Raises DispatchError for an unknown operation, and for a forced backend that does not have it here.
    """
    _known("operation", op, REFERENCES)
    chosen = forced(op)
    if chosen is None and not str(device).startswith("cuda"):
        chosen = TORCH
    name = getattr(dims, "name", dims)
    fitting = [row for row in table() if row.fits(op, card_of(device), name, tokens)]
    if chosen is not None:
        fitting = [row for row in fitting if row.backend == chosen]
        return _operation(op, chosen, fitting[0].parameters if fitting and chosen != TORCH else {})
    for row in fitting:
        if op in operations(row.backend):
            return _operation(op, row.backend, row.parameters)
    return _operation(op, TORCH, {})


def kernel(op: str, device: Any, dims: Any, tokens: int) -> Callable[..., Any] | None:
    """The measured choice with its point, for a caller that asks at every call; None where that is the torch reference.

    A CPU that is told nothing else is not looked up. Kept by what decides it, so that asking costs little.
    """
    told = os.environ.get(FORCE, "")
    if not told and not str(device).startswith("cuda"):
        return None
    return _kept(op, str(device), getattr(dims, "name", dims), tokens, told)


@lru_cache(maxsize=16384)
def _kept(op: str, device: str, dims: str, tokens: int, told: str) -> Callable[..., Any] | None:
    chosen = backend(op, device, dims, tokens)
    _asked.setdefault(op, set()).add(chosen.backend)
    return None if chosen.backend == TORCH else partial(chosen.function, **chosen.parameters)


def usable(op: str, capability: tuple[int, int] | None, dims: Any) -> dict[str, str]:
    """Each backend but the reference that may compute `op` for a shape on a card of this compute capability, and why it
    cannot: empty where it can. For a process that must leave the GPU alone: of the number of multiprocessors, which a
    row asks for too, it knows nothing. Raises DispatchError as `backend`.
    """
    _known("operation", op, REFERENCES)
    chosen, name = forced(op), getattr(dims, "name", dims)
    if chosen == TORCH:
        return {TORCH: f"{FORCE} asks for it, and it is no kernel"}
    rows = [row for row in table() if row.op == op and row.backend not in ("", TORCH) and row.dims in (ANY, name)]
    fitting = {row.backend for row in rows if row.card == ANY or row.capability == capability is not None}
    found = {}
    for other in [chosen] if chosen else [name for name in BACKENDS if name in fitting]:
        written = "" if op in operations(other) else missing(other) or "not written"
        found[other] = written if other in fitting else f"the tuning table has no row of it for {name} on this card"
    return found


_asked: dict[str, set[str]] = {}


def asked() -> dict[str, list[str]]:
    """The backends that `kernel` has chosen in this process, by operation."""
    return {op: sorted(names) for op, names in sorted(_asked.items())}


def forced(op: str) -> str | None:
    """The backend that DSBENCH_OPS asks for."""
    asked = None
    for part in filter(None, os.environ.get(FORCE, "").replace(" ", "").split(",")):
        name, pair, chosen = part.rpartition("=")
        _known(f"backend in {FORCE}", chosen, BACKENDS)
        if pair:
            _known(f"operation in {FORCE}", name, REFERENCES)
        if name in ("", op):
            asked = chosen if name or asked is None else asked
    return asked


@cache
def operations(name: str) -> Mapping[str, Callable[..., Any]]:
    """The operations a backend has on this machine; nothing where it cannot be used (see `missing`)."""
    _known("backend", name, BACKENDS)
    if name == TORCH:
        return {op: _load(place) for op, place in REFERENCES.items()}
    found: dict[str, Callable[..., Any]] = {}
    for module in _modules(name):
        found.update(getattr(module, "OPERATIONS", {}))
    return found


@cache
def variants(name: str) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """The points at which a backend's operations may be tuned."""
    found: dict[str, Sequence[Mapping[str, Any]]] = {}
    for module in _modules(name) if name != TORCH else ():
        found.update(getattr(module, "VARIANTS", {}))
    return found


@cache
def missing(name: str) -> str:
    """Why a backend cannot be used here; empty where it can."""
    try:
        return next(filter(None, map(_lacking, _import(name))), "")
    except ImportError as error:
        return str(error).splitlines()[0]


def _lacking(module: Any) -> str:
    """What a module's operations need that is not here, as its own `lacking` says."""
    return module.lacking() if hasattr(module, "lacking") else ""


def _modules(name: str) -> Iterator[Any]:
    return iter(()) if missing(name) else _import(name)


def _import(name: str) -> Iterator[Any]:
    place = f"impl.ops.{name}"
    if importlib.util.find_spec(place) is None:
        raise ImportError("no operation is written for it")
    package = importlib.import_module(place)
    for info in pkgutil.iter_modules(package.__path__, f"{place}."):
        yield importlib.import_module(info.name)


def _operation(op: str, name: str, parameters: Mapping[str, Any]) -> Operation:
    if op not in operations(name):
        why = missing(name) or f"it has {', '.join(operations(name))}"
        raise DispatchError(f"backend '{name}' has no operation '{op}' here: {why}")
    return Operation(name, operations(name)[op], parameters)


def _load(place: str) -> Callable[..., Any]:
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def card_of(device: Any) -> Card:
    if not str(device).startswith("cuda"):
        return Card("cpu")
    import torch

    seen = torch.cuda.get_device_properties(device)
    return Card(seen.name, (seen.major, seen.minor), seen.multi_processor_count)


def _known(what: str, name: str, known: Any) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise DispatchError(f"unknown {what} '{name}': {hint}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.ops.dispatch", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON lines")
    args = parser.parse_args(argv)
    try:
        rows = table()
        choices = {op: forced(op) for op in REFERENCES}
    except DispatchError as error:
        print(f"impl.ops.dispatch: {error}", file=sys.stderr)
        return 2
    if args.json:
        for row in rows:
            print(json.dumps(vars(row)))
        return 0
    for name in BACKENDS[1:]:
        print(f"{name}: {missing(name) or ', '.join(operations(name)) or 'nothing'}")
    print()
    for op, reference in REFERENCES.items():
        print(f"{op}  (reference {reference}){f'  forced: {choices[op]}' if choices[op] else ''}")
        for row in rows:
            if row.op == op:
                print(f"    {_told(row)}")
    return 0


def _told(row: Row) -> str:
    least, most = row.tokens
    span = f"{least}.." + ("" if most >= 1 << 30 else str(most))
    alike = f" and {row.capability[0]}.{row.capability[1]}" if row.capability else ""
    parts = [row.backend or "not written", row.card + alike, row.dims, f"tokens {span}"]
    if row.parameters:
        parts.append(" ".join(f"{key}={value}" for key, value in row.parameters.items()))
    if row.backend:
        parts.append("not measured" if row.ms is None else f"{row.ms:.4f} ms, {row.record}")
    return "  ".join([*parts, row.note]).rstrip()


__all__ = ["BACKENDS", "REFERENCES", "Card", "DispatchError", "Operation", "Row", "asked", "backend", "card_of",
           "forced", "kernel", "missing", "operations", "table", "usable", "variants"]  # fmt: skip

if __name__ == "__main__":
    sys.exit(main())
