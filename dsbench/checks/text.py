"""Whether text is coherent: leaked control tokens, replacement characters, other scripts, repetition."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dsbench.checks.answer import Answer, Input, Some, read
from dsbench.errors import InputError

CONTROL = re.compile(r"<\uff5c|\uff5c>|<\|[A-Za-z_▁][\w▁-]{0,40}\|>")
"""With the full-width bar (U+FF5C) any half is one; with the ASCII bar only a whole, since code has those signs too."""
OTHER_SCRIPT_SHARE = 0.15
REPEATED_RUN = 20


def leaked_control_token(text: str) -> bool:
    return CONTROL.search(text) is not None


def incoherence(text: str) -> str | None:
    """Why a text is not coherent (measurement.md 6.2), or None."""
    if leaked_control_token(text):
        return "leaked control token"
    if "\ufffd" in text:
        return "replacement character"
    counts = Counter(text)
    letters = Counter({c: n for c, n in counts.items() if c.isalpha()})
    foreign = sum(n for c, n in letters.items() if "LATIN" not in unicodedata.name(c, ""))
    if foreign > OTHER_SCRIPT_SHARE * letters.total():
        return f"{foreign} of {letters.total()} letters are non-Latin"
    if text and _middle_run(text) >= max(REPEATED_RUN, len(text) / 2):
        return "repetition"
    if len(text) >= REPEATED_RUN and len(counts) <= 2:
        return "repetition"
    return None


def recovered_token(target: Sequence[float], draft: Sequence[float | None]) -> int:
    """The token most likely after a rejection: of max(target - draft, 0), where a NaN in the draft counts as 0.

    With greedy target and a draft row of NaN it must be the target's peak, never index 0.
    """
    left = [max(t - (0.0 if d is None or math.isnan(d) else d), 0.0) for t, d in zip(target, draft, strict=True)]
    return max(range(len(left)), key=left.__getitem__)


class _Sampler(Input):
    draft_probs: list[float | None]
    target_probs_peak_index: int
    target_prob_of_index_0: float


class _Outputs(Input):
    outputs: Some[str]
    token_ids_row_1: list[int] | None = None
    sampler: _Sampler | None = None


def control_token_inside_fluent_text(content: Any) -> Answer:
    """Each output's leak and coherence, id 0 in returned ids, and the recovered token."""
    given = read(_Outputs, content)
    leaked = [leaked_control_token(text) for text in given.outputs]
    why = [incoherence(text) for text in given.outputs]
    figures: dict[str, Any] = {"leaked_control_token": leaked, "coherence_ok": [reason is None for reason in why]}
    found = [f"output {row}: {reason}" for row, reason in enumerate(why, start=1) if reason]
    if given.token_ids_row_1 is not None:
        zeros = [index for index, token in enumerate(given.token_ids_row_1) if token == 0]
        figures["id_0_positions_row_1"] = zeros
        found += [f"output 1: id 0, the begin-of-sentence token, at position {index}" for index in zeros]
    if given.sampler is not None:
        figures["recovered_token"] = _recovered(given.sampler)
    return Answer(figures, found)


def _recovered(sampler: _Sampler) -> int:
    peak, size = sampler.target_probs_peak_index, len(sampler.draft_probs)
    if not 0 <= peak < size:
        raise InputError(f"sampler.target_probs_peak_index: {peak} is no index of {size} draft_probs")
    target = [0.0] * size
    target[0] = sampler.target_prob_of_index_0
    target[peak] = 1.0 - sampler.target_prob_of_index_0
    return recovered_token(target, sampler.draft_probs)


def _middle_run(text: str) -> int:
    """Length of the longest run of one character through the middle, where any run of half a text must pass."""

    def run_through(at: int) -> int:
        before, after = text[:at], text[at:]
        return len(text) - len(before.rstrip(text[at])) - len(after.lstrip(text[at]))

    return max(run_through(len(text) // 2), run_through((len(text) - 1) // 2))
