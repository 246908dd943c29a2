"""Minutes of load on the embedded engine with a pool too small for it: is every answer the one that it gives alone?

Streams ask for good requests of every kind, leave some in the middle and send bad ones. The server passes when every
answer is the one of the same request alone, bad requests are refused in OpenAI's shape, nothing is answered with 5xx,
all blocks, threads and open files are back at the end, and its memory is flat.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from dsbench.engines.client import LIMITS
from dsbench.engines.embedded import environment
from dsbench.engines.engine import boot_environment
from dsbench.engines.server import EngineFailed, Server
from dsbench.parse.prometheus import Page, read_page
from dsbench.records import Arm
from dsbench.selftest.soak_asks import MODEL, Ask, bad_asks, good_asks
from dsbench.selftest.soak_memory import Sample, Slope, process_state, rss_slope

STREAMS = 64
BUDGET, STEP = 8_000_000, 96
"""Bytes of memory for the engine and tokens of a step: its pool holds a third of what the streams ask for together."""
MAX_MODEL_LEN = 2048
LEAVES, BAD = 0.15, 0.1
"""Shares of requests that are left in the middle, and of bad ones."""
WAVE_S = 20.0
"""In the first quarter of every wave only requests are sent that start small and grow: a pool that lets them all in is
too small for them later, and has to take blocks back."""
LONG_ENOUGH_MINUTES = 5.0
"""Memory is judged from here on: in less time what is filled once cannot be told from what grows for ever."""
START_S, ANSWER_S, DRAIN_S = 60.0, 300.0, 60.0
SHOWN = 20
GAUGES = ("kv_cache_usage_perc", "num_requests_running", "num_requests_waiting", "num_preemptions")

Answer = tuple[Any, ...]


@dataclass
class Soaked:
    """One soak, and what is wrong with it."""

    minutes: float
    streams: int
    blocks: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    """By kind; those that were left in the middle apart."""
    statuses: Counter[int] = field(default_factory=Counter)
    wrong: int = 0
    preemptions: int = 0
    most_running: int = 0
    least_free: int = 0
    samples: list[Sample] = field(default_factory=list)
    slope: Slope | None = None
    problems: list[str] = field(default_factory=list)

    def note(self, problem: str) -> None:
        """Keep a wrong answer's story; the first ones tell enough."""
        self.wrong += 1
        if self.wrong <= SHOWN:
            self.problems.append(problem)


def soak(
    minutes: float,
    work: Path,
    *,
    streams: int = STREAMS,
    seed: int = 0,
    sample_s: float = 5.0,
    toggles: str = "",
    tell: Callable[[Sample], None] | None = None,
) -> Soaked:
    """Boot a server in the new folder `work`, load it, and look at all that it says. EngineFailed if it does not
    start.
    """
    work.mkdir(parents=True)
    arm = Arm(name="soak", toggles=[], environment=toggles, on=[], takes=[], primary=[], expected={}, declared=[])
    flags = ["--dims", MODEL, "--max-num-seqs", str(streams), "--max-num-batched-tokens", str(STEP),
             "--memory-budget", str(BUDGET)]  # fmt: skip
    command = [sys.executable, "-P", "-m", "impl.serve", "--host", "127.0.0.1", "--port", "0", *flags]
    variables = {**environment(arm), **boot_environment(arm, work)}
    with Server(command, variables, work, stop_s=10.0) as server:
        url = server.wait_ready(START_S).url
        run = Load(server, url, Soaked(minutes, streams), random.Random(seed), sample_s, tell)
        asyncio.run(run.whole(good_asks(seed)))
    return run.result


class Load:
    """The requests of one soak, its samples, and its look at the server afterwards."""

    def __init__(
        self, server: Server, url: str, result: Soaked, rng: random.Random, sample_s: float,
        tell: Callable[[Sample], None] | None,
    ) -> None:  # fmt: skip
        self.server, self.url, self.result, self.rng = server, url, result, rng
        self.sample_s, self.tell = sample_s, tell
        self.expected: dict[int, Answer] = {}
        self.bad = bad_asks(MAX_MODEL_LEN)

    async def whole(self, asks: list[Ask]) -> None:
        """Each request alone, then many at once for the time, then some alone again."""
        result = self.result
        async with self._client() as client:
            self.expected = {at: await self._answer(client, ask, False) for at, ask in enumerate(asks)}
            for ask, answer in zip(asks, self.expected.values(), strict=True):
                if not str(answer[-1]).startswith(ask.begins):
                    result.note(f"{ask.kind}: alone it answers {answer[-1]!r}, right is {ask.begins!r}")
        _, threads, fds = await self._idle_state()
        self.start = time.monotonic()
        stop_at = self.start + 60 * result.minutes
        sampling = asyncio.ensure_future(self._sample_for_ever())
        try:
            await asyncio.gather(*(self._stream(asks, stop_at) for _ in range(result.streams)))
        finally:
            sampling.cancel()
        await self._look_after(threads, fds)
        async with self._client() as client:
            for at, ask in enumerate(asks):
                if ask.begins:
                    await self._compare(client, at, ask)
        result.slope = rss_slope(result.samples)
        self._judge_samples()

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, timeout=ANSWER_S, trust_env=False, limits=LIMITS)

    async def _stream(self, asks: list[Ask], stop_at: float) -> None:
        """One request after the other, each over a client of its own now and then."""
        while time.monotonic() < stop_at:
            async with self._client() as client:
                for _ in range(8):
                    if time.monotonic() >= stop_at:
                        return
                    await self._one(client, asks)

    async def _one(self, client: httpx.AsyncClient, asks: list[Ask]) -> None:
        drawn = self.rng.random()
        try:
            if drawn < BAD:
                await self._refused(client, self.rng.choice(self.bad))
            elif drawn < BAD + LEAVES:
                await self._left(client, self.rng.choice(asks))
            else:
                wave = (time.monotonic() - self.start) % WAVE_S < WAVE_S / 4
                at = self.rng.choice([at for at, ask in enumerate(asks) if not wave or ask.kind == "growing"])
                await self._compare(client, at, asks[at])
        except httpx.HTTPError as error:
            self.result.note(f"no answer: {type(error).__name__} {error}")

    async def _compare(self, client: httpx.AsyncClient, at: int, ask: Ask) -> None:
        answer = await self._answer(client, ask, self.rng.random() < 0.5)
        self.result.answers[ask.kind] += 1
        if answer != self.expected[at]:
            self.result.note(f"{ask.kind}: {str(answer)[:200]}, alone {str(self.expected[at])[:200]}")

    async def _answer(self, client: httpx.AsyncClient, ask: Ask, streamed: bool) -> Answer:
        """Token ids, reasons, log probabilities and texts of the choices; the same whether streamed or not."""
        if not streamed:
            response = await client.post(ask.path, json=ask.body)
            self.result.statuses[response.status_code] += 1
            if response.status_code != 200:
                return response.status_code, response.text[:200]
            return _told([response.json()])
        events = []
        async with client.stream("POST", ask.path, json={**ask.body, "stream": True}) as response:
            self.result.statuses[response.status_code] += 1
            if response.status_code != 200:
                return response.status_code, (await response.aread())[:200].decode("utf-8", "replace")
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    events.append(json.loads(line[6:]))
        return _told(events)

    async def _left(self, client: httpx.AsyncClient, ask: Ask) -> None:
        """Go away in the middle: of a stream, or of the wait for a whole answer."""
        self.result.answers["left"] += 1
        body = {**ask.body, "max_tokens": 200, "ignore_eos": True}
        if self.rng.random() < 0.5:
            with contextlib.suppress(httpx.TimeoutException):
                await client.post(ask.path, json=body, timeout=self.rng.uniform(0.001, 1.0))
            return
        lines = self.rng.randrange(12)
        async with client.stream("POST", ask.path, json={**body, "stream": True}) as response:
            self.result.statuses[response.status_code] += 1
            async for _ in response.aiter_lines():
                lines -= 1
                if lines <= 0:
                    return

    async def _refused(self, client: httpx.AsyncClient, ask: Ask) -> None:
        response = await client.post(ask.path, json=ask.body)
        self.result.statuses[response.status_code] += 1
        self.result.answers["invalid"] += 1
        try:
            error = response.json()["error"]
            as_asked = (response.status_code, error["param"]) == (ask.status, ask.param)
            whole = set(error) == {"message", "type", "param", "code"} and error["type"] == "invalid_request_error"
        except (ValueError, KeyError, TypeError):
            as_asked = whole = False
        if not (as_asked and whole):
            self.result.note(
                f"invalid: {response.status_code} {response.text[:200]}, expected {ask.status} {ask.param}"
            )

    # --- the server's process -----------------------------------------------------------------------------------------

    async def _sample(self, client: httpx.AsyncClient) -> Sample:
        page = read_page((await client.get("/metrics")).text)
        blocks = next(int(dict(labels)["num_gpu_blocks"]) for name, labels in page.values
                      if name == "vllm:cache_config_info")  # fmt: skip
        self.result.blocks = blocks
        usage, running, waiting, preemptions = (_total(page, name) for name in GAUGES)
        rss, threads, fds = process_state(self.server.process.pid)
        return Sample(
            time.monotonic() - self.start, rss, threads, fds, round(blocks * (1 - usage)), int(running), int(waiting),
            int(preemptions),
        )  # fmt: skip

    async def _sample_for_ever(self) -> None:
        async with self._client() as client:
            while True:
                with contextlib.suppress(httpx.HTTPError):
                    self.result.samples.append(await self._sample(client))
                    if self.tell:
                        self.tell(self.result.samples[-1])
                await asyncio.sleep(self.sample_s)

    async def _idle_state(self) -> tuple[int, int, int]:
        """Memory, threads and open files once no connection is open any more."""
        state = before = process_state(self.server.process.pid)
        for _ in range(100):
            await asyncio.sleep(0.2)
            state = process_state(self.server.process.pid)
            if state[2] == before[2] and _ > 5:
                break
            before = state
        return state

    async def _look_after(self, threads: int, fds: int) -> None:
        """Wait until nothing runs; then blocks, threads and files must be back."""
        deadline = time.monotonic() + DRAIN_S
        while True:
            async with self._client() as client:
                last = await self._sample(client)
            _, threads_now, fds_now = await self._idle_state()
            left = []
            if last.running or last.waiting:
                left.append(f"{last.running} requests run and {last.waiting} wait")
            if last.free_blocks != self.result.blocks:
                left.append(f"{self.result.blocks - last.free_blocks} of {self.result.blocks} blocks are not back")
            if (threads_now, fds_now) != (threads, fds):
                left.append(f"{threads_now} threads and {fds_now} open files, {threads} and {fds} before")
            if not left or time.monotonic() > deadline:
                self.result.problems += left
                self.result.samples.append(last)
                return

    def _judge_samples(self) -> None:
        result, samples = self.result, self.result.samples
        result.preemptions = samples[-1].preemptions
        result.most_running = max(sample.running for sample in samples)
        result.least_free = min(sample.free_blocks for sample in samples)
        if not result.preemptions:
            result.problems.append("no request was preempted: the pool is too large for this load")
        refused = {status for status in result.statuses if status >= 500 or status == 429}
        result.problems += [f"{result.statuses[status]} answers with {status}" for status in sorted(refused)]
        slope = result.slope
        if result.minutes >= LONG_ENOUGH_MINUTES and (slope is None or slope.word != "flat"):
            told = f"{slope.word}, {slope.value:.2f} MB a minute" if slope else "too few samples"
            result.problems.append(f"memory: {told}")


def _total(page: Page, name: str) -> float:
    value = page.total(f"vllm:{name}")
    if value is None:
        raise EngineFailed(f"/metrics has no vllm:{name}")
    return value


def _told(events: list[dict[str, Any]]) -> Answer:
    """What an answer says, from its one body or from the events of its stream; the first choice's text comes last."""
    ids: dict[int, list[int]] = {}
    reasons: dict[int, str] = {}
    logs: dict[int, list[float]] = {}
    texts: dict[int, str] = {}
    calls: list[str] = []
    for event in events:
        if "error" in event:
            return "error", json.dumps(event["error"])
        for choice in event["choices"]:
            at = choice["index"]
            said = choice.get("message") or choice.get("delta") or choice
            ids.setdefault(at, []).extend(choice.get("token_ids") or [])
            if choice["finish_reason"]:
                reasons[at] = choice["finish_reason"]
            logs.setdefault(at, []).extend((choice.get("logprobs") or {}).get("token_logprobs") or [])
            texts[at] = texts.get(at, "") + (said.get("reasoning_content") or "") + "".join(
                said.get(key) or "" for key in ("content", "text"))  # fmt: skip
            calls += [json.dumps(call["function"]) for call in said.get("tool_calls") or []]
    return ids, reasons, logs, calls, texts, texts.get(0, "")
