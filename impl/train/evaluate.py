"""Held-out scores of a weights file: `python -m impl.train.evaluate WEIGHTS [--json]`.

Greedy decoding with the dense forward, many items together. Each score is a count with its 95 % Wilson interval;
micro's stand against their targets (`evaluate_micro`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from impl.dims import Dims
from impl.model.weights import load_weights
from impl.train import evaluate_micro, heldout
from impl.train.decode import greedy
from impl.train.forward import Weights
from impl.train.heldout import Item
from impl.train.scores import score, table


def count_right(weights: Weights, dims: Dims, items: Sequence[Item], max_tokens: int, problem: bool = False) -> int:
    drafts = None if problem else [item.answer for item in items]
    texts = greedy(weights, dims, [item.prompt for item in items], max_tokens, drafts)
    if problem:
        texts = [text.partition("#### ")[2] for text in texts]
    return sum(text == item.answer for text, item in zip(texts, items, strict=True))


def scores(weights: Weights, dims: Dims, sample: int | None = None) -> dict[str, dict[str, Any]]:
    """Name -> right, n, share, low, high. `sample` limits the items of each kind."""
    rows: dict[str, dict[str, Any]] = {}

    def add(name: str, items: list[Item], max_tokens: int, problem: bool = False) -> None:
        if sample is not None and len(items) > sample:
            items = items[:: -(-len(items) // sample)]
        right, n = count_right(weights, dims, items, max_tokens, problem), len(items)
        rows[name] = score(right, n)

    for form in ("completion", "chat"):
        add(f"sums, held-out pairs, {form}", heldout.sums(form), 6)
        add(f"products to 12x12, {form}", heldout.products(form), 6)
    add("word problems, held-out numbers", heldout.problems(200), 48, problem=True)
    add("word problems, held-out numbers and wording", heldout.problems(200, new_wording=True), 48, problem=True)
    for characters in (150, 300, 600):
        add(f"lookup beyond the window, {characters} characters", heldout.lookups(200, characters), 4)
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.train.evaluate", description=__doc__)
    parser.add_argument("weights", type=Path, help="a .safetensors file written by impl.train")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.add_argument("--into", type=Path, metavar="FILE", help="micro: rewrite FILE with the JSON after each family")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N items of each kind (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="micro: families whose name holds TEXT")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    args = parser.parse_args(argv)
    if args.threads < 1 or (args.sample is not None and args.sample < 1):
        parser.error("--threads and --sample must be at least 1")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no CUDA device; use --device cpu")
    torch.set_num_threads(args.threads)
    try:
        weights, dims = load_weights(args.weights)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    placed = {name: tensor.to(args.device) for name, tensor in weights.items()}
    rows = micro_scores(placed, dims, args) if dims.name == "micro" else scores(placed, dims, args.sample)
    if not rows:
        parser.error(f"--only {args.only!r} is in the name of no family")
    print(json.dumps(rows, indent=1) if args.json else table(rows))
    return 0


def micro_scores(weights: Weights, dims: Dims, args: argparse.Namespace) -> dict[str, dict[str, Any]]:
    chosen = [family for family in evaluate_micro.families() if args.only in family.name]
    console = Console(stderr=True)
    shown = track(chosen, "held-out families", console=console, transient=True, disable=not console.is_terminal)

    def keep(rows: dict[str, dict[str, Any]]) -> None:
        if args.into:
            args.into.write_text(json.dumps(rows, indent=1) + "\n")

    return evaluate_micro.scores(weights, dims, shown, args.sample, keep)


if __name__ == "__main__":
    raise SystemExit(main())
