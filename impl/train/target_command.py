"""The command that trains the target: its options, and what it says as it goes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch

from impl.dims import SHAPES, Dims
from impl.model.weights import load_weights
from impl.train.loop import RECIPES, REFINED, Report, Settings, load_checkpoint, new_state, train
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

TRAINABLE = tuple(name for name in SHAPES if name != "flash")


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m impl.train",
        description="Train the target on generated text: sums, products, word problems, key-value lookup, prose.",
        epilog="Writes DIR/NAME.safetensors, DIR/checkpoint.pt and DIR/curve.jsonl. "
        "Score the result with: python -m impl.train.evaluate DIR/NAME.safetensors",
    )
    parser.add_argument("--dims", choices=TRAINABLE, default="pico", help="shape to train (default pico)")
    parser.add_argument(
        "--start-from", type=Path, metavar="WEIGHTS",
        help="refine these trained weights, behind the curriculum (use another --seed)",
    )  # fmt: skip
    add_run_options(parser, name="train-NAME", gpu_scale=16)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    return command(arguments(), train_target, argv)


def train_target(args: argparse.Namespace) -> tuple[Path, bool]:
    dims = SHAPES[args.dims]
    out = args.out or Path("build") / f"train-{dims.name}"
    settings = Settings(**RECIPES.get(dims.name, {}) | plan_of(args) | (REFINED if args.start_from else {}))
    set_precision(dims, args.device)
    checkpoint = checkpoint_of(out, resume=args.resume)
    if checkpoint:
        state = load_checkpoint(checkpoint, dims, settings, args.device)
    else:
        state = new_state(dims, settings, args.device, starting_weights(args.start_from, dims))
    with watched(dims.name) as show:
        done = train(state, dims, settings, out, lambda r: show(r.progress, detail(r)),
                     call=call_of(args), means=means_of(args))  # fmt: skip
    return out / f"{dims.name}.safetensors", done


def starting_weights(path: Path | None, dims: Dims) -> dict[str, torch.Tensor] | None:
    if path is None:
        return None
    weights, saved = load_weights(path)
    if saved != dims:
        raise ValueError(f"{path} holds {saved.name} weights of another shape: --dims {dims.name} cannot start from it")
    return weights


def detail(report: Report) -> str:
    parts = " ".join(f"{name} {value:.3f}" for name, value in report.answer_loss.items())
    speed = report.tokens / max(report.minutes * 60, 1e-9)
    return f"step {report.step} · answer loss: {parts} · index KL {report.index_kl:.3f} · {speed:,.0f} tokens/s"
