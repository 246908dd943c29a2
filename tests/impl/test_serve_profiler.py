"""The profiler's two routes: refused before the engine is ready, silent where nothing ran; the graphs of a device."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from impl.engine.core import Engine
from impl.engine.metrics import EngineMetrics
from impl.engine.runner import Runner
from impl.serve import default_capture, parser, profiler_routes, read_config
from tests.impl.engine.engines import boot_runner


def ask(engine: Engine, folder: Path, *paths: str) -> list[tuple[int, str]]:
    async def answers() -> list[tuple[int, str]]:
        app = Starlette(routes=profiler_routes(engine, folder))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as client:
            found = [await client.post(path) for path in paths]
        return [(answer.status_code, answer.text) for answer in found]

    return asyncio.run(answers())


def engine_of(runner: Runner | None = None) -> Engine:
    engine = Engine(boot_runner, EngineMetrics("pico"))
    if runner is not None:
        engine.runner, engine.state = runner, "ready"
    return engine


def test_an_engine_that_starts_has_no_profile(tmp_path: Path) -> None:
    for status, text in ask(engine_of(), tmp_path, "/start_profile", "/stop_profile"):
        assert (status, text) == (503, "the engine is starting\n")


def test_a_profile_without_a_step_is_no_file(tmp_path: Path) -> None:
    answers = ask(engine_of(boot_runner()), tmp_path, "/stop_profile", "/start_profile", "/stop_profile")
    assert answers == [(200, "")] * 3
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("device", "method", "capture"),
    [("cuda", "none", "steps"), ("cuda", "dspark", "steps"), ("cuda", "mtp", "draft"), ("cpu", "dspark", "draft")],
)
def test_graphs_hold_whole_steps_on_cuda_where_they_can(device: str, method: str, capture: str) -> None:
    assert default_capture(device, method) == capture  # type: ignore[arg-type]


def test_capture_is_what_was_asked_for() -> None:
    for flags, capture in (((), "draft"), (("--capture", "steps"), "steps"), (("--capture", "rounds"), "rounds")):
        config = read_config(parser().parse_args(["--load-format", "dummy", "--speculative", "dspark", *flags]))
        assert (config.capture, config.graph_mode) == (capture, "replay")
