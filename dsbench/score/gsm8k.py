"""GSM8K answers: which number a reply gives, whether it is the right one, and what lm-eval's two filters make of it.

Order: thinking that was closed is dropped, and a reply that never closes it has no answer; the rest is cut at a new
question; then counts the last box or `####` marker, whichever stands later; then a stated answer ("the answer is",
"Answer:"); then the last number that is no part of a range, a time, a dimension, an added percentage or a check line.
Every step reads the text once, so time grows with its length alone. Source: measurement.md section 6.1.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from dsbench.score.numbers import VALUE, plain_text, read_number, value_of, values, write_number

Source = Literal["box", "marker", "statement", "last number", "none", "open thinking"]

INVALID = "[invalid]"
"""What lm-eval's filters give where they find nothing."""


@dataclass(frozen=True)
class Answer:
    """What a reply says."""

    value: Fraction | None
    source: Source
    """Where it was found, or why there is none."""

    @property
    def text(self) -> str | None:
        return None if self.value is None else write_number(self.value)


def extract(output: str) -> Answer:
    """The answer of one reply."""
    spoken = without_thinking(output)
    if spoken is None:
        return Answer(None, "open thinking")
    text = plain_text(cut_at_question(spoken))
    marked = max(_last_box(text), _last_marker(text), key=lambda place: place[0])
    if marked[1] is not None:
        return Answer(marked[1], marked[2])
    if (stated := _stated(text)) is not None:
        return Answer(stated, "statement")
    if (last := last_number(text)) is not None:
        return Answer(last, "last number")
    return Answer(None, "none")


_THINK = re.compile(r"<(/?)think(?:ing)?>", re.IGNORECASE)


def without_thinking(output: str) -> str | None:
    """What is said outside of thinking; None if the last thinking was never closed.

    A closing tag without an opening one ends thinking that the prompt began.
    """
    parts: list[str] = []
    at, opened = 0, False
    for tag in _THINK.finditer(output):
        closes = bool(tag[1])
        if closes and not opened:
            parts = []
        elif not closes and not opened:
            parts.append(output[at : tag.start()])
        if closes or not opened:
            at, opened = tag.end(), not closes
    return None if opened else "".join([*parts, output[at:]])


_QUESTION = re.compile(r"\bQuestion:|^[ \t]*Q:", re.MULTILINE)


def cut_at_question(text: str) -> str:
    """The text up to a new question; one that the reply begins with is the old one, said again."""
    for found in _QUESTION.finditer(text):
        if text[: found.start()].strip():
            return text[: found.start()]
    return text


# --- marked answers -------------------------------------------------------------------------------------------------

Place = tuple[int, Fraction | None, Source]
"""Where an answer stands, its value, and how it is marked; -1 and None where there is none."""

_BRACES = re.compile(r"\\(?P<box>boxed|fbox) ?\{|\\[{}]|[{}]")
_LEAD = re.compile(
    r"(?:[\s#:=*_~≈\\({\[$]|(?:the|final|answer|result|total|is|about|approximately|text|boxed)\b)*+", re.IGNORECASE
)
"""What may stand between a mark and its number."""
_ARITHMETIC = re.compile(r"(?:[-+*/x^().,$0-9 \t=]|!(?=[ \t]*[-+*/=]))*+")
"""A sum that a result may follow; an exclamation mark belongs to it before a sign alone, elsewhere a sentence ends."""
_GROUPED = re.compile(r"[ \t]*+[$€£]?(-?[1-9][0-9]{0,2}(?: [0-9]{3}){1,9}+)[ \t]*+\.?[ \t]*+(?:\n|$)")
"""A line that is one number with blanks between its thousands."""
_PART_FOLLOWS = re.compile(r"[-:x][0-9]")
_HEADING_FOLLOWS = re.compile(r"[.)][ \t]+[A-Za-z*]")


def _last_box(text: str) -> Place:
    """The last closed box with a number in it; of boxes in each other the innermost."""
    last: Place = (-1, None, "none")
    depth, outer, start = 0, 0, -1
    for brace in _BRACES.finditer(text):
        if brace["box"]:
            start, outer = brace.end(), depth
            depth += 1
        elif brace[0] == "{":
            depth += 1
        elif brace[0] == "}":
            depth = max(depth - 1, 0)
            if start >= 0 and depth == outer:
                value = _in_box(text[start : brace.start()])
                last, start = ((start, value, "box") if value is not None else last), -1
    return last


def _in_box(content: str) -> Fraction | None:
    """The first number behind the last equals sign: a unit may follow it."""
    return next(values(_PARTS.sub(" ", content.rpartition("=")[2])), None)


def _last_marker(text: str) -> Place:
    """The last `####` with a number; `#### 1. Eggs` is a numbered heading."""
    end = len(text)
    while (at := text.rfind("####", 0, end)) >= 0:
        if grouped := _GROUPED.match(text, at + 4, end):
            return at, Fraction(grouped[1].replace(" ", "")), "marker"
        found = _number_at(text, at + 4, end)
        if found is not None and not _HEADING_FOLLOWS.match(text, found.end()):
            return at, value_of(found), "marker"
        end = at
    return -1, None, "none"


def _number_at(text: str, at: int, end: int) -> re.Match[str] | None:
    """The number that stands here, behind words such as "is" and behind the sum that it is the result of."""
    at = _past(_LEAD, text, at, end)
    if (equals := text.rfind("=", at, _past(_ARITHMETIC, text, at, end))) >= 0:
        at = _past(_LEAD, text, equals, end)
    found = VALUE.match(text, at, end)
    part = found is None or value_of(found) is None or _PART_FOLLOWS.match(text, found.end())
    return None if part else found


def _past(pattern: re.Pattern[str], text: str, at: int, end: int) -> int:
    found = pattern.match(text, at, end)
    return found.end() if found else at


# --- stated answers -------------------------------------------------------------------------------------------------

_STATEMENT = re.compile(
    r"\banswer\b[\s*_]*+(?:(?P<colon>:)|=|(?:is|was|equals|(?:would|should|will|must) be)\b)", re.IGNORECASE
)
_SENTENCE_END = re.compile(r"[.!?](?:\s|$)|\n")


def _stated(text: str) -> Fraction | None:
    """The number of the last statement that has one.

    It stands right behind the words, or it is the last one of the sentence; behind "Answer:" a whole solution may
    follow, so there it is the last one before the next statement.
    """
    end = len(text)
    for found in reversed(list(_STATEMENT.finditer(text))):
        if direct := _number_at(text, found.end(), end):
            return value_of(direct)
        stop = None if found["colon"] else _SENTENCE_END.search(text, found.end(), end)
        if (value := last_number(text[found.end() : stop.start() if stop else end])) is not None:
            return value
        end = found.start()
    return None


# --- unmarked answers -----------------------------------------------------------------------------------------------

_N = r"[$€£]?[0-9]++(?:[.,][0-9]++)*+"
_PARTS = re.compile(
    rf"(?<![\w.,/]){_N}(?:"
    rf"(?:-{_N})++"  # a range
    r"|(?::[0-9]++)++"  # a time, a ratio
    rf"|(?:(?: ?[A-Za-z]{{1,6}})? ?(?:x|\\times) ?{_N})+"  # dimensions, and a product that is not the result
    rf")|\^\{{?-?{_N}"  # an exponent
)
_CHECKS = re.compile(
    r"(?:^|(?<=[.!?(\[]))[ \t*_>-]*+(?:to |let me |let'?s |double[- ]?)*+(?:check|verify|verif|proof)"
    r"(?:ing|ication)?(?:[ \t*_]*+[:,]|[ \t]+(?:that|if|whether|by|with)\b).*",
    re.IGNORECASE | re.MULTILINE,
)
_ASIDES = re.compile(
    r"\([^()\n]{0,80}?(?:%|percent)[^()\n]{0,80}\)"  # an added percentage
    r"|(?<![0-9])[0-9]{1,9}(?:st|nd|rd|th)\b"  # an ordinal
    r"|^[ \t]*[0-9]{1,3}[.)][ \t]+(?=[A-Za-z*])"  # the number of a step
    r"|[A-Za-z]-?[0-9][0-9.,]*+"  # a part of a name
    r"|(?<![0-9.,])[0-9]{1,2} ?[ap]\.?m\b"  # a time
    rf"|\b(?:between|from) {_N} (?:and|to) {_N}",  # a range
    re.IGNORECASE | re.MULTILINE,
)


def last_number(text: str) -> Fraction | None:
    """The last number of a plain text that may be an answer.

    What stands in asides and check lines counts only where there is nothing else; ranges, times and dimensions never.
    """
    text = _PARTS.sub(" ", text)
    for left in (_ASIDES.sub(" ", _CHECKS.sub(" ", text)), text):
        *_, last = [None, *values(left)]
        if last is not None:
            return last
    return None


# --- lm-eval's filters ----------------------------------------------------------------------------------------------

_STRICT = re.compile(r"#### (-?[0-9.,]+)")
_FLEXIBLE = re.compile(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")


def lm_eval_strict(output: str) -> str:
    """lm-eval 0.4.13's `strict-match`: the first marked number."""
    found = _STRICT.search(output)
    return found[1] if found else INVALID


def lm_eval_flexible(output: str) -> str:
    """lm-eval 0.4.13's `flexible-extract`: the last run that looks like a number."""
    *_, last = [INVALID, *(found[0] for found in _FLEXIBLE.finditer(output))]
    return last


def lm_eval_equal(found: str, gold: str) -> bool:
    """Equal as texts once commas, dollar signs and a final full stop are gone, as lm-eval's exact match does it."""
    return _lm_eval_plain(found) == _lm_eval_plain(gold)


def _lm_eval_plain(text: str) -> str:
    marked = text.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return re.sub(r"\.$", "", marked).lower()


# --- rows and totals ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """One reply against its gold answer."""

    id: str
    gold: str
    extracted: str | None
    source: Source
    correct: bool
    truncated: bool | None
    """Whether the limit of tokens ended it; None where the row does not say."""
    lm_eval_strict: str
    lm_eval_flexible: str
    lm_eval_strict_correct: bool
    lm_eval_flexible_correct: bool


def gold_number(gold: str) -> Fraction | None:
    """The number of a gold answer: what stands behind its last `####`, or all of it."""
    return read_number(gold.rpartition("####")[2])


def score(id: str, output: str, gold: str, finish_reason: str | None) -> Scored:
    """One reply, compared as numbers. ValueError if the gold answer is no number."""
    right = gold_number(gold)
    if right is None:
        raise ValueError(f"the gold answer is no number: {gold[-40:]!r}")
    answer = extract(output)
    strict, flexible = lm_eval_strict(output), lm_eval_flexible(output)
    return Scored(
        id=id,
        gold=write_number(right),
        extracted=answer.text,
        source=answer.source,
        correct=answer.value == right,
        truncated=None if finish_reason is None else finish_reason == "length",
        lm_eval_strict=strict,
        lm_eval_flexible=flexible,
        lm_eval_strict_correct=lm_eval_equal(strict, gold),
        lm_eval_flexible_correct=lm_eval_equal(flexible, gold),
    )


def totals(rows: Sequence[Scored]) -> dict[str, Any]:
    """Counts over all rows; `truncated_share` is of the rows that say how they ended, None if none does."""
    ended = [row.truncated for row in rows if row.truncated is not None]
    return {
        "n": len(rows),
        "correct": sum(row.correct for row in rows),
        "no_answer": sum(row.extracted is None for row in rows),
        "lm_eval_strict_correct": sum(row.lm_eval_strict_correct for row in rows),
        "lm_eval_flexible_correct": sum(row.lm_eval_flexible_correct for row in rows),
        "lm_eval_strict_and_flexible_disagree": sum(
            row.lm_eval_strict_correct != row.lm_eval_flexible_correct for row in rows
        ),
        "flexible_false_positive_ids": [r.id for r in rows if r.lm_eval_flexible_correct and not r.correct],
        "strict_false_positive_ids": [r.id for r in rows if r.lm_eval_strict_correct and not r.correct],
        "truncated_share": round(sum(ended) / len(ended), 4) if ended else None,
    }
