"""Where an experiment lives: `results/<id>/` with plan.json, records.jsonl, verdicts.json and boots/."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import re
import shutil
import sys
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from pydantic import ValidationError

from dsbench.engines.secrets import redact_object
from dsbench.errors import InputError, ResultsLost
from dsbench.plan_match import check_match
from dsbench.plan_nouns import Plan, plan_digest
from dsbench.record_lines import lines_of, parse, read_records
from dsbench.records import RECORD, Observation, Record
from dsbench.storable import plan_text
from dsbench.verdict_nouns import ExperimentVerdict

if TYPE_CHECKING:
    import pandas

PLAN, RECORDS, VERDICTS, BOOTS = "plan.json", "records.jsonl", "verdicts.json", "boots"
ROOM = 64 * 1024


def write_text(path: Path, text: str) -> None:
    """As `write_bytes`."""
    write_bytes(path, text.encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Replace a file as `replace_bytes` does; a device or a pipe is written to. OSError, which names the path."""
    if path.exists() and not path.is_file():
        path.write_bytes(content)
    else:
        replace_bytes(path, content)


def replace_bytes(path: Path, content: bytes) -> None:
    """Replace a file in one step, on the disk before it has its name; what cannot be written leaves nothing.

    No pipe is waited for, and no link is followed: it is the name that gets another file.
    """
    draft = path.with_name(f".{path.name}.tmp")
    try:
        draft.unlink(missing_ok=True)  # of a writer that was killed, or a link that leads elsewhere
        with draft.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def create(plan: Plan, out: Path) -> Path:
    """Make the folder of a new experiment with its plan in it; InputError if that is not possible, or may not be."""
    text = plan_text(plan)
    folder = out / plan.id
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InputError(f"result {folder} is there already; give another --out, or --resume it") from None
    except OSError as error:
        raise InputError(f"cannot write results to {out}: {error.strerror or error}") from None
    try:
        (folder / BOOTS).mkdir()
        write_text(folder / PLAN, text)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise InputError(f"cannot write results to {out}: {error.strerror or error}") from None
    return folder


def resolve(name: str, out: Path = Path("results")) -> Path:
    """A result's folder from its path, or from its id under `out`. InputError otherwise."""
    for folder in (Path(name), out / name):
        if os.path.isfile(folder / PLAN):  # False also for what no path can be
            return folder
    if re.fullmatch(r"[\w.,=+-]+", name) and out.is_dir():
        near = sorted(f.name for f in out.glob(f"*{name}*") if (f / PLAN).is_file())
        if len(near) == 1:
            return out / near[0]
        if near:
            raise InputError(f"result '{name}' is not one: {', '.join(near)}; name it whole")
    raise InputError(f"no result at '{name}' (no {PLAN} there or under {out}/): give a folder or an id")


def _content(path: Path) -> bytes:
    """Of a plain file: a pipe would be waited for. FileNotFoundError where there is nothing, else InputError."""
    try:
        if not path.is_file() and path.exists():
            raise InputError(f"{path} is not a plain file")
        return path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def load_plan(folder: Path) -> Plan:
    """The stored plan. InputError if there is none, or none that this version reads."""
    return _load_plan(folder)[0]


def stored_digest(folder: Path) -> str:
    """`plan_digest` of the stored plan, which a run's record tells; empty where no plan is stored."""
    return _load_plan(folder)[1] if (folder / PLAN).exists() else ""


def _load_plan(folder: Path) -> tuple[Plan, str]:
    try:
        content = _content(folder / PLAN)
        return Plan.model_validate_json(content), plan_digest(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError(f"{folder / PLAN} is not a plan this version reads: {where} {first['msg']}") from None
    except FileNotFoundError as error:
        raise InputError(f"{folder / PLAN}: {error.strerror}") from None


def load_records(folder: Path) -> tuple[list[Record], list[str]]:
    """All records in order, and notices; none where no boot has run.

    InputError for a line that is not as written, and for records of another plan than the one stored beside them.
    """
    path = folder / RECORDS
    try:
        records, notices = read_records(path)
    except FileNotFoundError:
        return [], [f"{path} is not there: no boot has run"]
    if (folder / PLAN).exists():
        notices += check_match(*_load_plan(folder), records, path)
    return records, notices


def load_verdict(folder: Path) -> ExperimentVerdict | None:
    """The stored verdict; None if there is none yet."""
    try:
        return ExperimentVerdict.model_validate_json(_content(folder / VERDICTS))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise InputError(
            f"{folder / VERDICTS} is no verdict of this version ({error.error_count()} problems): judge it again"
        ) from None


def save_verdict(folder: Path, verdict: ExperimentVerdict) -> None:
    """Store a verdict. ResultsLost where that is not possible."""
    try:
        replace_bytes(folder / VERDICTS, f"{verdict.model_dump_json(indent=1)}\n".encode())
    except OSError as error:
        told = f"cannot write {folder / VERDICTS}: {error.strerror or error}"
        raise ResultsLost(f"{told}; the records are whole: mend it, then dsbench judge {folder}") from None


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


def _own_boots(folder: Path) -> None:
    """Make the folder of all boots anew where it is gone, as in a copy without logs.

    ResultsLost where it is no folder of the result's own, or one in it is a link: engines would write elsewhere.
    """
    boots = folder / BOOTS
    told = "is a link, which leads elsewhere: put the folder itself in its place"
    try:
        if boots.is_symlink():
            raise ResultsLost(f"cannot write {boots}: it {told}")
        if boots.exists() and not boots.is_dir():
            raise ResultsLost(f"cannot write {boots}: it is no folder: remove it, or put the folder in its place")
        boots.mkdir(exist_ok=True)
        with os.scandir(boots) as found:
            links = sorted(entry.name for entry in found if entry.is_symlink())
    except OSError as error:
        raise ResultsLost(f"cannot write {boots}: {error.strerror or error}") from None
    if links:
        raise ResultsLost(f"cannot write {boots / links[0]}: it {told}")


def _no_link(path: str, flags: int) -> int:
    """An opener that follows no link: what is appended belongs to the result and to no other file."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


class RecordWriter:
    """Appends records, each on the disk before the next and told by it; one writer a folder.

    ResultsLost where nothing more can be stored. What was written before stays as it is.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / RECORDS
        self._end: tuple[int, int] | None = None
        """Bytes of the file, and the checksum of its last line; None after a write that did not come to its end."""

    def __enter__(self) -> RecordWriter:
        _own_boots(self._path.parent)
        try:
            self._file = open(self._path, "ab+", buffering=0, opener=_no_link)
        except OSError as error:
            raise ResultsLost(f"cannot write {self._path}: {error.strerror or error}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._end = self._found_end()
        except BlockingIOError:
            self._file.close()
            raise InputError(f"{self._path} is being written by another dsbench: wait for it, or stop it") from None
        except OSError as error:
            self._file.close()
            raise ResultsLost(f"cannot write {self._path}: {error.strerror or error}") from None
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def write(self, *records: Record) -> None:
        self.write_all(records)

    def write_all(self, records: Iterable[Record]) -> None:
        try:
            size, crc32 = self._end or self._found_end()
            lines = list(lines_of((redact_object(RECORD.dump_json(record)) for record in records), crc32))
            left = b"".join(lines)
            end = size + len(left), parse(lines[-1][:-1]).crc32 if lines else crc32
            self._end = None
            self._check_unchanged(size)
            try:
                while left:
                    left = left[self._file.write(left) :]
                os.fsync(self._file.fileno())
            except OSError:
                with contextlib.suppress(OSError):  # no half line for the next writer
                    self._file.truncate(size)
                raise
        except OSError as error:
            raise ResultsLost(f"cannot write {self._path}: {error.strerror or error}") from None
        self._end = end

    def _check_unchanged(self, size: int) -> None:
        status = os.fstat(self._file.fileno())
        if status.st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "it was removed while the experiment runs")
        if status.st_size != size:
            raise OSError(errno.EIO, "another program changed it while the experiment runs")

    def _found_end(self) -> tuple[int, int]:
        """Size, and the checksum of the last whole line; what stands behind that is dropped.

        What a killed harness left half written was never a record; new lines must not be glued to it.
        """
        size = self._file.seek(0, os.SEEK_END)
        if not size:
            return 0, 0
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            whole = content.rfind(b"\n") + 1
            last = content[content.rfind(b"\n", 0, max(0, whole - 1)) + 1 : max(0, whole - 1)]
        if whole < size:
            print(f"{self._path}: dropped a torn last line of {size - whole} bytes", file=sys.stderr)
            self._file.truncate(whole)
        try:
            return whole, parse(last).crc32 if whole else 0
        except ValueError as error:
            raise InputError(f"{self._path}: its last line is damaged: {error}; take the file from a copy") from None


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
