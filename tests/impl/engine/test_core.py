"""The engine thread behind the routes, in one process: errors end requests and never leave one waiting."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable

import httpx
import pytest
from starlette.applications import Starlette

from impl.dims import PICO
from impl.engine.core import Engine, EngineUnavailableError
from impl.engine.metrics import EngineMetrics
from impl.engine.runner import Runner
from impl.openai_api import Limits
from impl.routes import Routes
from tests.impl.engine.engines import boot_runner, make_request

LIMITS = Limits("pico", PICO.vocab_size, PICO.max_model_len)
BODY = {"model": "pico", "prompt": "hello", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def runner() -> Runner:
    return boot_runner()


@contextlib.asynccontextmanager
async def no_lifespan(_: Starlette) -> AsyncIterator[None]:
    yield


def with_engine(
    boot: Callable[[], Runner],
    test: Callable[[Engine, httpx.AsyncClient], Awaitable[None]],
    *,
    wait: bool = True,
    max_waiting: int = 1024,
) -> Engine:
    """Run `test` against an engine on this loop, then stop it."""

    async def main() -> Engine:
        engine = Engine(boot, EngineMetrics("pico"), max_waiting)
        app = Routes(engine, LIMITS, 0, 1 << 20).app(no_lifespan)
        engine.start()
        if wait:
            await engine.booted.wait()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            await asyncio.wait_for(test(engine, client), 60)
        await asyncio.to_thread(engine.stop)
        return engine

    return asyncio.run(main())


def booted(runner: Runner) -> Callable[[], Runner]:
    def boot() -> Runner:
        runner.allocate_pages()
        return runner

    return boot


def test_an_error_in_a_step_is_a_500_and_the_next_request_works(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = runner.target.forward

    def failing(*_: object) -> None:
        raise RuntimeError("planted fault")

    async def test(engine: Engine, client: httpx.AsyncClient) -> None:
        monkeypatch.setattr(runner.target, "forward", failing)
        answers = await asyncio.gather(*(client.post("/v1/completions", json=BODY) for _ in range(3)))
        for answer in answers:
            assert answer.status_code == 500
            error = answer.json()["error"]
            assert error["type"] == "server_error"
            assert "RuntimeError: planted fault" in error["message"]
        streamed = await client.post("/v1/chat/completions", json=CHAT)
        lines = [line for line in streamed.text.splitlines() if line]
        assert "planted fault" in json.loads(lines[-2].removeprefix("data: "))["error"]["message"]
        assert lines[-1] == "data: [DONE]"
        monkeypatch.setattr(runner.target, "forward", forward)
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200
        assert (await client.get("/health")).status_code == 200
        assert 'finished_reason="error"' in (await client.get("/metrics")).text

    engine = with_engine(booted(runner), test)
    assert engine.state == "stopped"


CHAT = {"model": "pico", "messages": [{"role": "user", "content": "a"}], "max_tokens": 4, "stream": True}


def test_while_it_boots_health_and_requests_are_503(runner: Runner) -> None:
    go = threading.Event()

    def slow_boot() -> Runner:
        go.wait(30)
        return booted(runner)()

    async def test(engine: Engine, client: httpx.AsyncClient) -> None:
        health = await client.get("/health")
        assert (health.status_code, health.text) == (503, "the engine is starting\n")
        answer = await client.post("/v1/completions", json=BODY)
        assert (answer.status_code, answer.json()["error"]["message"]) == (503, "the engine is starting")
        assert (await client.get("/metrics")).status_code == 200
        go.set()
        await engine.booted.wait()
        assert (await client.get("/health")).status_code == 200

    with_engine(slow_boot, test, wait=False)


def test_a_failed_boot_is_said_and_kept() -> None:
    def boot() -> Runner:
        raise ValueError("no such weights")

    async def test(engine: Engine, client: httpx.AsyncClient) -> None:
        health = await client.get("/health")
        assert (health.status_code, health.text) == (503, "the engine has failed: no such weights\n")

    engine = with_engine(boot, test)
    assert isinstance(engine.failure, ValueError)


def test_a_failure_outside_a_step_ends_every_request(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(engine: Engine, client: httpx.AsyncClient) -> None:
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200

        def broken() -> None:
            raise KeyError("scheduler")

        monkeypatch.setattr(runner.scheduler, "plan", broken)
        answers = await asyncio.gather(*(client.post("/v1/completions", json=BODY) for _ in range(3)))
        assert {answer.status_code for answer in answers} <= {500, 503}
        assert answers[0].status_code == 500
        health = await client.get("/health")
        assert health.status_code == 503
        assert "has failed" in health.text
        with pytest.raises(EngineUnavailableError, match="has failed"):
            engine.submit(make_request([1]), asyncio.Queue())

    assert with_engine(booted(runner), test).state == "failed"


def test_stopping_ends_what_is_running(runner: Runner) -> None:
    async def test(engine: Engine, client: httpx.AsyncClient) -> None:
        events: asyncio.Queue = asyncio.Queue()
        engine.submit(make_request([1, 2], max_tokens=1000), events)
        assert (await events.get()).token is not None
        await asyncio.to_thread(engine.stop)
        while not (event := await events.get()).finish_reason:
            pass
        assert (event.finish_reason, event.error) == ("error", "the engine has stopped")

    with_engine(booted(runner), test)


def test_more_waiting_requests_than_may_wait_are_429(runner: Runner) -> None:
    async def test(engine: Engine, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/completions", json={**BODY, "prompt": ["a"] * 100})
        assert answer.status_code == 429
        assert "3 requests are waiting already" in answer.json()["error"]["message"]
        while (again := await client.post("/v1/completions", json=BODY)).status_code == 429:
            await asyncio.sleep(0.01)
        assert again.status_code == 200

    with_engine(booted(runner), test, max_waiting=3)


def test_a_request_the_pool_can_never_hold_is_400(runner: Runner) -> None:
    def small() -> Runner:
        runner.n_blocks, blocks = 40, runner.n_blocks
        runner.allocate_pages()
        runner.n_blocks = blocks
        return runner

    async def test(engine: Engine, client: httpx.AsyncClient) -> None:
        answer = await client.post("/v1/completions", json={**BODY, "prompt": [1] * 1000})
        assert answer.status_code == 400
        assert "a request of 1007 tokens needs 47 KV blocks, the pool has 40" in answer.json()["error"]["message"]
        assert (await client.post("/v1/completions", json=BODY)).status_code == 200

    with_engine(small, test)
