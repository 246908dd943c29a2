"""OpenAI-shaped chats: messages, tools, thinking, and the prompt that they make.

`chat_template_kwargs` takes vLLM's names for DeepSeek V4. Without any of them thinking is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from impl import tokenizer
from impl.openai_api import MAX_LOGPROBS, ApiError, GenerationBody, Limits, only, prompt_ids
from impl.tokenizer import Thinking

MAX_TOOLS = 128
Effort = Literal["none", "minimal", "low", "medium", "high", "max"]
"""none: no thought. max asks for a longer one; between the others this engine sees no difference."""
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class TextPart(Part):
    type: Literal["text"]
    text: str


class CalledFunction(Part):
    name: Name
    arguments: str
    """JSON text of an object."""


class ToolCall(Part):
    id: Annotated[str, Field(min_length=1)]
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None


class Message(Part):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    """Required, but for an assistant's message with calls."""
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    """Thoughts of earlier turns are taken and left out of the prompt."""
    reasoning: str | None = None
    refusal: Annotated[str | None, only(None)] = None
    annotations: Annotated[list[Any] | None, only([])] = None
    audio: Annotated[dict[str, Any] | None, only(None)] = None
    function_call: Annotated[dict[str, Any] | None, only(None)] = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content or ())


class Parameters(BaseModel):
    """The JSON schema of a function's arguments; only their names reach the prompt."""

    model_config = ConfigDict(strict=True, extra="allow")
    type: Literal["object"] = "object"
    properties: dict[str, Any] = {}


class Function(Part):
    name: Name
    description: str | None = None
    parameters: Parameters | None = None
    strict: bool | None = None


class Tool(Part):
    type: Literal["function"]
    function: Function


class TemplateKwargs(Part):
    thinking: bool | None = None
    enable_thinking: bool | None = None
    reasoning_effort: Effort | None = None


class ChatBody(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    tools: Annotated[list[Tool] | None, Field(min_length=1, max_length=MAX_TOOLS)] = None
    tool_choice: Literal["auto", "none"] | None = None
    """none: the tools are left out of the prompt, and an answer that looks like a call is text."""
    parallel_tool_calls: Annotated[bool | None, only(True)] = None
    chat_template_kwargs: TemplateKwargs | None = None
    reasoning_effort: Effort | None = None
    """Alone it also turns thinking on; `chat_template_kwargs` goes before it."""

    @property
    def thinking(self) -> Thinking:
        asked = self.chat_template_kwargs or TemplateKwargs()
        effort = asked.reasoning_effort or self.reasoning_effort
        switches = [switch for switch in (asked.thinking, asked.enable_thinking) if switch is not None]
        on = any(switches) if switches else effort is not None
        if not on or effort == "none":
            return "off"
        return "max" if effort == "max" else "on"

    @property
    def offered(self) -> list[Tool]:
        """Tools that the model may call."""
        return [] if self.tool_choice == "none" else self.tools or []


def chat_ids(body: ChatBody, limits: Limits) -> list[int]:
    """Token ids of a chat, in the format the model is trained on. Raises ApiError 400."""
    _check_messages(body.messages)
    if body.tool_choice == "auto" and not body.tools:
        raise ApiError(400, "tool_choice needs tools", "tool_choice")
    tools: dict[str, list[str]] = {}
    for tool in body.offered:
        if tool.function.name in tools:
            raise ApiError(400, f"tools: {tool.function.name} is there twice", "tools")
        tools[tool.function.name] = [*(tool.function.parameters or Parameters()).properties]
    messages = [
        {**message.model_dump(include={"role", "tool_calls"}), "content": message.text} for message in body.messages
    ]
    try:
        text = tokenizer.chat_prompt(messages, tools, body.thinking)
    except ValueError as error:
        raise ApiError(400, f"messages: {error}", "messages") from error
    return prompt_ids(text, limits, "messages")


def _check_messages(messages: Sequence[Message]) -> None:
    """What each role must have and cannot have; a tool's message answers a call of the assistant before it."""
    open_calls: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages.{number}"
        if message.tool_calls is not None and (message.role != "assistant" or not message.tool_calls):
            raise _bad(f"{where}.tool_calls: only an assistant's message has them, and then at least one")
        if message.content is None and not message.tool_calls:
            raise _bad(f"{where}.content is required")
        if message.role == "tool":
            if message.tool_call_id is None:
                raise _bad(f"{where}.tool_call_id is required")
            if message.tool_call_id not in open_calls:
                raise _bad(f"{where}.tool_call_id: '{message.tool_call_id}' is no open call of the assistant before it")
            open_calls.remove(message.tool_call_id)
        elif message.tool_call_id is not None:
            raise _bad(f"{where}.tool_call_id: only a tool's message has one")
        else:
            open_calls = {call.id for call in message.tool_calls or ()}


def _bad(message: str) -> ApiError:
    return ApiError(400, message, "messages")
