"""Map files of tests: which ids of one arm alone inherit from which, where no rule can know it."""

from __future__ import annotations

import tomllib

from dsbench.errors import InputError
from dsbench.toml_text import read_toml


def parse_map(text: str, source: str) -> dict[str, str]:
    """Parents by test, both ids or patterns with `*`, from lines `"test_new[128]" = "test_old[*-128]"` (TOML).

    An id without `::` speaks of tests of that name in any module. InputError, naming `source`, for anything else.
    """
    try:
        content = read_toml(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f'{source}: no map of tests: {error}; write "test_new[128]" = "test_old[*-128]"') from None
    for name, parent in content.items():
        if not isinstance(parent, str) or not parent.strip() or not name.strip():
            raise InputError(f"{source}: '{name}' must be one id, in quotes, got {str(parent)[:60]!r}")
    return content
