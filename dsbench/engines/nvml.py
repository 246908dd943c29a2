"""NVML, asked with a deadline: a driver that hangs holds the harness up once, and is not asked again."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

from dsbench.engines.secrets import redact

ANSWER_S = 10.0
"""Longest wait for one question. A driver whose GPUs sleep takes seconds to wake them."""
LONGEST = 200
"""Characters of a text of the driver's."""
MEND = "see nvidia-smi and dmesg"

Answer = TypeVar("Answer")

_gave_up: list[str] = []
"""Why NVML is asked no more in this process; empty as long as it is."""


class Hangs(Exception):
    """NVML did not answer in time; the message says so in one line."""


def gave_up() -> str:
    """Why NVML is asked no more; '' as long as it is."""
    return "".join(_gave_up[:1])


def give_up() -> str:
    """From now on NVML is not asked; returns why."""
    _gave_up.append(f"NVML did not answer within {ANSWER_S:g} s, and is not asked again in this run ({MEND})")
    return gave_up()


def bounded(question: Callable[[], Answer]) -> Answer:
    """The answer to a question that may never be answered; what it raises is raised here. Hangs after ANSWER_S.

    A thread that hangs in the driver cannot be ended: it is left, and ends with the process.
    """
    if why := gave_up():
        raise Hangs(why)
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(question())
        except BaseException as error:
            answer.set_exception(error)

    threading.Thread(target=ask, name="dsbench-nvml", daemon=True).start()
    try:
        return answer.result(ANSWER_S)
    except TimeoutError:
        if answer.done():
            raise
        raise Hangs(give_up()) from None


@contextlib.contextmanager
def session() -> Iterator[Any]:
    """NVML, initialised; None without the library, a driver or a GPU. It may hang, anywhere."""
    try:
        import pynvml
    except ModuleNotFoundError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        yield pynvml if pynvml.nvmlDeviceGetCount() else None
    finally:
        with contextlib.suppress(pynvml.NVMLError):  # of a GPU that is lost
            pynvml.nvmlShutdown()


def text(value: Any) -> str:
    """A name or a version that a driver tells, as one line: redacted, then of printable characters, then cut."""
    told = redact(value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value))
    return " ".join("".join(c if c.isprintable() else " " for c in told).split())[:LONGEST]


def failed(error: Exception) -> str:
    """Why something is unknown, from whatever was raised when NVML was asked: one line."""
    if isinstance(error, Hangs):
        return str(error)
    return f"NVML failed ({text(f'{type(error).__name__}: {error}')}; {MEND})"
