"""OpenAI-shaped answers: whole bodies, streamed chunks, usage and logprobs."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from impl import tokenizer
from impl.chat_reply import Call, ReplySplitter
from impl.engine.request import Request
from impl.engine.runner import TokenEvent

Kind = Literal["completion", "chat"]


def token_text(token: int) -> str:
    """A token by itself, as logprobs name it; specials and ids without a character have a name too."""
    return tokenizer.decode([token], specials=True) or f"<{token}>"


@dataclass
class Choice:
    """One prompt of a call, and what it has got so far."""

    index: int
    request: Request
    splitter: ReplySplitter | None = None
    """Takes a chat's reply apart; a completion's is text."""
    text: str = ""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Calls of tools, in OpenAI's shape; they come with the last event."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """Per token, in the chat shape."""
    finish_reason: str | None = None

    def add(self, event: TokenEvent) -> Choice:
        """Take an event; returns what it adds, as a choice of its own."""
        added = Choice(self.index, self.request, self.splitter, finish_reason=event.finish_reason)
        if self.splitter is None:
            added.text = event.text
        else:
            piece = self.splitter.add(event.text, last=event.finish_reason is not None)
            added.text, added.reasoning = piece.content, piece.reasoning
            added.calls = [_called(call) for call in piece.calls]
        if added.calls:
            added.finish_reason = "tool_calls"
        if event.token is not None:
            added.tokens = [event.token]
            added.logprobs = [] if event.logprobs is None else [_token_logprobs(event)]
        self.text += added.text
        self.reasoning += added.reasoning
        self.calls += added.calls
        self.tokens += added.tokens
        self.logprobs += added.logprobs
        self.finish_reason = added.finish_reason
        return added

    @property
    def thinking(self) -> bool:
        """Whether the thought still runs."""
        return self.splitter is not None and self.splitter.thinking

    def message(self, with_reasoning: bool) -> dict[str, Any]:
        """What a chat answers; content is null where there are calls, or where the thought never ended."""
        message: dict[str, Any] = {"role": "assistant", "content": None if self.calls or self.thinking else self.text}
        if with_reasoning:
            message["reasoning_content"] = self.reasoning
        return {**message, "tool_calls": self.calls} if self.calls else message

    def delta(self) -> dict[str, Any]:
        """What a streamed chunk adds to the message."""
        delta: dict[str, Any] = {}
        if self.reasoning or self.thinking:
            delta["reasoning_content"] = self.reasoning
        if self.calls:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(self.calls)]
        elif self.text or not self.thinking:
            delta["content"] = self.text
        return delta


def _called(call: Call) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": f"call_{uuid.uuid4().hex}", "type": "function", "function": function}


@dataclass(frozen=True)
class Answer:
    """The shape of one call's answer."""

    id: str
    kind: Kind
    model: str
    return_token_ids: bool
    with_usage: bool
    """Whether a stream ends with a usage chunk."""
    with_reasoning: bool = False
    """Whether a thought was asked for."""
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The body of a call that does not stream."""
        object_name = "text_completion" if self.kind == "completion" else "chat.completion"
        rows = [self._row(choice, "message", choice.message(self.with_reasoning)) for choice in choices]
        return {**self._head(object_name), "choices": rows, "usage": usage(choices)}

    def role_chunk(self, index: int) -> dict[str, Any]:
        """What a chat's stream opens with."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def chunk(self, added: Choice, offset: int) -> dict[str, Any]:
        """One streamed token; `offset` is the number of characters of the tokens before it."""
        return self._chunk([self._row(added, "delta", added.delta(), offset)])

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {**self._chunk([]), "usage": usage(choices)}

    def _head(self, object_name: str) -> dict[str, Any]:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self.model}

    def _chunk(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        object_name = "text_completion" if self.kind == "completion" else "chat.completion.chunk"
        chunk = {**self._head(object_name), "choices": rows}
        return {**chunk, "usage": None} if self.with_usage else chunk

    def _row(self, choice: Choice, message_key: str, message: dict[str, Any], offset: int = 0) -> dict[str, Any]:
        row: dict[str, Any] = {"index": choice.index, "finish_reason": choice.finish_reason}
        if self.kind == "completion":
            row |= {"text": choice.text, "logprobs": _completion_logprobs(choice, offset)}
        else:
            logprobs = {"content": choice.logprobs} if choice.logprobs else None
            row |= {message_key: message, "logprobs": logprobs}
        return {**row, "token_ids": choice.tokens} if self.return_token_ids else row


def usage(choices: Sequence[Choice]) -> dict[str, int]:
    prompt = sum(len(choice.request.prompt) for choice in choices)
    generated = sum(len(choice.tokens) for choice in choices)
    return {"prompt_tokens": prompt, "completion_tokens": generated, "total_tokens": prompt + generated}


def _token_logprobs(event: TokenEvent) -> dict[str, Any]:
    assert event.token is not None
    assert event.logprobs is not None
    top = [_named(token, logprob) for token, logprob in event.logprobs.top]
    return {**_named(event.token, event.logprobs.chosen), "top_logprobs": top}


def _named(token: int, logprob: float) -> dict[str, Any]:
    text = token_text(token)
    return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _completion_logprobs(choice: Choice, offset: int) -> dict[str, Any] | None:
    """Parallel lists over tokens; `top_logprobs` holds the drawn token even when it is not among the likeliest."""
    if not choice.logprobs:
        return None
    offsets = []
    for token in choice.tokens:
        offsets.append(offset)
        offset += len(choice.request.text_of([token]))
    return {
        "tokens": [entry["token"] for entry in choice.logprobs],
        "token_logprobs": [entry["logprob"] for entry in choice.logprobs],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in (*entry["top_logprobs"], entry)} for entry in choice.logprobs
        ],
        "text_offset": offsets,
    }
