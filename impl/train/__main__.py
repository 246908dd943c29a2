"""Train the target on generated text: `python -m impl.train --dims pico --minutes 20`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from impl.dims import SHAPES, Dims
from impl.model.weights import load_weights
from impl.train.loop import Report, Settings, load_checkpoint, new_state, train

TRAINABLE = tuple(name for name in SHAPES if name != "flash")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m impl.train",
        description="Train the target on generated text: sums, products, word problems, key-value lookup, prose.",
        epilog="Writes DIR/NAME.safetensors, DIR/checkpoint.pt and DIR/curve.jsonl. "
        "Score the result with: python -m impl.train.evaluate DIR/NAME.safetensors",
    )
    parser.add_argument("--dims", choices=TRAINABLE, default="pico", help="shape to train (default pico)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results (default build/train-NAME)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="length as training time (default 20)")
    length.add_argument("--steps", type=int, help="length as optimizer steps; with one thread count it is exact")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1: more are slower at pico)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=int, default=1, help="multiplies the rows of every step (default 1; GPU: 16)")
    parser.add_argument("--learning-rate", type=float, default=Settings.learning_rate)
    parser.add_argument(
        "--start-from", type=Path, metavar="WEIGHTS",
        help="refine these trained weights, behind the curriculum (use another --seed)",
    )  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from DIR/checkpoint.pt, with the same options")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    args = parser.parse_args(argv)
    for name in ("minutes", "steps", "threads", "scale", "learning_rate"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {value}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no CUDA device; use --device cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    dims = SHAPES[args.dims]
    out = args.out or Path("build") / f"train-{dims.name}"
    settings = Settings(
        steps=args.steps, minutes=None if args.steps else args.minutes or 20.0, seed=args.seed,
        scale=args.scale, learning_rate=args.learning_rate, refine=args.start_from is not None,
    )  # fmt: skip
    try:
        if args.resume:
            state = load_checkpoint(out / "checkpoint.pt", dims, settings, args.device)
        elif (out / "checkpoint.pt").exists():
            raise ValueError(f"{out} already holds a run: add --resume, or choose another --out")
        else:
            state = new_state(dims, settings, args.device, starting_weights(args.start_from, dims))
        with progress_bar() as bar:
            task = bar.add_task(dims.name, total=1.0, detail="")
            train(state, dims, settings, out, lambda r: bar.update(task, completed=r.progress, detail=detail(r)))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: go on with --resume", file=sys.stderr)
        return 130
    print(out / f"{dims.name}.safetensors")
    return 0


def starting_weights(path: Path | None, dims: Dims) -> dict[str, torch.Tensor] | None:
    if path is None:
        return None
    weights, saved = load_weights(path)
    if saved != dims:
        raise ValueError(f"{path} holds {saved.name} weights of another shape: --dims {dims.name} cannot start from it")
    return weights


def progress_bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"),
               TimeElapsedColumn(), TextColumn("{task.fields[detail]}"))  # fmt: skip
    return Progress(*columns, console=Console(stderr=True))


def detail(report: Report) -> str:
    parts = " ".join(f"{name} {value:.3f}" for name, value in report.answer_loss.items())
    speed = report.tokens / max(report.minutes * 60, 1e-9)
    return f"step {report.step} · answer loss: {parts} · index KL {report.index_kl:.3f} · {speed:,.0f} tokens/s"


if __name__ == "__main__":
    raise SystemExit(main())
