"""The server: `python -m impl.serve`. OpenAI-compatible, on loopback unless told otherwise."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import NoReturn, get_args

import torch
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from impl.dims import SHAPES, Dims
from impl.engine.acceptance import synthetic_conditional_rates
from impl.engine.config import Capture, Method
from impl.engine.core import Engine, EngineUnavailableError
from impl.engine.metrics import EngineMetrics
from impl.engine.runner import EngineConfig, Runner, check_weights
from impl.handshake import Handshake
from impl.openai_api import Limits
from impl.routes import Routes
from impl.toggles import ToggleSet

log = logging.getLogger("impl.serve")

DEFAULT_BUDGETS = {"pico": 64 << 20, "micro": 512 << 20}
CUDA_CONTEXT = 2 << 30
"""More for what a CUDA process holds outside the allocator, and its workspaces."""
DIMS_FLAGS = ("hidden_size", "max_num_batched_tokens", "max_model_len", "max_num_seqs")
TRACES = "traces"
"""In the boot's folder: where the harness looks for what a profiler has written."""
GRACE_S = 3
"""Time that open connections get after a stop signal."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\n")


MOST_THREADS = 256


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _rates(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(","))


def _threads(text: str) -> int:
    value = _count(text)
    if value > MOST_THREADS:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_THREADS}, got {value}")
    return value


def parser() -> argparse.ArgumentParser:
    flags = _Parser(prog="python -m impl.serve", description=__doc__, allow_abbrev=False)
    add = flags.add_argument
    add("--dims", choices=[*SHAPES], default="micro", help="model shape, and the name it is served under")
    add("--weights", type=Path, help="safetensors file (default: the shipped one of these dims)")
    add("--load-format", choices=["auto", "dummy"], default="auto", help="dummy: random weights of the right shape")
    add("--host", default="127.0.0.1")
    add("--port", type=int, default=8000, help="0 takes a free one; see ready.json in the boot folder")
    add("--max-num-batched-tokens", type=_count, help="T: tokens a step may process")
    add("--max-model-len", type=_count, help="tokens of prompt and output together")
    add("--max-num-seqs", type=_count, help="requests that may run together")
    add("--hidden-size", type=_count, help="H; weights must have it too, or --load-format dummy")
    add(
        "--memory-budget",
        type=_count,
        help="bytes for weights, buffers, activations, KV (micro: 512 MiB, pico: 64 MiB; on CUDA 2 GiB more)",
    )
    add("--device", choices=["cpu", "cuda"], default="cpu")
    add("--seed", type=int, default=0, help="of dummy weights, and of requests without a seed")
    add("--threads", type=_threads, default=1, help="torch threads")
    add("--speculative", choices=["none", "mtp", "dspark"], default="none", help="how tokens are drafted")
    add("--draft-weights", type=Path, help="safetensors file (default: the shipped one of these dims and method)")
    add("--draft-load-format", choices=["auto", "dummy"], help="of the draft's weights (default: as --load-format)")
    add("--draft-sample-method", choices=["probabilistic", "greedy"], default="probabilistic")
    add("--rejection-sample-method", choices=["strict", "synthetic"], default="strict",
        help="synthetic: accept by given rates, whatever the target says; the text means nothing then")  # fmt: skip
    add("--synthetic-acceptance-length", type=float, help="tokens a round emits on average, bonus included")
    add("--synthetic-acceptance-rates", type=_rates, metavar="A,A,...", help="share of rounds that accept each draft")
    add("--eager", action="store_true", help="do not capture and replay graphs")
    add("--capture", choices=[*get_args(Capture)],
        help="what graphs hold: the DSpark draft's passes, also the target's forward over decodes, or whole decode "
        "steps (default: steps on CUDA, unless mtp drafts; else draft)")  # fmt: skip
    add("--max-waiting", type=_count, default=1024, help="requests that may wait; more are answered 429")
    add("--max-body-bytes", type=_count, default=8 << 20, help="longest HTTP body taken")
    add("--until", choices=["profile", "ready-forever"], default="ready-forever", help="profile: write the files, exit")
    return flags


def read_config(args: argparse.Namespace) -> EngineConfig:
    """Raises ValueError, with one line, for settings that cannot work together."""
    changes = {name: getattr(args, name) for name in DIMS_FLAGS if getattr(args, name) is not None}
    dims: Dims = SHAPES[args.dims].with_changes(**changes)
    budget = args.memory_budget or DEFAULT_BUDGETS.get(args.dims)
    if budget is None:
        raise ValueError(f"--dims {args.dims} has no default memory: give --memory-budget BYTES")
    if args.device == "cuda" and args.memory_budget is None:
        budget += CUDA_CONTEXT
    if args.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda, but torch sees no CUDA device here: use --device cpu")
    if not 0 <= args.port < 65536:
        raise ValueError(f"--port must be 0 to 65535, got {args.port}")
    config = EngineConfig(
        dims=dims,
        toggles=ToggleSet.from_environment(),
        memory_budget=budget,
        weights=args.weights,
        load_format=args.load_format,
        device=args.device,
        seed=args.seed,
        threads=args.threads,
        speculative=args.speculative,
        draft_weights=args.draft_weights,
        draft_load_format=args.draft_load_format,
        draft_sample_method=args.draft_sample_method,
        synthetic_rates=read_synthetic(args, dims),
        eager=args.eager,
        capture=args.capture or default_capture(args.device, args.speculative),
    )
    check_weights(config)
    return config


def default_capture(device: str, speculative: Method) -> Capture:
    """On a CPU a tape of a step costs more of the boot than it saves later."""
    return "steps" if device == "cuda" and speculative != "mtp" else "draft"


def read_synthetic(args: argparse.Namespace, dims: Dims) -> tuple[float, ...] | None:
    """Conditional rates of synthetic acceptance; None for strict verification. Raises ValueError."""
    rates, length = args.synthetic_acceptance_rates, args.synthetic_acceptance_length
    if args.rejection_sample_method == "strict":
        if rates is not None or length is not None:
            raise ValueError("synthetic acceptance rates or length need --rejection-sample-method synthetic")
        return None
    if args.speculative == "none":
        raise ValueError("--rejection-sample-method synthetic needs drafts: add --speculative mtp or dspark")
    return synthetic_conditional_rates(dims.draft_tokens, rates, length)


def boot(config: EngineConfig, handshake: Handshake) -> Runner:
    runner = Runner(config, handshake)
    runner.allocate_pages()
    return runner


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status: 0 after `--until profile`, 2 for settings that cannot work, 1 for a failure.

    A stop signal ends the process by that signal, once everything is stopped.
    """
    args = parser().parse_args(argv)
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(levelname)s %(asctime)s [%(filename)s:%(lineno)d] %(message)s",
        datefmt="%m-%d %H:%M:%S",
    )
    try:
        config = read_config(args)
        handshake = Handshake.from_environment()
        if args.until == "profile":
            Runner(config, handshake)
            return 0
        listener = _listen(args.host, args.port)
    except ValueError as error:
        print(f"python -m impl.serve: {error}", file=sys.stderr)
        return 2
    with listener:
        return serve(args, config, handshake, listener)


def serve(args: argparse.Namespace, config: EngineConfig, handshake: Handshake, listener: socket.socket) -> int:
    """Answer on `listener` until a stop signal; `/health` says 503 until the engine has booted."""
    caught: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):
        # uvicorn raises the signal again after its own clean stop, when ours is still to be told of.
        signal.signal(number, lambda number, _: caught.append(number))
    status = asyncio.run(_serve(args, config, handshake, listener))
    if caught and status == 0:
        # Whoever started this process must see that it was ended, and did not end by itself.
        signal.signal(caught[0], signal.SIG_DFL)
        signal.raise_signal(caught[0])
    return status


async def _serve(args: argparse.Namespace, config: EngineConfig, handshake: Handshake, listener: socket.socket) -> int:
    limits = Limits(config.dims.name, config.dims.vocab_size, config.dims.max_model_len)
    engine = Engine(lambda: boot(config, handshake), EngineMetrics(config.dims.name), args.max_waiting)
    routes = Routes(engine, limits, config.seed, args.max_body_bytes)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        engine.start()
        yield
        await asyncio.to_thread(engine.stop)

    app = routes.app(lifespan)
    if config.device == "cuda" and handshake.folder is not None:
        app.router.routes += profiler_routes(engine, handshake.folder / TRACES)
    server = uvicorn.Server(
        uvicorn.Config(app, log_config=None, access_log=False, lifespan="on", timeout_graceful_shutdown=GRACE_S)
    )
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    await engine.booted.wait()
    if engine.state == "ready":
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        host, port = listener.getsockname()[:2]
        handshake.ready(host, port)
        log.info("Serving %s on http://%s:%d", limits.model, host, port)
    else:
        server.should_exit = True
    await serving
    return _exit_status(engine)


def profiler_routes(engine: Engine, folder: Path) -> list[Route]:
    """vLLM's two: between them the GPU time of every step is recorded, and then written into `folder`."""

    async def start(_: HttpRequest) -> Response:
        return _tell(lambda runner: runner.step_times.start())

    async def stop(_: HttpRequest) -> Response:
        return await asyncio.to_thread(_tell, lambda runner: runner.step_times.stop(folder))

    def _tell(what: Callable[[Runner], object]) -> Response:
        try:
            engine.check()
        except EngineUnavailableError as error:
            return PlainTextResponse(f"{error}\n", status_code=503)
        assert engine.runner is not None
        what(engine.runner)
        return PlainTextResponse("")

    return [Route("/start_profile", start, methods=["POST"]), Route("/stop_profile", stop, methods=["POST"])]


def _exit_status(engine: Engine) -> int:
    """2 for a boot that its settings cannot have, 1 for any other failure, 0 for a clean stop."""
    if engine.failure is None:
        return 0
    if engine.runner is None and isinstance(engine.failure, ValueError):
        print(f"python -m impl.serve: {engine.failure}", file=sys.stderr)
        return 2
    log.error("The engine has failed", exc_info=engine.failure)
    return 1


def _listen(host: str, port: int) -> socket.socket:
    # Made as IPPROTO_TCP: asyncio turns Nagle's algorithm off only for sockets that say so, and with it on
    # the body of every answer waits 40 ms for the acknowledgement of its head.
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
        return listener
    except OSError as error:
        listener.close()
        raise ValueError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error


if __name__ == "__main__":
    sys.exit(main())
