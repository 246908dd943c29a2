"""Errors that are the user's to mend: one clear line, exit code 2, nothing written."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input. The message is one line that names the thing, the value and the mend."""


class ResultsLost(Exception):
    """Results cannot be stored, in the middle of a run: one clear line, exit code 2. What was stored before stays."""
