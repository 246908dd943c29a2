"""One run of a pytest selection: an interpreter, a checkout, variables, a deadline, a process group of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsbench.engines.secrets import redact
from dsbench.errors import InputError
from dsbench.score.pytest_report import ENDED, SESSION, Case, PytestReport, last_begun, read_console, read_junit

OPTIONS = (
    "-vv",
    "--color=no",
    "-p",
    "no:cacheprovider",
    "--continue-on-collection-errors",
    "-o",
    "junit_family=xunit1",
)
"""Ids as each test begins, nothing written into the checkout, and a module that cannot be collected costs only its own
tests."""
INTERNAL, USAGE, NOTHING = 3, 4, 5
"""Exit codes of pytest."""
CONFTEST = "ImportError while loading conftest"


class NotRun(Exception):
    """The selection could not be run; the message is its one-line reason."""


@dataclass(frozen=True)
class PytestRun:
    """What is run."""

    python: str
    checkout: Path
    """Where it runs; ids are relative to it."""
    selection: Sequence[str]
    """Arguments of pytest: files, ids, `-k`, `-m`."""
    timeout_s: float
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of this process."""

    def command(self, junit: Path) -> list[str]:
        """Ids are relative to pytest's root, which is the checkout, whatever ini file stands around it."""
        root = f"--rootdir={self.checkout.resolve()}"
        return [self.python, "-P", "-m", "pytest", *OPTIONS, root, f"--junitxml={junit.resolve()}", *self.selection]


def places(selection: Sequence[str]) -> list[str]:
    """The files and folders that a selection names; options and what belongs to them are left out."""
    named = []
    after_option = False
    for part in selection:
        if part.startswith("-"):
            after_option = len(part) == 2
            continue
        if not after_option:
            named.append(part.partition("::")[0])
        after_option = False
    return named


def present(selection: Sequence[str], checkout: Path) -> tuple[list[str], list[str]]:
    """The selection without the files that a checkout lacks, and those files. InputError without any place in it."""
    named = places(selection)
    if not named:
        raise InputError("the selection of tests names no file or folder: give one, such as tests/kernels")
    missing = [place for place in named if not (checkout / place).exists()]
    return [part for part in selection if part.partition("::")[0] not in missing], missing


async def run_pytest(run: PytestRun, junit: Path, log: Path) -> PytestReport:
    """Run it to its end and read its report; `log` gets what it prints. Raises NotRun with the reason.

    A process that ends inside a test, by a signal say, is an error of that test; those after it have no status.
    """
    selection, missing = present(run.selection, run.checkout)
    if not places(selection):
        raise NotRun(f"no {', '.join(missing)} in {run.checkout}")
    junit.unlink(missing_ok=True)
    with log.open("wb") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                *PytestRun(run.python, run.checkout, selection, run.timeout_s).command(junit),
                cwd=run.checkout,
                env={**os.environ, "PYTHONUNBUFFERED": "1", **run.environment},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            raise NotRun(f"cannot start {run.python}: {error.strerror or error}") from None
        try:
            async with asyncio.timeout(run.timeout_s):
                code = await process.wait()
        except TimeoutError:
            raise NotRun(f"not done within {run.timeout_s:g} s{_in_test(_text(log))}") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    return _report(code, junit, _text(log))


def _report(code: int, junit: Path, text: str) -> PytestReport:
    if code in (INTERNAL, USAGE):
        if CONFTEST in text:
            return PytestReport({}, {SESSION: _last_line(text, "E ")})
        why = _option(text) or _last_line(text, "ERROR:") or _last_line(text)
        raise NotRun(f"pytest ended with code {code}: {why}")
    try:
        return read_junit(junit.read_text(encoding="utf-8", errors="replace"), junit.name)
    except (OSError, InputError):
        pass  # the process ended before the report was whole
    if code == NOTHING:
        return PytestReport({})
    ended = f"{ENDED} with {'signal ' + signal.Signals(-code).name if code < 0 else f'code {code}'}"
    with contextlib.suppress(InputError):
        cases = dict(read_console(text, "output").cases)
        if begun := last_begun(text, cases):
            return PytestReport({**cases, begun: Case("error", ended)})
    if begun := last_begun(text, {}):
        return PytestReport({begun: Case("error", ended)})
    raise NotRun(f"{ended}: {_last_line(text)}")


def _option(text: str) -> str:
    """What pytest says of an option that it does not know, behind a line of usage that names every other one."""
    said = re.findall(r"^.*?: error: (.+)$", text, re.MULTILINE)
    return redact(said[-1].strip())[:200] if said else ""


def _in_test(text: str) -> str:
    begun = last_begun(text, {})
    return f", in {begun}" if begun else ""


def _last_line(text: str, start: str = "") -> str:
    """The last line that begins so, without that; the first after pytest's own name for it."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and line.startswith(start)]
    return redact(lines[-1].removeprefix(start).strip())[:200] if lines else ""


def _text(log: Path) -> str:
    return log.read_bytes().decode("utf-8", "replace")
