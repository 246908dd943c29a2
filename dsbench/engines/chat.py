"""Replies of a chat with tools and thinking, read from an OpenAI-shaped answer, and the turns they become."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsbench.engines.secrets import redact

Thinking = Literal["off", "high", "max"]


@dataclass(frozen=True)
class ToolCall:
    """One call that the model asks for."""

    id: str
    name: str
    arguments: str
    """JSON text; nobody has checked it."""

    def as_field(self) -> dict[str, Any]:
        """The call as a message holds it. Arguments that are no JSON object become empty: servers refuse them."""
        arguments = self.arguments if _is_object(self.arguments) else "{}"
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": arguments}}


@dataclass(frozen=True)
class ChatReply:
    """One finished turn of a model."""

    content: str
    reasoning: str
    """The thought, split off by the engine; empty where it gives none."""
    calls: tuple[ToolCall, ...]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """From sending the request to the last byte of the answer."""

    def as_message(self) -> dict[str, Any]:
        """The assistant's message, as the next request of the conversation holds it."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if not self.calls:
            return message
        return {**message, "content": self.content or None, "tool_calls": [call.as_field() for call in self.calls]}


def thinking_fields(thinking: Thinking | None) -> dict[str, Any]:
    """What a request says of thinking, in vLLM's names for DeepSeek V4 and in those of other models' templates.

    None says nothing and takes the engine's default, which differs between versions of vLLM.
    """
    if thinking is None:
        return {}
    on = thinking != "off"
    effort = {"reasoning_effort": thinking} if on else {}
    return {"chat_template_kwargs": {"thinking": on, "enable_thinking": on, **effort}}


def read_reply(answer: Any, seconds: float) -> ChatReply:
    """Raises KeyError, IndexError, TypeError or ValueError for an answer that is not the protocol."""
    choice, usage = answer["choices"][0], answer["usage"]
    message = choice["message"]
    return ChatReply(
        content=_text(message.get("content")),
        reasoning=_text(message.get("reasoning_content") or message.get("reasoning")),
        calls=_read_calls(message.get("tool_calls") or ()),
        finish_reason=choice.get("finish_reason"),
        prompt_tokens=int(usage["prompt_tokens"]),
        completion_tokens=int(usage["completion_tokens"]),
        seconds=seconds,
    )


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def _text(value: Any) -> str:
    if not isinstance(value, str | None):
        raise ValueError(f"a text, but with {redact(str(value))[:40]}")
    return value or ""


def _read_calls(calls: Sequence[dict[str, Any]]) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(str(call["id"]), str(call["function"]["name"]), _text(call["function"]["arguments"])) for call in calls
    )
