"""Compile, check and time every mHC kernel on a GPU: `python -m impl.ops.mhc_trial --out FILE [--seconds N]`.

One JSON line a case, written as it comes. Worker processes compile first, side by side; then one process runs the cases
one after the other and is replaced where a case crashes or hangs, so that one failure costs one case. Backends: triton,
cuda, and vllm where it can be imported, whose own operations are timed in the same way.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

MODULES = {"cuda": "impl.ops.cuda.mhc", "triton": "impl.ops.triton.mhc", "vllm": "impl.ops.mhc_vllm"}
CHECKED = (1, 7, 8, 16, 17, 32, 33, 128, 1000, 8192)
SMALL, LARGE = (1, 6, 16, 32, 64), 8192
BETWEEN = (24, 36, 48, 96, 128, 256, 512, 1024, 2048)
"""Where one way of cutting the work gives way to another; after all else, and by fewer replays."""
REPLAYS, REPLAYS_BETWEEN = 25, 7
MOST_FEW, LEAST_MANY = 256, 24
"""Tokens up to which points for few are timed, and from which those for many are."""
SEEDS = 4
"""Inputs of the in-place comparison at every number of tokens."""
CASE_SECONDS, VLLM_SECONDS, START_SECONDS, COMPILERS = 12, 60, 60, 10
LOSSES = 2
"""Crashes or hangs of an operation after which its other cases are left out: each costs a new process."""

Case = dict[str, Any]


def cases(backend: str, seeds: int) -> Iterator[Case]:
    """In the order in which they matter: what the issue asks for first, then the other tuning points."""
    if backend == "vllm":
        operations: dict[str, Any] = {name: [{}] for name in ("mhc_seam", "mhc_post", "mhc_post_mean", "mhc_post_head",
                                                              "mhc_post_mean_head", "mhc_pre")}  # fmt: skip
    else:
        operations = importlib.import_module(MODULES[backend]).VARIANTS
    for op, variants in operations.items():
        default = {"backend": backend, "op": op, "variant": {}}
        if backend == "vllm":
            if op == "mhc_post":
                yield {"kind": "parity", **default, "tokens": [6, 64, 1024, 8192]}
        else:
            yield {"kind": "check", **default, "tokens": list(CHECKED), "seeds": seeds}
        yield from _times(default, (LARGE, *SMALL))
        if backend == "vllm":
            continue
        for variant in variants:
            point = {**default, "variant": dict(variant)}
            few = for_few(variant)
            table = "groups" in variant  # what the tuning table names for many tokens is held to what the defaults are
            checked = list(CHECKED) if table else [1, 6, 17, 33] if few else [33, 1000, LARGE]
            yield {"kind": "check", **point, "tokens": checked, "seeds": seeds if table else 1}
            yield from _times(point, SMALL if few else (LARGE, 64) if backend == "cuda" else (LARGE,))
    for op, variants in operations.items():
        yield from _times({"backend": backend, "op": op, "variant": {}}, BETWEEN)
        for variant in variants if backend == "cuda" else ():  # the backend that is chosen for these shapes
            sizes = [n for n in BETWEEN if (n <= MOST_FEW if for_few(variant) else n >= LEAST_MANY)]
            yield from _times({"backend": backend, "op": op, "variant": dict(variant)}, sizes)


def for_few(variant: Mapping[str, Any]) -> bool:
    """Whether a point cuts the work for a handful of tokens."""
    return "splits" in variant or variant.get("span", 1024) <= 128


def _times(point: Case, sizes: Sequence[int]) -> Iterator[Case]:
    """In fresh memory, and the seam in place as well: a point is judged by both."""
    for n in sizes:
        for reuse in (False, True) if point["op"] == "mhc_seam" else (False,):
            replays = REPLAYS_BETWEEN if n in BETWEEN else REPLAYS
            yield {"kind": "time", **point, "tokens": n, "reuse": reuse, "replays": replays}


def rank(case: Case) -> int:
    """Defaults of all backends first, then their points, then the sizes between: what time may cut off comes last."""
    return 2 if case["tokens"] in BETWEEN else bool(case["variant"])


def run_case(case: Case) -> Case:
    from impl.ops import mhc_cases

    if case["kind"] == "start":
        mhc_cases.acts(1, 0)
        return {}
    if case["kind"] == "ceiling":
        return mhc_cases.copy_ceiling()
    function = importlib.import_module(MODULES[case["backend"]]).OPERATIONS[case["op"]]
    if case["kind"] == "warm":
        for n in (17, 64, 8192):
            mhc_cases.call(case["op"], function, mhc_cases.acts(n, 0), case["variant"])
        return {}
    if case["kind"] == "parity":
        return _parity(case["tokens"])
    if case["kind"] == "check":
        return _checks(case, function)
    if case["backend"] == "vllm":
        return _timed_vllm(case, function)
    return mhc_cases.timed(case["op"], function, case["variant"], case["tokens"], case["reuse"], case["replays"])


def _checks(case: Case, function: Callable[..., Any]) -> Case:
    from impl.ops import mhc_cases

    found: Case = {"ok": True, "bad": []}
    for n in case["tokens"]:
        for seed in range(case["seeds"]):
            report = mhc_cases.check(case["op"], function, case["variant"], n, seed)
            if seed == 0:
                found[str(n)] = {name: value for name, value in report.items() if name not in ("ok", "finite")}
            if not report["ok"]:
                found["ok"] = False
                found["bad"].append([n, seed, report])
    found["bad"] = found["bad"][:5]
    return found


def _parity(sizes: list[int]) -> Case:
    """Streams and means of both backends against vLLM's, bit by bit."""
    import torch

    from impl.ops import mhc_cases, mhc_vllm

    found: Case = {}
    for backend in ("triton", "cuda"):
        operations = importlib.import_module(MODULES[backend]).OPERATIONS
        for n in sizes:
            a = mhc_cases.acts(n, n)
            streams = mhc_vllm.post_streams(*a.all())
            for op in ("mhc_post", "mhc_seam", "mhc_post_mean", "mhc_post_mean_head"):
                if op not in operations:
                    continue
                ours = mhc_cases.call(op, operations[op], a, {})
                theirs, mine = (streams.mean(dim=1), ours[-1]) if "mean" in op else (streams, ours[0])
                found[f"{backend} {op} {n}"] = bool(torch.equal(theirs, mine))
                if op == "mhc_seam":
                    rows = mhc_vllm.seam(*a.all(), mhc_cases.weights()[0]).layer_input
                    found[f"{backend} layer input {n}: share that differs"] = (rows != ours[3]).float().mean().item()
    return found


def _timed_vllm(case: Case, function: Callable[..., Any]) -> Case:
    from impl.ops import mhc_cases as m

    seam, head = m.weights()
    last = {"mhc_seam": (seam,), "mhc_post_head": (head,), "mhc_post_mean_head": (head,)}.get(case["op"], ())
    calls: list[Callable[[], Any]] = []
    for a in m.rotating(case["op"], case["tokens"]):
        targets = {"residual_out": a.residual, "input_out": a.y} if case["reuse"] else {}
        if case["op"] == "mhc_pre":
            calls.append(partial(function, a.residual, seam))
        else:
            calls.append(partial(function, *a.all(), *last, **targets))
    return {**m.timed_calls(calls, case["replays"]), "moved": m.MOVED[case["op"]] * case["tokens"] * m.HIDDEN * 2}


def serve() -> int:
    """Run the cases that come in as JSON lines, and answer each with one."""
    for line in sys.stdin:
        case = json.loads(line)
        try:
            found = run_case(case)
        except Exception as error:  # one case's failure is that case's result; a broken context fails the next at once
            found = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
        print(json.dumps(found), flush=True)
    return 0


class Server:
    """One process that runs cases."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "impl.ops.mhc_trial", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ask({"kind": "start"}, START_SECONDS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                self.lines.put(line)
        self.lines.put("")

    def ask(self, case: Case, seconds: float) -> Case:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()
            line = self.lines.get(timeout=seconds)
        except queue.Empty:
            return {"error": f"no answer in {seconds} s", "lost": True}
        except BrokenPipeError:
            line = ""
        if not line:
            return {"error": f"the process ended: {self.process.wait()}", "lost": True}
        found: Case = json.loads(line)
        return {**found, "lost": True} if "CUDA" in found.get("error", "") else found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def compile_all(todo: list[Case]) -> dict[str, str]:
    """Run each distinct point once, over several processes at once: what they compile is found in the caches."""
    points = {json.dumps([c["backend"], c["op"], c["variant"]]): c for c in todo if "backend" in c}
    waiting = list(points.values())
    errors: dict[str, str] = {}

    def work() -> None:
        server = Server()
        while waiting:
            try:
                case = waiting.pop(0)
            except IndexError:
                break
            found = server.ask({**case, "kind": "warm"}, 60)
            if "error" in found:
                errors[json.dumps([case["backend"], case["op"], case["variant"]])] = found["error"]
            if found.get("lost"):
                server.end()
                server = Server()
        server.end()

    threads = [threading.Thread(target=work) for _ in range(min(COMPILERS, len(waiting)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.ops.mhc_trial", description=__doc__)
    parser.add_argument("--out", default="mhc_trial.jsonl")
    parser.add_argument("--only", default="", help="words that a case's JSON text must all hold, parted by commas")
    parser.add_argument("--backends", default="cuda,triton,vllm")
    parser.add_argument("--seconds", type=float, default=140)
    parser.add_argument("--seeds", type=int, default=SEEDS, help="inputs a number of tokens")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.serve:
        return serve()
    began = time.monotonic()
    with open(options.out, "w") as out:

        def put(row: Case) -> None:
            row["at"] = round(time.monotonic() - began, 1)
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(json.dumps(row), flush=True)

        backends = [name for name in options.backends.split(",") if name != "vllm" or _importable("vllm")]
        todo = [case for name in backends for case in cases(name, options.seeds)]
        todo = [case for case in todo if all(word in json.dumps(case) for word in options.only.split(","))]
        todo.sort(key=rank)
        compiled: Case = {"kind": "compiled"}
        triton = [case for case in todo if case["backend"] == "triton"]
        compiling = threading.Thread(target=lambda: compiled.update(errors=compile_all(triton)))
        compiling.start()
        if "cuda" in backends:
            subprocess.run([sys.executable, "-m", "impl.ops.cuda.build"])
        # While Triton compiles, what needs no clock; then the clock alone on the card.
        early = [case for case in todo if case["backend"] == "cuda" and case["kind"] == "check"]
        server, losses = Server(), Counter[tuple[Any, Any]]()
        for case in [*early, {"kind": "join"}, {"kind": "ceiling"}, *(case for case in todo if case not in early)]:
            if case["kind"] == "join":
                compiling.join()
                put(compiled)
                continue
            if time.monotonic() - began > options.seconds:
                put({"kind": "stopped"})
                break
            operation = (case.get("backend"), case.get("op"))
            if losses[operation] >= LOSSES:
                continue
            found = server.ask(case, VLLM_SECONDS if case.get("backend") == "vllm" else CASE_SECONDS)
            put({**case, **found})
            if found.get("lost"):
                losses[operation] += 1
                server.end()
                server = Server()
        server.end()
    return 0


def _importable(name: str) -> bool:
    return os.environ.get("MHC_TRIAL_NO_VLLM") is None and importlib.util.find_spec(name) is not None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
