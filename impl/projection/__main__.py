"""`python -m impl.projection --platform sm120 --tp 2`: the memory ladder of one rank, projected."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from impl.dims import SHAPES, Dims
from impl.projection import beside
from impl.projection.config import dims_of_config
from impl.projection.ladder import APART, ORDER, Ladder, ladder
from impl.projection.rank import PLATFORMS, TENSOR_PARALLEL, Rank
from impl.projection.record import PHASES, ArmProjection, Step

MIB = 1 << 20


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.projection", description=__doc__)
    parser.add_argument("--platform", choices=PLATFORMS, default="sm120", help="whose attention kernels pad queries")
    parser.add_argument("--tp", type=int, choices=TENSOR_PARALLEL, default=2, help="tensor-parallel ranks")
    parser.add_argument(
        "--beside-tp", type=int, choices=TENSOR_PARALLEL, metavar="N", help="show figures of that many ranks beside it"
    )
    shape = parser.add_mutually_exclusive_group()
    shape.add_argument("--dims", choices=list(SHAPES), default="flash", help="model shape")
    shape.add_argument("--config", type=Path, metavar="FILE", help="shape of a served model, from its config.json")
    parser.add_argument("-T", "--max-num-batched-tokens", type=int, metavar="N", help="tokens one step may process")
    parser.add_argument("--max-model-len", type=int, metavar="N", help="longest request in tokens")
    parser.add_argument("--max-num-seqs", type=int, metavar="N", help="requests one step may hold")
    parser.add_argument("--experts", choices=["fp4", "fp8"], default="fp4", help="how routed experts are stored")
    parser.add_argument(
        "-t", "--toggle", action="append", metavar="NAME", help="toggle to project; repeat for several (default: all)"
    )
    parser.add_argument("--workers", type=int, metavar="N", help="processes (default: the machine's cores, at most 4)")
    parser.add_argument("--progress", action="store_true", help="report 'DONE/ALL' on stderr after each arm")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    progress = _report if args.progress else None
    try:
        rank = Rank(_dims(args), args.platform, args.tp)
        other = replace(rank, tp=args.beside_tp) if args.beside_tp is not None else None
        toggles = args.toggle or (*ORDER, *APART)
        found = ladder(rank, toggles, args.experts, args.workers, progress)
        against = ladder(other, toggles, args.experts, args.workers, progress) if other is not None else None
    except ValueError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    if against is not None:
        told = json.dumps(beside.to_json(against, found)) if args.json else beside.text(against, found)
    else:
        told = json.dumps(found.to_json()) if args.json else _text(found)
    print(told)
    return 0


def _dims(args: argparse.Namespace) -> Dims:
    """The shape that is asked for. ValueError for a number below one and a config that is none."""
    changes = {name: getattr(args, name) for name in ("max_num_batched_tokens", "max_model_len", "max_num_seqs")}
    for name, value in [*changes.items(), ("workers", args.workers)]:
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
    dims = dims_of_config(args.config) if args.config is not None else SHAPES[args.dims]
    return dims.with_changes(**{name: value for name, value in changes.items() if value is not None})


def _report(done: int, of: int) -> None:
    print(f"{done}/{of}", file=sys.stderr, flush=True)


def _text(found: Ladder) -> str:
    rank, dims = found.rank, found.rank.model
    lines = [
        f"projected: {dims.name}, {dims.n_layers} + {dims.n_draft_layers} layers, {rank.platform}, TP={rank.tp}, "
        f"T={dims.max_num_batched_tokens:,}; {rank.dims.n_heads} local heads, {rank.heads} padded",
        "",
        *_baseline(found.arms[frozenset()]),
    ]
    for title, steps in (("alone", found.alone), ("cumulative", found.cumulative), ("no published row", found.apart)):
        if steps:
            lines += ["", f"{title:<24}{'off the line':>16}  where the bytes live", *map(_step, steps)]
    return "\n".join(lines)


def _baseline(arm: ArmProjection) -> list[str]:
    lines = [
        f"{'weights, counted':<24}{_mib(arm.weights_bytes):>16}",
        f"{'workspace':<24}{_mib(arm.workspace_bytes):>16}",
    ]
    for name in PHASES:
        phase = arm.phase(name)
        lines.append(f"{name:<24}{_mib(phase.bytes):>16}{'' if phase.on_line else '  not on the line'}")
        lines += [
            f"    {_mib(site.bytes):>14}  {site.dtype}{list(site.shape)} {site.where}" for site in phase.sites[:3]
        ]
    lines.append(f"{'modelled reservation':<24}{_mib(arm.modelled_reservation_bytes):>16}")
    return lines


def _step(step: Step) -> str:
    where = [f"{name} {_mib(size)}" for name, size in step.phases.items()]
    where += [f"{step.index_maps} index maps a step fewer"] if step.index_maps else []
    where += ["line: modelled reservation"] if step.modelled else []
    where += [f"refused: {reason}" for reason in step.refused]
    return f"{step.toggle:<24}{_mib(step.line_bytes):>16}  {', '.join(where) or 'nothing'}"


def _mib(size: int) -> str:
    return f"{size / MIB:,.2f} MiB"


if __name__ == "__main__":
    sys.exit(main())
