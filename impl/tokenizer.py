"""Characters to token ids and back, and the chat format (torch-free).

One character is one token: ids 0..94 are the printable ASCII characters, 95 is the newline, and four
specials follow. Every shape with a vocabulary of at least 100 can use it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

FIRST_CHAR = 32
NEWLINE = 95
PAD = 96
BOS = 97
EOS = 98
NOISE = 99
"""Filler input of a draft block; never part of text."""
VOCAB_SIZE = 100
SPECIALS = {PAD: "<|pad|>", BOS: "<|bos|>", EOS: "<|eos|>", NOISE: "<|noise|>"}
"""What specials look like where they are shown."""

UNKNOWN = ord("?") - FIRST_CHAR


def encode(text: str) -> list[int]:
    """Token ids of `text`, without bos; a character outside the vocabulary becomes `?`."""
    return [NEWLINE if c == "\n" else ord(c) - FIRST_CHAR if " " <= c <= "~" else UNKNOWN for c in text]


def decode(ids: Iterable[int], *, specials: bool = False) -> str:
    """Text of `ids`; ids outside the vocabulary are dropped, and specials unless they are asked for."""
    shown = SPECIALS if specials else {}
    return "".join("\n" if i == NEWLINE else chr(i + FIRST_CHAR) if 0 <= i < NEWLINE else shown.get(i, "") for i in ids)


Thinking = Literal["off", "on", "max"]


def chat_prompt(
    messages: Sequence[Mapping[str, Any]], tools: Mapping[str, Sequence[str]] | None = None, thinking: Thinking = "off"
) -> str:
    """The text a chat is continued from: one line a message, ending in `A:`, or in `H:` for a thought before it.

    `messages` are OpenAI's, with text as content: system lines as they are, `Q: ...` of the user, `A: ...` of the
    assistant, `R: ...` for a tool's result. An assistant message with `tool_calls` is its calls. Thoughts of earlier
    turns are left out. `tools` gives the names of arguments by name of tool: lines `T: name(arg,arg)` before
    everything else. With `thinking` max the line `Think hard.` stands before the last question.
    Raises ValueError for another role, calls that cannot be written, a result that follows no call, and a chat that
    does not end with a user turn or a result.
    """
    lines = [f"T: {name}({','.join(arguments)})" for name, arguments in (tools or {}).items()]
    questions = [number for number, message in enumerate(messages) if message["role"] == "user"]
    for number, message in enumerate(messages):
        role, content = message["role"], message.get("content")
        if role == "system":
            lines.append(f"{content}")
        elif role == "user":
            lines += ["Think hard."] if thinking == "max" and number == questions[-1] else []
            lines.append(f"Q: {content}")
        elif role == "assistant":
            lines.append(f"A: {_calls_text(message['tool_calls']) if message.get('tool_calls') else content}")
        elif role == "tool":
            before = messages[number - 1] if number else {"role": "nothing"}
            if before["role"] != "tool" and not before.get("tool_calls"):
                raise ValueError(f"a tool message must follow the assistant's tool_calls, not {before['role']}")
            lines.append(f"R: {content}")
        else:
            raise ValueError(f"message role {role!r} is unknown: use system, user, assistant or tool")
    if not messages or messages[-1]["role"] not in ("user", "tool"):
        raise ValueError("the last message must be a user turn or a tool result")
    return "\n".join([*lines, "A:" if thinking == "off" else "H:"])


def call_text(name: str, arguments: Mapping[str, Any]) -> str:
    """One call as the model writes it: `!name {"arg": "value"}`; a blank stands between two calls of an answer."""
    return f"!{name} {json.dumps(arguments, ensure_ascii=False)}"


def _calls_text(calls: Sequence[Mapping[str, Any]]) -> str:
    """An assistant's `tool_calls`, whose arguments are JSON text, as one answer."""
    told = []
    for call in calls:
        name, text = call["function"]["name"], call["function"]["arguments"]
        try:
            arguments = json.loads(text)
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            raise ValueError(f"the arguments of the call of {name} must be the text of a JSON object, got {text!r}")
        told.append(call_text(name, arguments))
    return " ".join(told)
