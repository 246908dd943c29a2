"""Rows of the tuning table from measured records: `python -m impl.bench.tune RECORDS... [--card NAME] [--write]`.

Records are JSON lines of `python -m impl.bench --variants` and of `python -m impl.bench.mhc_trial`; what the latter
wrote when it was impl.ops.mhc_trial, in words of its own (`kind`, `variant`, `reuse`), is read too. At every number of
tokens that was measured, the point (backend and parameters) with the least time over the forms of an operation is
taken, or the last smaller number's where that is as good within the slack; a point whose check failed in the same
records is not taken. A row holds from one number beyond the last measured one up to the next; the last row has no end.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from impl.bench.backends import VLLM
from impl.ops import dispatch

SLACK = 0.005
"""Share of the best time within which a neighbour's point is kept."""
Row = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One measured time, whichever program took it."""

    op: str
    dims: str
    tokens: int
    backend: str
    parameters: str
    """As JSON, keys in the order given."""
    form: str
    ms: float
    record: str

    @property
    def point(self) -> tuple[str, str]:
        return self.backend, self.parameters


@dataclass
class Records:
    figures: list[Figure] = field(default_factory=list)
    failed: set[tuple[str, str, str]] = field(default_factory=set)
    """Operation, backend and parameters of checks that failed."""
    cards: set[str] = field(default_factory=set)
    alike: set[tuple[tuple[int, int], int]] = field(default_factory=set)
    """Compute capability and multiprocessors of the cards, where the records say."""


def read(paths: Iterable[Path]) -> Records:
    """Raises ValueError for a line that is not JSON."""
    found = Records()
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                event = json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number} is not JSON: {error}") from error
            _take(event, path.as_posix(), found)
    return found


def _take(event: Row, record: str, found: Records) -> None:
    if event.get("event") == "machine" and "card" in event:
        found.cards.add(event["card"])
        if "capability" in event:
            major, minor = map(int, event["capability"].split("."))
            found.alike.add(((major, minor), event["multiprocessors"]))
    if event.get("op") not in dispatch.REFERENCES or event.get("backend") not in dispatch.BACKENDS:
        return
    given = event.get("parameters", event.get("variant", {}))
    parameters = json.dumps(given)
    checked = event.get("kind") == "check" or event.get("event") == "check"
    if checked and event.get("ok") is False:
        found.failed.add((event["op"], event["backend"], parameters))
    timed = event.get("kind") == "time" or event.get("event") == "row"
    if timed and event.get("ms") is not None:
        form = event.get("form", "in place" if event.get("reuse") else "fresh")
        found.figures.append(
            Figure(event["op"], event.get("dims", "flash"), event["tokens"], event["backend"], parameters, form,
                   event["ms"], record)
        )  # fmt: skip


def rows(records: Records, card: str, slack: float = SLACK) -> list[Row]:
    """The table's rows for `card`, by operation and rising tokens."""
    cells: dict[tuple[str, str], dict[int, list[Figure]]] = defaultdict(lambda: defaultdict(list))
    for figure in records.figures:
        if figure.backend != VLLM and (figure.op, *figure.point) not in records.failed:
            cells[figure.op, figure.dims][figure.tokens].append(figure)
    made: list[Row] = []
    alike: Row = {}
    if len(records.alike) == 1:
        ((capability, processors),) = records.alike
        alike = {"capability": list(capability), "processors": processors}
    for (op, dims), by_tokens in sorted(cells.items(), key=lambda cell: list(dispatch.REFERENCES).index(cell[0][0])):
        made += [{**row, **alike} for row in _of_operation(op, dims, card, by_tokens, slack)]
    return made


def _of_operation(op: str, dims: str, card: str, by_tokens: dict[int, list[Figure]], slack: float) -> Iterator[Row]:
    held: tuple[str, str] | None = None
    chosen: list[tuple[int, tuple[str, str], float, str]] = []
    for tokens in sorted(by_tokens):
        times = _times(by_tokens[tokens])
        best = min(times, key=lambda point: times[point][0])
        if held in times and times[held][0] <= times[best][0] * (1 + slack):
            best = held
        held = best
        chosen.append((tokens, best, *times[best]))
    least = 1
    for i, (tokens, point, ms, record) in enumerate(chosen):
        if i + 1 < len(chosen) and chosen[i + 1][1] == point:
            continue
        row: Row = {"card": card, "op": op, "backend": point[0], "dims": dims}
        row["tokens"] = [least, dispatch.Row.tokens[1] if i + 1 == len(chosen) else tokens]
        row["parameters"] = json.loads(point[1])
        yield {**row, "ms": round(ms, 5), "record": record, "note": f"ms at {tokens} tokens"}
        least = tokens + 1


def _times(figures: Sequence[Figure]) -> dict[tuple[str, str], tuple[float, str]]:
    """Mean time over forms of every point that has all of them, and its record; over the forms that all points have,
    where only defaults have all of them. A backend's own defaults count only where none of its points was named. The
    last of equal measurements counts."""
    by_point: dict[tuple[str, str], dict[str, Figure]] = defaultdict(dict)
    for figure in figures:
        by_point[figure.point][figure.form] = figure
    forms = {figure.form for figure in figures}
    whole = {point: seen for point, seen in by_point.items() if set(seen) == forms}
    if all(parameters == "{}" for _, parameters in whole):
        shared = set.intersection(*(set(seen) for seen in by_point.values())) or forms
        whole = {point: {f: seen[f] for f in shared if f in seen} for point, seen in by_point.items()}
    named = {backend for backend, parameters in whole if parameters != "{}"}
    whole = {p: seen for p, seen in whole.items() if p[1] != "{}" or p[0] not in named}
    return {p: (sum(f.ms for f in seen.values()) / len(seen), figures[-1].record) for p, seen in whole.items()}


def merged(table: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """The table with `new` in front, in place of what it had for the same card, shape and operation."""
    replaced = {(row["card"], row["op"], row["dims"]) for row in new}
    return [*new, *(row for row in table if (row["card"], row["op"], row.get("dims", dispatch.ANY)) not in replaced)]


def text(table: Sequence[Row]) -> str:
    """A table's file: a row a line."""
    return '{\n  "rows": [\n' + ",\n".join(f"    {json.dumps(row)}" for row in table) + "\n  ]\n}\n"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.bench.tune", description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+", help="JSON lines, as paths from the repository's root")
    parser.add_argument("--card", help="the card's name; default: what the records say")
    parser.add_argument("--op", action="append", default=[], help="only this operation; may be repeated")
    parser.add_argument("--slack", type=float, default=SLACK, help="share of time within which a neighbour's is kept")
    parser.add_argument("--write", action="store_true", help="put the rows into the table; so without: print them")
    parser.add_argument("--table", type=Path, default=dispatch.TABLE, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    try:
        records = read(args.records)
        card = args.card or _only(records.cards)
    except (OSError, ValueError) as error:
        print(f"impl.bench.tune: {error}", file=sys.stderr)
        return 2
    made = [row for row in rows(records, card, args.slack) if not args.op or row["op"] in args.op]
    if not made:
        print("impl.bench.tune: no times of a backend that passed its checks", file=sys.stderr)
        return 2
    if args.write:
        old = json.loads(args.table.read_text(encoding="utf-8"))["rows"]
        args.table.write_text(text(merged(old, made)), encoding="utf-8")
    else:
        for row in made:
            print(json.dumps(row))
    return 0


def _only(cards: set[str]) -> str:
    if len(cards) != 1:
        raise ValueError(f"records of {len(cards)} cards ({', '.join(sorted(cards))}): name one with --card")
    return next(iter(cards))


__all__ = ["Records", "merged", "read", "rows", "text"]

if __name__ == "__main__":
    sys.exit(main())
