"""Chats over HTTP against an engine that says what it is told: calls, thoughts, streams, and what is refused."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from impl import tokenizer
from impl.engine.request import Request
from impl.engine.runner import TokenEvent
from impl.openai_api import Limits
from impl.routes import Routes

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": {"properties": {"city": {}}}}},
    {"type": "function", "function": {"name": "get_time", "description": "The time.", "strict": True}},
]
USER = {"role": "user", "content": "hi"}


class Says:
    """An engine whose every reply is one text, a token an event."""

    def __init__(self, reply: str) -> None:
        self.reply, self.prompts = reply, []

    def submit(self, request: Request, events: asyncio.Queue[TokenEvent]) -> None:
        self.prompts.append(tokenizer.decode(request.prompt))
        for token in tokenizer.encode(self.reply):
            events.put_nowait(TokenEvent(request, token, tokenizer.decode([token])))
        events.put_nowait(TokenEvent(request, tokenizer.NEWLINE, "", finish_reason="stop"))

    def abort(self, request: Request) -> None:
        pass


@contextlib.asynccontextmanager
async def no_lifespan(_: Starlette) -> AsyncIterator[None]:
    yield


def post(reply: str, **body: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        app = Routes(Says(reply), Limits("pico", 100, 2048), 0, 1 << 20).app(no_lifespan)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
            return await client.post("/v1/chat/completions", json={"model": "pico", "messages": [USER], **body})

    return asyncio.run(main())


def choice(reply: str, **body: Any) -> dict[str, Any]:
    response = post(reply, **body)
    assert response.status_code == 200, response.text
    (found,) = response.json()["choices"]
    return found


def streamed(reply: str, **body: Any) -> tuple[dict[str, Any], str | None]:
    """The message that the deltas of a stream add up to, and its finish reason."""
    lines = [line for line in post(reply, stream=True, **body).text.splitlines() if line]
    assert lines[-1] == "data: [DONE]"
    rows = [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines[:-1]]
    message: dict[str, Any] = {}
    for row in rows:
        for key, value in row["delta"].items():
            if key == "tool_calls":
                message[key] = [{k: v for k, v in call.items() if k != "index"} for call in value]
                assert [call["index"] for call in value] == list(range(len(value)))
            elif key != "role":
                message[key] = message.get(key, "") + value
    assert all(row["finish_reason"] is None for row in rows[:-1])
    return message, rows[-1]["finish_reason"]


REPLIES = [
    (' !get_weather {"city": "Oslo"} !get_time {}', {"tools": TOOLS}, "tool_calls"),
    (' !get_weather {"city": "Oslo"', {"tools": TOOLS}, "stop"),
    (' !get_weather {"city": "Oslo"}', {"tools": TOOLS, "tool_choice": "none"}, "stop"),
    (' !get_weather {"city": "Oslo"}', {}, "stop"),
    (" 9 degrees", {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True}, "stop"),
    (' Hm. A: !get_time {"zone":"UTC"}', {"tools": TOOLS, "chat_template_kwargs": {"thinking": True}}, "tool_calls"),
    (" !get_time {} A: noon", {"tools": TOOLS, "chat_template_kwargs": {"thinking": True}}, "stop"),
    (" no end", {"tools": TOOLS, "reasoning_effort": "max"}, "stop"),
]  # fmt: skip


@pytest.mark.parametrize(("reply", "body", "reason"), REPLIES)
def test_a_stream_adds_up_to_the_message(reply: str, body: dict[str, Any], reason: str) -> None:
    whole = choice(reply, **body)
    assert whole["finish_reason"] == reason
    assert ("tool_calls" in whole["message"]) == (reason == "tool_calls")
    message, streamed_reason = streamed(reply, **body)
    assert streamed_reason == reason
    for one in (message, whole["message"]):
        for call in one.get("tool_calls", ()):
            assert call.pop("id").startswith("call_")
    del whole["message"]["role"]
    assert {**message, "content": message["content"] or None} == {
        **whole["message"], "content": whole["message"]["content"] or None}  # fmt: skip


def test_calls_have_openais_shape() -> None:
    message = choice(REPLIES[0][0], tools=TOOLS)["message"]
    assert message["content"] is None
    first, second = message["tool_calls"]
    assert first["type"] == "function"
    assert first["function"] == {"name": "get_weather", "arguments": '{"city": "Oslo"}'}
    assert first["id"] != second["id"]


def test_a_thought_is_split_off() -> None:
    found = choice(" 7 and 8 A: 56", chat_template_kwargs={"thinking": True, "reasoning_effort": "high"})
    assert found["message"] == {"role": "assistant", "content": "56", "reasoning_content": "7 and 8"}
    assert choice(" no end", reasoning_effort="high")["message"]["content"] is None


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({}, "Q: hi\nA:"),
        ({"chat_template_kwargs": {"thinking": False, "reasoning_effort": "max"}}, "Q: hi\nA:"),
        ({"chat_template_kwargs": {"thinking": True}}, "Q: hi\nH:"),
        ({"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"}, "Q: hi\nH:"),
        ({"chat_template_kwargs": {"thinking": True}, "reasoning_effort": "max"}, "Think hard.\nQ: hi\nH:"),
        ({"chat_template_kwargs": {"thinking": True, "reasoning_effort": "max"}}, "Think hard.\nQ: hi\nH:"),
        ({"reasoning_effort": "none"}, "Q: hi\nA:"),
        ({"tools": TOOLS}, "T: get_weather(city)\nT: get_time()\nQ: hi\nA:"),
        ({"tools": TOOLS, "tool_choice": "none"}, "Q: hi\nA:"),
    ],
)
def test_the_prompt(body: dict[str, Any], end: str) -> None:
    engine = Says(" 5")

    async def main() -> None:
        app = Routes(engine, Limits("pico", 100, 2048), 0, 1 << 20).app(no_lifespan)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://engine") as client:
            answer = await client.post("/v1/chat/completions", json={"model": "pico", "messages": [USER], **body})
            assert answer.status_code == 200, answer.text

    asyncio.run(main())
    assert engine.prompts == [end]


def called(arguments: str = "{}", **more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call], **more}


def result(call_id: str | None = "c1") -> dict[str, Any]:
    return {"role": "tool", "content": "noon", **({"tool_call_id": call_id} if call_id else {})}


BAD = [
    ({"tools": []}, "tools", "at least 1"),
    ({"tools": [{"type": "function", "function": {}}]}, "tools", "tools.0.function.name is required"),
    ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools", 'got "a b"'),
    ({"tools": [{"type": "retrieval", "function": {"name": "a"}}]}, "tools", 'got "retrieval"'),
    ({"tools": [TOOLS[1], TOOLS[1]]}, "tools", "get_time is there twice"),
    ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice", "'auto' or 'none', got \"required\""),
    ({"tool_choice": "auto"}, "tool_choice", "tool_choice needs tools"),
    ({"tools": TOOLS, "parallel_tool_calls": False}, "parallel_tool_calls", "only true is supported, got false"),
    ({"reasoning_effort": "huge"}, "reasoning_effort", 'got "huge"'),
    ({"chat_template_kwargs": {"thinking": "yes"}}, "chat_template_kwargs", 'got "yes"'),
    ({"chat_template_kwargs": {"think": True}}, "chat_template_kwargs", "unknown parameter chat_template_kwargs.think"),
    ({"messages": [USER, result()]}, "messages", "messages.1.tool_call_id: 'c1' is no open call"),
    ({"messages": [USER, called(), result(None)]}, "messages", "messages.2.tool_call_id is required"),
    ({"messages": [USER, called(), result("c2")]}, "messages", "messages.2.tool_call_id: 'c2' is no open call"),
    ({"messages": [USER, called(), result(), result()]}, "messages", "messages.3.tool_call_id: 'c1' is no open call"),
    ({"messages": [USER, called("[1]"), result()]}, "messages", "must be the text of a JSON object, got '[1]'"),
    ({"messages": [{**USER, "tool_calls": called()["tool_calls"]}]}, "messages", "only an assistant's message"),
    ({"messages": [{**USER, "tool_call_id": "c1"}]}, "messages", "only a tool's message"),
    ({"messages": [USER, called(function_call={"name": "x"})]}, "messages", "only null is supported"),
    ({"messages": [USER, called()]}, "messages", "the last message must be a user turn or a tool result"),
]


@pytest.mark.parametrize(("body", "param", "text"), BAD, ids=[f"{row[1]}-{i}" for i, row in enumerate(BAD)])
def test_bad_chats_are_refused(body: dict[str, Any], param: str, text: str) -> None:
    response = post(" 5", **body)
    error = response.json()["error"]
    assert (response.status_code, error["type"], error["param"]) == (400, "invalid_request_error", param), error
    assert text in error["message"]
