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

SIGNS = {"+": "+", "-": "-", "*": "*", "x": "*", "?": "*", "/": "/", "plus": "+", "minus": "-", "times": "*"}

OPERATION = re.compile(r"(?<![\w/.:])(\d+) ?(\+|-|\*|/|x|\?|plus|minus|times) ?(?=(\d+)(?![\w:]))")
"""An operation on whole numbers in running text; the second number may begin the next operation. `17?23` is how the
tokenizer writes a product with a sign that it does not have."""

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


def reserved_line(key: str, value: str) -> bool:
    """True for the tenth of key-value lines that no training text holds."""
    return tenth(f"micro line {key}={value}")


PROBED = frozenset({
    "What is the weather in Oslo?", "What is the price of BOLT stock?", "I must not forget to call Mia at 18:00.",
    "How much is 250 USD in EUR?", "Put Dentist in my calendar for the day after tomorrow at 09:15.",
    "Translate good morning into French and into German.", "Mail Lena a list of my events of today.",
    "If BOLT stock is above 150, set a reminder at 09:00 to sell BOLT.", "What is the price of ACME stock in EUR?",
    "What is the capital of Portugal?", "What is 6*7?", "Delete the mail that I sent to Ben yesterday.",
    "Is it raining in Bergen?", "Which launch date is in notes/plan.txt?", "What is the price of KDPT stock?",
})  # fmt: skip
"""Questions of the harness's tool-call scenarios: training asks none of them in these words."""


def reserved_question(question: str) -> bool:
    """True for the tenth of questions in words that no training chat asks: facts, tools, sentences to put in JSON."""
    return question in PROBED or tenth(f"micro question {question}")


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
