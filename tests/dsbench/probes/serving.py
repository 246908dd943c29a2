"""Runs one probe in one boot, against a server that is a function of the request."""

import asyncio
import json

import httpx

from dsbench.builds import parse_arm
from dsbench.engines.client import Client
from dsbench.plan import plan_experiment
from dsbench.probes.boot import Boot
from dsbench.suite import parse_suite
from impl.dims import PICO

HEAD = 'name = "s"\nsummary = "s"\nblocks = 2\n[probes.identity]\nprompts = ["a"]\n'
READ_BACK = {"dims": {"vocab_size": 100, "max_model_len": 2048}}


def plan_of(tables, *, speculative="none", **options):
    """An A/A plan of a suite with these TOML tables."""
    arms = [parse_arm(f"{name}=speculative={speculative}") for name in "ab"]
    return plan_experiment((), parse_suite(HEAD + tables, "s.toml"), PICO, arms=arms, alike=True, **options)


def streamed(events):
    """A stream whose events come one by one, each in a read of its own."""

    async def body():
        for event in events:
            await asyncio.sleep(0)
            yield f"data: {json.dumps(event)}\n\n".encode()

    return httpx.Response(200, content=body())


def run(module, plan, answer, *, page="", number=3, conditions=READ_BACK):
    """Readings and the bodies of the requests; `answer` may be asynchronous, `page` may be a function."""
    bodies = []

    async def serve(request):
        if request.url.path == "/metrics":
            return httpx.Response(200, text=page() if callable(page) else page)
        body = json.loads(request.content) | {"path": request.url.path}
        bodies.append(body)
        given = answer(body)
        return await given if asyncio.iscoroutine(given) else given

    async def collect():
        client = Client("http://engine", "pico", 5)
        client._http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(serve))
        boot = Boot(plan, plan.boots[number - 1], client, {0: conditions}, {})
        try:
            async for reading in module.run(boot):
                readings.append(reading)
        except Exception as error:
            raised.append(error)

    readings, raised = [], []
    asyncio.run(collect())
    if raised:
        raised[0].readings = readings
        raise raised[0]
    return readings, bodies
