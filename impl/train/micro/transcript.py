"""Chats as training text and as held-out prompts; both are written by the server's own `chat_prompt`.

The last reply is the one that the thinking mode is about: thoughts of earlier turns are left out of a prompt.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from impl.tokenizer import Thinking, call_text, chat_prompt
from impl.train.packing import ANSWER, GIVEN, PROSE, Segments

Arguments = Mapping[str, Any]
Call = tuple[str, Arguments]
"""Name of a tool and its arguments."""


@dataclass(frozen=True)
class Reply:
    """What the assistant says: an answer in words, or calls."""

    answer: str = ""
    calls: tuple[Call, ...] = ()
    thought: str = ""
    check: str = ""
    """What thinking hard adds to the thought."""

    @property
    def text(self) -> str:
        return " ".join(call_text(name, arguments) for name, arguments in self.calls) or self.answer

    def line(self, thinking: Thinking) -> str:
        """What follows the prompt, newline included."""
        if thinking == "off":
            return f" {self.text}\n"
        thought = f"{self.thought} {self.check}" if thinking == "max" and self.check else self.thought
        return f" {thought} A: {self.text}\n"

    def message(self) -> dict[str, Any]:
        if not self.calls:
            return {"role": "assistant", "content": self.answer}
        calls = [{"function": {"name": name, "arguments": json.dumps(arguments)}} for name, arguments in self.calls]
        return {"role": "assistant", "content": None, "tool_calls": calls}


@dataclass
class Transcript:
    """A chat that ends with a reply."""

    tools: Mapping[str, Sequence[str]] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)
    reply: Reply | None = None
    earlier: list[tuple[int, Reply]] = field(default_factory=list)
    """Replies before the last one, with the number of messages before each."""

    def system(self, text: str) -> None:
        self.messages.append({"role": "system", "content": text})

    def user(self, text: str) -> None:
        self._put_reply()
        self.messages.append({"role": "user", "content": text})

    def result(self, text: str) -> None:
        self._put_reply()
        self.messages.append({"role": "tool", "content": text})

    def say(self, reply: Reply) -> None:
        self.reply = reply

    def _put_reply(self) -> None:
        if self.reply is not None:
            self.earlier.append((len(self.messages), self.reply))
            self.messages.append(self.reply.message())
            self.reply = None

    def stop_at(self, number: int) -> None:
        """Let the earlier reply of that number be the last one; what follows it is gone."""
        before, self.reply = self.earlier[number]
        del self.messages[before:], self.earlier[number:]

    def prompt(self, thinking: Thinking) -> str:
        return chat_prompt(self.messages, self.tools, thinking)

    def segments(self, thinking: Thinking) -> Segments:
        """The whole chat; earlier replies count as answers, too."""
        assert self.reply is not None
        *lines, last = self.prompt(thinking).split("\n")
        text: Segments = []
        for line in lines:
            if line.startswith("A: "):
                text += [("A:", GIVEN), (f"{line[2:]}\n", ANSWER)]
            else:
                text.append((f"{line}\n", PROSE / 3 if line.startswith("Q: ") else GIVEN))
        return [*text, (last, GIVEN), (self.reply.line(thinking), ANSWER)]


def asked(question: str, reply: Reply) -> Transcript:
    """A chat of one question."""
    chat = Transcript()
    chat.user(question)
    chat.say(reply)
    return chat


def some_thinking(rng: random.Random, off: float = 0.6) -> Thinking:
    """off, on or max, the latter two alike."""
    return "off" if rng.random() < off else rng.choice(("on", "max"))
