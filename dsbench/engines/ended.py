"""How an engine's process ended: by which signal, and whether the kernel says that memory ran out."""

from __future__ import annotations

import signal
from pathlib import Path

OWN_GROUP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


KILLS = (signal.SIGKILL, signal.SIGTERM)
"""Signals that come from outside. An engine that ends by another one, or with a code of its own, failed by itself."""
INTERRUPTS = (signal.SIGINT, signal.SIGHUP)
"""What a terminal sends. No engine sends it to itself, but some take it for a request, and which, nobody tells."""
SHELL = 128
"""A shell, and what wraps a command as one does, ends with this and the number of the signal that ended the command."""


def signal_of(code: int | None, *, wrapped: bool = False) -> int | None:
    """The signal that ended a process, from its return code as `subprocess` gives it; None if none did.

    `wrapped`: of a shell or another wrapper, whose 137 and 143 tell that SIGKILL and SIGTERM ended what it ran.
    """
    if code is None:
        return None
    if wrapped and code - SHELL in KILLS:
        return code - SHELL
    return -code if code < 0 else None


def signal_named(number: int) -> str:
    """`signal 9 (SIGKILL)`; a number without a name stands alone."""
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def killed_words(number: int | None, oom_kills_before: int | None) -> str:
    """For an error message: that this signal ended the process and where to look for its cause; '' for None."""
    if number is None:
        return ""
    cause = ""
    if number == signal.SIGKILL:
        now = oom_kills()
        told = now is not None and oom_kills_before is not None and now > oom_kills_before
        cause = ": out of memory, says the kernel (oom_kill of memory.events)" if told else ": out of memory? see dmesg"
    return f"; killed by {signal_named(number)}{cause}"


def oom_kills() -> int | None:
    """Processes of our control group (version 2) killed for want of memory so far; None where the kernel does not say.

    An engine stays in the group of its harness unless its own commands lead it out.
    """
    try:
        own = next(line[3:] for line in OWN_GROUP.read_text("ascii").splitlines() if line.startswith("0::"))
        events = (GROUPS / own.lstrip("/") / "memory.events").read_text("ascii").splitlines()
        return int(next(line for line in events if line.startswith("oom_kill ")).split()[1])
    except (OSError, ValueError, IndexError, StopIteration):
        return None
