"""Sums, differences and products: `17+25=42`, as chat, and with scratch steps that take them apart.

Answers come at once for sums and differences up to three digits, the table to 12x12, products to 99x9 and the table
from 11 to 25; larger products, thinking, and questions for the steps show the steps first.
"""

from __future__ import annotations

import random

from impl.train.micro.reserved import PROBED, allowed
from impl.train.micro.transcript import Reply, Transcript, asked, some_thinking
from impl.train.packing import ANSWER, GIVEN, Segments

QUESTIONS = (
    "What is {q}?", "How much is {q}?", "Compute {q}.", "{q}=?", "{q} =", "What does {q} make?", "Tell me {q}.",
    "Please calculate {q}.", "What is {q}? Reply with the number only.", "Give the result of {q}.",
)  # fmt: skip
STEP_QUESTIONS = ("Work out {q} step by step.", "Show the steps: {q}", "Compute {q} in steps.")
LONGEST_DRILL = 254
"""Characters of a row of drills: what is cut at its end would be another operation."""
WORDS = {"+": "plus", "-": "minus", "*": "times"}


def operands(rng: random.Random) -> tuple[str, int, int]:
    """Sign and numbers of a question that is answered at once."""
    kind = rng.random()
    if kind < 0.16:
        return "+", rng.randint(0, 99), rng.randint(0, 99)
    if kind < 0.4:
        a, b = rng.randint(100, 999), rng.randint(10, 999)
        return ("+", a, b) if rng.random() < 0.5 else ("+", b, a)
    if kind < 0.56:
        a, b = sorted((rng.randint(0, 999 if rng.random() < 0.7 else 99) for _ in range(2)), reverse=True)
        return "-", a, b
    if kind < 0.62:
        return "*", rng.randint(1, 12), rng.randint(1, 12)
    if kind < 0.9:
        return short_product(rng)
    return "*", rng.randint(11, 25), rng.randint(11, 25)


def short_product(rng: random.Random) -> tuple[str, int, int]:
    """A number of two digits times one of one digit: also a step of every larger product."""
    a, b = rng.randint(10, 99), rng.randint(2, 9)
    return ("*", a, b) if rng.random() < 0.7 else ("*", b, a)


def result_of(sign: str, a: int, b: int) -> int:
    return a + b if sign == "+" else a - b if sign == "-" else a * b


def scratch(sign: str, a: int, b: int) -> str:
    """The steps of a question, such as `17*20=340. 17*3=51. 340+51=391.`; a fact is its own step."""
    if sign == "*" and min(a, b) >= 10 and max(a, b) > 12:
        tens, ones = b // 10 * 10, b % 10
        if not ones:
            return f"{a}*{b // 10}={a * b // 10}. {a}*{b}={a * b}."
        return f"{a}*{tens}={a * tens}. {a}*{ones}={a * ones}. {a * tens}+{a * ones}={a * b}."
    if sign == "*" and max(a, b) > 12:
        many, few = max(a, b), min(a, b)
        tens, ones = many // 10 * 10, many % 10
        return f"{tens}*{few}={tens * few}. {ones}*{few}={ones * few}. {tens * few}+{ones * few}={a * b}."
    if sign == "+" and a >= 10 and b >= 10:
        return column_sum(a, b)
    return f"{a}{sign}{b}={result_of(sign, a, b)}."


def column_sum(a: int, b: int) -> str:
    """Digit by digit from the ones, with carries: 345+678 is `5+8=13. 4+7+1=12. 3+6+1=10.`"""
    steps, carry = [], 0
    while a or b or carry:
        terms = [a % 10, b % 10] + ([carry] if carry else [])
        if len(terms) == 3 and not (a or b):
            break
        total = sum(terms)
        steps.append(f"{'+'.join(map(str, terms))}={total}.")
        a, b, carry = a // 10, b // 10, total // 10
    return " ".join(steps)


def proof(sign: str, a: int, b: int) -> str:
    """What thinking hard adds: the operation turned round, where that stays simple."""
    result = result_of(sign, a, b)
    if sign == "*":
        return f"So {b}*{a} is {result}, too."
    return f"Check: {result}-{b}={a}." if sign == "+" else f"Check: {result}+{b}={a}."


def written(rng: random.Random, sign: str, a: int, b: int) -> str:
    """`17+25`, sometimes `17 + 25`; products sometimes with x, or with ?, which the tokenizer makes of other signs."""
    if sign == "*":
        sign = rng.choice("*****xx?")
    return f"{a} {sign} {b}" if rng.random() < 0.25 else f"{a}{sign}{b}"


def completion_of(question: str, result: int) -> Segments:
    equals = " = " if " " in question else "="
    return [(f"{question}{equals}", GIVEN), (f"{result}\n", ANSWER)]


def chat_of(rng: random.Random, sign: str, a: int, b: int) -> Transcript:
    """One question about an operation: bare, in a sentence, in words, or for the steps."""
    result = result_of(sign, a, b)
    question = written(rng, sign, a, b)
    form = rng.random()
    steps = f"{scratch(sign, a, b)} #### {result}"
    large = sign == "*" and min(a, b) > 12 and max(a, b) > 25
    if form < 0.2 or large:
        return asked(rng.choice(STEP_QUESTIONS).format(q=question), Reply(steps))
    reply = Reply(str(result), thought=scratch(sign, a, b), check=proof(sign, a, b))
    if form < 0.5:
        return asked(question, reply)
    if form < 0.6:
        return asked(f"What is {a} {WORDS[sign]} {b}?", reply)
    return asked(rng.choice(QUESTIONS).format(q=question), reply)


def large_product(rng: random.Random) -> tuple[str, int, int]:
    return "*", rng.randint(11, 99), rng.randint(11, 99)


def training_operands(rng: random.Random, large: float = 0.0) -> tuple[str, int, int]:
    while True:
        sign, a, b = large_product(rng) if rng.random() < large else operands(rng)
        if allowed(f"{a}{sign}{b}. {scratch(sign, a, b)} {proof(sign, a, b)}"):
            return sign, a, b


def drill(rng: random.Random) -> Segments:
    """A dozen short questions in a row, all in completion form or all in chat: most of them answered at once.

    Answers in a chat follow a blank and stand among other turns; they need as many examples as completions do.
    """
    text: Segments = []
    chat = rng.random() < 0.65
    for _ in range(rng.choice((1, 2, 4, 8, 12))):
        sign, a, b = drilled(rng)
        question, result = written(rng, sign, a, b), str(result_of(sign, a, b))
        if not chat:
            text += completion_of(question, int(result))
            continue
        steps = rng.random()
        if steps < 0.15:
            result = f"{scratch(sign, a, b)} #### {result}"
            question = rng.choice(STEP_QUESTIONS).format(q=question)
        elif steps < 0.35:
            question = rng.choice(QUESTIONS).format(q=question)
        if question in PROBED:
            continue
        if sum(len(piece) for piece, _ in text) + len(f"Q: {question}\nA: {result}\n") > LONGEST_DRILL:
            break
        text += [(f"Q: {question}\nA:", GIVEN), (f" {result}\n", ANSWER)]
    return text or drill(rng)


def drilled(rng: random.Random) -> tuple[str, int, int]:
    """A question of `operands`, or a step of a larger one: `59*9`, `59*80`, `4720+531`."""
    while True:
        kind = rng.random()
        if kind < 0.6:
            sign, a, b = operands(rng)
        elif kind < 0.72:
            sign, a, b = short_product(rng)
        elif kind < 0.85:
            sign, a, b = "*", rng.randint(11, 99), 10 * rng.randint(1, 9)
        else:
            sign, a, b = "+", 10 * rng.randint(10, 890), rng.randint(11, 891)
        if allowed(f"{a}{sign}{b}. {scratch(sign, a, b)}"):
            return sign, a, b


def completions(rng: random.Random) -> Segments:
    """One to eight questions in completion form."""
    text: Segments = []
    for _ in range(rng.choice((1, 1, 1, 2, 4, 8))):
        sign, a, b = training_operands(rng)
        text += completion_of(written(rng, sign, a, b), result_of(sign, a, b))
    return text


def asked_in_training(rng: random.Random, large: float = 0.0) -> Transcript:
    """`chat_of` any operation that training may compute with, in words that no probe uses."""
    while True:
        chat = chat_of(rng, *training_operands(rng, large))
        if chat.messages[-1]["content"] not in PROBED:
            return chat


def training_chat(rng: random.Random) -> Segments:
    chat = asked_in_training(rng, large=0.2)
    assert chat.reply is not None
    return chat.segments(some_thinking(rng) if chat.reply.thought else "off")
