"""Replies of a chat as the client reads them, from servers of several habits."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from dsbench.engines.chat import ChatReply, ToolCall, read_reply, thinking_fields
from dsbench.engines.client import BadAnswer, Client

CALL = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": '{"zone": "UTC"}'}}
USAGE = {"prompt_tokens": 7, "completion_tokens": 3}


def answer(message: dict[str, Any], reason: str = "stop") -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": reason}], "usage": USAGE}


def ask(response: httpx.Response, **options: Any) -> tuple[ChatReply, dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    def serve(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return response

    async def main() -> ChatReply:
        client = Client("http://engine", "m", 5)
        client._http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(serve))
        async with client:
            return await client.chat_messages([{"role": "user", "content": "hi"}], 9, **options)

    return asyncio.run(main()), sent[0]


def test_a_reply_has_its_parts() -> None:
    response = httpx.Response(200, json=answer({"content": None, "tool_calls": [CALL]}, "tool_calls"))
    reply, sent = ask(response, tools=[{"type": "function"}], thinking="max", top_p=0.9, seed=3, temperature=1.0)
    assert (reply.content, reply.reasoning, reply.finish_reason) == ("", "", "tool_calls")
    assert reply.calls == (ToolCall("c1", "now", '{"zone": "UTC"}'),)
    assert (reply.prompt_tokens, reply.completion_tokens) == (7, 3)
    assert reply.seconds > 0
    assert sent == {
        "model": "m",
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "temperature": 1.0,
        "top_p": 0.9,
        "seed": 3,
        "tools": [{"type": "function"}],
        "chat_template_kwargs": {"thinking": True, "enable_thinking": True, "reasoning_effort": "max"},
    }


def test_nothing_is_sent_that_was_not_asked_for() -> None:
    _, sent = ask(httpx.Response(200, json=answer({"content": "5"})))
    assert sent.keys() == {"model", "messages", "max_tokens", "temperature"}
    assert thinking_fields("off") == {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}}


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_thoughts_come_under_two_names_and_go_back(key: str) -> None:
    reply = read_reply(answer({"content": "5", key: "I see.", "tool_calls": []}), 1.0)
    assert (reply.content, reply.reasoning, reply.calls) == ("5", "I see.", ())
    assert reply.as_message() == {"role": "assistant", "content": "5", "reasoning_content": "I see."}


def test_calls_go_back_as_they_came_unless_no_server_would_take_them() -> None:
    reply = read_reply(answer({"content": "", "tool_calls": [CALL]}), 1.0)
    assert reply.as_message() == {"role": "assistant", "content": None, "tool_calls": [CALL]}
    broken = read_reply(
        answer({"tool_calls": [{**CALL, "function": {"name": "now", "arguments": "[1"}}]}), 1.0
    )  # fmt: skip
    assert broken.calls[0].arguments == "[1"
    assert broken.as_message()["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"choices": []}, "answered without list index out of range"),
        ({"choices": [{"message": {"content": "x"}}]}, "answered without 'usage'"),
        (answer({"content": ["x"]}), "answered without a text, but with"),
        (answer({"tool_calls": [{"id": "x"}]}), "answered without 'function'"),
        (answer({"tool_calls": [{**CALL, "function": {"name": "now", "arguments": {"zone": 1}}}]}), "a text, but with"),
        ([], "answered without"),
    ],
)
def test_an_answer_that_is_no_chat_is_told(body: Any, message: str) -> None:
    with pytest.raises(BadAnswer, match=message):
        ask(httpx.Response(200, json=body))


def test_a_refusal_is_told() -> None:
    with pytest.raises(BadAnswer, match="answered 400: no tools here"):
        ask(httpx.Response(400, text="no tools here"))
