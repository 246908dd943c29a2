"""The command that trains a draft: its options, and what it says as it goes."""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Sequence
from pathlib import Path

from impl.model.weights import SHIPPED, load_weights
from impl.train.draft_loop import (
    RECIPES,
    DraftReport,
    DraftSettings,
    load_draft_checkpoint,
    new_draft_state,
    train_draft,
)
from impl.train.options import (
    add_run_options,
    call_of,
    checkpoint_of,
    command,
    means_of,
    plan_of,
    set_precision,
    watched,
)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m impl.train.draft",
        description="Train the DSpark draft of a frozen target on the target's training text.",
        epilog="Writes DIR/NAME-dspark.safetensors, DIR/checkpoint.pt and DIR/curve.jsonl. "
        "Score the result with: python -m impl.train.evaluate_draft TARGET DIR/NAME-dspark.safetensors",
    )
    parser.add_argument("--target", type=Path, metavar="WEIGHTS", default=SHIPPED / "pico.safetensors",
                        help="the target's trained weights (default: the shipped pico)")  # fmt: skip
    add_run_options(parser, name="draft-NAME", gpu_scale=48)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return command(arguments(), train_draft_of, argv)


def train_draft_of(args: argparse.Namespace) -> tuple[Path, bool]:
    weights, dims = load_weights(args.target)
    target = {name: tensor.to(args.device) for name, tensor in weights.items()}
    out = args.out or Path("build") / f"draft-{dims.name}"
    digest = hashlib.sha256(args.target.read_bytes()).hexdigest()
    settings = DraftSettings(**RECIPES.get(dims.name, {}) | plan_of(args) | {"target": digest})
    set_precision(dims, args.device)
    checkpoint = checkpoint_of(out, resume=args.resume)
    if checkpoint:
        state = load_draft_checkpoint(checkpoint, dims, target, settings, args.device)
    else:
        state = new_draft_state(dims, target, settings, args.device)
    with watched(f"{dims.name} draft") as show:
        done = train_draft(state, target, dims, settings, out, lambda r: show(r.progress, detail(r)),
                           call=call_of(args), means=means_of(args))  # fmt: skip
    return out / f"{dims.name}-dspark.safetensors", done


def detail(report: DraftReport) -> str:
    speed = report.tokens / max(report.minutes * 60, 1e-9)
    return (
        f"step {report.step} · CE {report.ce:.3f} · distance {report.distance:.3f} · confidence "
        f"{report.confidence:.3f} · acceptance length {report.acceptance_length:.2f} · {speed:,.0f} tokens/s"
    )
