"""Characters to token ids and back, and the chat format (torch-free).

One character is one token: ids 0..94 are the printable ASCII characters, 95 is the newline, and four
specials follow. Every shape with a vocabulary of at least 100 can use it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

FIRST_CHAR = 32
NEWLINE = 95
PAD = 96
BOS = 97
EOS = 98
NOISE = 99
"""Filler input of a draft block; never part of text."""
VOCAB_SIZE = 100

UNKNOWN = ord("?") - FIRST_CHAR


def encode(text: str) -> list[int]:
    """Token ids of `text`, without bos; a character outside the vocabulary becomes `?`."""
    return [NEWLINE if c == "\n" else ord(c) - FIRST_CHAR if " " <= c <= "~" else UNKNOWN for c in text]


def decode(ids: Iterable[int]) -> str:
    """Text of `ids`; specials and ids outside the vocabulary are dropped."""
    return "".join("\n" if i == NEWLINE else chr(i + FIRST_CHAR) for i in ids if 0 <= i <= NEWLINE)


def chat_prompt(messages: Sequence[Mapping[str, str]]) -> str:
    """The text a chat is continued from: `Q: ...` and `A: ...` lines, ending in `A:`.

    `messages` hold `role` (system, user or assistant) and `content`.
    Raises ValueError for another role or for a chat that does not end with a user turn.
    """
    lines: list[str] = []
    for message in messages:
        role, content = message["role"], message["content"]
        if role == "system":
            lines.append(f"{content}\n")
        elif role == "user":
            lines.append(f"Q: {content}\nA:")
        elif role == "assistant":
            lines.append(f" {content}\n")
        else:
            raise ValueError(f"message role {role!r} is unknown: use system, user or assistant")
    if not messages or messages[-1]["role"] != "user":
        raise ValueError("the last message must be a user turn")
    return "".join(lines)
