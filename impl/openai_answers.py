"""OpenAI-shaped answers: whole bodies, streamed chunks, usage and logprobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from impl import tokenizer
from impl.engine.request import Request
from impl.engine.runner import TokenEvent

Kind = Literal["completion", "chat"]
_SPECIALS = {tokenizer.PAD: "<pad>", tokenizer.BOS: "<bos>", tokenizer.EOS: "<eos>", tokenizer.NOISE: "<noise>"}


def token_text(token: int) -> str:
    """A token by itself, as logprobs name it; specials and ids without a character have a name too."""
    return tokenizer.decode([token]) or _SPECIALS.get(token, f"<{token}>")


@dataclass
class Choice:
    """One prompt of a call, and what it has got so far."""

    index: int
    request: Request
    kind: Kind
    text: str = ""
    """Text of the answer; a chat's goes without the blank that follows `A:`."""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """Per token, in the chat shape."""
    finish_reason: str | None = None

    def add(self, event: TokenEvent) -> Choice:
        """Take an event; returns what it adds, as a choice of its own."""
        text = event.text if self.text or self.kind == "completion" else event.text.removeprefix(" ")
        tokens = [] if event.token is None else [event.token]
        logprobs = [] if event.token is None or event.logprobs is None else [_token_logprobs(event)]
        added = Choice(self.index, self.request, self.kind, text, tokens, logprobs, event.finish_reason)
        self.text += text
        self.tokens += tokens
        self.logprobs += logprobs
        self.finish_reason = event.finish_reason
        return added


@dataclass(frozen=True)
class Answer:
    """The shape of one call's answer."""

    id: str
    kind: Kind
    model: str
    return_token_ids: bool
    with_usage: bool
    """Whether a stream ends with a usage chunk."""
    created: int = field(default_factory=lambda: int(time.time()))

    def whole(self, choices: Sequence[Choice]) -> dict[str, Any]:
        """The body of a call that does not stream."""
        object_name = "text_completion" if self.kind == "completion" else "chat.completion"
        rows = [self._row(choice, "message", {"role": "assistant", "content": choice.text}) for choice in choices]
        return {**self._head(object_name), "choices": rows, "usage": usage(choices)}

    def role_chunk(self, index: int) -> dict[str, Any]:
        """What a chat's stream opens with."""
        delta = {"role": "assistant", "content": ""}
        return self._chunk([{"index": index, "delta": delta, "logprobs": None, "finish_reason": None}])

    def chunk(self, added: Choice, offset: int) -> dict[str, Any]:
        """One streamed token; `offset` is the number of characters of the tokens before it."""
        return self._chunk([self._row(added, "delta", {"content": added.text}, offset)])

    def usage_chunk(self, choices: Sequence[Choice]) -> dict[str, Any]:
        return {**self._chunk([]), "usage": usage(choices)}

    def _head(self, object_name: str) -> dict[str, Any]:
        return {"id": self.id, "object": object_name, "created": self.created, "model": self.model}

    def _chunk(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        object_name = "text_completion" if self.kind == "completion" else "chat.completion.chunk"
        chunk = {**self._head(object_name), "choices": rows}
        return {**chunk, "usage": None} if self.with_usage else chunk

    def _row(self, choice: Choice, message_key: str, message: dict[str, str], offset: int = 0) -> dict[str, Any]:
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
        offset += len(tokenizer.decode([token]))
    return {
        "tokens": [entry["token"] for entry in choice.logprobs],
        "token_logprobs": [entry["logprob"] for entry in choice.logprobs],
        "top_logprobs": [
            {top["token"]: top["logprob"] for top in (*entry["top_logprobs"], entry)} for entry in choice.logprobs
        ],
        "text_offset": offsets,
    }
