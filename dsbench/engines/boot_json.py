"""JSON that an engine leaves in its boot's folder: plain files of a size and a depth that any reader can bear."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from dsbench.json_text import read_json

MOST_BYTES = 1 << 20
"""Of a file; conditions and profiles have some thousand."""
DEEPEST = 32


def read_object(path: Path) -> dict[str, Any]:
    """The object in a file. OSError if there is no file, ValueError, in one line, if it is not what it should be."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is opened at once, and then refused
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ValueError("it is not a plain file")
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it is larger than {MOST_BYTES >> 20} MiB")
    try:
        value = read_json(content.decode())
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    if not isinstance(value, dict):
        raise ValueError("it is not an object")
    if _deeper(value, DEEPEST):
        raise ValueError("it is nested too deep")
    return value


def _deeper(value: Any, levels: int) -> bool:
    """Whether a value has more than so many levels."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_deeper(part, levels - 1) for part in parts)
