"""The faults themselves: each changes the engine of its own process, before it starts.

`python -m dsbench.selftest.faults FAULT FLAGS` is `python -m impl.serve FLAGS` with that fault.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LISTENER = "DSBENCH_SELFTEST_LISTENER"
"""Descriptor of the socket that two engines share, and whether this is the second one: `5:False`."""


def nothing() -> None:
    pass


def branch_gone() -> None:
    from impl.model.streams import Seam

    def fresh(self: Seam, *_: object) -> bool:
        return False

    _replace(Seam, "_may_take", fresh)


def branch_always() -> None:
    from impl.model.streams import Seam

    build = Seam.__init__

    def build_with_reuse(self: Seam, *args: Any, **named: Any) -> None:
        build(self, *args, **named)
        self.reuse_input = True

    _replace(Seam, "__init__", build_with_reuse)


def held_by_another() -> None:
    from impl.model.streams import Seam, Streams

    advance = Seam.__call__
    held: list[Any] = []

    seams = iter(range(1 << 40))

    def advance_and_hold(self: Seam, streams: Streams) -> Any:
        held[:] = [streams.y] if next(seams) % 3 == 0 else []
        return advance(self, streams)

    _replace(Seam, "__call__", advance_and_hold)


def toggles_dropped() -> None:
    os.environ.pop("DSBENCH_TOGGLES", None)


def other_version() -> None:
    import torch

    _replace(torch, "__version__", "2.12.9")


def warm_cache() -> None:
    _say_of_itself(cache_state="prefix")


def silent_rank() -> None:
    from impl.handshake import Handshake

    def nothing(self: Handshake, facts: object) -> None:
        pass

    _replace(Handshake, "conditions", nothing)


def one_log() -> None:
    print("INFO the engine has started", file=sys.stderr, flush=True)
    logging.disable()


def check_refused() -> None:
    from impl.routes import Routes

    async def broken(self: Routes, http: object) -> None:
        raise RuntimeError("planted: no chat today")

    _replace(Routes, "chat", broken)


def counters_reset() -> None:
    def reset(metrics: Any, scrape: int) -> None:
        if scrape == 4:
            metrics.prompt_tokens.reset()
            metrics.generation_tokens.reset()

    at_each_scrape(reset)


def engine_restarted() -> None:
    """Runs two engines one after the other on one socket, under a parent that stays."""
    from impl import serve
    from impl.engine.core import Engine

    if LISTENER not in os.environ:
        raise SystemExit(_replace_engine())
    descriptor, second = os.environ[LISTENER].split(":")
    start = Engine.start

    def inherit(host: str, port: int) -> socket.socket:
        return socket.socket(fileno=int(descriptor))

    def start_before_listening(self: Engine) -> None:
        start(self)
        while second == "True" and self.state == "starting":
            time.sleep(0.01)

    def ask_for_the_next(metrics: object, scrape: int) -> None:
        if second == "False" and scrape == 3:
            before = _ready_file().read_text()
            _ready_file().with_name("replace").touch()
            while _ready_file().read_text() == before:
                time.sleep(0.02)

    _replace(serve, "_listen", inherit)
    _replace(Engine, "start", start_before_listening)
    at_each_scrape(ask_for_the_next)


def _replace_engine() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.set_inheritable(True)

        def spawn(second: bool) -> subprocess.Popen[bytes]:
            environment = {**os.environ, LISTENER: f"{listener.fileno()}:{second}"}
            return subprocess.Popen([sys.executable, *sys.orig_argv[1:]], close_fds=False, env=environment)

        first = spawn(False)
        while not _ready_file().with_name("replace").exists():
            if first.poll() is not None:
                return first.returncode
            time.sleep(0.02)
        before = _ready_file().read_text()
        following = spawn(True)
        while _ready_file().read_text() == before and following.poll() is None:
            time.sleep(0.02)
        time.sleep(0.1)  # the first engine's last answer
        first.kill()
        first.wait()
        return following.wait()


def _ready_file() -> Path:
    return Path(os.environ["DSBENCH_BOOT_DIR"], "ready.json")


def engine_dies() -> None:
    def die(metrics: object, scrape: int) -> None:
        if scrape == 3:
            os._exit(9)

    at_each_scrape(die)


def kv_pinned() -> None:
    from impl.engine.runner import Runner

    measured = Runner._capacity

    def pinned(self: Runner) -> Any:
        self.profile = type(self.profile)(**{**vars(self.profile), "peak_activation_bytes": 1 << 20})
        return measured(self)

    _replace(Runner, "_capacity", pinned)
    _say_of_itself(kv_cache_memory_bytes=60_000_000)


def illegal_access() -> None:
    def say(metrics: object, scrape: int) -> None:
        if scrape == 2:
            logging.getLogger("engine").error("CUDA error: an illegal memory access was encountered")

    at_each_scrape(say)


def drift() -> None:
    import torch

    from impl.engine import runner

    load = vars(runner)["load_parameters"]

    def load_more(*args: Any) -> Any:
        weights, what = load(*args)
        return {**weights, "spare": torch.zeros(1024)}, what

    _replace(runner, "load_parameters", load_more)


def not_repeatable() -> None:
    import torch

    from impl.model.target import Target

    logits = Target.logits
    noise = torch.Generator().manual_seed(time.time_ns() % (1 << 40))

    def noisy(self: Target, hidden: torch.Tensor) -> torch.Tensor:
        right = logits(self, hidden)
        return right.add_(torch.randn(right.shape, generator=noise).mul_(3.0))

    _replace(Target, "logits", noisy)


def accept_all() -> None:
    import torch

    from impl.engine import rounds

    verify = vars(rounds)["rejection_sample"]

    def accept(*args: Any, **named: Any) -> Any:
        named["synthetic_conditional_rates"] = torch.ones(args[1].shape[1])
        return verify(*args, **named)

    _replace(rounds, "rejection_sample", accept)


def other_temperature() -> None:
    from impl.ops.sampling import SamplingRows

    read = SamplingRows.of

    def half(rows: Any, *rest: Any) -> SamplingRows:
        return read([(temperature / 2, *others) for temperature, *others in rows], *rest)

    _replace(SamplingRows, "of", half)


def bos_leaks() -> None:
    from impl.engine.request import Request
    from impl.tokenizer import BOS

    append = Request.append

    def append_bos_third(self: Request, token: int, piece: str) -> None:
        leaks = len(self.outputs) == 2
        append(self, BOS if leaks else token, self.text_of([BOS]) if leaks else piece)

    _replace(Request, "append", append_bos_third)


def _replace(owner: Any, name: str, fault: object) -> None:
    setattr(owner, name, fault)


def _say_of_itself(**facts: object) -> None:
    """Add to the conditions that the engine reads back."""
    from impl.handshake import Handshake

    tell = Handshake.conditions

    def tell_more(self: Handshake, told: Any) -> None:
        tell(self, {**told, **facts})

    _replace(Handshake, "conditions", tell_more)


def at_each_scrape(act: Callable[[Any, int], None]) -> None:
    """Call `act(metrics, n)` before the n-th page of metrics is written."""
    from impl.engine.metrics import EngineMetrics

    write = EngineMetrics.text
    scrapes = iter(range(1, 1 << 30))

    def act_and_write(self: EngineMetrics) -> bytes:
        act(self, next(scrapes))
        return write(self)

    _replace(EngineMetrics, "text", act_and_write)


def main(argv: list[str]) -> int:
    from impl.serve import main as serve

    fault, *flags = argv
    globals()[fault]()
    return serve(flags)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
