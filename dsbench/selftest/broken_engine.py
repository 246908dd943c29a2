"""The embedded engine with one fault of its process, port, log or answers, for `dsbench selftest --faults`.

`python -m dsbench.selftest.broken_engine FAULT FLAGS` is `python -m impl.serve FLAGS` with that fault, which is a
function of this module or of `dsbench.selftest.faults`. It may return more flags.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from dsbench.selftest import faults

PORT = "DSBENCH_SELFTEST_PORT"
"""Port that something else holds."""
FILES = "DSBENCH_SELFTEST_FILES"
"""Folder of weights that are none."""
LIMITED = "DSBENCH_SELFTEST_LIMITED"
"""Bytes that the kernel lets the run have, where it could be told so."""
FIRST_PIECES = 4
"""Pieces of a stream that come before its fault."""

_held: list[bytes] = []

Message = dict[str, Any]
Send = Callable[[Message], Awaitable[None]]


# --- the process ----------------------------------------------------------------------------------------------------


def exits_at_boot() -> None:
    print("planted: no such kernel image", file=sys.stderr, flush=True)
    os._exit(3)


def hangs_at_boot() -> None:
    time.sleep(3600)


def grandchildren() -> None:
    """One that is deaf to the polite signal, and one that leaves the group."""
    subprocess.Popen(["/bin/sh", "-c", "trap '' TERM; sleep 600 & wait; sleep 600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)


def killed_child() -> None:
    """By the kernel, which has no memory left for it, or else by itself: no last words."""
    _streams(lambda piece, message, send: _kill() if piece == FIRST_PIECES else send(message))


async def _kill() -> None:
    filled = 2 * int(os.environ.get(LIMITED, 0)) >> 26
    _held.extend(b"\1" * (1 << 26) for _ in range(filled))
    os.kill(os.getpid(), signal.SIGKILL)


# --- ports ----------------------------------------------------------------------------------------------------------


def port_taken() -> list[str]:
    return ["--port", os.environ[PORT]]


def port_stolen() -> None:
    """Another server answers where this one says it is."""
    from impl.handshake import Handshake

    ready = Handshake.ready
    _replace(Handshake, "ready", lambda self, host, port: ready(self, host, int(os.environ[PORT])))


# --- weights --------------------------------------------------------------------------------------------------------


def weights_empty() -> list[str]:
    return ["--weights", _file("empty.safetensors", b"")]


def weights_corrupt() -> list[str]:
    """A header that claims more than the file holds."""
    head = b'{"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}}'
    return ["--weights", _file("corrupt.safetensors", len(head).to_bytes(8, "little") + head + b"\0" * 100)]


def _file(name: str, content: bytes) -> str:
    path = Path(os.environ[FILES], name)
    path.write_bytes(content)
    return str(path)


# --- answers --------------------------------------------------------------------------------------------------------


def hangs_mid_stream() -> None:
    _streams(lambda piece, message, send: asyncio.sleep(3600) if piece == FIRST_PIECES else send(message))


def dies_mid_decode() -> None:
    _streams(lambda piece, message, send: _die() if piece == FIRST_PIECES else send(message))


async def _die() -> None:
    os._exit(9)


def slow_drip() -> None:
    async def drip(piece: int, message: Message, send: Send) -> None:
        await asyncio.sleep(0.6)
        await send(message)

    _streams(drip)


def stream_truncated() -> None:
    async def cut(piece: int, message: Message, send: Send) -> None:
        if piece <= FIRST_PIECES:
            half = len(message["body"]) // (2 if piece == FIRST_PIECES else 1)
            await send({**message, "body": message["body"][:half]})

    _streams(cut)


def stream_without_end() -> None:
    async def drop(piece: int, message: Message, send: Send) -> None:
        if piece <= FIRST_PIECES:
            await send(message)

    _streams(drop)


def huge_line() -> None:
    async def flood(piece: int, message: Message, send: Send) -> None:
        if piece == FIRST_PIECES:
            await send({**message, "body": b"data: "})
            for _ in range(50):
                await send({**message, "body": b"x" * (1 << 20)})
        await send(message)

    _streams(flood)


def status_500() -> None:
    _refuse(500)


def status_429() -> None:
    _refuse(429)


def invalid_utf8() -> None:
    async def spoil(scope: Message, message: Message, send: Send) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": message["body"].replace(b'"text"', b'"t\xff\xfet"')}
        await send(message)

    _each_message(spoil)


def wrong_model_name() -> None:
    from impl import serve

    limits = vars(serve)["Limits"]
    _replace(serve, "Limits", lambda name, *rest: limits("another-model", *rest))


def _refuse(status: int) -> None:
    async def refuse(scope: Message, message: Message, send: Send) -> None:
        if scope["path"] == "/v1/completions" and message["type"] == "http.response.start":
            await send({**message, "status": status})
        else:
            await send(message)

    _each_message(refuse)


def _streams(act: Callable[[int, Message, Send], Awaitable[None]]) -> None:
    """Let `act` send the n-th piece of every streamed answer."""
    pieces: dict[int, itertools.count[int]] = {}

    async def through(scope: Message, message: Message, send: Send) -> None:
        if message["type"] == "http.response.body" and message.get("more_body"):
            await act(next(pieces.setdefault(id(scope), itertools.count(1))), message, send)
        else:
            pieces.pop(id(scope), None)
            await send(message)

    _each_message(through)


def _each_message(act: Callable[[Message, Message, Send], Awaitable[None]]) -> None:
    """Let `act` send every part of every HTTP answer."""
    from impl.routes import Routes

    build = Routes.app

    def broken(self: Routes, lifespan: Any) -> Any:
        app = build(self, lifespan)

        async def through(scope: Any, receive: Any, send: Any) -> None:
            async def sent(message: Any) -> None:
                await act(scope, message, send)

            await app(scope, receive, sent if scope["type"] == "http" else send)

        return through

    _replace(Routes, "app", broken)


# --- logs and clocks ------------------------------------------------------------------------------------------------


def log_rotated() -> None:
    log = Path(os.environ["DSBENCH_BOOT_DIR"], "engine.log")

    def rotate(metrics: object, scrape: int) -> None:
        if scrape == 2:
            log.rename(log.with_name("engine.log.1"))
            log.write_text(f"rotated by process {os.getpid()}\n")

    faults.at_each_scrape(rotate)


def log_nuls() -> None:
    sys.stderr.write("\0" * 100_000 + "\n")


def log_huge_line() -> None:
    sys.stderr.write("x" * (50 << 20) + "\n")


def clock_jump() -> None:
    """The wall clock goes back a day once the engine answers."""
    clock, shift = time.time, [0.0]
    _replace(time, "time", lambda: clock() + shift[0])

    def jump(metrics: object, scrape: int) -> None:
        shift[0] = -86_400.0

    faults.at_each_scrape(jump)


def _replace(owner: Any, name: str, fault: object) -> None:
    setattr(owner, name, fault)


def main(argv: list[str]) -> int:
    from impl.serve import main as serve

    fault, *flags = argv
    more = (globals().get(fault) or vars(faults)[fault])()
    return serve([*flags, *(more or [])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
