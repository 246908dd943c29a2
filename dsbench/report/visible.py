"""Texts of others made safe to show: no control characters, no turned direction of writing, no half characters."""

from __future__ import annotations

REPLACEMENT = "\ufffd"
KEPT = "\t\n\r"

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
_DIRECTIONS = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
"""They make a line read otherwise than it is."""
_SURROGATES = range(0xD800, 0xE000)
"""JSON may name half of a character; no file and no terminal takes it."""
_HIDDEN = {code: REPLACEMENT for code in [*_CONTROLS, *_DIRECTIONS, *_SURROGATES] if chr(code) not in KEPT}


def visible(text: str) -> str:
    """The text with a replacement sign for each character that would act on a terminal or a page instead of showing."""
    return text.translate(_HIDDEN)
