"""Held-out scores of a weights file: `python -m impl.train.evaluate WEIGHTS [--json]`.

Greedy decoding with the dense forward, all items of a length together. Each score is a count with its 95 % Wilson
interval.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from impl.dims import Dims
from impl.model.weights import load_weights
from impl.tokenizer import BOS, EOS, NEWLINE, PAD, decode, encode
from impl.train import heldout
from impl.train.forward import Weights, forward
from impl.train.heldout import Item

Z95 = 1.959963984540054


def wilson(right: int, n: int) -> tuple[float, float]:
    """95 % score interval of a proportion."""
    centre = (right + Z95**2 / 2) / (n + Z95**2)
    half = Z95 / (n + Z95**2) * (right * (n - right) / n + Z95**2 / 4) ** 0.5
    return max(0.0, centre - half), min(1.0, centre + half)


@torch.no_grad()
def greedy(weights: Weights, dims: Dims, prompts: Sequence[str], max_tokens: int, batch: int = 64) -> list[str]:
    """Greedy continuations, up to a newline, eos or `max_tokens`; the prompt gets a bos in front."""
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    texts = [""] * len(prompts)
    for start in range(0, len(order), batch):
        chunk = order[start : start + batch]
        rows = continue_rows(weights, dims, [[BOS, *encode(prompts[i])] for i in chunk], max_tokens)
        for i, row in zip(chunk, rows, strict=True):
            texts[i] = decode(row)
    return texts


def continue_rows(weights: Weights, dims: Dims, prompts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """New token ids of each row; what lies right of a row's end is padding that nothing looks at."""
    device = weights["embed"].device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    width = int(lengths.max()) + max_tokens
    ids = torch.tensor([p + [PAD] * (width - len(p)) for p in prompts], device=device)
    rows, done = torch.arange(len(ids), device=device), torch.zeros(len(ids), dtype=torch.bool, device=device)
    for step in range(max_tokens):
        end = lengths + step
        token = forward(weights, ids[:, : int(end.max())], dims)[rows, end - 1].argmax(-1)
        done |= (token == NEWLINE) | (token == EOS)
        if bool(done.all()):
            break
        ids[rows, end] = token.masked_fill(done, PAD)
    out = [row[len(p) : len(p) + max_tokens] for row, p in zip(ids.tolist(), prompts, strict=True)]
    return [row[: row.index(PAD)] if PAD in row else row for row in out]


def count_right(weights: Weights, dims: Dims, items: Sequence[Item], max_tokens: int, problem: bool = False) -> int:
    texts = greedy(weights, dims, [item.prompt for item in items], max_tokens)
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
        low, high = wilson(right, n)
        rows[name] = {"right": right, "n": n, "share": right / n, "low": low, "high": high}

    for form in ("completion", "chat"):
        add(f"sums, held-out pairs, {form}", heldout.sums(form), 6)
        add(f"products to 12x12, {form}", heldout.products(form), 6)
    add("word problems, held-out numbers", heldout.problems(200), 48, problem=True)
    add("word problems, held-out numbers and wording", heldout.problems(200, new_wording=True), 48, problem=True)
    for characters in (150, 300, 600):
        add(f"lookup beyond the window, {characters} characters", heldout.lookups(200, characters), 4)
    return rows


def table(rows: dict[str, dict[str, Any]]) -> str:
    lines = [
        f"{name:<48} {r['right']:>5}/{r['n']:<5} {r['share']:7.1%}  [{r['low']:.1%}, {r['high']:.1%}]"
        for name, r in rows.items()
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.train.evaluate", description=__doc__)
    parser.add_argument("weights", type=Path, help="a .safetensors file written by impl.train")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.add_argument("--sample", type=int, metavar="N", help="at most N items of each kind (default: all)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    args = parser.parse_args(argv)
    if args.threads < 1 or (args.sample is not None and args.sample < 1):
        parser.error("--threads and --sample must be at least 1")
    torch.set_num_threads(args.threads)
    try:
        weights, dims = load_weights(args.weights)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = scores(weights, dims, args.sample)
    print(json.dumps(rows, indent=1) if args.json else table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
