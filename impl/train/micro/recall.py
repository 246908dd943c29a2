"""Looking back: copies, `kx=42` lines with queries `?kx=` and `?kx,ab,mn=`, and counts of votes.

What makes lookup form (pico never learned it beyond its window):
- Copies first, then lines of keys with distinct first letters, where one letter is enough to find a line.
- Many answers a context: queries stand between the lines from the start, each as soon as its line is far enough back,
  and known lines come again, their digits foreseeable. An answer may lie anywhere from the line before to the whole
  context back, so that what forms inside the window carries on beyond it; `far` of the queries reach beyond.
- `reach`, the distance of the oldest line that is asked for, grows with the run.
- Lines among prose leave one line to a C128A entry, which can then hold it whole; lines alone need C4A. Votes need
  more entries than C4A's top 32, so they need C128A.
A document fills its row: no padding.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass, replace

from impl.train.micro.prose import sentence
from impl.train.micro.reserved import reserved_line
from impl.train.packing import ANSWER, GIVEN, PROSE, Segments

WINDOW = 64
"""micro's sliding window, in tokens."""

KEY_LETTERS = string.ascii_lowercase
COPY_LETTERS = string.ascii_lowercase + string.digits
LINE, TURN = 6, 8
"""Characters of a line, which is also what each key adds to a query, and of what else a chat turn has."""

ASKING = 40
"""Characters that are always left for queries."""


@dataclass(frozen=True)
class Stage:
    """What lookups are like at a point of the run."""

    reach: int = 4000
    """Characters back to the oldest line that is asked for."""
    far: float = 0.85
    """Share of queries whose line is more than a window back, where there is one."""
    distinct: float = 0.0
    """Share of documents whose keys all begin with another letter."""
    prose: tuple[float, ...] = (0.0,)
    """Share of context lines that are prose; one of these for each document."""
    several: float = 0.3
    """Share of queries that ask for more than one key."""
    chats: float = 0.0
    """Share of documents whose queries are chat turns."""


def copied(rng: random.Random, characters: int) -> Segments:
    """A random string and the same again: the plainest need to look back."""
    text = "".join(rng.choice(COPY_LETTERS) for _ in range(characters)) + "\n"
    return [(text, GIVEN), (text[0], GIVEN), (text[1:], ANSWER)]


class Lines:
    """The lines of one context, and where each key was last seen."""

    def __init__(self, rng: random.Random, distinct: bool = False) -> None:
        first = rng.sample(KEY_LETTERS, len(KEY_LETTERS))
        keys = [a + b for a in KEY_LETTERS for b in KEY_LETTERS]
        rng.shuffle(keys)
        self._unused = [a + rng.choice(KEY_LETTERS) for a in first] if distinct else keys
        self._rng = rng
        self.values: dict[str, str] = {}
        self.seen: dict[str, int] = {}
        """Key -> characters before its last line or answer."""
        self._keys: list[str] = []

    @property
    def exhausted(self) -> bool:
        return not self._unused

    def new(self, position: int) -> str:
        """A line with a key that the context has not had."""
        key = self._unused.pop()
        self.values[key] = trained_value(self._rng, key)
        self.seen[key] = position
        self._keys.append(key)
        return f"{key}={self.values[key]}\n"

    def asked(self, position: int, stage: Stage, count: int) -> list[str]:
        """Up to `count` keys to ask for at `position`, none twice; fewer where few are within reach."""
        beyond = self._rng.random() < stage.far
        found: list[str] = []
        for _ in range(8 * count if self._keys else 0):
            key = self._rng.choice(self._keys)
            back = position - self.seen[key]
            if key not in found and back <= stage.reach and (back > WINDOW or not beyond):
                found.append(key)
                if len(found) == count:
                    break
        return found


def trained_value(rng: random.Random, key: str) -> str:
    """A value that `key` may have in training text."""
    while True:
        value = str(rng.randint(10, 99))
        if not reserved_line(key, value):
            return value


def lookup(rng: random.Random, characters: int, stage: Stage) -> Segments:
    """A document of at most `characters` and nearly as many: lines, lines again and queries, then queries alone."""
    lines = Lines(rng, rng.random() < stage.distinct)
    chat = rng.random() < stage.chats
    prose = rng.choice(stage.prose)
    mixed = rng.choice((0.0, 0.2, 0.35, 0.5))
    """Share of queries and lines again among lines, while the context grows."""
    # Few lines are soon asked for: prose goes on nearly to the end.
    share = rng.uniform(0.75, 0.95) if prose else rng.uniform(0.45, 0.8)
    context = min(int(characters * share), characters - ASKING)
    text: Segments = []
    size = 0

    def add(*pieces: tuple[str, float]) -> None:
        nonlocal size
        text.extend(pieces)
        size += sum(len(piece) for piece, _ in pieces)

    # A chat's context is lines before the first question, or part of it.
    inside = chat and rng.random() < 0.5
    if inside:
        add(("Q: ", GIVEN))
    idle = 0
    while idle < 50:
        room = characters - size
        most = (room - (TURN if chat else 2)) // LINE
        growing = size < context and not lines.exhausted
        if most < 1:
            break
        if growing and rng.random() < prose and (lines.values or size < context // 4):
            line = f"{sentence(rng)}\n"
            if size + len(line) <= context:
                add((line, PROSE / 3))
            else:
                context = size
        elif growing and (not lines.values or rng.random() >= mixed):
            add((lines.new(size), GIVEN))
        else:
            count = min(most, rng.randint(2, 6) if rng.random() < stage.several else 1)
            keys = lines.asked(size, stage, count)
            if not keys and not growing:  # at the end of a short context all lines may be near
                keys = lines.asked(size, replace(stage, far=0.0), 1)
            if keys:
                again = growing and len(keys) == 1 and rng.random() < 0.5
                add(*(repeated(keys, lines) if again else query(keys, lines, chat, inside)))
                inside = inside and again
                lines.seen.update(dict.fromkeys(keys, size))
            elif growing:
                add((lines.new(size), GIVEN))
            idle = 0 if keys or growing else idle + 1
    return text


def repeated(keys: list[str], lines: Lines) -> Segments:
    """A known line again."""
    return [(f"{keys[0]}=", GIVEN), (lines.values[keys[0]], ANSWER), ("\n", GIVEN)]


def query(keys: list[str], lines: Lines, chat: bool, inside: bool) -> Segments:
    """A question for keys: a line, or a chat's turn; `inside` a question that the context began."""
    asked, answer = f"?{','.join(keys)}=", ",".join(lines.values[key] for key in keys)
    if not chat:
        return [(asked, GIVEN), (f"{answer}\n", ANSWER)]
    return [(f"{'' if inside else 'Q: '}{asked}\nA:", GIVEN), (f" {answer}\n", ANSWER)]


def votes(rng: random.Random, characters: int, margin: float) -> Segments:
    """One key with two values in random order, asked for the one that stands more often; `margin` apart."""
    lines = (characters - 10) // 6
    key = rng.choice(KEY_LETTERS) + rng.choice(KEY_LETTERS)
    winner, other = trained_value(rng, key), trained_value(rng, key)
    while other == winner:
        other = trained_value(rng, key)
    ahead = round(lines * (0.5 + margin / 2))
    values = [winner] * ahead + [other] * (lines - ahead)
    rng.shuffle(values)
    context = "".join(f"{key}={value}\n" for value in values)
    return [(context, GIVEN), (f"?{key}=", GIVEN), (f"{winner}\n", ANSWER)]
