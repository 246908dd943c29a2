"""Errors that are the user's to mend: one clear line, exit code 2, nothing written."""

from __future__ import annotations

LONGEST = 1000
"""Characters of a line; files may hold names and values of any length."""


class InputError(ValueError):
    """Bad input. The message is one line that names the thing, the value and the mend, whatever the input holds.

    Secrets of the environment are taken out of it, before it is cut.
    """

    def __init__(self, line: str) -> None:
        from dsbench.engines.secrets import redact  # which raises this error

        line = redact(line)
        plain = line if line.isprintable() else "".join(c if c.isprintable() else " " for c in line)
        super().__init__(plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 310]} [...] {plain[-300:]}")


class ResultsLost(Exception):
    """Results cannot be stored, in the middle of a run: one clear line, exit code 2. What was stored before stays."""
