"""What training leaves out: numbers that only held-out items add, subtract, multiply or tell stories about.

A pair or a combination is held out by a checksum, so both sides know it without a list. `allowed` is asked of every
document that trains, whatever made it.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable
from typing import TypeVar

SHOWN = frozenset({("+", 17, 25), ("*", 17, 23), ("*", 3, 17), ("*", 17, 20)})
"""Pairs of the smoke questions, and of the scratch steps of one: never held out."""

SIGNS = {"+": "+", "-": "-", "*": "*", "x": "*", "/": "/", "plus": "+", "minus": "-", "times": "*"}

OPERATION = re.compile(r"(?<![\w/.:])(\d+) ?(\+|-|\*|/|x|plus|minus|times) ?(?=(\d+)(?![\w:]))")
"""An operation on whole numbers in running text; the second number may begin the next operation."""

Made = TypeVar("Made")


def tenth(text: str) -> bool:
    return zlib.crc32(text.encode()) % 10 == 0


def reserved(sign: str, a: int, b: int) -> bool:
    """True for the tenth of number pairs, in either order, that no training text computes with.

    Sums and differences of numbers from 10 on; products beyond the table to 12x12. A quotient counts as its product.
    """
    if sign == "/":
        return b > 0 and reserved("*", b, a // b)
    low, high = sorted((a, b))
    if (sign, low, high) in SHOWN:
        return False
    if sign == "*":
        return low >= 2 and high > 12 and high % 10 != 0 and tenth(f"micro * {low} {high}")
    return low >= 10 and tenth(f"micro {sign} {low} {high}")


def reserved_numbers(numbers: Iterable[int]) -> bool:
    """True for the tenth of number combinations that no training word problem tells of."""
    return tenth(f"micro problem {' '.join(map(str, numbers))}")


def operations(text: str) -> list[tuple[str, int, int]]:
    """Every `a+b`, `a x b`, `a minus b`, ... of a text, as sign and operands."""
    return [(SIGNS[m[2]], int(m[1]), int(m[3])) for m in OPERATION.finditer(text)]


def allowed(text: str) -> bool:
    """Whether a training text may hold `text`: it computes with no held-out pair."""
    return not any(reserved(*operation) for operation in operations(text))


def drawn(make: Callable[[], Made], text_of: Callable[[Made], str]) -> Made:
    """The first thing made whose text is `allowed`."""
    while True:
        made = make()
        if allowed(text_of(made)):
            return made
