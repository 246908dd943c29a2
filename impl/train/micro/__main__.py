"""Write the held-out word problems as a file of the harness: `python -m impl.train.micro PATH`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from impl.train.micro.heldout_problems import SET_SIZE, problem_set


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.train.micro", description=__doc__)
    parser.add_argument("path", type=Path, help="file to write: one JSON object a line, question and answer")
    parser.add_argument("--count", type=int, default=SET_SIZE, help=f"problems (default {SET_SIZE})")
    args = parser.parse_args(argv)
    if args.count < 1:
        parser.error(f"--count must be at least 1, got {args.count}")
    if not args.path.parent.is_dir():
        parser.error(f"{args.path.parent} is no folder: create it first")
    rows = [{"question": p.question, "answer": p.solution} for p in problem_set(args.count)]
    args.path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    print(f"{len(rows)} problems in {args.path}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
