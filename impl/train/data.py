"""The text that pico learns from: generated, seeded, endless.

Step n of a run with seed s always gets the same batches, whatever came before: a resumed run needs no more data
state than its step number. Kinds of document: sums, differences and products (completion and chat form), templated
word problems, key-value lookup with queries beyond the sliding window, and prose of a small grammar.

Held out: two-digit pairs of sums, and number triples of word problems, by `reserved_pair` and `reserved_triple`.
The wording and items of the held-out set live in `heldout`, which nothing here imports.

Rows of whole documents are made by `packing`.
"""

from __future__ import annotations

import random
import string
import zlib
from collections.abc import Callable

from impl.train.packing import ANSWER, GIVEN, PROSE, Batch, Segments, pack


def reserved_pair(a: int, b: int) -> bool:
    """True for the tenth of two-digit pairs (either order) that no training text adds."""
    low, high = sorted((a, b))
    return low >= 10 and high <= 99 and zlib.crc32(f"sum {low} {high}".encode()) % 10 == 0


def reserved_triple(a: int, b: int, c: int) -> bool:
    """True for the tenth of number triples that no training word problem uses."""
    return zlib.crc32(f"problem {a} {b} {c}".encode()) % 10 == 0


# Arithmetic.


def arithmetic(rng: random.Random) -> tuple[str, str]:
    """A question like `17+25` and its answer: mostly two-digit sums, a third products, some differences."""
    kind = rng.random()
    if kind < 0.25:
        a, b = rng.randint(1, 12), rng.randint(1, 12)
        return f"{a}*{b}", str(a * b)
    if kind < 0.35:
        a, b = sorted((rng.randint(0, 99), rng.randint(0, 99)), reverse=True)
        return f"{a}-{b}", str(a - b)
    while True:
        a, b = (rng.randint(0, 9) if rng.random() < 0.1 else rng.randint(10, 99) for _ in range(2))
        if not reserved_pair(a, b):
            return f"{a}+{b}", str(a + b)


def completion(rng: random.Random) -> Segments:
    question, answer = arithmetic(rng)
    return [(f"{question}=", GIVEN), (f"{answer}\n", ANSWER)]


def chat(rng: random.Random) -> Segments:
    question, answer = arithmetic(rng)
    return [(f"Q: {question}\nA:", GIVEN), (f" {answer}\n", ANSWER)]


def single_sum(rng: random.Random) -> Segments:
    return chat(rng) if rng.random() < 0.4 else completion(rng)


def sum_list(rng: random.Random) -> Segments:
    """Several sums in a row, one form or the other; now and then after a system line."""
    form: Callable[[random.Random], Segments] = chat if rng.random() < 0.4 else completion
    text = [(f"{sentence(rng)}\n", PROSE)] if rng.random() < 0.15 else []
    return text + [piece for _ in range(rng.randint(2, 6)) for piece in form(rng)]


# Word problems.

NAMES = ("Ann", "Ben", "Cara", "Dan", "Eva", "Finn", "Gina", "Hugo", "Iris", "Jack", "Kim", "Leo", "Mia", "Ned")
ITEMS = ("apples", "books", "cards", "coins", "eggs", "figs", "nuts", "pens", "plums", "rings", "shells", "stamps")

PROBLEMS: tuple[tuple[str, str], ...] = (
    ("{n} has {a} {i}. {n} buys {b} more and gives away {c}. How many are left?", "a+b-c"),
    ("{n} has {a} {i}. {m} has {b}. They lose {c}. How many {i} are left?", "a+b-c"),
    ("{n} finds {a} {i}, then {b} more, then {c} more. How many {i} in all?", "a+b+c"),
    ("A bag has {a} {i}, a box has {b} and a tin has {c}. How many {i} in all?", "a+b+c"),
    ("{n} has {a} boxes of {b} {i}. {n} gives away {c}. How many are left?", "a*b-c"),
    ("{n} buys {a} bags of {b} {i} and finds {c} more. How many {i} in all?", "a*b+c"),
    ("{n} gets {a} {i} a day for {b} days and has {c} at home. How many in all?", "a*b+c"),
    ("There are {a} rows of {b} {i}. {n} takes {c}. How many are left?", "a*b-c"),
    ("{n} had {a} {i} and lost {b}. Then {n} got {c} more. How many {i} now?", "a-b+c"),
    ("{n} has {a} {i}. {m} takes {b} and {c} break. How many are left?", "a-b-c"),
)


def problem_numbers(rng: random.Random, plan: str) -> tuple[int, int, int]:
    """Operands for which every step of `plan` stays within 0..198 and products within the tables."""
    first, second = plan[1], plan[3]
    if first == "*":
        a, b = rng.randint(2, 12), rng.randint(2, 12)
        middle = a * b
    elif first == "+":
        a, b = rng.randint(2, 60), rng.randint(2, 39)
        middle = a + b
    else:
        a = rng.randint(10, 99)
        b = rng.randint(2, a - 2)
        middle = a - b
    c = rng.randint(1, min(middle, 40)) if second == "-" else rng.randint(2, 40)
    return a, b, c


def worked(plan: str, a: int, b: int, c: int) -> tuple[str, int]:
    """The scratch text of a two-step `plan` such as `a+b-c`, and its result."""
    first, second = plan[1], plan[3]
    middle = {"+": a + b, "-": a - b, "*": a * b}[first]
    result = middle + c if second == "+" else middle - c
    return f" {a}{first}{b}={middle}. {middle}{second}{c}={result}. #### {result}\n", result


def adds_reserved(plan: str, a: int, b: int, c: int) -> bool:
    middle = {"+": a + b, "-": a - b, "*": a * b}[plan[1]]
    return (plan[1] == "+" and reserved_pair(a, b)) or (plan[3] == "+" and reserved_pair(middle, c))


def word_problem(rng: random.Random) -> Segments:
    wording, plan = rng.choice(PROBLEMS)
    while True:
        a, b, c = problem_numbers(rng, plan)
        if not reserved_triple(a, b, c) and not adds_reserved(plan, a, b, c):
            break
    name, other = rng.sample(NAMES, 2)
    question = wording.format(n=name, m=other, i=rng.choice(ITEMS), a=a, b=b, c=c)
    return [(f"Q: {question}\nA:", PROSE / 2), (worked(plan, a, b, c)[0], ANSWER)]


# Key-value lookup.

KEY_LETTERS = string.ascii_lowercase
COPY_LETTERS = string.ascii_lowercase + string.digits


def lookup(rng: random.Random, characters: int, questions: int, window: int = 32) -> tuple[str, list[tuple[str, str]]]:
    """A context of `kx=42` lines, `characters` long with some prose between, and (query, answer) pairs on it.

    Queries look like `?kx=`; those of the last `window` characters are not asked about (unless there
    are no others).
    """
    lines: list[str] = []
    pairs: dict[str, tuple[str, int]] = {}
    size = 0
    chatter = rng.choice((0.0, 0.0, 0.1, 0.2))
    while size < characters:
        if rng.random() < chatter:
            line = f"{sentence(rng)}\n"
        else:
            key = rng.choice(KEY_LETTERS) + rng.choice(KEY_LETTERS)
            if key in pairs:
                continue
            value = str(rng.randint(10, 99))
            line = f"{key}={value}\n"
            pairs[key] = (value, size)
        lines.append(line)
        size += len(line)
    far = [key for key, (_, at) in pairs.items() if at < size - window] or list(pairs)
    asked = rng.sample(far, min(questions, len(far)))
    return "".join(lines), [(f"?{key}=", f"{pairs[key][0]}\n") for key in asked]


def lookup_document(rng: random.Random, characters: int, window: int = 32) -> Segments:
    context, queries = lookup(rng, characters, questions=max(5, min(14, characters // 12)), window=window)
    text: Segments = [(context, GIVEN)]
    for query, answer in queries:
        text += [(query, GIVEN), (answer, ANSWER)]
    return text


def copied(rng: random.Random, characters: int) -> Segments:
    """A random string and the same again: the plainest need to look back, from which lookup grows."""
    text = "".join(rng.choice(COPY_LETTERS) for _ in range(characters)) + "\n"
    return [(text, GIVEN), (text[0], GIVEN), (text[1:], ANSWER)]


# Prose.

DETERMINERS = ("the", "a", "one", "this", "that")
ADJECTIVES = ("small", "old", "red", "quiet", "bright", "slow", "green", "young", "kind", "cold")
NOUNS = ("cat", "dog", "bird", "child", "farmer", "teacher", "boat", "horse", "king", "baker")
PLACES = ("house", "river", "hill", "garden", "market", "bridge", "forest", "school")
VERBS = ("sees", "follows", "finds", "likes", "helps", "hears", "calls", "knows")
PREPOSITIONS = ("near", "behind", "by", "in", "under")


def noun_phrase(rng: random.Random) -> str:
    adjective = f"{rng.choice(ADJECTIVES)} " if rng.random() < 0.6 else ""
    return f"{rng.choice(DETERMINERS)} {adjective}{rng.choice(NOUNS)}"


def sentence(rng: random.Random) -> str:
    text = f"{noun_phrase(rng)} {rng.choice(VERBS)} {noun_phrase(rng)}"
    if rng.random() < 0.5:
        text += f" {rng.choice(PREPOSITIONS)} the {rng.choice(PLACES)}"
    return f"{text[0].upper()}{text[1:]}."


def prose(rng: random.Random) -> Segments:
    return [(" ".join(sentence(rng) for _ in range(rng.randint(1, 4))) + "\n", PROSE)]


# Batches.


def mixed(rng: random.Random) -> Segments:
    kind = rng.random()
    if kind < 0.5:
        return word_problem(rng)
    if kind < 0.75:
        return sum_list(rng)
    return prose(rng)


LONGEST_CONTEXT = 600
RECALL_ONLY = 0.25
"""Up to this share of a run a step holds nothing but copying and small lookups: looking back is what lookup and word
problems are built on, and it forms much sooner undisturbed."""


def small_lookup(rng: random.Random) -> Segments:
    return lookup_document(rng, rng.randint(12, 60), window=0)


def recall(rng: random.Random, progress: float, scale: int) -> Batch:
    """About 1024 tokens of copying or of lookups of one size, ever longer as the run goes on."""
    grown = min(1.0, max(0.0, progress - RECALL_ONLY) / 0.45)
    if rng.random() < 0.25:
        return pack(lambda: copied(rng, rng.randint(4, 24 + int(60 * grown))), 4 * scale, 256)
    longest = 60 + (LONGEST_CONTEXT - 60) * grown
    characters = int(rng.uniform(40, longest)) if rng.random() < 0.7 else int(longest)
    if characters <= 60:
        return pack(lambda: small_lookup(rng), 8 * scale, 128)
    return lookups(rng, characters, 1024 * scale)


def lookups(rng: random.Random, characters: int, tokens: int) -> Batch:
    # The context with its last line, fourteen queries of seven characters, bos and eos.
    length = -(-(characters + 30 + 7 * 14) // 32) * 32
    return pack(lambda: lookup_document(rng, characters), max(1, tokens // length), length)


def batches(seed: int, step: int, progress: float, scale: int = 1) -> dict[str, Batch]:
    """The batches of one step by name, the same for the same arguments.

    `progress` is the share of the curriculum that is behind; 1, which no step of a first run has, asks for all sizes
    of lookup alike. `scale` multiplies the number of rows (for a GPU).
    """
    rng = random.Random(f"{seed}/{step}")
    if progress < RECALL_ONLY:
        return {
            "copying": pack(lambda: copied(rng, rng.randint(4, 24)), 8 * scale, 128),
            "recall": pack(lambda: small_lookup(rng), 8 * scale, 128),
        }
    work = {
        "arithmetic": pack(lambda: single_sum(rng), 28 * scale, 32),
        "mixed": pack(lambda: mixed(rng), 3 * scale, 256),
    }
    if progress < 1.0:
        return work | {"recall": recall(rng, progress, scale)}
    return work | {
        "near": lookups(rng, rng.randint(40, 120), 1024 * scale),
        "far": lookups(rng, int(120 * (LONGEST_CONTEXT / 120) ** rng.random()), 1024 * scale),
    }
