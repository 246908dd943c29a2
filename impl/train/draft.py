"""Train the draft of a target: `python -m impl.train.draft --target impl/weights/pico.safetensors --minutes 8`."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import torch

from impl.model.weights import SHIPPED, load_weights
from impl.train.__main__ import progress_bar
from impl.train.draft_loop import DraftReport, DraftSettings, load_draft_checkpoint, new_draft_state, train_draft
from impl.train.prefetch import stream


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m impl.train.draft",
        description="Train the DSpark draft of a frozen target on the target's training text.",
        epilog="Writes DIR/NAME-dspark.safetensors, DIR/checkpoint.pt and DIR/curve.jsonl. "
        "Score the result with: python -m impl.train.evaluate_draft TARGET DIR/NAME-dspark.safetensors",
    )
    parser.add_argument("--target", type=Path, metavar="WEIGHTS", default=SHIPPED / "pico.safetensors",
                        help="the target's trained weights (default: the shipped pico)")  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for the results (default build/draft-NAME)")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, help="length as training time (default 20)")
    length.add_argument("--steps", type=int, help="length as optimizer steps; with one thread count it is exact")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1: more are slower at pico)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scale", type=int, default=1, help="multiplies the rows of every step (default 1; GPU: 48)")
    parser.add_argument("--learning-rate", type=float, default=DraftSettings.learning_rate)
    parser.add_argument("--workers", type=int, default=0, metavar="N",
                        help="processes that make text ahead (default 0: none; GPU: 8)")  # fmt: skip
    parser.add_argument("--resume", action="store_true", help="go on from DIR/checkpoint.pt, with the same options")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    args = parser.parse_args(argv)
    for name in ("minutes", "steps", "threads", "scale", "learning_rate"):
        value = getattr(args, name)
        if value is not None and value <= 0:
            parser.error(f"--{name.replace('_', '-')} must be above 0, got {value}")
    if args.workers < 0:
        parser.error(f"--workers must be at least 0, got {args.workers}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no CUDA device; use --device cpu")
    if args.threads:
        torch.set_num_threads(args.threads)
    try:
        weights, dims = load_weights(args.target)
        target = {name: tensor.to(args.device) for name, tensor in weights.items()}
        out = args.out or Path("build") / f"draft-{dims.name}"
        settings = DraftSettings(
            steps=args.steps, minutes=None if args.steps else args.minutes or 20.0, seed=args.seed, scale=args.scale,
            learning_rate=args.learning_rate, target=hashlib.sha256(args.target.read_bytes()).hexdigest(),
        )  # fmt: skip
        if args.resume:
            state = load_draft_checkpoint(out / "checkpoint.pt", dims, target, settings, args.device)
        elif (out / "checkpoint.pt").exists():
            raise ValueError(f"{out} already holds a run: add --resume, or choose another --out")
        else:
            state = new_draft_state(dims, target, settings, args.device)
        with closing(stream(args.seed, state.step, args.scale, args.workers)) as data, progress_bar() as bar:
            task = bar.add_task(f"{dims.name} draft", total=1.0, detail="")
            path = train_draft(state, target, dims, settings, out, data,
                               lambda r: bar.update(task, completed=r.progress, detail=detail(r)))  # fmt: skip
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("stopped: go on with --resume", file=sys.stderr)
        return 130
    print(path)
    return 0


def detail(report: DraftReport) -> str:
    speed = report.tokens / max(report.minutes * 60, 1e-9)
    return (
        f"step {report.step} · CE {report.ce:.3f} · distance {report.distance:.3f} · confidence "
        f"{report.confidence:.3f} · acceptance length {report.acceptance_length:.2f} · {speed:,.0f} tokens/s"
    )


if __name__ == "__main__":
    raise SystemExit(main())
