"""The routes answer other clients while a body is read."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.applications import Starlette

from impl import routes as routes_module
from impl.engine.core import Engine
from impl.engine.metrics import EngineMetrics
from impl.engine.runner import Runner
from impl.openai_api import ApiError, Limits
from impl.routes import Routes


@contextlib.asynccontextmanager
async def nothing(_: Starlette) -> AsyncIterator[None]:
    yield


def no_runner() -> Runner:
    raise AssertionError("no boot is asked for")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_health_answers_while_a_body_is_parsed(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    parsing, health_answered = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        parsing.set()
        raise ApiError(400, "health came first" if health_answered.wait(5) else "health waited")

    monkeypatch.setattr(routes_module, "parse", slow)
    app = Routes(Engine(no_runner, EngineMetrics("pico"), 1), Limits("pico", 512, 2048), 0, 1 << 20).app(nothing)

    async def talk() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
            asked = asyncio.create_task(client.post(path, content=b"{}"))
            assert await asyncio.to_thread(parsing.wait, 5)
            await client.get("/health")
            health_answered.set()
            return await asked

    assert asyncio.run(talk()).json()["error"]["message"] == "health came first"
