"""A small HTTP server that speaks the contract of an engine, for tests of the harness's own lifecycle.

It computes nothing real: tokens come from a hash of the prompt, bytes from the toggles. FAKE_FAULT plants
one fault: in every boot, or in boots whose folder the fault names, by arm (`die@mhc_input_reuse`) or, in a pool, by
node (`slow@-b/boots`). FAKE_TOKEN_S is the time of one token.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import math
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from impl.dims import SHAPES
from impl.handshake import Handshake, Markers
from impl.toggles import REGISTRY, ToggleSet

SLOWER = 3
"""Times slower is a boot with the fault `slow`."""
toggles = ToggleSet.from_environment()
boot_dir = os.environ.get("DSBENCH_BOOT_DIR", "")


def fault() -> str:
    name, _, where = os.environ.get("FAKE_FAULT", "").partition("@")
    return name if where in (boot_dir if "/" in where else os.path.basename(boot_dir)) else ""


FAULT = fault()
TOKEN_S = float(os.environ.get("FAKE_TOKEN_S", "0.002")) * (SLOWER if FAULT == "slow" else 1)
LINES = {
    "compile": "INFO 01-01 00:00:00 [backends.py:1] Compiling a graph for dynamic shape takes 15.52 s",
    "fatal-line": "ERROR 01-01 00:00:00 [w.py:1] CUDA error: an illegal memory access was encountered",
}
"""Faults that are a line in the log while a stream is timed."""
served: dict[str, Any] = {}
counts = {"prompt": 0, "generation": 0}
DEPTH = 5
drafts = {"drafts": 0, "draft_tokens": 0, "accepted_tokens": 0, "positions": [0] * DEPTH}
flags = argparse.Namespace(speculative="none")
markers = Markers()
handshake = Handshake.from_environment()


def tokens_for(prompt: str | list[int], number: int) -> list[int]:
    seed = hashlib.sha256(repr(prompt).encode()).digest()
    if FAULT == "nondeterministic":
        seed += os.urandom(8)
    if FAULT == "wrong-tokens":
        seed += b"wrong"
    return random.Random(seed).choices(range(95), k=number)


def law(ids: list[int]) -> dict[int, float]:
    """A distribution over 12 tokens, by what stands before."""
    rng = random.Random(f"law {ids}")
    tokens = rng.sample(range(95), 12)
    weights = [rng.expovariate(1) ** 2 for _ in tokens]
    return {token: weight / sum(weights) for token, weight in zip(tokens, weights, strict=True)}


def sampled(ids: list[int], number: int, rng: random.Random) -> list[int]:
    """The first token follows the law; the others do too, unless a stale draft is planted."""
    out: list[int] = []
    while len(out) < number:
        stale = FAULT == "stale-draft" and out and rng.random() < 0.5
        chances = law([*ids, *out, 0] if stale else [*ids, *out])
        out += rng.choices(list(chances), list(chances.values()))
    return out


def count_drafts(number: int, temperature: float, rng: random.Random) -> None:
    """Rounds that emit all tokens but the first."""
    rate = 0.5 if not temperature else 0.995 if FAULT == "stale-draft" else 0.6
    if flags.synthetic_acceptance_rates:
        rate = 0.9 if FAULT == "positional" else 0.3
    left = number - 1
    while left > 0:
        accepted = next((k for k in range(DEPTH) if rng.random() >= rate), DEPTH)
        drafts["drafts"] += 1
        drafts["draft_tokens"] += DEPTH
        drafts["accepted_tokens"] += accepted
        drafts["positions"] = [n + (k < accepted) for k, n in enumerate(drafts["positions"])]
        left -= accepted + 1


def logprobs_of(ids: list[int], out: list[int], top: int) -> dict[str, Any]:
    tops = []
    for place in range(len(out)):
        likely = sorted(law([*ids, *out[:place]]).items(), key=lambda entry: -entry[1])[:top]
        tops.append({f"<{token}>": math.log(chance) for token, chance in likely})
    return {"tokens": [f"<{token}>" for token in out], "top_logprobs": tops}


async def completions(request: Request) -> Response:
    body = await request.json()
    prompt, number = body["prompt"], body["max_tokens"]
    length = len(prompt) if isinstance(prompt, list) else len(prompt) + 1
    if body.get("stream") and FAULT in LINES:
        print(LINES[FAULT], file=sys.stderr, flush=True)
    counts["prompt"] += length
    counts["generation"] += number
    usage = {"prompt_tokens": length, "completion_tokens": number, "total_tokens": length + number}
    rng = random.Random(f"{prompt} {body.get('seed')} {os.getpid() if FAULT == 'nondeterministic' else ''}")
    if flags.speculative != "none":
        count_drafts(number, body["temperature"], rng)
    if body["temperature"]:
        ids = prompt if isinstance(prompt, list) else [ord(c) for c in prompt]
        out = sampled(ids, number, rng)
        named = logprobs_of(ids, out, body["logprobs"]) if "logprobs" in body else None
        return JSONResponse({"choices": [{"text": "?", "token_ids": out, "logprobs": named}], "usage": usage})
    grow(length)
    if FAULT == "reset" and body.get("stream"):
        counts.update(prompt=0, generation=0)
    if FAULT == "die" and length > 200:
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "refuse" and length > 200:
        return JSONResponse({"error": {"message": "planted"}}, status_code=500)
    if FAULT == "hang" and length > 200:
        await asyncio.sleep(3600)
    if body.get("stream"):
        return StreamingResponse(events(tokens_for(prompt, number), usage), media_type="text/event-stream")
    await asyncio.sleep(length / 50_000)
    ids = tokens_for(prompt, number)
    text = {"7*8=": "56", "17+25=": "42"}.get(prompt, "?") if isinstance(prompt, str) else "?"
    if FAULT == "wrong-answer" and prompt == "7*8=":
        text = "54"
    return JSONResponse({"choices": [{"text": text, "token_ids": ids}], "usage": usage})


async def events(ids: list[int], usage: dict[str, int]) -> AsyncIterator[str]:
    for token in ids:
        yield f"data: {json.dumps({'choices': [{'text': 'x', 'token_ids': [token]}]})}\n\n"
        await asyncio.sleep(TOKEN_S)
    yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n"


async def chat(request: Request) -> Response:
    message = (await request.json())["messages"][-1]["content"]
    answer = {"7*8": " 56", "17+25": " 42"}.get(message, " ?")
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": answer}}], "usage": {}})


async def health(request: Request) -> Response:
    return PlainTextResponse("")


async def drip() -> AsyncIterator[str]:
    for _ in range(100):
        yield "#\n"
        await asyncio.sleep(0.03)


async def metrics(request: Request) -> Response:
    if FAULT == "slow-metrics":
        return StreamingResponse(drip(), media_type="text/plain")
    lines = []
    for name, value in counts.items():
        lines += [f"# TYPE vllm:{name}_tokens_total counter", f'vllm:{name}_tokens_total{{model_name="pico"}} {value}']
    if flags.speculative != "none" and FAULT != "no-drafts":
        names = [f"vllm:spec_decode_num_{name}_total" for name in ("drafts", "draft_tokens", "accepted_tokens")]
        lines += [f"# TYPE {name} counter\n{name} {value}" for name, value in zip(names, drafts.values(), strict=False)]
        name = f"{names[2].removesuffix('_total')}_per_pos_total"
        lines += [
            f"# TYPE {name} counter",
            *(f'{name}{{position="{k}"}} {n}' for k, n in enumerate(drafts["positions"])),
        ]
    return PlainTextResponse("\n".join(lines) + "\n")


def write_files(args: argparse.Namespace) -> None:
    dims = SHAPES[args.dims]
    changes = {"max_num_batched_tokens": args.max_num_batched_tokens, "max_model_len": args.max_model_len}
    dims = dims.with_changes(**{k: v for k, v in changes.items() if v})
    facts: dict[str, Any] = {
        "engine": "fake",
        "dims": dims.to_json(),
        "toggles": list(toggles.names()),
        "seed": args.seed,
        "cache_state": "cold",
        "batch_invariant": True,
        "speculative": "none" if FAULT == "method-ignored" else args.speculative,
        "draft_tokens": DEPTH if args.speculative != "none" else 0,
        "graph_mode": "eager" if args.eager else "replay",
    }
    if FAULT == "condition":
        facts["seed"] = 99
    if FAULT == "toggles-ignored":
        facts["toggles"] = []
    handshake.conditions(facts)
    peak, persistent, runtime_peak, resident = 10_000_000, 5_000_000, 3_000_000, 7_000_000
    for name in toggles.names():
        toggle = REGISTRY[name]
        if FAULT != "no-marker":
            markers.take(name)
        saved = toggle.expected_bytes(dims) if toggle.expected_bytes and FAULT != "no-saving" else 0
        peak -= saved if toggle.primary == "kv.peak_activation_bytes" else 0
        persistent -= saved if toggle.primary == "kv.persistent_bytes" else 0
        runtime_peak -= saved if toggle.primary == "kv.runtime_peak_bytes" else 0
        resident -= saved if toggle.primary in ("kv.persistent_bytes", "kv.resident_bytes") else 0
    if FAULT == "refused":
        markers.taken.clear()
        markers.refuse("mhc_input_reuse", "y has another reference")
    if FAULT == "stray-marker":
        markers.take("mhc_residual_reuse")
    if FAULT == "nondeterministic":
        peak += 7000 * int(os.path.basename(boot_dir).split("-")[0])  # a toggle's effect is less than ten times as far
    available = 64 * 2**20 - peak - persistent - 1_000_000
    profile = {
        "source": "pinned" if FAULT == "pinned" else "live-bytes",
        "weights_bytes": 1_000_000 + (512 if FAULT == "drift" else 0),
        "persistent_bytes": persistent,
        "workspace_bytes": 0,
        "peak_activation_bytes": peak,
        "runtime_peak_bytes": runtime_peak,
        "resident_bytes": resident,
        "index_maps_per_step": 1,
        "non_torch_bytes": None,
        "available_bytes": available,
        "blocks": available // 65_536,
        "tokens": available // 1024,
        "max_concurrency": available / 1024 / dims.max_model_len,
    }
    if FAULT == "served-later":
        served.update(profile, stage="serving", runtime_peak_bytes=None)
        profile = served
    handshake.kv_profile(profile)
    handshake.markers(markers)


def grow(length: int) -> None:
    """The profile of a rank that writes what serving costs while it serves."""
    if served:
        peak = max(served["runtime_peak_bytes"] or 0, 1000 * length)
        served["runtime_peak_bytes"] = peak
        handshake.kv_profile(served)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--dims", default="pico")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--host")
    parser.add_argument("--load-format")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--until", default="ready-forever")
    parser.add_argument("--max-num-batched-tokens", type=int)
    parser.add_argument("--max-model-len", type=int)
    parser.add_argument("--speculative", default="none")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--draft-load-format")
    parser.add_argument("--rejection-sample-method")
    parser.add_argument("--synthetic-acceptance-rates")
    args = parser.parse_args(namespace=flags)
    print(f"fake engine pid {os.getpid()} at {time.time_ns()}", file=sys.stderr, flush=True)
    if FAULT == "exit":
        sys.exit("planted exit")
    if FAULT == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if FAULT == "child":  # a grandchild that ignores the polite signal must go with the group
        subprocess.Popen(["sh", "-c", "trap '' TERM; sleep 3600 & wait; sleep 3600"])
    write_files(args)
    if FAULT == "hang-boot":
        time.sleep(3600)
    if args.until == "profile":
        return
    import uvicorn

    routes = [
        Route("/health", health),
        Route("/metrics", metrics),
        Route("/v1/completions", completions, methods=["POST"]),
        Route("/v1/chat/completions", chat, methods=["POST"]),
    ]
    # asyncio turns Nagle's algorithm off only for sockets that say they are TCP; else every answer waits 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", args.port))
    handshake.ready("127.0.0.1", listener.getsockname()[1])
    uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="warning")).run([listener])


if __name__ == "__main__":
    main()
