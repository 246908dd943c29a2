"""One unit of boots on a node: a harness of its own runs them, and every line and folder is told as it is made."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import dsbench
from dsbench.engines.secrets import redact
from dsbench.engines.server import end_with_parent
from dsbench.engines.strays import end_strays
from dsbench.errors import InputError, ResultsLost
from dsbench.pool.hosts import Ended, Files, Line, Message
from dsbench.record_lines import record_of
from dsbench.records import BootEnded, Plan
from dsbench.store import BOOTS, PLAN, RECORDS

HARNESS = (sys.executable, "-P", "-m", "dsbench.pool.unit")
POLL_S = 0.05
SPARE_S = 10.0
"""What a harness may take beyond the stop of its engine."""


def run_unit(unit: Plan, node: str, harness: Sequence[str] = HARNESS) -> Iterator[Message]:
    """Run a plan's boots in a temporary folder of this machine, and tell what is written there.

    Leaving the generator early ends the harness and its engine. What an earlier unit of the same experiment and node
    may have left behind is ended and removed first.
    """
    place = _own_folder() / f"{unit.id}-{node[:16]}"
    end_strays(place)
    shutil.rmtree(place, ignore_errors=True)
    (place / BOOTS).mkdir(parents=True)
    (place / PLAN).write_text(unit.model_dump_json(), encoding="utf-8")
    path = [str(Path(dsbench.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    with (place / "harness.log").open("wb") as log:
        child = subprocess.Popen(
            [*harness, str(place)],
            env={**_own_environment(), "PYTHONPATH": os.pathsep.join(path)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=functools.partial(end_with_parent, os.getpid()),
        )
    try:
        yield from _told(unit, place, child)
        ended = Ended(child.wait(), _last_line(place / "harness.log") if child.returncode else "")
    finally:
        _end(child, unit.timeouts.stop + SPARE_S)
        end_strays(place)
        shutil.rmtree(place, ignore_errors=True)
    # Last of all: whoever hears it may begin the next unit here, in the same place.
    yield ended


def _own_folder() -> Path:
    """A folder of temporary files that nobody else reads or writes: logs may hold keys, and plans name programs."""
    folder = Path(tempfile.gettempdir()) / f"dsbench-pool-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise InputError(f"{folder} is somebody else's, or a link: remove it, or set TMPDIR to a folder of your own")
    folder.chmod(0o700)
    return folder


def _told(unit: Plan, place: Path, child: subprocess.Popen[bytes]) -> Iterator[Message]:
    """Whole lines in order; the folder of a boot goes before the line that ends it."""
    folders = {boot.number: place / BOOTS / boot.folder for boot in unit.boots}
    read = 0
    while True:
        gone = child.poll() is not None
        with contextlib.suppress(FileNotFoundError), (place / RECORDS).open("rb") as file:
            file.seek(read)
            new = file.read()
            whole = new.rfind(b"\n") + 1
            for line in new[:whole].splitlines():
                record = record_of(line)
                if isinstance(record, BootEnded) and folders[record.boot].is_dir():
                    yield Files(record.boot, _packed(folders[record.boot]))
                yield Line(line)
            read += whole
            if whole:
                continue
        if gone:
            return
        time.sleep(POLL_S)


def _packed(folder: Path) -> bytes:
    """All plain files of a folder as tar.gz."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                archive.add(path, arcname=str(path.relative_to(folder)), recursive=False)
    return content.getvalue()


def unpack(archive: bytes, folder: Path) -> None:
    """Write what `_packed` gave, or nothing outside of the folder."""
    with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as content:
        content.extractall(folder, filter="data")


def _own_environment() -> dict[str, str]:
    """The variables of this machine: threads that a pool sets for its workers are none of the engine's."""
    try:
        first = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    as_started = any(variable.startswith(b"OMP_NUM_THREADS=") for variable in first)
    return {name: value for name, value in os.environ.items() if as_started or name != "OMP_NUM_THREADS"}


def _end(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Ask as Ctrl-C does, wait, kill."""
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return redact(lines[-1])[:500] if lines else "it said nothing"


def main(folder: Path) -> int:
    """The harness of one unit. What it does not expect ends the process with its trace, and a code that is not 0."""
    from dsbench.cli.ab import terminate_like_interrupt
    from dsbench.execute import execute
    from dsbench.store import load_plan

    try:
        with terminate_like_interrupt():
            execute(load_plan(folder), folder, quiet=True)
    except (InputError, ResultsLost) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
