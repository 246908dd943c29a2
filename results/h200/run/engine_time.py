"""Single-stream greedy decode of one shape by method and capture, in one process: JSON lines, appended as they come.

python3 .gpu/engine_time.py OUT.jsonl [--device cuda --dims micro --tokens 128 --seconds 30 --cases none/eager ...]
Cases that the file has already are skipped, so that a call after a crash goes on behind it.
"""

import argparse
import gc
import json
import signal
import statistics
import sys
import time
import traceback
from pathlib import Path

import torch

from impl import tokenizer
from impl.dims import SHAPES
from impl.engine.config import EngineConfig
from impl.engine.request import Request, SamplingParams
from impl.engine.runner import Runner
from impl.handshake import Handshake
from impl.toggles import ToggleSet

CASES = ["dspark/steps", "none/steps", "none/eager", "dspark/eager"]
TEXTS = {
    "sum": "17+25=",
    "problem": "Q: Tom has 12 apples and buys 7 more. He gives 5 to Ann. How many apples does he have left?\nA:",
}


class TooLong(Exception):
    pass


def alarm(*_):
    raise TooLong("the case's own limit is over")


def prompts(vocab):
    gen = torch.Generator().manual_seed(7)
    found = {name: [tokenizer.BOS, *tokenizer.encode(text)] for name, text in TEXTS.items()}
    found["random"] = torch.randint(0, vocab, (32,), generator=gen).tolist()
    return found


def boot(args, method, capture):
    budgets = {"pico": 64 << 20, "micro": 512 << 20}
    config = EngineConfig(
        SHAPES[args.dims],
        ToggleSet.parse(args.toggles),
        budgets[args.dims] + ((2 << 30) if args.device == "cuda" else 0),
        device=args.device,
        speculative=method,
        eager=capture == "eager",
        capture=capture if capture in ("rounds", "steps") else "draft",
    )
    runner = Runner(config, Handshake(None))
    runner.allocate_pages()
    return runner


def decode(runner, prompt, n, cuda):
    """Tokens, and of each step behind the first: tokens, wall ms, ms between events around it."""
    request = Request("r", list(prompt), SamplingParams(max_tokens=n, temperature=0.0))
    runner.scheduler.add(request)
    steps = []
    while runner.scheduler.has_work:
        had = len(request.outputs)
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if cuda else []
        start = time.perf_counter()
        if cuda:
            marks[0].record()
        runner.step()
        if cuda:
            marks[1].record()
        steps.append((len(request.outputs) - had, 1e3 * (time.perf_counter() - start), marks))
    if cuda:
        torch.cuda.synchronize()
    if request.finish_reason == "error":
        raise RuntimeError("the request ended with an error; the log has its trace")
    rows = [(k, wall, marks[0].elapsed_time(marks[1]) if marks else None) for k, wall, marks in steps]
    return request.outputs, rows[1:]


def summary(rows):
    if not rows:
        return {"steps": 0}
    wall = [r[1] for r in rows]
    out = {
        "steps": len(rows),
        "tokens": sum(r[0] for r in rows),
        "tokens_per_step": sum(r[0] for r in rows) / len(rows),
        "wall_ms_per_step": statistics.median(wall),
        "wall_ms_p90": sorted(wall)[int(0.9 * len(wall))],
        "tokens_per_s": 1e3 * sum(r[0] for r in rows) / sum(wall),
    }
    if rows[0][2] is not None:
        out["event_ms_per_step"] = statistics.median(r[2] for r in rows)
    return out


def profiled(runner, prompt, n, cuda, table):
    """Per step: kernels and their time, CUDA calls of the host, the host's dearest operations."""
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if cuda else [])
    request = Request("p", list(prompt), SamplingParams(max_tokens=n, temperature=0.0))
    runner.scheduler.add(request)
    runner.step()
    runner.step()
    steps = 0
    with profile(activities=activities) as prof:
        while runner.scheduler.has_work and steps < 5:
            runner.step()
            steps += 1
        if cuda:
            torch.cuda.synchronize()
    while runner.scheduler.has_work:
        runner.step()
    averages = prof.key_averages()
    calls = {e.key: e.count / steps for e in averages if e.key.startswith(("cuda", "cu")) and e.count}
    kernels = [e for e in prof.events() if str(e.device_type).endswith("CUDA")]
    busy = sum(e.time_range.elapsed_us() for e in kernels)
    Path(table).write_text(
        averages.table(sort_by="self_cpu_time_total", row_limit=40)
        + (averages.table(sort_by="self_device_time_total", row_limit=60) if cuda else "")
    )
    return {
        "steps": steps,
        "calls_per_step": calls,
        "kernels_per_step": len(kernels) / max(steps, 1),
        "kernel_ms_per_step": busy / 1e3 / max(steps, 1),
    }


def run(args, case, write):
    method, capture = case.split("/")
    cuda = args.device == "cuda"
    start = time.perf_counter()
    runner = boot(args, method, capture)
    write(
        {
            "case": case,
            "what": "boot",
            "seconds": time.perf_counter() - start,
            "memory": torch.cuda.memory_allocated() if cuda else None,
        }
    )
    for name, prompt in prompts(runner.dims.vocab_size).items():
        if capture == "eager" and name == "sum":
            continue
        decode(runner, prompt, 12, cuda)
        tokens, rows = decode(runner, prompt, args.tokens // 4 if capture == "eager" else args.tokens, cuda)
        write(
            {
                "case": case,
                "what": "decode",
                "prompt": name,
                **summary(rows),
                "n": len(tokens),
                "text": tokenizer.decode(tokens)[:80],
                "digest": hash(tuple(tokens)),
            }
        )
    batch = [
        Request(
            f"b{i}",
            list(prompts(runner.dims.vocab_size)["problem"]),
            SamplingParams(max_tokens=12 if capture == "eager" else 48, temperature=0.0),
        )
        for i in range(8)
    ]
    for request in batch:
        runner.scheduler.add(request)
    runner.step()
    start, before, steps = time.perf_counter(), sum(len(r.outputs) for r in batch), 0
    while runner.scheduler.has_work:
        runner.step()
        steps += 1
    if cuda:
        torch.cuda.synchronize()
    took = time.perf_counter() - start
    write(
        {
            "case": case,
            "what": "eight",
            "steps": steps,
            "wall_ms_per_step": 1e3 * took / max(steps, 1),
            "tokens_per_s": (sum(len(r.outputs) for r in batch) - before) / took,
        }
    )
    if args.profile and capture == "steps":
        table = Path(args.out).with_name(f"profile-{case.replace('/', '-')}.txt")
        write(
            {
                "case": case,
                "what": "profile",
                **profiled(runner, prompts(runner.dims.vocab_size)["problem"], 160, cuda, table),
            }
        )
    write({"case": case, "what": "done"})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dims", default="micro")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--seconds", type=int, default=40, help="limit of a case")
    parser.add_argument("--toggles", default="")
    parser.add_argument("--no-profile", dest="profile", action="store_false")
    parser.add_argument("--cases", nargs="*", default=CASES)
    args = parser.parse_args()
    path = Path(args.out)
    done = {json.loads(line)["case"] for line in path.read_text().splitlines()} if path.exists() else set()

    def write(row):
        with path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)

    signal.signal(signal.SIGALRM, alarm)
    for case in args.cases:
        if case in done:
            continue
        write({"case": case, "what": "start"})
        signal.alarm(args.seconds)
        try:
            run(args, case, write)
        except BaseException as error:
            traceback.print_exc()
            write({"case": case, "what": "error", "error": f"{type(error).__name__}: {error}"[:600]})
            if "CUDA error" in str(error) or "cuda" in type(error).__name__.lower():
                sys.exit(3)  # the context is lost; a new process goes on
        finally:
            signal.alarm(0)
        gc.collect()


main()
