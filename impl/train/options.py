"""Command-line options that every training run takes, and their checks."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn


def add_run_options(parser: argparse.ArgumentParser, *, name: str, gpu_scale: int, learning_rate: float) -> None:
    """`name`: of the default output folder."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for the results (default build/{name})")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="length as training time (default 20)")
    length.add_argument("--steps", type=int, help="length as optimizer steps; with one thread count it is exact")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1: more are slower at pico)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--scale", type=int, default=1, help=f"multiplies the rows of every step (default 1; GPU: {gpu_scale})"
    )
    parser.add_argument("--learning-rate", type=float, default=learning_rate)
    parser.add_argument("--resume", action="store_true", help="go on from DIR/checkpoint.pt, with the same options")


def check_run_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with one line for a value that cannot be; set the default length and torch's threads."""
    for name in ("minutes", "steps", "threads", "scale", "learning_rate"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {value}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no CUDA device; use --device cpu")
    if args.steps is None and args.minutes is None:
        args.minutes = 20.0
    torch.set_num_threads(args.threads)


def checkpoint_of(out: Path, *, resume: bool) -> Path | None:
    """The checkpoint to go on from, None for a new run; ValueError where a new one would overwrite a run."""
    path = out / "checkpoint.pt"
    if not resume and path.exists():
        raise ValueError(f"{out} already holds a run: add --resume, or choose another --out")
    return path if resume else None


def run(training: Callable[[], Path]) -> int:
    """Train, print the weights' path, and return the exit code; what the user can mend is one line."""
    try:
        print(training())
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: go on with --resume", file=sys.stderr)
        return 130
    return 0


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
               TimeElapsedColumn(), TextColumn("{task.fields[detail]}"))  # fmt: skip
    return Progress(*columns, console=Console(stderr=True))
