"""Command-line options that every training run takes, and their checks."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from impl.dims import Dims
from impl.train.runs import Call, Means, Terminated

LINE_SECONDS = 15.0


def add_run_options(parser: argparse.ArgumentParser, *, name: str, gpu_scale: int) -> None:
    """`name`: of the default output folder."""
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"folder for the results (default build/{name})")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="length as training time (default 20)")
    length.add_argument("--steps", type=int, help="length as optimizer steps; with one thread count it is exact")
    parser.add_argument(
        "--of", type=float, metavar="N",
        help="length of the whole run, of which this call does --minutes (by the clock) or --steps",
    )  # fmt: skip
    parser.add_argument(
        "--last", action="store_true", help="with --minutes and --of: fit the rest of the run into this call"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1: more are slower at pico)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--scale", type=int, default=1, help=f"multiplies the rows of every step (default 1; GPU: {gpu_scale})"
    )
    parser.add_argument("--learning-rate", type=float, help="the highest (default: that of the shape's recipe)")
    parser.add_argument("--resume", action="store_true", help="go on from DIR/checkpoint.pt, with the same options")
    parser.add_argument(
        "--compact", action="store_true", help="halve the checkpoints' moments to bf16; resuming is then not exact"
    )
    parser.add_argument("--workers", type=int, default=0, metavar="N",
                        help="processes that make text ahead (default 0: none; GPU: 8)")  # fmt: skip
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction,
                        help="compile the step with torch.compile (default: on a GPU)")  # fmt: skip
    parser.add_argument("--graphs", action=argparse.BooleanOptionalAction,
                        help="run the step as CUDA graphs (default: on a GPU)")  # fmt: skip


def check_run_options(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """End with one line for a value that cannot be; set the defaults and torch's threads."""
    for name in ("minutes", "steps", "of", "threads", "scale", "learning_rate"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {value}")
    if args.workers < 0:
        parser.error(f"--workers must be at least 0, got {args.workers}")
    on_gpu = args.device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no CUDA device; use --device cpu")
    if args.graphs and not on_gpu:
        parser.error("--graphs needs --device cuda")
    if args.last and (args.minutes is None or args.of is None):
        parser.error("--last goes with --minutes and --of")
    if args.steps is None and args.minutes is None:
        args.minutes = args.of or 20.0
    if args.of is not None and args.steps is not None and args.of != int(args.of):
        parser.error(f"--of must be whole with --steps, got {args.of}")
    args.compile = on_gpu if args.compile is None else args.compile
    args.graphs = on_gpu if args.graphs is None else args.graphs
    torch.set_num_threads(args.threads)


def plan_of(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of the whole run that the options name."""
    steps = args.steps if args.of is None or args.steps is None else int(args.of)
    minutes = args.minutes if args.of is None or args.minutes is None else args.of
    plan = {"steps": steps, "minutes": minutes, "seed": args.seed, "scale": args.scale}
    return plan | ({} if args.learning_rate is None else {"learning_rate": args.learning_rate})


def call_of(args: argparse.Namespace) -> Call:
    """What this call of the run may take; without --of, all of it."""
    if args.of is None:
        return Call(compact=args.compact)
    return Call(steps=args.steps, minutes=args.minutes, last=args.last, compact=args.compact)


def means_of(args: argparse.Namespace) -> Means:
    return Means(graphs=args.graphs, compiled=args.compile, workers=args.workers)


def set_precision(dims: Dims, device: str) -> None:
    """Let matrix products of larger shapes than pico run on a GPU's tensor cores, their factors rounded to 11 bits.

    What the model itself rounds, to bf16 or e4m3, passes whole.
    """
    if device == "cuda" and dims.name != "pico":
        torch.set_float32_matmul_precision("high")


def checkpoint_of(out: Path, *, resume: bool) -> Path | None:
    """The checkpoint to go on from, None for a new run; ValueError where a new one would overwrite a run."""
    path = out / "checkpoint.pt"
    if not resume and path.exists():
        raise ValueError(f"{out} already holds a run: add --resume, or choose another --out")
    return path if resume else None


def command(
    parser: argparse.ArgumentParser, training: Callable[[argparse.Namespace], tuple[Path, bool]],
    argv: Sequence[str] | None,
) -> int:  # fmt: skip
    """A training command from its arguments to its exit code."""
    args = parser.parse_args(argv)
    check_run_options(parser, args)
    return run(lambda: training(args))


def run(training: Callable[[], tuple[Path, bool]]) -> int:
    """Train, print the weights' path, and return the exit code; what the user can mend is one line."""
    try:
        path, done = training()
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:
        print("stopped: go on with --resume", file=sys.stderr)
        return 143 if isinstance(stop, Terminated) else 130
    print(path)
    if not done:
        print("this call is over, the run is not: go on with --resume", file=sys.stderr)
    return 0


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
               TimeElapsedColumn(), TextColumn("{task.fields[detail]}"))  # fmt: skip
    return Progress(*columns, console=Console(stderr=True))


@contextmanager
def watched(name: str) -> Iterator[Callable[[float, str], None]]:
    """A function of the share done and a text: a bar on a terminal, else a line now and then."""
    if sys.stderr.isatty():
        with progress_bar() as bar:
            task = bar.add_task(name, total=1.0, detail="")
            yield lambda share, text: bar.update(task, completed=share, detail=text)
        return
    said = time.monotonic()

    def say(share: float, text: str) -> None:
        nonlocal said
        if share >= 1.0 or time.monotonic() - said > LINE_SECONDS:
            said = time.monotonic()
            print(f"{name} {share:.1%} {text}", file=sys.stderr, flush=True)

    yield say
