"""The OpenAI-compatible surface that probes use: completions, chat, streams with token times, counters."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import httpx

from dsbench.engines.chat import ChatReply, Thinking, read_reply, thinking_fields
from dsbench.engines.secrets import authorization, redact
from dsbench.json_text import read_json
from dsbench.parse.prometheus import Page, families, read_page, usable

LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=None, keepalive_expiry=1.0)
"""As many streams as are asked for. Servers drop a connection that was idle for 5 s, and a request that meets that
moment is lost: none is sent on one that was idle for long."""

MOST_OF_A_LINE = 1 << 20
MOST_OF_AN_ANSWER = 64 << 20
"""Bytes that are read of a line of a stream, and of an answer; log probabilities of many tokens are a tenth of it."""

LEAST_READS = 1 / 8
"""Reads of the network after the first, over pieces after the first: fewer, and something on the way collects them.

Where an answer is collected and then sent at once, a read brings dozens of pieces; where the client alone is late, few.
"""
MANY_PIECES = 16
"""Fewer pieces than this may come in two reads by chance."""

ODD = (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError)
"""What reading an answer of another shape runs into."""


class BadAnswer(Exception):
    """The server refused a request, or answered something that is not the protocol; what it said is redacted."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class Refused(BadAnswer):
    """The server answered with a status that is not 200."""

    def __init__(self, path: str, status: int, content: bytes) -> None:
        # Redacted before it is cut: half a secret is not known to be one.
        said = redact(content.decode("utf-8", "replace")).strip()[:200]
        super().__init__(f"{path} answered {status}: {said}")
        self.status = status


@dataclass(frozen=True)
class Completion:
    """One finished completion."""

    text: str
    token_ids: list[int] | None
    """None if the engine does not return them."""
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    """From sending the request to the last byte of the answer."""
    names: list[str] | None = None
    """Tokens as the engine's logprobs name them; None if they were not asked for."""
    top: list[dict[str, float]] | None = None
    """Log probabilities by name, at each token."""


@dataclass(frozen=True)
class Reply:
    """Text that a model wrote until it stopped or was cut off."""

    text: str
    finish_reason: str | None
    """`length` where it was cut off; None if the engine does not say."""


@dataclass(frozen=True)
class Stream:
    """One streamed completion, by the clock."""

    tokens: int
    """Tokens in all, from the usage record."""
    first_tokens: int
    """Tokens that came with the first read; their time says nothing of decoding."""
    sent_at: float
    arrivals: tuple[float, ...]
    """Clock seconds of every piece that carried tokens, which are those of the network read that brought it; a piece
    is one step's tokens."""

    @property
    def first_at(self) -> float:
        return self.arrivals[0]

    @property
    def last_at(self) -> float:
        return self.arrivals[-1]

    @property
    def decode_tps(self) -> float:
        """Tokens per second between the first read and the last. BadAnswer if too many pieces came together."""
        reads, pieces = len(set(self.arrivals)), len(self.arrivals)
        if reads == 1:
            raise BadAnswer(f"all {self.tokens} tokens came in one piece; a decode time cannot be read")
        if pieces >= MANY_PIECES and reads - 1 < LEAST_READS * (pieces - 1):
            came = f"{self.tokens} tokens came in {pieces} events but only {reads} reads of the network"
            raise BadAnswer(f"{came}: something on the way collects them; a decode time cannot be read")
        return (self.tokens - self.first_tokens) / (self.last_at - self.first_at)

    @property
    def ttft(self) -> float:
        """Seconds from the request to the first read."""
        return self.first_at - self.sent_at

    @property
    def tpot(self) -> float:
        """Seconds a token after the first read."""
        return 1 / self.decode_tps

    @property
    def step(self) -> float:
        """Seconds a piece after the first read: one step of the engine, whatever number of tokens it emitted."""
        return (self.last_at - self.first_at) / sum(at > self.first_at for at in self.arrivals)

    @property
    def gaps(self) -> list[float]:
        """Seconds between neighbouring pieces, of which those of one read are one."""
        return [later - earlier for earlier, later in pairwise(sorted(set(self.arrivals)))]


class Client:
    """Asynchronous requests to one server. Use as `async with`."""

    def __init__(self, url: str, model: str, timeout_s: float) -> None:
        self.model = model
        # Loopback must not go through a proxy of the environment.
        self._http = httpx.AsyncClient(
            base_url=url,
            timeout=timeout_s,
            trust_env=False,
            # A compressed answer would be bounded only after it is unpacked.
            headers={**authorization(), "accept-encoding": "identity"},
            limits=LIMITS,
        )

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def complete(
        self,
        prompt: str | list[int],
        max_tokens: int,
        *,
        ignore_eos: bool = True,
        temperature: float = 0.0,
        seed: int | None = None,
        logprobs: int | None = None,
    ) -> Completion:
        """A completion with its token ids, greedy unless told otherwise."""
        sampled = {"seed": seed, "logprobs": logprobs}
        body = self._body(
            prompt=prompt,
            max_tokens=max_tokens,
            ignore_eos=ignore_eos,
            return_token_ids=True,
            temperature=temperature,
            **{key: value for key, value in sampled.items() if value is not None},
        )
        start = time.perf_counter()
        answer = await self._post("/v1/completions", body)
        seconds = time.perf_counter() - start
        try:
            choice, usage = answer["choices"][0], answer["usage"]
            ids = choice.get("token_ids")
            named = choice.get("logprobs") if logprobs is not None else None
            return Completion(
                str(choice["text"]),
                None if ids is None else _whole(ids),
                int(usage["prompt_tokens"]),
                int(usage["completion_tokens"]),
                seconds,
                None if named is None else [str(name) for name in named["tokens"]],
                None if named is None else [dict(top) for top in named["top_logprobs"]],
            )
        except ODD as error:
            raise _odd("/v1/completions", error) from None

    async def chat(self, message: str, max_tokens: int) -> str:
        """The reply to one user message, greedy and without thinking; '' where the engine gives no content."""
        messages = [{"role": "user", "content": message}]
        body = self._body(messages=messages, max_tokens=max_tokens, **thinking_fields("off"))
        answer = await self._post("/v1/chat/completions", body)
        try:
            return str(answer["choices"][0]["message"]["content"] or "")
        except ODD as error:
            raise _odd("/v1/chat/completions", error) from None

    async def chat_messages(
        self,
        messages: Sequence[dict[str, Any]],
        max_tokens: int,
        *,
        tools: Sequence[dict[str, Any]] = (),
        thinking: Thinking | None = None,
        temperature: float = 0.0,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> ChatReply:
        """The next turn of a conversation, with calls of tools and the thought apart.

        `messages` and `tools` are OpenAI's; `thinking` None leaves the engine's default.
        """
        sampled = {"top_p": top_p, "seed": seed}
        body = self._body(
            messages=list(messages),
            max_tokens=max_tokens,
            temperature=temperature,
            **({"tools": list(tools)} if tools else {}),
            **thinking_fields(thinking),
            **{key: value for key, value in sampled.items() if value is not None},
        )
        start = time.perf_counter()
        answer = await self._post("/v1/chat/completions", body)
        try:
            return read_reply(answer, time.perf_counter() - start)
        except ODD as error:
            raise _odd("/v1/chat/completions", error) from None

    async def write(
        self, prompt: str, max_tokens: int, *, chat: bool = False, stop: str | None = None, **more: Any
    ) -> Reply:
        """What follows a text, or the reply to one user message; greedy, with whatever else the body is to say."""
        path = "/v1/chat/completions" if chat else "/v1/completions"
        asked = {"messages": [{"role": "user", "content": prompt}]} if chat else {"prompt": prompt}
        ends = {} if stop is None else {"stop": stop}
        answer = await self._post(path, self._body(**asked, max_tokens=max_tokens, **ends, **more))
        try:
            choice = answer["choices"][0]
            text = choice["message"]["content"] if chat else choice["text"]
            if not isinstance(text, str | None):
                raise ValueError("a text")
            return Reply(text or "", choice.get("finish_reason"))
        except ODD as error:
            raise _odd(path, error) from None

    async def stream(
        self, prompt: str | list[int], tokens: int, *, temperature: float = 0.0, seed: int | None = None
    ) -> Stream:
        """A completion of exactly `tokens` tokens, streamed; greedy unless told otherwise."""
        body = self._body(
            prompt=prompt,
            max_tokens=tokens,
            ignore_eos=True,
            return_token_ids=True,
            stream=True,
            stream_options={"include_usage": True},
            temperature=temperature,
            **({} if seed is None else {"seed": seed}),
        )
        arrivals: list[float] = []
        first_tokens, total = 0, None
        sent_at = time.perf_counter()
        async with self._http.stream("POST", "/v1/completions", json=body) as response:
            if response.status_code != 200:
                raise Refused("/v1/completions", response.status_code, await bounded_body(response))
            async for read_at, line in bounded_lines(response):
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                try:
                    event = json.loads(line[5:])
                except (ValueError, RecursionError):
                    start = repr(redact(line)[:60])
                    raise BadAnswer(f"/v1/completions streamed a line that is not JSON: {start}") from None
                try:
                    if event.get("usage"):
                        total = int(event["usage"]["completion_tokens"])
                    pieces = [choice.get("token_ids") or choice.get("text") or "" for choice in event["choices"]]
                    if not all(isinstance(piece, str | list) for piece in pieces):
                        raise ValueError("a text or tokens")
                    carried = sum(map(len, pieces))
                    if carried and (not arrivals or read_at == arrivals[0]):
                        first_tokens += carried if "token_ids" in event["choices"][0] else 1
                except ODD as error:
                    raise _odd("/v1/completions", error) from None
                if carried:
                    arrivals.append(read_at)
        if total != tokens:
            raise BadAnswer(f"asked for {tokens} tokens, the stream's usage says {total}")
        if not arrivals:
            raise BadAnswer(f"asked for {tokens} tokens, no event of the stream carries any")
        return Stream(total, first_tokens, sent_at, tuple(arrivals))

    async def tell(self, path: str) -> None:
        """POST without a body to an endpoint that only starts or stops something."""
        await self._ask("POST", path)

    async def counters(self) -> dict[str, float]:
        """Every counter of /metrics, summed over its labels, and the process start time."""
        return read_counters(await self._metrics())

    async def page(self) -> Page:
        """/metrics with its labels."""
        return read_page(await self._metrics())

    async def _metrics(self) -> str:
        return (await self._ask("GET", "/metrics")).decode("utf-8", "replace")

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> bytes:
        """The body of an answer with status 200."""
        async with self._http.stream(method, path, json=body) as response:
            content = await bounded_body(response)
        if response.status_code != 200:
            raise Refused(path, response.status_code, content)
        return content

    def _body(self, **fields: Any) -> dict[str, Any]:
        return {"model": self.model, "temperature": 0.0, **fields}

    async def _post(self, path: str, body: dict[str, Any]) -> Any:
        content = await self._ask("POST", path, body)
        try:
            return read_json(content.decode())
        except (ValueError, RecursionError):
            raise BadAnswer(f"{path} answered something that is not JSON") from None


async def bounded_lines(response: httpx.Response) -> AsyncIterator[tuple[float, str]]:
    """Lines of a stream as they come, each with the clock seconds of the network read that brought its end.

    BadAnswer as soon as one is too long, or all of them together.
    """
    _check_plain(response)
    rest, total, read_at = b"", 0, time.perf_counter()
    async for read_at, piece in _read_times(response):
        total += len(piece)
        *lines, rest = (rest + piece).split(b"\n")
        longest = max(map(len, (*lines, rest)))
        if longest > MOST_OF_A_LINE:
            raise BadAnswer(f"{response.url.path} streamed a line of more than {MOST_OF_A_LINE:,} bytes")
        if total > MOST_OF_AN_ANSWER:
            raise BadAnswer(f"{response.url.path} streamed more than {MOST_OF_AN_ANSWER:,} bytes")
        for line in lines:
            yield read_at, line.decode("utf-8", "replace").removesuffix("\r")
    if rest:
        yield read_at, rest.decode("utf-8", "replace")


async def _read_times(response: httpx.Response) -> AsyncIterator[tuple[float, bytes]]:
    """Pieces of a body, each with the clock seconds of its network read.

    A read may bring many chunks, which come as pieces of their own without a wait. Only a read gives way to the event
    loop, so a piece is of a new one if the loop has turned since the last piece was asked for.
    """
    loop, read_at, turned = asyncio.get_running_loop(), 0.0, True

    def turn() -> None:
        nonlocal turned
        turned = True

    async for piece in response.aiter_bytes():
        if turned:
            read_at = time.perf_counter()
        yield read_at, piece
        turned = False
        loop.call_soon(turn)


def _check_plain(response: httpx.Response) -> None:
    if (encoding := response.headers.get("content-encoding", "identity")) != "identity":
        raise BadAnswer(f"{response.url.path} answered in the encoding {redact(encoding)[:40]!r}")


async def bounded_body(response: httpx.Response) -> bytes:
    """The body of an answer. BadAnswer as soon as it is too long."""
    _check_plain(response)
    pieces, total = [], 0
    async for piece in response.aiter_bytes():
        pieces.append(piece)
        total += len(piece)
        if total > MOST_OF_AN_ANSWER:
            raise BadAnswer(f"{response.url.path} answered more than {MOST_OF_AN_ANSWER:,} bytes")
    return b"".join(pieces)


def read_counters(text: str) -> dict[str, float]:
    """Counters of a Prometheus page by sample name, labels summed; `process_start_time_seconds` too if it is there."""
    values: dict[str, float] = {}
    for family in families(text):
        for sample in family.samples:
            counts = family.type == "counter" and not sample.name.endswith("_created")
            if (counts or sample.name == "process_start_time_seconds") and usable(sample.value):
                values[sample.name] = values.get(sample.name, 0.0) + float(sample.value)
    return values


def _whole(ids: Any) -> list[int]:
    """Token ids as they came. ValueError where one is none, as 1.5 is: cut to 1 it would equal another's."""
    odd = [i for i in ids if type(i) is not int] if isinstance(ids, list) else [ids]
    if odd:
        raise ValueError(f"token_ids that are whole numbers, but with {odd[0]!r}")
    return [*ids]


def _odd(path: str, error: Exception) -> BadAnswer:
    return BadAnswer(f"{path} answered without {redact(str(error))[:200]}")
