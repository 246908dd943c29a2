"""Recorded steps become a trace that the harness reads, and cost nothing while nobody records."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dsbench.parse.trace import decode_steps
from impl.engine.request import Request, SamplingParams
from impl.engine.scheduler import Chunk, Plan
from impl.engine.step_times import StepTimes, step_name


class Event:
    """A CUDA event on a device whose clock the test turns."""

    now_ms = 0.0

    def __init__(self, enable_timing: bool = False) -> None:
        assert enable_timing
        self.at: float | None = None

    def record(self) -> None:
        self.at = Event.now_ms

    def synchronize(self) -> None:
        assert self.at is not None

    def elapsed_time(self, end: Event) -> float:
        assert self.at is not None
        assert end.at is not None
        return end.at - self.at


@pytest.fixture(autouse=True)
def _events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", Event)


def plan(decodes: list[int], prompts: list[int]) -> Plan:
    """Decodes and prompts by their numbers of rows."""
    request = Request("r", [1], SamplingParams())
    chunks = [Chunk(request, 0, rows, i < len(decodes), True) for i, rows in enumerate([*decodes, *prompts])]
    return Plan(chunks, len(decodes))


def record(times: StepTimes, step: Plan, ms: float, gap_ms: float = 0.0, *, replayed: bool = True) -> None:
    with times.around(step, replayed=replayed):
        Event.now_ms += ms
    Event.now_ms += gap_ms


def test_the_harness_reads_the_time_of_decode_steps_without_the_gaps_between_them(tmp_path: Path) -> None:
    times = StepTimes()
    record(times, plan([6], []), 99.0)
    times.start()
    record(times, plan([], [40]), 50.0, replayed=False)
    for _ in range(5):
        record(times, plan([6, 4], []), 2.0, 0.5)
    path = times.stop(tmp_path / "traces")
    assert path is not None
    steps = decode_steps(path, 2)
    assert (steps.steps, round(steps.busy_ms, 6), round(steps.span_ms, 6)) == (4, 2.0, 2.5)
    names = [event["name"] for event in json.loads(path.read_text())["traceEvents"]]
    assert names[:4] == ["execute_context_1(40)_generation_0(0)", "eager step, gaps included",
                         "execute_context_0(0)_generation_2(10)", "graph of a step"]  # fmt: skip


def test_nothing_recorded_is_nothing_written(tmp_path: Path) -> None:
    times = StepTimes()
    assert times.stop(tmp_path) is None
    times.start()
    assert times.stop(tmp_path) is None
    record(times, plan([1], []), 1.0)
    assert times.stop(tmp_path) is None
    assert not [*tmp_path.iterdir()]


def test_recordings_are_files_of_their_own_and_a_failed_step_is_in_none(tmp_path: Path) -> None:
    times = StepTimes()
    times.start()
    record(times, plan([1], []), 1.0)
    times.start()
    record(times, plan([1], []), 1.0)
    with pytest.raises(RuntimeError), times.around(plan([1], []), replayed=True):
        raise RuntimeError("the step fails")
    first = times.stop(tmp_path)
    times.start()
    record(times, plan([1], []), 1.0)
    second = times.stop(tmp_path)
    assert first is not None
    assert second is not None
    assert first != second
    assert [len(json.loads(path.read_text())["traceEvents"]) for path in (first, second)] == [2, 2]


@given(st.lists(st.integers(1, 6), max_size=8), st.lists(st.integers(1, 500), max_size=4))
def test_names_are_those_that_the_harness_looks_for(decodes: list[int], prompts: list[int]) -> None:
    from dsbench.parse.trace import STEP

    marked = STEP.match(step_name(plan(decodes, prompts)))
    assert marked
    assert (int(marked[1]), int(marked[2])) == (len(prompts), len(decodes))
