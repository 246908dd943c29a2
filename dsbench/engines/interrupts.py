"""Interrupts that wait while an engine is ended: half an end leaves an engine in the way of the next boot."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """The first signal that would interrupt the block takes effect behind it; a second one at once.

    What is ignored stays so, and outside the main thread, which no signal interrupts, nothing is done.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in HELD}
    before = {number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)}
    waiting: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        waiting.append(number)
        if len(waiting) > 1:
            waiting.clear()
            restore()
            signal.raise_signal(number)

    for number in before:
        signal.signal(number, hold)
    try:
        yield
    finally:
        restore()
        if waiting:
            signal.raise_signal(waiting[0])
