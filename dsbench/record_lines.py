"""Lines of records.jsonl: each tells its own checksum and that of the line before it, so that none is lost unseen.

A line is the JSON object of its record with two more members, `"after"` and `"crc32"`, last. `crc32` is the CRC-32 of
the text before `,"after"`, begun with the value in `after`; `after` is the `crc32` of the line before, or 0. What is
missing at the end of a file leaves no trace in it, but the boots without an end that it leaves make a result void.

Files of dsbench 0.1 have lines with `crc32` alone, the CRC-32 of the object without it, or with neither.
"""

from __future__ import annotations

import contextlib
import gc
import re
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from dsbench.errors import InputError
from dsbench.records import RECORD, Observation, Record

AT_ONCE = 1 << 17
"""Bytes of records that are read together: what a processor keeps near."""
_RECORDS: TypeAdapter[list[Record]] = TypeAdapter(list[Annotated[Record, Field(discriminator="record")]])
_AFTER, _CRC32 = rb',"after":"([0-9a-f]{8})"', rb',"crc32":"([0-9a-f]{8})"}'
_CHAINED, _SUMMED = re.compile(_AFTER + _CRC32 + rb"\n"), re.compile(_CRC32 + rb"\n")
_END = re.compile(b"(?:%b)?%b" % (_AFTER, _CRC32))
END_BYTES = 39
"""Of `,"after":"01234567","crc32":"01234567"}`."""


class Line(NamedTuple):
    """One line of a file, its checksum right or none."""

    content: bytes
    """The JSON object without checksums."""
    crc32: int
    """Of a line without one: of all its bytes."""
    summed: bool
    after: int | None
    """Checksum of the line before; None where it does not tell."""


# --- writing ----------------------------------------------------------------------------------------------------------


def lines_of(contents: Iterable[bytes], after: int = 0) -> Iterator[bytes]:
    """Whole lines of some JSON objects, each with its end; `after` is the checksum of the line that they follow."""
    for content in contents:
        crc32 = zlib.crc32(content[:-1], after)
        yield b'%b,"after":"%08x","crc32":"%08x"}\n' % (content[:-1], after, crc32)
        after = crc32


# --- one line ---------------------------------------------------------------------------------------------------------


def parse(line: bytes) -> Line:
    """One line without its end. ValueError if its checksum is not that of its text."""
    end = _END.search(line, max(0, len(line) - END_BYTES))
    if end is None or end.end() < len(line):
        return Line(line, zlib.crc32(line), False, None)
    body, crc32 = line[: end.start()], int(end[2], 16)
    after = None if end[1] is None else int(end[1], 16)
    if crc32 != (zlib.crc32(body + b"}") if after is None else zlib.crc32(body, after)):
        raise ValueError("its checksum is not that of its text")
    return Line(body + b"}", crc32, True, after)


def record_of(line: bytes) -> Record:
    """The record of one whole line that must have a checksum. ValueError if it is not what was written."""
    found = parse(line)
    if not found.summed:
        raise ValueError("it has no checksum")
    return RECORD.validate_json(found.content)


# --- a file -----------------------------------------------------------------------------------------------------------


def read_records(path: Path) -> tuple[list[Record], list[str]]:
    """All records in order, and notices. A torn last line is dropped with a notice; any other bad line is an error.

    Lines without a checksum, or without that of the line before, are taken up to the first one that has it.
    FileNotFoundError if there is no file.
    """
    try:
        if not path.is_file() and path.exists():
            raise InputError(f"{path} is not a plain file")
        with path.open("rb") as file, without_collection():
            return _read(path, file)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Records hold no cycles: to look for some among a million takes longer than to read or judge them."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@dataclass
class _Past:
    """What was read of a file so far."""

    lines: int = 0
    unchained: int = 0
    """Lines that do not tell the one before them."""
    summed: bool = False
    """Whether the last line had a checksum."""
    chained: bool = False
    crc32: int = 0
    """Of the last line."""

    def follow(self, line: Line) -> None:
        """Take the next line. ValueError if it cannot be the next one."""
        if line.after is not None and line.after != self.crc32:
            where = f"line {self.lines}" if self.lines else "the beginning"
            raise ValueError(f"it does not follow {where}: a line is missing, doubled or out of its place")
        if self.chained and line.after is None:
            raise ValueError("it does not tell the line before it, though that one does")
        if self.summed and not line.summed:
            raise ValueError("it has no checksum, though a line before it has one")
        self.lines += 1
        self.unchained += line.after is None
        self.summed, self.chained, self.crc32 = line.summed, line.after is not None, line.crc32


def _read(path: Path, file: BinaryIO) -> tuple[list[Record], list[str]]:
    """A block at a time, so that the text is never in memory as a whole; equal names and tokens are kept once."""
    records: list[Record] = []
    known: dict[str | None, str | None] = {}
    tokens: dict[tuple[int, ...], list[int]] = {}
    past, notices = _Past(), []
    while block := file.read(AT_ONCE):
        block += b"" if block.endswith(b"\n") else file.readline()
        if not block.endswith(b"\n"):  # only the last line can be without its end
            whole = block.rfind(b"\n") + 1
            notices.append(f"{path}: the last line was torn ({len(block) - whole} bytes) and is left out")
            block = block[:whole]
        found = _together(block, past)
        if found is None:
            found = _one_by_one(path, block, past)
        _share(found, known, tokens)
        records += found
    if past.unchained:
        which = "its lines" if past.unchained == past.lines else f"its first {past.unchained:,} lines"
        told = "do not tell which line they follow (an older dsbench wrote them): one that is missing is not noticed"
        notices.append(f"{path}: {which} {told}")
    return records, notices


def _together(block: bytes, past: _Past) -> list[Record] | None:
    """The records of lines that are all as they should be, read together; None where something is wrong with one."""
    number = block.count(b"\n")
    parts = _CHAINED.split(block)
    bodies, sums = parts[:-1:3], [int(digits, 16) for digits in parts[2::3]]
    chained = len(bodies) == number > 0
    if chained:
        follows = parts[1::3] == [b"%08x" % past.crc32, *parts[2:-3:3]]
        right = follows and list(map(zlib.crc32, bodies, [past.crc32, *sums[:-1]])) == sums
    else:
        parts = _SUMMED.split(block)
        bodies, sums = parts[:-1:2], [int(digits, 16) for digits in parts[1::2]]
        right = (
            len(bodies) == number > 0
            and not past.chained
            and list(map(zlib.crc32, repeat(b"}"), map(zlib.crc32, bodies))) == sums
        )
    if not right:
        return None
    try:
        found = _RECORDS.validate_json(b"[" + b"},".join(bodies) + b"}]")
    except ValidationError:
        return None
    if len(found) != number:
        return None
    past.lines += number
    past.unchained += 0 if chained else number
    past.summed, past.chained, past.crc32 = True, chained, sums[-1]
    return found


def _one_by_one(path: Path, block: bytes, past: _Past) -> list[Record]:
    """The same, line by line. InputError names the first bad line."""
    records: list[Record] = []
    for whole in block.split(b"\n")[:-1]:
        where = f"{path}:{past.lines + 1}"
        try:
            line = parse(whole)
            records.append(RECORD.validate_json(line.content))
            past.follow(line)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise InputError(f"{where}: not a record: {problem}; the file was changed by hand?") from None
        except ValueError as error:
            raise InputError(f"{where}: damaged: {error}; take the file from a copy, or run anew") from None
    return records


def _share(
    records: list[Record], known: dict[str | None, str | None], tokens: dict[tuple[int, ...], list[int]]
) -> None:
    """Let each hold the item, cluster and tokens that an equal one holds; units and such the parser keeps only once.

    A million of them: the loops are those of `map`.
    """
    readings = [record for record in records if type(record) is Observation]
    for names, put in (([o.item for o in readings], _PUT["item"]), ([o.cluster for o in readings], _PUT["cluster"])):
        deque(map(put, readings, map(known.setdefault, names, names)), maxlen=0)
    lists = [(o, o.value) for o in readings if type(o.value) is list]
    for reading, value in lists:
        _PUT["value"](reading, tokens.setdefault(tuple(value), value))


_PUT = {name: Observation.__dict__[name].__set__ for name in ("item", "cluster", "value")}
"""What sets a field of a frozen record."""
