"""Greedy continuations of many prompts with the dense forward: drafted, checked in one pass, and drafted again.

A pass gives the argmax behind every position at once. What agrees with the draft is decoded, and so is the first token
that does not; the rest of that pass is the next draft. The result is the same as token by token. A text that the draft
foresees takes one pass, others one token a pass or better, and finished rows leave.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from impl.dims import Dims
from impl.tokenizer import BOS, EOS, NEWLINE, PAD, decode, encode
from impl.train.attention import WHOLE, View
from impl.train.forward import Weights, forward

PASS_TOKENS = {"cuda": 131_072, "cpu": 8_192}
"""Tokens of one pass, padding counted."""


def greedy(
    weights: Weights, dims: Dims, prompts: Sequence[str], max_tokens: int, drafts: Sequence[str] | None = None,
    view: View = WHOLE,
) -> list[str]:  # fmt: skip
    """Greedy continuations, up to a newline, eos or `max_tokens`; the prompt gets a bos in front.

    `drafts`, when given, are texts that the continuations may equal: they cost time where they are wrong, nothing else.
    """
    guesses = [encode(f"{draft}\n") for draft in drafts] if drafts is not None else [[] for _ in prompts]
    rows = continue_rows(weights, dims, [[BOS, *encode(prompt)] for prompt in prompts], max_tokens, guesses, view)
    return [decode(row) for row in rows]


@torch.no_grad()
def continue_rows(
    weights: Weights, dims: Dims, prompts: list[list[int]], max_tokens: int, drafts: list[list[int]] | None = None,
    view: View = WHOLE,
) -> list[list[int]]:  # fmt: skip
    """New token ids of each row, without what ended it."""
    guesses = [list(draft[:max_tokens]) for draft in drafts] if drafts is not None else [[] for _ in prompts]
    live = sorted(range(len(prompts)), key=lambda i: len(prompts[i]) + len(guesses[i]))
    done: dict[int, list[int]] = {}
    while live:
        for chunk in chunks([len(prompts[i]) + len(guesses[i]) for i in live], weights["embed"].device.type):
            rows = [live[place] for place in chunk]
            after = argmax_behind(weights, dims, [(prompts[i], guesses[i]) for i in rows], view)
            for i, found in zip(rows, after, strict=True):
                agreed = next((n for n, token in enumerate(guesses[i]) if found[n] != token), len(guesses[i]))
                known = found[: agreed + 1]
                end = next((n for n, token in enumerate(known) if token in (NEWLINE, EOS, PAD)), None)
                if end is not None or len(known) >= max_tokens:
                    done[i] = known[: max_tokens if end is None else end]
                guesses[i] = found[:max_tokens]
        live = [i for i in live if i not in done]
    return [done[i] for i in range(len(prompts))]


def chunks(lengths: list[int], device: str) -> list[range]:
    """Places of rows that are run together: neighbours whose padded size fits `PASS_TOKENS`."""
    found, start = [], 0
    for place in range(1, len(lengths) + 1):
        full = place < len(lengths) and max(lengths[start : place + 1]) * (place + 1 - start) > PASS_TOKENS[device]
        if full or place == len(lengths):
            found.append(range(start, place))
            start = place
    return found


def argmax_behind(weights: Weights, dims: Dims, rows: list[tuple[list[int], list[int]]], view: View) -> list[list[int]]:
    """For rows of prompt and guess: the argmax behind the prompt and behind each token of the guess."""
    width = max(len(prompt) + len(guess) for prompt, guess in rows)
    ids = torch.tensor([prompt + guess + [PAD] * (width - len(prompt) - len(guess)) for prompt, guess in rows])
    best = forward(weights, ids.to(weights["embed"].device), dims, view=view).argmax(-1).cpu()
    return [best[n, len(prompt) - 1 : len(prompt) + len(guess)].tolist() for n, (prompt, guess) in enumerate(rows)]
