"""GPU time of decode steps: what is asked of the server, and what its traces must hold."""

import asyncio
import json
import re

import httpx
import pytest

from dsbench.engines.client import Client
from dsbench.engines.engine import TRACES
from dsbench.probe_settings import GpuTimeProbe
from dsbench.probes import gpu_time
from dsbench.probes.boot import Boot, ProbeFailed


@pytest.fixture
def run(make_plan, tmp_path):
    """Readings, and the paths asked for, of a server that writes `traces` (by file name) when it is told to stop; a
    list of them has those of every stop."""

    def run(traces, streams=(2,)):
        plan = make_plan()
        probe = GpuTimeProbe(streams=list(streams), tokens=16)
        plan = plan.model_copy(update={"probes": plan.probes.model_copy(update={"gpu_time": probe})})
        asked = []

        def serve(request):
            asked.append(request.url.path)
            if request.url.path == "/stop_profile":
                (tmp_path / TRACES).mkdir(exist_ok=True)
                written = traces[asked.count("/stop_profile") - 1] if isinstance(traces, list) else traces
                for name, events in written.items():
                    path = tmp_path / TRACES / f"{name}.{len(asked)}.pt.trace.json"
                    path.write_text(json.dumps({"traceEvents": events}))
            if request.url.path != "/v1/completions":
                return httpx.Response(200)
            pieces = [{"choices": [{"text": "x", "token_ids": [1]}]} for _ in range(16)]
            events = [*pieces, {"choices": [], "usage": {"completion_tokens": 16}}]
            return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events))

        client = Client("http://engine", "m", 5)
        client._http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(serve))
        conditions = {0: {"dims": {"vocab_size": 100}}}
        boot = Boot(plan, plan.boots[2], client, conditions, {}, tmp_path)

        async def collect():
            return [reading async for reading in gpu_time.run(boot)]

        return asyncio.run(collect()), asked

    return run


def steps(count, busy_us, requests=2):
    name = f"execute_context_0(0)_generation_{requests}({requests})"
    usual = {"ph": "X", "pid": 0, "tid": 7}
    marks = [
        {**usual, "cat": "gpu_user_annotation", "name": name, "ts": 1000 * i, "dur": busy_us} for i in range(count)
    ]
    return marks + [{**usual, "cat": "kernel", "name": "k", "ts": 1000 * i, "dur": busy_us} for i in range(count)]


def test_the_traced_streams_lie_between_start_and_stop_and_the_slowest_rank_counts(run):
    readings, asked = run({"rank0": steps(9, 400), "rank1": steps(9, 500)})
    assert asked == [*["/v1/completions"] * 2, "/start_profile", *["/v1/completions"] * 2, "/stop_profile"]
    assert [(r.metric, r.value, r.raw) for r in readings] == [("decode.gpu_ms.c2", 0.5, [0.5, 1.0, 8.0])]


def test_each_number_of_streams_is_read_from_its_own_traces(run):
    readings, asked = run([{"a": steps(9, 300, requests=1)}, {"a": steps(9, 400, requests=2)}], streams=(1, 2))
    assert [(r.metric, r.value) for r in readings] == [("decode.gpu_ms.c1", 0.3), ("decode.gpu_ms.c2", 0.4)]
    assert asked.count("/start_profile") == 2


@pytest.mark.parametrize(
    ("traces", "said"),
    [({}, "wrote nothing"), ({"r": steps(3, 400)}, "has 2 neighbouring"), ({"r": steps(9, 1, 3)}, "decode steps of 2")],
)
def test_without_enough_steps_there_is_no_reading(run, traces, said):
    with pytest.raises(ProbeFailed, match=re.escape(said)):
        run(traces)
