"""Errors that are the user's to mend: one clear line, exit code 2, nothing written."""

from __future__ import annotations


class InputError(ValueError):
    """Bad input. The message is one line that names the thing, the value and the mend."""
