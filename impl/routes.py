"""The HTTP side of the server: OpenAI's routes, health and metrics, over one engine."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from impl.chat_reply import ReplySplitter
from impl.engine.core import Engine, EngineUnavailableError, QueueFullError
from impl.engine.metrics import CONTENT_TYPE
from impl.engine.request import Request
from impl.engine.runner import TokenEvent
from impl.openai_answers import Answer, Choice, Kind
from impl.openai_api import (
    ApiError,
    CompletionBody,
    GenerationBody,
    Limits,
    parse,
    prompt_ids,
)
from impl.openai_chat import ChatBody, chat_ids
from impl.openai_sampling import sampling_params

log = logging.getLogger("impl.routes")

T = TypeVar("T")

COMPLETION_MAX_TOKENS = 16
"""OpenAI's default for completions; a chat may fill the context."""

Lifespan = Callable[[Starlette], AbstractAsyncContextManager[None]]


class Routes:
    """Handlers of one server."""

    def __init__(self, engine: Engine, limits: Limits, seed: int, max_body_bytes: int) -> None:
        self.engine = engine
        self.limits = limits
        self.max_body_bytes = min(max_body_bytes, limits.most_body_bytes)
        self._seeds = random.Random(seed)
        self._created = int(time.time())
        # One thread: reading bodies side by side is no faster, and the threads of a server stay as many as they were.
        self._reader = ThreadPoolExecutor(1, "bodies")

    def app(self, lifespan: Lifespan) -> Starlette:
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/metrics", self.metrics),
                Route("/v1/models", self.models),
                Route("/v1/completions", self.completions, methods=["POST"]),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
            ],
            exception_handlers={
                ApiError: _api_error,
                HTTPException: _http_error,
                ClientDisconnect: _gone,
                Exception: _unexpected,
            },
            lifespan=lifespan,
        )

    async def health(self, _: HttpRequest) -> Response:
        try:
            self.engine.check()
        except EngineUnavailableError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        return PlainTextResponse("")

    async def metrics(self, _: HttpRequest) -> Response:
        return Response(self.engine.metrics.text(), media_type=CONTENT_TYPE)

    async def models(self, _: HttpRequest) -> Response:
        model = {
            "id": self.limits.model,
            "object": "model",
            "created": self._created,
            "owned_by": "dsbench",
            "max_model_len": self.limits.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [model]})

    async def completions(self, http: HttpRequest) -> Response:
        raw = await self._read(http)
        body, prompts = await self._apart(self._completion, raw)
        return await self._generate(http, "completion", body, prompts)

    async def chat(self, http: HttpRequest) -> Response:
        raw = await self._read(http)
        body, ids = await self._apart(self._chat, raw)
        return await self._generate(http, "chat", body, [ids])

    async def _apart(self, read: Callable[[bytes], T], raw: bytes) -> T:
        """In the reader's thread: a long body must not keep other clients waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._reader, read, raw)

    def _completion(self, raw: bytes) -> tuple[CompletionBody, list[list[int]]]:
        body = parse(CompletionBody, raw, self.limits)
        return body, [prompt_ids(prompt, self.limits, "prompt") for prompt in body.prompt]

    def _chat(self, raw: bytes) -> tuple[ChatBody, list[int]]:
        body = parse(ChatBody, raw, self.limits)
        return body, chat_ids(body, self.limits)

    async def _read(self, http: HttpRequest) -> bytes:
        """The body, refused once it is known to be too long."""
        chunks, size = [], 0
        async for chunk in http.stream():
            size += len(chunk)
            if size > self.max_body_bytes:
                raise ApiError(413, f"the body is longer than the limit of {self.max_body_bytes} bytes")
            chunks.append(chunk)
        return b"".join(chunks)

    async def _generate(
        self, http: HttpRequest, kind: Kind, body: GenerationBody, prompts: list[list[int]]
    ) -> Response:
        answer_id = f"{'cmpl' if kind == 'completion' else 'chatcmpl'}-{uuid.uuid4().hex}"
        chat = body if isinstance(body, ChatBody) else None
        thinking = chat is not None and chat.thinking != "off"
        answer = Answer(answer_id, kind, self.limits.model, body.return_token_ids, body.include_usage, thinking)
        choices = []
        for index, ids in enumerate(prompts):
            params = sampling_params(
                body,
                len(ids),
                self.limits,
                default_seed=self._seeds.getrandbits(64),
                default_max_tokens=COMPLETION_MAX_TOKENS if kind == "completion" else None,
            )
            splitter = ReplySplitter(thinking=thinking, tools=bool(chat.offered)) if chat else None
            choices.append(Choice(index, Request(f"{answer_id}-{index}", ids, params), splitter))
        events: asyncio.Queue[TokenEvent] = asyncio.Queue()
        self._submit(choices, events)
        if body.stream:
            return _Events(self._stream(answer, choices, events), lambda: self._abort(choices))
        return await self._collect(http, answer, choices, events)

    def _submit(self, choices: list[Choice], events: asyncio.Queue[TokenEvent]) -> None:
        """Hand over all prompts of a call, or none."""
        submitted: list[Choice] = []
        try:
            for choice in choices:
                self.engine.submit(choice.request, events)
                submitted.append(choice)
        except (EngineUnavailableError, QueueFullError, ValueError) as error:
            self._abort(submitted)
            status = (
                503 if isinstance(error, EngineUnavailableError) else 429 if isinstance(error, QueueFullError) else 400
            )
            raise ApiError(status, str(error)) from error

    async def _collect(
        self, http: HttpRequest, answer: Answer, choices: list[Choice], events: asyncio.Queue[TokenEvent]
    ) -> Response:
        """The whole answer, unless the client goes away first."""
        collecting = asyncio.ensure_future(_take_all(choices, events))
        leaving = asyncio.ensure_future(_disconnected(http))
        try:
            await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                return _nobody_reads()
            collecting.result()
            return JSONResponse(answer.whole(choices))
        finally:
            collecting.cancel()
            leaving.cancel()
            self._abort(choices)

    async def _stream(
        self, answer: Answer, choices: list[Choice], events: asyncio.Queue[TokenEvent]
    ) -> AsyncIterator[str]:
        """Server-sent events, one a token."""
        by_request = {choice.request: choice for choice in choices}
        offsets = dict.fromkeys(by_request, 0)
        if answer.kind == "chat":
            yield _sse(answer.role_chunk(0))
        while any(choice.finish_reason is None for choice in choices):
            event = await events.get()
            added = by_request[event.request].add(event)
            if event.finish_reason == "error":
                yield _sse(_engine_error(event).body())
                break
            yield _sse(answer.chunk(added, offsets[event.request]))
            offsets[event.request] += len(event.request.text_of(added.tokens))
        else:
            if answer.with_usage:
                yield _sse(answer.usage_chunk(choices))
        yield "data: [DONE]\n\n"

    def _abort(self, choices: list[Choice]) -> None:
        for choice in choices:
            if choice.finish_reason is None:
                self.engine.abort(choice.request)


class _Events(StreamingResponse):
    """A stream that calls `end` however it ends, also where its client is gone before the first event was asked for."""

    def __init__(self, events: AsyncIterator[str], end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


async def _take_all(choices: list[Choice], events: asyncio.Queue[TokenEvent]) -> None:
    by_request = {choice.request: choice for choice in choices}
    while any(choice.finish_reason is None for choice in choices):
        event = await events.get()
        by_request[event.request].add(event)
        if event.finish_reason == "error":
            raise _engine_error(event)


async def _disconnected(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _engine_error(event: TokenEvent) -> ApiError:
    return ApiError(500, f"the engine could not finish this request: {event.error}", code="engine_error")


def _sse(content: object) -> str:
    return f"data: {json.dumps(content)}\n\n"


async def _api_error(_: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return JSONResponse(error.body(), status_code=error.status)


async def _http_error(http: HttpRequest, error: Exception) -> Response:
    """Unknown paths and methods, in the same shape."""
    assert isinstance(error, HTTPException)
    known = ApiError(error.status_code, f"{http.method} {http.url.path}: {error.detail}")
    return JSONResponse(known.body(), status_code=error.status_code, headers=error.headers)


async def _gone(_: HttpRequest, __: Exception) -> Response:
    """The client has left in the middle of its own request."""
    return _nobody_reads()


def _nobody_reads() -> Response:
    return Response(status_code=499)


async def _unexpected(_: HttpRequest, error: Exception) -> Response:
    return JSONResponse(ApiError(500, f"{type(error).__name__}: {error}").body(), status_code=500)
