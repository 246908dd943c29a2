"""Held-out acceptance of a draft: `python -m impl.train.evaluate_draft TARGET DRAFT [--json]`.

The target continues held-out prompts by itself; rounds are then played over its text. That is the served law: with
rejection sampling the text is the target's, and a draft equal to the text's token was accepted with chance
min(1, q / p) (at temperature 0: when it is the draft's best). The first token comes without a draft, as after a
prefill; drafts beyond the end of the text are not accepted.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.acceptance import AcceptanceCounts
from impl.model.draft_weights import load_draft_weights
from impl.model.weights import load_weights
from impl.tokenizer import BOS, EOS, PAD, encode
from impl.train.draft_forward import block_rows, draft, target_context
from impl.train.draft_prompts import kinds, prompts
from impl.train.forward import Weights, forward
from impl.train.graphs import Graphed

BINS = 10
"""Bins of equal width for the calibration error."""


@dataclass
class Played:
    """What the rounds of one kind of prompt at one temperature came to."""

    counts: AcceptanceCounts
    judged: list[tuple[float, bool]] = field(default_factory=list)
    """(confidence, accepted) of every draft that the verification got to"""


@torch.no_grad()
def continue_text(
    weights: Weights, dims: Dims, texts: Sequence[str], max_tokens: int, temperature: float, seed: int = 0
) -> tuple[Tensor, Tensor, Tensor]:
    """The target's own continuations, up to eos or `max_tokens`.

    Returns ids int64 `[B, S]`, padded at the right, and int64 `[B]` the rows of each prompt (with its bos) and of all.
    """
    device = weights["embed"].device
    rows = [[BOS, *encode(text)] for text in texts]
    first = torch.tensor([len(row) for row in rows], device=device)
    width = int(first.max()) + max_tokens
    ids = torch.tensor([row + [PAD] * (width - len(row)) for row in rows], device=device)
    # One launch a token: a graph of all columns takes less than the launches of those that are filled.
    run = Graphed(lambda ids: forward(weights, ids, dims), ()) if ids.is_cuda else None
    gen = torch.Generator(device).manual_seed(seed)
    length, done = first.clone(), torch.zeros(len(rows), dtype=torch.bool, device=device)
    each = torch.arange(len(rows), device=device)
    for _ in range(max_tokens):
        every = run(ids) if run else forward(weights, ids[:, : int(length.max())], dims)
        logits = every[each, length - 1]
        if temperature:
            token = torch.multinomial(torch.softmax(logits / temperature, -1), 1, generator=gen).squeeze(1)
        else:
            token = logits.argmax(-1)
        ids[each, length.clamp_max(width - 1)] = token.where(~done, ids[each, length.clamp_max(width - 1)])
        length += ~done
        done |= token == EOS
        if bool(done.all()):
            break
    return ids, first, length


@torch.no_grad()
def play(
    draft_weights: Weights, target: Weights, dims: Dims, ids: Tensor, first: Tensor, length: Tensor,
    temperature: float, seed: int = 0, draws: int = 1,
) -> Played:  # fmt: skip
    """Rounds over every text of `continue_text`, `draws` times with other noise."""
    context = target_context(target, [ids], dims)
    width, k = ids.shape[1], dims.draft_tokens
    column = torch.arange(width, device=ids.device)
    generated = ((column >= first[:, None]) & (column < length[:, None])).flatten()
    anchors = generated.nonzero().squeeze(1)
    drafted = draft(draft_weights, target, context, anchors, dims)
    rows, inside = block_rows(context, anchors, k + 1)
    labels, valid = context.ids[rows[:, 1:]], inside[:, 1:] & generated[rows[:, 1:]]
    chance = acceptance(drafted.logits, context.logits[rows[:, :-1]], labels, temperature).masked_fill(~valid, 0.0)
    confidence = torch.sigmoid(drafted.confidence).tolist()
    at = {row: i for i, row in enumerate(anchors.tolist())}
    ends = [line * width + end for line, end in enumerate(length.tolist())]
    starts = [line * width + start for line, start in enumerate(first.tolist())]
    chances, reachable = chance.tolist(), valid.tolist()
    rng = random.Random(seed)
    played = Played(AcceptanceCounts.zero(k))
    for _ in range(draws):
        for anchor, end in zip(starts, ends, strict=True):
            while anchor < end - 1:
                block = at[anchor]
                accepted = 0
                for position in range(k):
                    if not reachable[block][position]:
                        break
                    passed = rng.random() < chances[block][position]
                    played.judged.append((confidence[block][position], passed))
                    if not passed:
                        break
                    accepted += 1
                played.counts = played.counts.after(k, accepted)
                anchor += accepted + 1
    return played


def acceptance(draft_logits: Tensor, target_logits: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Chance `[N, K]` that the draft was accepted, given that the text's token is `labels`."""
    if not temperature:
        return (draft_logits.argmax(-1) == labels).float()
    log_q = torch.log_softmax(draft_logits / temperature, -1)
    log_p = torch.log_softmax(target_logits / temperature, -1)
    return (log_q - log_p).gather(-1, labels.unsqueeze(-1)).squeeze(-1).clamp_max(0).exp()


def calibration_error(judged: Sequence[tuple[float, bool]]) -> float:
    """ECE: mean over drafts of |mean confidence - share accepted| of their bin."""
    bins: list[list[tuple[float, bool]]] = [[] for _ in range(BINS)]
    for confidence, accepted in judged:
        bins[min(BINS - 1, int(confidence * BINS))].append((confidence, accepted))
    gaps = (abs(sum(c for c, _ in part) - sum(a for _, a in part)) for part in bins)
    return sum(gaps) / max(1, len(judged))


def scores(target: Weights, draft_weights: Weights, dims: Dims, sample: int) -> Iterator[dict[str, Any]]:
    """One row for each kind and temperature, then one for all kinds together."""
    for temperature in (0.0, 1.0):
        whole = Played(AcceptanceCounts.zero(dims.draft_tokens))
        for kind, max_tokens in kinds(dims.name).items():
            ids, first, length = continue_text(target, dims, prompts(dims.name, kind, sample), max_tokens, temperature)
            part = play(draft_weights, target, dims, ids, first, length, temperature, draws=8 if temperature else 1)
            whole = Played(added(whole.counts, part.counts), whole.judged + part.judged)
            yield row(kind, temperature, part)
        yield row("all", temperature, whole)


def added(a: AcceptanceCounts, b: AcceptanceCounts) -> AcceptanceCounts:
    per_position = tuple(x + y for x, y in zip(a.accepted_per_position, b.accepted_per_position, strict=True))
    return AcceptanceCounts(a.drafts + b.drafts, a.drafted + b.drafted, a.accepted + b.accepted, per_position)


def row(kind: str, temperature: float, played: Played) -> dict[str, Any]:
    counts = played.counts
    return {"kind": kind, "temperature": temperature, "rounds": counts.drafts,
            "acceptance_length": counts.acceptance_length, "acceptance_rate": counts.acceptance_rate,
            "survival": counts.survival, "conditional": counts.conditional,
            "ece": calibration_error(played.judged)}  # fmt: skip


def line(score: dict[str, Any]) -> str:
    if not score["rounds"]:
        return f"{score['kind']:<10} {score['temperature']:>4} no rounds"
    survival = " ".join(f"{a:.2f}" for a in score["survival"])
    return (f"{score['kind']:<10} {score['temperature']:>4} {score['rounds']:>7} {score['acceptance_length']:>7.2f} "
            f"{score['ece']:>7.3f}  {survival}")  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.train.evaluate_draft", description=__doc__)
    parser.add_argument("target", type=Path, help="a .safetensors file written by impl.train")
    parser.add_argument("draft", type=Path, help="a .safetensors file written by impl.train.draft")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.add_argument("--sample", type=int, default=64, metavar="N", help="prompts of each kind (default 64)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default 1)")
    args = parser.parse_args(argv)
    if args.threads < 1 or args.sample < 1:
        parser.error("--threads and --sample must be at least 1")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no CUDA device; use --device cpu")
    torch.set_num_threads(args.threads)
    try:
        target, dims = load_weights(args.target)
        draft_weights, belongs_to = load_draft_weights(args.draft)
        if belongs_to != dims:
            raise ValueError(f"{args.draft} drafts for another shape than {args.target}: train one for this target")
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    target, draft_weights = ({n: t.to(args.device) for n, t in w.items()} for w in (target, draft_weights))
    rows = []
    if not args.json:
        print(f"{'prompts':<10} temp {'rounds':>7} {'length':>7} {'ECE':>7}  accepted to position 0, 1, ...")
    for score in scores(target, draft_weights, dims, args.sample):
        rows.append(score)
        if not args.json:
            print(line(score), flush=True)
    if args.json:
        print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
