"""Whether text is coherent: leaked control tokens, characters of no text, other scripts, repetition."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from operator import eq
from typing import Any

from dsbench.checks.answer import Answer, Input, Some, read
from dsbench.errors import InputError

CONTROL = re.compile(r"<\uff5c|\uff5c>|<\|[A-Za-z_▁][\w▁-]{0,40}\|>")
"""With the full-width bar (U+FF5C) any half is one; with the ASCII bar only a whole, since code has those signs too."""
_NAMED = r"<(?:eos|bos|pad|unk|start_of_turn|end_of_turn)>|\[/INST\]|(?<!\w)\[INST\]|<</?SYS>>"
"""Tokens without a bar; behind a word, code has `[INST]` and `<s>` for itself."""
_CONTROL_NAMED = re.compile(_NAMED)
_SENTENCE = re.compile(r"(?<!\w)<s>|<(/)s>")
_THINK = re.compile(r"<(/?)think>")
_MENTION = re.compile(rf"([`'\"])(?:{_NAMED}|</?(?:s|think)>)\1")
"""A text that speaks of a token has it in quotes."""
OTHER_SCRIPT_SHARE = 0.15
REPEATED_RUN = 20
LOOP_WORDS = 20
LOOP_TIMES = 8


def leaked_control_token(text: str) -> bool:
    """Whether a token that no text has stands in it: also half of a pair that is HTML or a reasoning part if whole."""
    if CONTROL.search(text):
        return True
    spoken = _MENTION.sub("", text)
    return _CONTROL_NAMED.search(spoken) is not None or _sentence_token(spoken) or _stray_think(spoken)


def _sentence_token(text: str) -> bool:
    """Whether `<s>` or `</s>` is no strike-through of HTML: without its other half, or around the whole text."""
    found = list(_SENTENCE.finditer(text))
    closes = [bool(tag[1]) for tag in found]
    paired = len(closes) % 2 == 0 and all(closes[i] == bool(i % 2) for i in range(len(closes)))
    around = len(found) == 2 and not text[: found[0].start()].strip() and not text[found[1].end() :].strip()
    return bool(found) and (not paired or around)


def _stray_think(text: str) -> bool:
    """Whether a thinking tag stands outside a reasoning part: a second end, or a beginning behind an answer that has no
    end. A first end alone closes what the prompt began, and an open part at the beginning was cut off."""
    opened, parts, start = False, 0, 0
    for tag in _THINK.finditer(text):
        if tag[1]:
            if not opened and parts:
                return True
            opened, parts = False, parts + 1
        else:
            opened, start = True, tag.start()
    return opened and bool(parts or text[:start].strip())


def incoherence(text: str) -> str | None:
    """Why a text is not coherent (measurement.md 6.2), or None."""
    if leaked_control_token(text):
        return "leaked control token"
    if "\ufffd" in text:
        return "replacement character"
    counts = Counter(text)
    if "\0" in counts:
        return "NUL character"
    if any(unicodedata.category(c) == "Co" for c in counts):
        return "private-use character"
    letters = Counter({c: n for c, n in counts.items() if c.isalpha()})
    foreign = sum(n for c, n in letters.items() if "LATIN" not in unicodedata.name(c, ""))
    if foreign > OTHER_SCRIPT_SHARE * letters.total():
        return f"{foreign} of {letters.total()} letters are non-Latin"
    if text and _middle_run(text) >= max(REPEATED_RUN, len(text) / 2):
        return "repetition"
    if (len(text) >= REPEATED_RUN and len(counts) <= 2) or _loops(text):
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


def _loops(text: str) -> bool:
    """Whether half of a text or more is one sequence of up to LOOP_WORDS words, LOOP_TIMES times or more."""
    places = [found.span() for found in re.finditer(r"\S+", text)]
    words = [text[start:end] for start, end in places]
    least = max(REPEATED_RUN, len(text) / 2)
    for period in range(1, LOOP_WORDS + 1):
        at = 0
        for same, run in groupby(map(eq, words, words[period:])):
            alike = sum(1 for _ in run)
            last = at + alike + period - 1
            if same and alike >= (LOOP_TIMES - 1) * period and places[last][1] - places[at][0] >= least:
                return True
            at += alike
    return False


def _middle_run(text: str) -> int:
    """Length of the longest run of one character through the middle, where any run of half a text must pass."""

    def run_through(at: int) -> int:
        before, after = text[:at], text[at:]
        return len(text) - len(before.rstrip(text[at])) - len(after.lstrip(text[at]))

    return max(run_through(len(text) // 2), run_through((len(text) - 1) // 2))
