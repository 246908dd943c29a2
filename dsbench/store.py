"""Where an experiment lives: `results/<id>/` with plan.json, records.jsonl, verdicts.json and boots/."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, BinaryIO

from pydantic import Field, TypeAdapter, ValidationError

from dsbench.engines.secrets import redact_object
from dsbench.errors import InputError, ResultsLost
from dsbench.records import RECORD, ExperimentVerdict, Observation, Plan, Record

if TYPE_CHECKING:
    import pandas

PLAN, RECORDS, VERDICTS, BOOTS = "plan.json", "records.jsonl", "verdicts.json", "boots"
ROOM = 64 * 1024
_CHECKSUM = re.compile(rb',"crc32":"[0-9a-f]{8}"}\Z')
"""Last member of a record's line: CRC-32 of the line without it."""
CHECKSUM_BYTES = 20
CHECKSUM_BEGINS = b',"crc32":"'
AT_ONCE = 1 << 20
"""Bytes of records that are read together."""
_RECORDS: TypeAdapter[list[Record]] = TypeAdapter(list[Annotated[Record, Field(discriminator="record")]])


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step, on the disk before it has its name."""
    draft = path.with_name(f".{path.name}.tmp")
    with draft.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def create(plan: Plan, out: Path) -> Path:
    """Make the folder of a new experiment with its plan in it; InputError if that is not possible."""
    folder = out / plan.id
    try:
        folder.mkdir(parents=True)
        (folder / BOOTS).mkdir()
        write_text(folder / PLAN, plan.model_dump_json(indent=1) + "\n")
    except FileExistsError:
        raise InputError(f"result {folder} is there already; give another --out, or --resume it") from None
    except OSError as error:
        raise InputError(f"cannot write results to {out}: {error.strerror or error}") from None
    return folder


def resolve(name: str, out: Path = Path("results")) -> Path:
    """A result's folder from its path, or from its id under `out`. InputError otherwise."""
    for folder in (Path(name), out / name):
        if (folder / PLAN).is_file():
            return folder
    if re.fullmatch(r"[\w.,=+-]+", name) and out.is_dir():
        near = sorted(f.name for f in out.glob(f"*{name}*") if (f / PLAN).is_file())
        if len(near) == 1:
            return out / near[0]
        if near:
            raise InputError(f"result '{name}' is not one: {', '.join(near)}; name it whole")
    raise InputError(f"no result at '{name}' (no {PLAN} there or under {out}/): give a folder or an id")


def load_plan(folder: Path) -> Plan:
    try:
        return Plan.model_validate_json((folder / PLAN).read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{folder / PLAN} is not a plan this version reads: {where} {first['msg']}") from None
    except OSError as error:
        raise InputError(f"{folder / PLAN}: {error.strerror or error}") from None


def load_records(folder: Path) -> tuple[list[Record], list[str]]:
    """All records in order, and notices. A torn last line is dropped with a notice; any other bad line is an error.

    Lines carry checksums since dsbench 0.1; a file without any is taken as it is.
    """
    path = folder / RECORDS
    try:
        with path.open("rb") as file, without_collection():
            return _records(path, file)
    except FileNotFoundError:
        return [], [f"{path} is not there: no boot has run"]


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


def _records(path: Path, file: BinaryIO) -> tuple[list[Record], list[str]]:
    """Some lines at a time, so that the text is never in memory as a whole; equal names and tokens are kept once."""
    records: list[Record] = []
    known: dict[str, str] = {}
    tokens: dict[tuple[int, ...], list[int]] = {}
    number, checked = 0, False
    while lines := file.readlines(AT_ONCE):
        torn = lines.pop() if not lines[-1].endswith(b"\n") else b""  # only the last one can be without its end
        found = _sound(lines)
        if found is None:
            found, checked = _one_by_one(path, lines, number, checked)
        else:
            checked = True
        number += len(lines)
        for record in found:
            if isinstance(record, Observation):
                _share(record, known, tokens)
        records += found
        if torn:
            return records, [f"{path}: the last line was torn ({len(torn)} bytes) and is left out"]
    return records, []


def _sound(lines: list[bytes]) -> list[Record] | None:
    """The records of lines that all have a right checksum, read together; None where something is wrong with one."""
    bodies = []
    try:
        for line in lines:
            body = line[: -CHECKSUM_BYTES - 1]
            if line[len(body) : -11] != CHECKSUM_BEGINS or zlib.crc32(b"}", zlib.crc32(body)) != int(line[-11:-3], 16):
                return None
            bodies.append(body)
        found = _RECORDS.validate_json(b"[" + b"},".join(bodies) + b"}]") if bodies else []
    except ValueError:
        return None
    return found if len(found) == len(lines) else None


def _one_by_one(path: Path, lines: list[bytes], before: int, checked: bool) -> tuple[list[Record], bool]:
    """Records of the lines after line `before`; whether the last one had a checksum. InputError names a bad line."""
    records: list[Record] = []
    for number, whole in enumerate(lines, start=before + 1):
        try:
            content, has_checksum = _checked(whole.removesuffix(b"\n"))
            record = RECORD.validate_json(content)
            if checked and not has_checksum:
                raise ValueError("it has no checksum, though a line before it has one")
            checked = has_checksum
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]["msg"]
            raise InputError(f"{path}:{number}: not a record: {problem}; the file was changed by hand?") from None
        except ValueError as error:
            raise InputError(f"{path}:{number}: damaged: {error}; take the file from a copy, or run anew") from None
        records.append(record)
    return records, checked


def _share(record: Observation, known: dict[str, str], tokens: dict[tuple[int, ...], list[int]]) -> None:
    """Let it hold the item, cluster and tokens that an equal one holds; units and such the parser keeps only once."""
    for field, name in (("item", record.item), ("cluster", record.cluster)):
        if name is not None and (kept := known.setdefault(name, name)) is not name:
            object.__setattr__(record, field, kept)
    if isinstance(record.value, list):
        object.__setattr__(record, "value", tokens.setdefault(tuple(record.value), record.value))


def line_of(content: bytes) -> bytes:
    """One line of records.jsonl from a JSON object: its checksum added, and the end of the line."""
    return b'%s,"crc32":"%08x"}\n' % (content[:-1], zlib.crc32(content))


def _checked(line: bytes) -> tuple[bytes, bool]:
    """A line without its checksum, and whether it had one. ValueError if they disagree."""
    if not _CHECKSUM.match(line, max(0, len(line) - CHECKSUM_BYTES)):
        return line, False
    content = line[:-CHECKSUM_BYTES] + b"}"
    if zlib.crc32(content) != int(line[-10:-2], 16):
        raise ValueError("its checksum is not that of its text")
    return content, True


def record_of(line: bytes) -> Record:
    """The record of one whole line that must have a checksum. ValueError if it is not what was written."""
    content, has_checksum = _checked(line)
    if not has_checksum:
        raise ValueError("it has no checksum")
    return RECORD.validate_json(content)


def load_verdict(folder: Path) -> ExperimentVerdict | None:
    """The stored verdict; None if there is none yet."""
    try:
        return ExperimentVerdict.model_validate_json((folder / VERDICTS).read_bytes())
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(
            f"{folder / VERDICTS} is no verdict of this version ({error.error_count()} problems): judge it again"
        ) from None


def save_verdict(folder: Path, verdict: ExperimentVerdict) -> None:
    write_text(folder / VERDICTS, verdict.model_dump_json(indent=1) + "\n")


def check_room(folder: Path) -> None:
    """ResultsLost unless a small file can be written: what an engine does on a full disk says nothing of the engine."""
    probe = folder / ".room"
    try:
        with probe.open("wb") as file:
            file.write(b"\0" * ROOM)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise ResultsLost(f"cannot write {folder}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


class RecordWriter:
    """Appends records, each on the disk before the next; one writer a folder.

    ResultsLost where nothing more can be stored. What was written before stays as it is.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS

    def __enter__(self) -> RecordWriter:
        try:
            self._file = self._path.open("ab+", buffering=0)
        except OSError as error:
            raise ResultsLost(f"cannot write {self._path}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise InputError(f"{self._path} is being written by another dsbench: wait for it, or stop it") from None
        self._drop_torn_line()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, *records: Record) -> None:
        self.write_all(records)

    def write_all(self, records: Iterable[Record]) -> None:
        lines = b"".join(line_of(redact_object(RECORD.dump_json(record))) for record in records)
        whole = self._file.seek(0, os.SEEK_END)
        try:
            if os.fstat(self._file.fileno()).st_nlink == 0:
                raise FileNotFoundError(errno.ENOENT, "it was removed while the experiment runs")
            while lines:
                lines = lines[self._file.write(lines) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):  # no half line for the next writer
                self._file.truncate(whole)
            raise ResultsLost(f"cannot write {self._path}: {error.strerror or error}") from None

    def _drop_torn_line(self) -> None:
        """What a killed harness left half written was never a record; new lines must not be glued to it."""
        size = whole = self._file.seek(0, os.SEEK_END)
        while whole:
            start = max(0, whole - ROOM)
            self._file.seek(start)
            found = self._file.read(whole - start).rfind(b"\n")
            if found >= 0:
                whole = start + found + 1
                break
            whole = start
        if whole < size:
            print(f"{self._path}: dropped a torn last line of {size - whole} bytes", file=sys.stderr)
            self._file.truncate(whole)


class Result:
    """A stored experiment, for notebooks: `dsbench.load(path)`. `plan` stands in for the stored one if given."""

    def __init__(self, folder: Path, plan: Plan | None = None) -> None:
        self.folder = folder
        self.plan = plan or load_plan(folder)
        self.records, self.notices = load_records(folder)
        self.verdict = load_verdict(folder)

    def observations(self) -> pandas.DataFrame:
        """One row a reading: boot, attempt, arm, block, phase, metric, value, unit, rank, item, cluster, raw, text."""
        import pandas

        planned = {boot.number: boot for boot in self.plan.boots}
        rows = [
            {"arm": planned[r.boot].arm, "block": planned[r.boot].block, **r.model_dump(exclude={"record"})}
            for r in self.records
            if isinstance(r, Observation)
        ]
        return pandas.DataFrame(rows)

    def verdicts(self) -> pandas.DataFrame:
        """One row a verdict; empty before the first judgement."""
        import pandas

        return pandas.DataFrame([row.model_dump() for row in self.verdict.rows] if self.verdict else [])


def plans_under(out: Path) -> tuple[list[tuple[Path, Plan]], list[str]]:
    """Folder and plan of every result under a folder, at any depth, newest first; and what could not be read."""
    found, notices = [], []
    for path in out.rglob(PLAN):
        try:
            found.append((path.parent, load_plan(path.parent)))
        except InputError as error:
            notices.append(str(error))
    return sorted(found, key=lambda entry: (_moment(entry[1]), entry[1].id), reverse=True), sorted(notices)


def _moment(plan: Plan) -> float:
    try:
        return datetime.fromisoformat(plan.created).timestamp()
    except ValueError:
        return 0.0


def load(path: str | Path) -> Result:
    """Open a result by folder, or by its id under `results/`."""
    return Result(resolve(str(path)))
