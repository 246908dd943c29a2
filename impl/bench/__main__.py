"""Time or check every operation on every backend: `python -m impl.bench [--times] [--toggles] [--check] [--json]`.

With --json, one object a line: the machine, what starts, each row as it is measured, and `end`. --out appends the same
lines to a file, so that a run that is cut off leaves what it has. Exit code 0; 1 where a check found a difference;
2 usage; 3 where a kernel has broken the process (go on without it: --skip).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from impl.bench.backends import NAMES
from impl.bench.cases import CASES, CPU_TOKENS, GPU_TOKENS
from impl.bench.machine import describe
from impl.bench.race import Poisoned, compare
from impl.bench.timing import copy_rate
from impl.ops.dispatch import DispatchError

OPS = tuple(dict.fromkeys(case.op for case in CASES))


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    device = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    unknown = [("--op", op, OPS) for op in args.op if op not in OPS]
    unknown += [("--backend", name, NAMES) for name in args.backend if name not in NAMES]
    if unknown:
        option, name, known = unknown[0]
        print(f"impl.bench: {option} '{name}' is none of {', '.join(known)}", file=sys.stderr)
        return 2
    say = _printer(args.json, args.out)
    failed = 0
    try:
        for event in _events(args, device):
            say(event)
            failed += event.get("ok") is False
    except DispatchError as error:
        print(f"impl.bench: {error}", file=sys.stderr)
        return 2
    except Poisoned as error:
        print(f"impl.bench: {error}", file=sys.stderr)
        return 3
    say({"event": "end", "failed": failed})
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.bench", description=__doc__.splitlines()[0])
    parser.add_argument("--op", action="append", default=[], help="only this operation; may be repeated")
    parser.add_argument("--backend", action="append", default=[], help="only this backend; may be repeated")
    parser.add_argument(
        "--tokens", type=_numbers, help="numbers of tokens, as 1,64,8192; checks beside times have their own"
    )
    parser.add_argument("--seconds", type=float, default=0.2, help="measuring time of one figure")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: cuda where there is one")
    parser.add_argument("--variants", action="store_true", help="every point of a backend's tuning")
    parser.add_argument("--times", action="store_true", help="time operations; so without --check and --toggles")
    parser.add_argument("--check", action="store_true", help="compare results")
    parser.add_argument("--toggles", action="store_true", help="each toggle's operation, on and off by turns")
    parser.add_argument("--runs", type=int, default=1000, help="runs of the small-token race check")
    parser.add_argument("--skip", action="append", default=[], help="a cell to leave out; may be repeated")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--out", type=Path, help="append the JSON lines to this file as well")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    numbers = tuple(int(part) for part in text.split(","))
    if min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"tokens must be at least 1, got {text}")
    return numbers


def _events(args: argparse.Namespace, device: torch.device) -> Iterator[dict[str, Any]]:
    """Times, toggles and checks, as far as they are asked for; times where nothing is."""
    cases = [case for case in CASES if not args.op or case.op in args.op]
    tokens = args.tokens or (GPU_TOKENS if device.type == "cuda" else CPU_TOKENS)
    times = args.times or not (args.check or args.toggles)
    copy = copy_rate() if device.type == "cuda" and (times or args.toggles) else None
    yield {"event": "machine", **describe(device), "copy_bytes_per_second": copy}
    if times:
        backends = args.backend or NAMES
        yield from compare(cases, backends, tokens, args.seconds, device, copy, args.variants, args.skip)
    if args.toggles:
        from impl.bench.toggles import turns

        yield from turns(args.op, max(tokens), device)
    if args.check:
        from impl.bench.check import check

        yield from check(cases, args.backend, None if times else args.tokens, args.runs, device)


def _printer(as_json: bool, out: Path | None) -> Callable[[dict[str, Any]], None]:
    def say(event: dict[str, Any]) -> None:
        line = json.dumps(event)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        if as_json:
            print(line, flush=True)
        elif event["event"] != "start":
            print("  ".join(_told(key, value) for key, value in event.items() if value not in (None, "")), flush=True)

    return say


def _told(key: str, value: Any) -> str:
    if key in ("event", "op", "form", "backend"):
        return str(value)
    return f"{key}={value:.4g}" if isinstance(value, float) else f"{key}={value}"


if __name__ == "__main__":
    sys.exit(main())
