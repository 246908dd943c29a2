"""Long prompts with needles: a maintenance log in plain English, or key-value lines for our small model.

The log's lines carry a subsystem, a shard and a checksum that follow from their number, as in the source document's
probe (measurement.md section 6.2); words and needles are our own, drawn by seed. Distractors look like needles and
are none: withdrawn tags, and keys that share a letter with one that is asked for.

Ballots are one letter of each pair (AB, CD, ...), and their tally `*` is which letter leads in each. A needle is in one
place; a tally is in all of them at once, and its first ballots say the opposite, so what reads the beginning only is
wrong. Its results are of the tenth that our model's training leaves out.
"""

from __future__ import annotations

import random
import string
import zlib
from dataclasses import dataclass, replace

SUBSYSTEMS, SHARDS, CHECKSUMS, CHECKSUM_STEP = 17, 29, 1009, 37
FIRST_LINE, LAST_LINES = 17, 13
"""Where the first needle stands from the beginning and the last one from the end, in a prompt of some length."""
FIRST_WORDS = (
    "willow", "harbor", "ember", "cedar", "meadow", "canyon", "lantern", "pebble", "saffron", "timber", "velvet",
    "copper", "marble", "orchid", "raven", "glacier", "juniper", "maple", "nectar", "pewter", "quarry", "ribbon",
    "thistle", "walnut",
)  # fmt: skip
SECOND_WORDS = (
    "falcon", "bridge", "comet", "dolphin", "engine", "feather", "garden", "hammer", "island", "jacket", "kettle",
    "ladder", "mirror", "needle", "otter", "pillow", "rocket", "saddle", "temple", "urchin", "violin", "window",
    "anchor", "badger",
)  # fmt: skip
QUESTION = (
    "Which release tags does the log announce? Answer in one short paragraph that gives every tag exactly as it is "
    "written, in the order of the log. Leave out tags that were withdrawn, and add nothing else."
)


LETTERS = ("AB", "CD", "EF", "GH", "IJ", "KL", "MN", "OP", "QR", "ST", "UV", "WX")
"""The pairs of a ballot's letters."""
BALLOT = len(LETTERS) + 1
MORE_BALLOTS = 24
"""Most ballots beyond those wanted: prompts of different lengths put their answers at different positions. With 12
letters and a fault at one position in fifty, 20 to 28 % of the prompts are hit, wherever an answer would begin."""
AGAINST, SURE, LEAD = 0.3, 0.85, 0.2
"""Share of ballots, the first ones, that favour the letters which lose; the chance of a favoured letter; and the least
lead of each that wins, as a share of all ballots."""


@dataclass(frozen=True)
class Prompt:
    """One prompt and what its reply should hold."""

    text: str
    needles: list[str]
    """What the reply should name, in order."""
    distractors: list[str]
    tally: bool = False
    """Whether the last needle is the result of a tally."""


def report(rng: random.Random, lines: int, needles: int, distractors: int) -> Prompt:
    """A log of `lines` ordinary lines, with announced tags spread over it and withdrawn ones between them."""
    tags = _tags(rng, needles + distractors)
    wanted, withdrawn = tags[:needles], tags[needles:]
    first, last = min(FIRST_LINE, lines // 4), lines - min(LAST_LINES, lines // 4)
    places = {place: f"notice | release tag {tag} is announced" for place, tag in
              zip(spread(first, last, needles), wanted, strict=True)}  # fmt: skip
    free = [line for line in range(first, last) if line not in places]
    places |= {place: f"notice | release tag {tag} was withdrawn" for place, tag in
               zip(sorted(rng.sample(free, distractors)), withdrawn, strict=True)}  # fmt: skip
    body = []
    for number in range(1, lines + 1):
        body.append(
            f"entry {number:05d} | subsystem {number % SUBSYSTEMS} | shard {number % SHARDS} | "
            f"checksum {CHECKSUM_STEP * number % CHECKSUMS} | scrub finished"
        )
        if number in places:
            body.append(places[number])
    return Prompt("Maintenance log of one night:\n\n" + "\n".join(body) + f"\n\n{QUESTION}", wanted, withdrawn)


def pairs(rng: random.Random, lines: int, needles: int, distractors: int) -> Prompt:
    """`lines` + `distractors` lines such as `kx=42`, then `?kx,ab,mn=`; the last quarter is not asked for."""
    keys = [a + b for a in string.ascii_lowercase for b in string.ascii_lowercase]
    rng.shuffle(keys)
    order, spare = keys[:lines], keys[lines:]
    values = {key: str(rng.randint(10, 99)) for key in order}
    asked = sorted(rng.sample(range(3 * lines // 4), needles))
    wanted = [order[place] for place in asked]
    rng.shuffle(wanted)
    near = []
    for number in range(distractors):
        key = wanted[number % needles]
        # A spare key that shares a letter in its place; where none is left, any.
        twin = next((other for other in spare if other[0] == key[0] or other[1] == key[1]), spare[0])
        spare.remove(twin)
        values[twin] = _other(values[key], rng)
        near.append(twin)
        order.insert(rng.randrange(len(order)), twin)
    text = "".join(f"{key}={values[key]}\n" for key in order) + f"?{','.join(wanted)}="
    return Prompt(text, [values[key] for key in wanted], [values[key] for key in near])


def with_ballots(rng: random.Random, prompt: Prompt, ballots: int) -> Prompt:
    """`pairs` with at least `ballots` ballots among its lines; the query ends in `,*=`, its needles in the result."""
    cast, result = tally(rng, ballots + rng.randint(0, MORE_BALLOTS))
    *lines, query = prompt.text.split("\n")
    places = set(rng.sample(range(len(lines) + len(cast)), len(cast)))
    votes, keys = iter(cast), iter(lines)
    mixed = [next(votes) if place in places else next(keys) for place in range(len(lines) + len(cast))]
    text = "\n".join([*mixed, f"{query.removesuffix('=')},*="])
    return replace(prompt, text=text, needles=[*prompt.needles, result], tally=True)


def tally(rng: random.Random, ballots: int) -> tuple[list[str], str]:
    """Ballots, and which letter of each pair leads in them: clearly, and not among the first ones."""
    while True:
        wins = [rng.randrange(2) for _ in LETTERS]
        result = "".join(pair[win] for pair, win in zip(LETTERS, wins, strict=True))
        if zlib.crc32(f"micro tally {result}".encode()) % 10 == 0:
            break
    early = round(AGAINST * ballots)
    columns = []
    for pair, win in zip(LETTERS, wins, strict=True):
        column: list[bool] = []
        while sum(column) < (1 + LEAD) / 2 * ballots:
            column = [(rng.random() < SURE) == (place >= early) for place in range(ballots)]
        columns.append([pair[win] if leads else pair[1 - win] for leads in column])
    return ["".join(letters) for letters in zip(*columns, strict=True)], result


def spread(first: int, last: int, count: int) -> list[int]:
    """`count` whole numbers from first to last at equal distances; one stands in the middle."""
    if count == 1:
        return [(first + last) // 2]
    return [first + (last - first) * step // (count - 1) for step in range(count)]


def _tags(rng: random.Random, count: int) -> list[str]:
    """Tags that share no word."""
    words = zip(rng.sample(FIRST_WORDS, count), rng.sample(SECOND_WORDS, count), strict=True)
    return [f"{first}-{second}-{rng.randint(10, 99)}" for first, second in words]


def _other(value: str, rng: random.Random) -> str:
    """The digits the other way round, or another number of two digits where that is none."""
    turned = value[::-1]
    return (
        turned
        if turned != value and turned[0] != "0"
        else str(rng.choice([n for n in range(10, 100) if str(n) != value]))
    )
