"""Changed copies of real inputs: flipped bytes, cuts, repeats, nesting, huge numbers, broken text, swapped types."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

LARGEST = 16_000
"""Bytes of a changed copy; long lines are tried apart from these."""

ODD_BYTES = (
    b"\0", b"\0" * 40, b"\xff\xfe", b"\xef\xbb\xbf", b"\xc0\x80", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xc2\x85",
    b"\x1b[31m",
    b"\r", b"\r\n", b"\n", b"\n\n\n", b"\t", b"\x0b", b"\x7f", b"^M", b"\\u0000", b"\\ud800", b"\\", b'"', b"'", b"{",
    b"}",
    b"[", b"]", b"(", b")", b"=", b",", b":", b"#", b"%", b"\xd9\xa3", b"\xc2\xb2", b"\xf0\x9f\x98\x80",
)  # fmt: skip
"""NULs, marks of byte order, overlong and surrogate forms, other ends of lines, colours, digits that are not ASCII."""

NUMBERS = (
    b"0", b"-0", b"-1", b"0.0", b"1e308", b"1e400", b"-1e400", b"1e-400", b"NaN", b"nan", b"Infinity", b"-inf", b"inf",
    b"9" * 30, b"9" * 400, b"9" * 5000, b"0x7f", b"1_000", b"1,000,000", b"18446744073709551616", b"00012", b"1.",
    b".5",
    b"1e", b"1.7976931348623157e308", b"4.9e-324", b"9007199254740993", b"99999999999999999999.5",
)  # fmt: skip

RAW = {f"@raw{n}@": text for n, text in enumerate(NUMBERS)} | {
    "@deep@": b"[" * 300 + b"]" * 300,
    "@deeper@": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "@open@": b"[" * 3000,
    "@surrogate@": b'"\\ud800"',
    "@pair@": b'"\\ude00\\ud83d"',
    "@nul@": b'"a\\u0000b"',
    "@same@": b'{"a":1,"a":[2]}',
}
"""What JSON text may hold and `json.dumps` does not write, by the string that stands in for it."""

_STAND_IN = re.compile(rb'"(@[a-z]+\d*@)"')
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")


def changed_text(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    """One to four changes of a text; `others` are texts of the same kind to take pieces from."""
    for _ in range(rng.choice((1, 1, 1, 2, 2, 3, 4))):
        text = rng.choice(CHANGES)(rng, text, others)
    return text[:LARGEST]


def changed_json(rng: random.Random, value: Any) -> bytes:
    """JSON text of `value`, which is changed itself, with other values, types or keys at one to three places."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        value = _changed_value(rng, value)
    text = json.dumps(value, separators=(",", ":")).encode()
    return _STAND_IN.sub(lambda found: RAW.get(found[1].decode(), found[0]), text)


def _changed_value(rng: random.Random, value: Any) -> Any:
    """`value` with one place of it changed."""
    path: list[tuple[Any, Any]] = []
    here = value
    while isinstance(here, dict | list) and here and (not path or rng.random() < 0.8):
        key = rng.choice(list(here)) if isinstance(here, dict) else rng.randrange(len(here))
        path.append((here, key))
        here = here[key]
    if not path:
        return _other(rng, value)
    holder, key = path[-1]
    action = rng.random()
    if action < 0.12:
        del holder[key]
    elif action < 0.2 and isinstance(holder, dict):
        holder[rng.choice((str(key) + "_", "", "a.b", "__class__", str(key).upper()))] = holder.pop(key)
    elif action < 0.26 and isinstance(holder, list):
        holder[key:key] = [holder[key]] * rng.choice((1, 2, 20))
    elif action < 0.3 and isinstance(holder, dict):
        holder[rng.choice(("extra", "\ud800", "a\0b", "x" * 300))] = _other(rng, here)
    else:
        holder[key] = _other(rng, here)
    return value


def _other(rng: random.Random, value: Any) -> Any:
    """Something of the same type, of another type, or nothing that belongs there."""
    kind = rng.random()
    if kind < 0.35 and isinstance(value, int | float) and not isinstance(value, bool):
        half = value * 0.5 if abs(value) < 1e300 else 1e308
        return rng.choice((-value, value + 1, value * 2, value // 3, value * 10**6, 0, half, -1))
    if kind < 0.35 and isinstance(value, str):
        return rng.choice(
            (value[:-1], value * 2, value.upper(), "", value[::-1], value + "\n", f" {value}", value + "\0")
        )
    if kind < 0.8:
        return rng.choice(OTHERS)()
    return rng.choice(tuple(RAW))


OTHERS: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: True, lambda: False, lambda: 0, lambda: 1, lambda: -1, lambda: 2.5, lambda: "", lambda: "1",
    lambda: "N/A", lambda: "NaN", lambda: "x" * 5000, lambda: "\u2028", lambda: "é" * 100, list, dict, lambda: [[]],
    lambda: [None], lambda: {"": {}}, lambda: [1, "a", None], lambda: {"a": [1]}, lambda: 10**15, lambda: 10**18,
    lambda: -(10**25), lambda: 1e308,
)  # fmt: skip
"""Makers of values, each of them new: what is in one place must not change with another."""


# --- changes of text --------------------------------------------------------------------------------------------------


def _flip(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    flipped = bytearray(text)
    for _ in range(rng.choice((1, 2, 8))):
        if flipped:
            flipped[rng.randrange(len(flipped))] ^= 1 << rng.randrange(8)
    return bytes(flipped)


def _cut(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    return text[: rng.randrange(len(text) + 1)] if rng.random() < 0.5 else text[rng.randrange(len(text) + 1) :]


def _drop(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _piece(rng, text)
    return text[:start] + text[end:]


def _repeat(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    start, end = _piece(rng, text)
    return text[:end] + text[start:end] * rng.choice((1, 1, 2, 30)) + text[end:]


def _insert(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(ODD_BYTES) * rng.choice((1, 1, 1, 3, 200)) + text[at:]


def _number(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    """Another number in place of one."""
    found = list(_NUMBER.finditer(text))
    if not found:
        return text
    here = rng.choice(found)
    return text[: here.start()] + rng.choice(NUMBERS) + text[here.end() :]


def _splice(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    """A piece of another text of the kind in the middle of this one."""
    other = rng.choice(others)
    start, end = _piece(rng, other)
    at = rng.randrange(len(text) + 1)
    return text[:at] + other[start:end] + text[at:]


def _shuffle(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    """Lines moved, doubled or joined."""
    lines = text.split(b"\n")
    one, two = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[one], lines[two] = lines[two], lines[one]
    if rng.random() < 0.3:
        lines.insert(two, lines[one] + lines[two])
    return (b"\n" if rng.random() < 0.9 else b"\r").join(lines)


def _recode(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    """A piece, seldom all of it, in another encoding."""
    start, end = (0, len(text)) if rng.random() < 0.2 else _piece(rng, text)
    words = text[start:end].decode("utf-8", "replace")
    return text[:start] + words.encode(rng.choice(("utf-16", "utf-32-le", "latin-1", "cp037")), "replace") + text[end:]


def _nest(rng: random.Random, text: bytes, others: Sequence[bytes]) -> bytes:
    opened, closed = rng.choice(
        ((b"[", b"]"), (b'{"a":', b"}"), (b"(", b")"), (b"{a=", b"}"), (b"[[", b"]]"), (b"a.", b"b"))
    )
    depth, at = rng.choice((3, 70, 1200)), rng.randrange(len(text) + 1)
    return text[:at] + opened * depth + (closed * depth if rng.random() < 0.7 else b"") + text[at:]


def _piece(rng: random.Random, text: bytes) -> tuple[int, int]:
    """Where a piece of up to 300 bytes begins and ends; often it is a line."""
    if not text:
        return 0, 0
    start = rng.randrange(len(text))
    if rng.random() < 0.5:
        start = text.rfind(b"\n", 0, start) + 1
        end = text.find(b"\n", start) + 1
        return (start, end) if end else (start, len(text))
    return start, min(len(text), start + rng.randrange(1, 300))


Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]
CHANGES: tuple[Change, ...] = (
    _flip, _cut, _drop, _repeat, _insert, _insert, _number, _number, _splice, _shuffle, _recode, _nest
)  # fmt: skip
