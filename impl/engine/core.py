"""The engine thread: takes requests from the server's event loop, runs steps, hands tokens back.

Only this thread touches the runner. A step that fails ends its own requests with an error; an
engine that fails ends all of them and says why in `failure`: nobody waits for an answer that
does not come.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from impl.engine.metrics import EngineMetrics
from impl.engine.request import Request
from impl.engine.runner import Runner, TokenEvent

log = logging.getLogger("impl.engine.core")

State = Literal["starting", "ready", "failed", "stopped"]
MARKER_INTERVAL_S = 1.0

Events = asyncio.Queue[TokenEvent]


class EngineUnavailableError(RuntimeError):
    """The engine is starting, has failed or is stopping; the message says which."""


class QueueFullError(RuntimeError):
    """As many requests wait as may wait."""


@dataclass(frozen=True)
class _Add:
    request: Request
    events: Events


@dataclass(frozen=True)
class _Abort:
    request: Request


class Engine:
    """Owns the engine thread. `submit` and `abort` are for the event loop's thread; neither blocks."""

    def __init__(self, boot: Callable[[], Runner], metrics: EngineMetrics, max_waiting: int = 1024) -> None:
        self.metrics = metrics
        self.max_waiting = max_waiting
        self.state: State = "starting"
        self.failure: BaseException | None = None
        self.booted = asyncio.Event()
        """Set once the state is no longer `starting`."""
        self.runner: Runner | None = None
        self._boot = boot
        self._inbox: queue.SimpleQueue[_Add | _Abort | None] = queue.SimpleQueue()
        self._events: dict[Request, Events] = {}
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._preemptions_seen = 0
        self._n_arriving = 0
        """Requests in the inbox; aborts are there too, and wait for nothing."""
        # Held while the state is read and a request is put, so that none comes after the last look in the inbox.
        self._lock = threading.Lock()

    def start(self) -> None:
        """Start booting; call from the event loop that will read the events."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self, timeout_s: float = 30.0) -> None:
        """Finish the running step, abort what is left, write the markers; blocks until done."""
        self._inbox.put(None)
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def check(self) -> None:
        """Raises EngineUnavailableError unless requests can be taken."""
        if self.state != "ready":
            raise EngineUnavailableError(
                f"the engine has failed: {self.failure}" if self.state == "failed" else f"the engine is {self.state}"
            )

    def submit(self, request: Request, events: Events) -> None:
        """Hand a request over; its tokens arrive in `events`, the last with a finish reason or an error.

        Raises EngineUnavailableError, QueueFullError, or ValueError for a request the KV pool can never hold.
        """
        with self._lock:
            self.check()
            assert self.runner is not None
            refusal = self.runner.scheduler.refusal(request.most_tokens)
            if refusal:
                raise ValueError(refusal)
            if len(self.runner.scheduler.waiting) + self._n_arriving >= self.max_waiting:
                raise QueueFullError(f"{self.max_waiting} requests are waiting already: try again later")
            self._n_arriving += 1
            self._inbox.put(_Add(request, events))

    def abort(self, request: Request) -> None:
        """Drop a request whose client is gone; nothing happens if it has finished."""
        self._inbox.put(_Abort(request))

    def _run(self) -> None:
        try:
            self.runner = self._boot()
            self.metrics.cache_config(self.runner.n_blocks, self.runner.dims.block_tokens, "fp8_ds_mla")
            if self.runner.rounds is not None:
                self.metrics.speculation(self.runner.config.draft_tokens, time.monotonic())
            self._become("ready")
            self._work(self.runner)
            self._become("stopped")
        except BaseException as error:
            self.failure = error
            if self.runner is not None:  # a boot's failure is the caller's to report
                log.exception("The engine thread has failed")
            self._become("failed")
        finally:
            self._fail_all(str(self.failure) if self.failure else "the engine has stopped")
            if self.runner is not None:
                self.runner.write_markers()

    def _become(self, state: State) -> None:
        with self._lock:
            self.state = state
        self._call_loop(self.booted.set)

    def _work(self, runner: Runner) -> None:
        stale_markers = False
        while True:
            while (message := self._next_message(runner, stale_markers)) is not None:
                if message == "stop":
                    return
                self._handle(runner, message)
            if not runner.scheduler.has_work:
                runner.write_markers()
                stale_markers = False
                continue
            events = runner.step()
            self._gauge(runner)  # before a client can see its last token and look
            self._deliver(events)
            runner.write_markers(at_most_every_s=MARKER_INTERVAL_S)
            stale_markers = True

    def _next_message(self, runner: Runner, stale_markers: bool) -> _Add | _Abort | Literal["stop"] | None:
        """The next message; None if there is none. Waits when idle: for ever, or until the markers are due."""
        idle = not runner.scheduler.has_work
        try:
            if idle:
                message = self._inbox.get(timeout=MARKER_INTERVAL_S if stale_markers else None)
            else:
                message = self._inbox.get_nowait()
        except queue.Empty:
            return None
        return "stop" if message is None else message

    def _handle(self, runner: Runner, message: _Add | _Abort) -> None:
        request = message.request
        if isinstance(message, _Add):
            self._events[request] = message.events
            with self._lock:
                self._n_arriving -= 1
                runner.scheduler.add(request)
        elif request in self._events:
            runner.scheduler.finish(request, "abort")
            del self._events[request]
            self.metrics.finished(request, time.monotonic())
        self._gauge(runner)

    def _deliver(self, events: list[TokenEvent]) -> None:
        """Hand a step's events to the loop in one call, so that it wakes once a step."""
        batch: list[tuple[Events, TokenEvent]] = []
        for event in events:
            request = event.request
            if event.token is not None:
                self.metrics.token(request, event.previous_time, event.follows)
            batch.append((self._events[request], event))
            if event.finish_reason:
                del self._events[request]
                self.metrics.finished(request, time.monotonic())
        if batch:
            self._call_loop(lambda: _put_all(batch))

    def _gauge(self, runner: Runner) -> None:
        scheduler = runner.scheduler
        self.metrics.running.set(len(scheduler.running))
        self.metrics.waiting.set(len(scheduler.waiting))
        self.metrics.kv_usage.set(1 - scheduler.blocks.n_free / scheduler.blocks.n_usable)
        self.metrics.preemptions.inc(scheduler.n_preemptions - self._preemptions_seen)
        self._preemptions_seen = scheduler.n_preemptions
        if self.metrics.spec is not None and runner.rounds is not None:
            self.metrics.spec.observe(runner.rounds.counts, time.monotonic())

    def _fail_all(self, why: str) -> None:
        """End every request that still has a reader, those in the inbox too."""
        while True:
            try:
                message = self._inbox.get_nowait()
            except queue.Empty:
                break
            if isinstance(message, _Add):
                self._events[message.request] = message.events
        for request in self._events:
            request.finish_reason = "error"
        self._deliver([TokenEvent(r, None, finish_reason="error", error=why) for r in list(self._events)])

    def _call_loop(self, call: Callable[[], object]) -> None:
        assert self._loop is not None
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call)


def _put_all(batch: list[tuple[Events, TokenEvent]]) -> None:
    for events, event in batch:
        events.put_nowait(event)
