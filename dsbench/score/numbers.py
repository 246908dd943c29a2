"""Numbers as people and models write them: money, thousands, powers, fractions, mixed numbers, LaTeX, Unicode signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal, localcontext
from fractions import Fraction

LONGEST = 40
"""Characters of a number; a longer run of digits is none that anyone meant, and costs time to compute with."""

_PLAIN = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?<![\w.])\.[0-9]+"
# A minus stands before the currency or behind it; behind a word or a bracket it is a hyphen.
VALUE = re.compile(
    rf"(?P<minus>(?<![\w)\]}}%])-)?[$€£¥₹]?(?P<inner>-)?(?P<whole>{_PLAIN})"
    rf"(?:[eE](?P<power>[+-]?[0-9]{{1,2}})(?!\w|\.[0-9]))?(?:/(?P<below>[0-9]+)(?![0-9]*[./]?[0-9]))?"
)

_SIGNS = str.maketrans(
    {"\u2212": "-", "\u2011": "-", "\ufe63": "-", "\uff0d": "-", "\u2013": "-", "\u2014": "-", "\xa0": " ",
     "\u2019": "'", "\xd7": "x", "\xf7": "/",
     "½": " 1/2", "¼": " 1/4", "¾": " 3/4", "⅓": " 1/3", "⅔": " 2/3"}
)  # fmt: skip
_LATEX = (("{,}", ","), ("\\,", ""), ("\\!", ""), ("\\$", "$"), ("\\%", "%"))
_THIN_BLANK = re.compile(r"(?<=[0-9])[\u2009\u202f](?=[0-9]{3})")
_FRACTION = re.compile(r"\\[dt]?frac ?\{(-?[0-9]{1,20})\} ?\{([0-9]{1,20})\}")
_MIXED = re.compile(r"(?<![\w.,/])([0-9]{1,9}) {1,2}(?:and )?([0-9]{1,4})/([0-9]{1,4})(?![0-9/])")


def plain_text(text: str) -> str:
    """The text with LaTeX's and Unicode's ways of writing numbers turned into ASCII ones, and `2 1/2` into `5/2`."""
    text = _THIN_BLANK.sub("", text.translate(_SIGNS))
    for written, meant in _LATEX:
        text = text.replace(written, meant)
    return _MIXED.sub(_improper, _FRACTION.sub(r" \1/\2", text))


def _improper(found: re.Match[str]) -> str:
    whole, part, of = (int(group) for group in found.groups())
    return f"{whole * of + part}/{of}" if 0 < part < of else found[0]


def value_of(found: re.Match[str]) -> Fraction | None:
    """What one match of VALUE says; None for a division by zero or too many digits."""
    if found.end() - found.start() > LONGEST:
        return None
    number, below = Fraction(found["whole"].replace(",", "")), int(found["below"] or 1)
    if not below:
        return None
    return (-number if found["minus"] or found["inner"] else number) * Fraction(10) ** int(found["power"] or 0) / below


def values(text: str) -> Iterator[Fraction]:
    """Every number of a plain text, in order."""
    for found in VALUE.finditer(text):
        if (value := value_of(found)) is not None:
            yield value


def read_number(text: str) -> Fraction | None:
    """The number that is the whole text, currency and percent signs apart; None if it is not one."""
    found = VALUE.fullmatch(plain_text(text).strip().rstrip("%.").rstrip())
    return value_of(found) if found else None


def write_number(value: Fraction) -> str:
    """Digits without trailing zeros, or a fraction where decimals would not end."""
    below = value.denominator
    for prime in (2, 5):
        while below % prime == 0:
            below //= prime
    if below != 1:
        return f"{value.numerator}/{value.denominator}"
    with localcontext(prec=4 * LONGEST):
        return f"{Decimal(value.numerator) / Decimal(value.denominator):f}"
