"""The toolcall probe over real HTTP: scripted models of every quality, and the embedded engine."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsbench.engines.client import BadAnswer, Client
from dsbench.errors import InputError
from dsbench.metrics import metric
from dsbench.probes import toolcall
from dsbench.probes.boot import Boot, Reading
from dsbench.records import Plan
from dsbench.score.tool_transcript import Transcript, load_transcripts
from dsbench.score.toolcall import score
from dsbench.suite import parse_suite
from dsbench.tool_scenarios import battery
from impl.dims import MICRO
from tests.dsbench.conftest import SMALL
from tests.dsbench.scripted_chat import serving
from tests.dsbench.tool_players import HALF, HALF_POINTS, PERFECT, Step, message
from tests.impl.serving import start

MakePlan = Callable[..., Plan]


def settled(text: str) -> Any:
    return parse_suite(f"{SMALL}\n[probes.toolcall]\n{text}", "small.toml")


def play(make_plan: MakePlan, url: str, folder: Path, text: str = "", model: str = "scripted") -> list[Reading]:
    """Readings of the probe with these settings against a server."""
    plan = make_plan(dims=MICRO, suite=settled(text))

    async def collect() -> list[Reading]:
        async with Client(url, model, 30) as client:
            boot = Boot(plan, plan.boots[2], client, {}, {}, folder)
            return [reading async for reading in toolcall.run(boot)]

    return asyncio.run(collect())


def points(readings: list[Reading]) -> dict[str, float]:
    return {r.item or "": float(str(r.value)) for r in readings if r.metric == "toolcall.points"}


class Model:
    """Plays a script: which scenario it is says the question, which turn says the conversation."""

    def __init__(self, scripts: dict[str, list[Step]], thought: str | None = None) -> None:
        self.scripts = {battery().scenario(name).question: steps for name, steps in scripts.items()}
        self.thought = thought
        self.bodies: list[dict[str, Any]] = []

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        self.bodies.append(body)
        question = next(m["content"] for m in body["messages"] if m["role"] == "user")
        turn = sum(m["role"] == "assistant" for m in body["messages"])
        return message(self.scripts[question][turn], self.thought)


def test_a_perfect_model_gets_everything_in_every_way_of_thinking(make_plan: MakePlan, tmp_path: Path) -> None:
    model = Model(PERFECT)
    with serving(model) as url:
        readings = play(make_plan, url, tmp_path, "rounds = 2\ntogether = 5\ntemperature = 0.7\nseed = 10")
    found = points(readings)
    assert list(found) == [
        f"{name} {mode} r{n}" for name, mode, n in itertools.product(PERFECT, ("off", "high", "max"), (1, 2))
    ]
    assert {*found.values()} == {1.0}
    assert {r.cluster for r in readings} == {*PERFECT}
    assert {(body["seed"], body["temperature"]) for body in model.bodies} == {(10, 0.7), (11, 0.7)}
    first = model.bodies[0]
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert [tool["function"]["name"] for tool in first["tools"]] == [*battery().tools]
    asked = [body["chat_template_kwargs"] for body in model.bodies]
    modes = [{"thinking": False, "enable_thinking": False}] + [
        {"thinking": True, "enable_thinking": True, "reasoning_effort": effort} for effort in ("high", "max")
    ]
    assert all(kwargs in modes for kwargs in asked)
    assert all(mode in asked for mode in modes)


def test_each_category_has_a_metric_of_its_own(make_plan: MakePlan, tmp_path: Path) -> None:
    with serving(Model({**PERFECT, **{name: HALF[name] for name in ("B1", "D1", "D2", "D3")}})) as url:
        readings = play(make_plan, url, tmp_path, 'thinking = ["off"]')
    shares = {}
    for key in make_plan(dims=MICRO, suite=settled("")).probes.metrics("toolcall"):
        assert metric(key).kind == "item"
        values = [float(str(r.value)) for r in readings if r.metric == key]
        shares[key] = sum(values) / len(values)
    assert shares == pytest.approx(
        {"toolcall.points": 13 / 15, "toolcall.selection": 1, "toolcall.parameters": 2.5 / 3, "toolcall.chain": 1,
         "toolcall.restraint": 0.5, "toolcall.recovery": 1}
    )  # fmt: skip


def test_a_half_right_model_gets_what_its_transcripts_are_worth(make_plan: MakePlan, tmp_path: Path) -> None:
    with serving(Model(HALF, thought="Hm.")) as url:
        readings = play(make_plan, url, tmp_path, 'thinking = ["high"]')
    assert points(readings) == {f"{name} high r1": value / 2 for name, value in HALF_POINTS.items()}
    kept = load_transcripts(tmp_path / toolcall.FILE)
    assert {t.item: score(t).points / 2 for t in kept} == points(readings)
    assert all(turn.reasoning == "Hm." for t in kept for turn in t.turns)
    text = next(r.text for r in readings if r.item == "D2 high r1" and r.text)
    assert text == "1/2: needless call of calculate\n42"


BROKEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "gibberish": lambda body: {"role": "assistant", "content": "zx qq !get"},
    "swallowed": lambda body: {
        "role": "assistant",
        "content": None,
        "reasoning_content": 'I call. !get_weather {"city": "Oslo"}',
        "tool_calls": [],
    },
    "endless": lambda body: message([("search_web", {"query": "x"})]),
    "no object": lambda body: {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": "[oops"}}],
    },
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_model_gets_nothing(make_plan: MakePlan, tmp_path: Path, kind: str) -> None:
    bodies: list[dict[str, Any]] = []

    def player(body: dict[str, Any]) -> dict[str, Any]:
        bodies.append(body)
        return BROKEN[kind](body)

    with serving(player) as url:
        readings = play(make_plan, url, tmp_path, 'thinking = ["off"]\ntogether = 15')
    assert {*points(readings).values()} == {0.0}
    kept = load_transcripts(tmp_path / toolcall.FILE)
    assert {len(t.turns) for t in kept} == {toolcall.MAX_TURNS if kind in ("endless", "no object") else 1}
    swallowed = {r.raw[2] for r in readings if r.raw}
    assert swallowed == {1.0 if kind == "swallowed" else 0.0}
    # What goes back to the server is JSON, whatever the model said.
    sent = [call for body in bodies for m in body["messages"] for call in m.get("tool_calls", ())]
    assert all(call["function"]["arguments"][0] == "{" for call in sent)


def test_an_answer_that_is_no_chat_fails_the_probe(make_plan: MakePlan, tmp_path: Path) -> None:
    with (
        serving(lambda body: {"role": "assistant", "content": 5}) as url,
        pytest.raises(BadAnswer, match="/v1/chat/completions answered without a text, but with 5"),
    ):
        play(make_plan, url, tmp_path, 'scenarios = ["A1"]')


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('scenarios = ["A1", "Z1"]', "unknown scenario 'Z1': known are A1, A2"),
        ('scenarios = ["A1", "A1"]', "each only once, got A1, A1"),
        ('thinking = ["low"]', "'off', 'high' or 'max'"),
        ("rounds = 0", "greater than or equal to 1"),
        ("turns = 9", "turns"),
    ],
)
def test_bad_settings_are_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        settled(text)


def test_the_number_of_items_is_known_before(make_plan: MakePlan) -> None:
    probes = make_plan(dims=MICRO, suite=settled('scenarios = ["A1", "C2"]\nrounds = 3')).probes
    assert probes.items("toolcall") == 2 * 3 * 3
    assert probes.metrics("toolcall") == ["toolcall.points", "toolcall.selection", "toolcall.chain"]


def test_the_embedded_engine_holds_conversations(make_plan: MakePlan, tmp_path: Path) -> None:
    """Untrained weights know nothing; that every turn is taken and scored is the protocol's part."""
    server = start(tmp_path)
    try:
        url = str(server.client.base_url)
        readings = play(make_plan, url, tmp_path, 'scenarios = ["A1", "D2"]\nmax_tokens = 40\ntogether = 3', "pico")
        kept = load_transcripts(tmp_path / toolcall.FILE)
    finally:
        server.client.close()
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == -signal.SIGTERM
    assert points(readings).keys() == {f"{name} {mode} r1" for name in ("A1", "D2") for mode in ("off", "high", "max")}
    said: dict[str, Transcript] = {t.item: t for t in kept}
    assert said["A1 off r1"].turns[0].content
    assert said["A1 high r1"].turns[0].reasoning
    assert said["A1 high r1"] != said["A1 max r1"]
