"""TOML text as a dict: of a size and a depth that are read in a moment, so that no file can keep the reader busy."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 1 << 18
"""Longest text; no suite is a tenth of this."""
DEEPEST = 32
"""Levels of tables and lists; no file needs more than a few."""
MOST_BITS = 1024
"""Of a whole number; float's largest has as many."""

# Time grows with the square of the levels of a dotted key.
_PART = r"""(?:[\w-]{1,100}|"[^"\n]{0,100}"|'[^'\n]{0,100}')[ \t]{0,100}\.[ \t]{0,100}"""
_TOO_DEEP = re.compile(rf"""(?<![\w"'-])(?:{_PART}){{{DEEPEST}}}""")


def text_of(path: Path) -> str:
    """The text of a TOML file; of one that is too long as much as `read_toml` refuses. OSError, UnicodeDecodeError."""
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_CHARACTERS + 1)


def read_toml(text: str) -> dict[str, Any]:
    """The content of a TOML text. TOMLDecodeError for any text that is not read, whatever the reason."""
    if len(text) > MOST_CHARACTERS:
        raise tomllib.TOMLDecodeError(f"longer than {MOST_CHARACTERS:,} characters, the most that are read")
    if _TOO_DEEP.search(text):
        raise tomllib.TOMLDecodeError(f"a key of more than {DEEPEST} levels")
    try:
        content = tomllib.loads(text)
        _check_numbers(content)
        return content
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError:
        raise tomllib.TOMLDecodeError("lists and tables are nested too deep") from None
    except ValueError as error:  # an integer of thousands of digits, a day that no month has
        raise tomllib.TOMLDecodeError(str(error).partition(";")[0]) from None


def _check_numbers(value: Any) -> None:
    """Hexadecimal digits have no limit, and a number of thousands of bits can be neither printed nor compared."""
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_numbers(part)
    elif isinstance(value, int) and value.bit_length() > MOST_BITS:
        raise tomllib.TOMLDecodeError(f"a whole number of more than {MOST_BITS:,} bits")
