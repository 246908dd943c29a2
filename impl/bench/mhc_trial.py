"""Compile, check and time every mHC kernel on a GPU: `python -m impl.bench.mhc_trial --out FILE [--seconds N]`.

One JSON line a case, written as it comes, in the words of `python -m impl.bench`, whose cases, inputs and times these
are. Worker processes compile first, side by side; then one process runs the cases one after the other and is replaced
where a case crashes or hangs, so that one failure costs one case. Backends: triton, cuda, and vllm where it can be
imported, whose own operations are timed in the same way.
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
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

import torch

from impl.bench.backends import VLLM, Way, bound
from impl.bench.case import Inputs, pristine, restore
from impl.bench.cases import shape
from impl.bench.check import IN_PLACE
from impl.bench.machine import describe
from impl.bench.mhc_cases import CASES, inputs
from impl.bench.mhc_exact import check
from impl.bench.race import rotating, timed
from impl.bench.timing import copy_rate
from impl.ops import dispatch

CHECKED = (1, 7, 8, 16, 17, 32, 33, 128, 1000, 8192)
SMALL, LARGE = (1, 6, 16, 32, 64), 8192
BETWEEN = (24, 36, 48, 96, 128, 256, 512, 1024, 2048)
"""Where one way of cutting the work gives way to another; after all else, and in less time."""
SECONDS, SECONDS_BETWEEN = 0.02, 0.005
"""Measuring time of one figure."""
MOST_FEW, LEAST_MANY = 256, 24
"""Tokens up to which points for few are timed, for each tile of a block, and from which those for many are."""
SEEDS = 4
"""Inputs of the in-place comparison at every number of tokens."""
CASE_SECONDS, VLLM_SECONDS, START_SECONDS, COMPILERS = 12, 60, 60, 10
LOSSES = 2
"""Crashes or hangs of an operation after which its other cases are left out: each costs a new process."""
FORMS = {(case.op, case.form): case for case in CASES}

Case = dict[str, Any]


def cases(backend: str, seeds: int) -> Iterator[Case]:
    """In the order in which they matter: defaults first, then the other tuning points."""
    operations: Mapping[str, Sequence[Mapping[str, Any]]] = dict.fromkeys((case.op for case in CASES), ())
    if backend != VLLM:
        operations = importlib.import_module(f"impl.ops.{backend}.mhc").VARIANTS
    for op, variants in operations.items():
        default = {"backend": backend, "op": op, "parameters": {}}
        if backend != VLLM:
            yield {"event": "check", "check": "exact", **default, "tokens": list(CHECKED), "inputs": seeds}
        yield from _times(default, (LARGE, *SMALL))
        for variant in variants:
            point = {**default, "parameters": dict(variant)}
            few = for_few(variant)
            table = "groups" in variant or "cluster" in variant  # held to what the defaults are
            checked = list(CHECKED) if table else [1, 6, 17, 33, 149] if few else [33, 1000, LARGE]
            yield {"event": "check", "check": "exact", **point, "tokens": checked, "inputs": seeds if table else 1}
            yield from _times(point, SMALL if few else (LARGE, 64) if backend == "cuda" else (LARGE,))
    for op, variants in operations.items():
        yield from _times({"backend": backend, "op": op, "parameters": {}}, BETWEEN)
        for variant in variants if backend == "cuda" else ():  # the backend that is chosen for these shapes
            most = MOST_FEW * variant.get("tiles", 1)
            sizes = [n for n in BETWEEN if (n <= most if for_few(variant) else n >= LEAST_MANY)]
            yield from _times({"backend": backend, "op": op, "parameters": dict(variant)}, sizes)


def for_few(variant: Mapping[str, Any]) -> bool:
    """Whether a point cuts the work for a handful of tokens."""
    return "splits" in variant or variant.get("span", 1024) <= 128


def _times(point: Case, sizes: Sequence[int]) -> Iterator[Case]:
    """In fresh memory, and the seam in place as well: a point is judged by both."""
    for n in sizes:
        for form in ("fresh", IN_PLACE) if point["op"] == "mhc_seam" else ("fresh",):
            seconds = SECONDS_BETWEEN if n in BETWEEN else SECONDS
            yield {"event": "row", **point, "form": form, "tokens": n, "seconds": seconds}


def rank(case: Case) -> int:
    """Defaults of all backends first, then their points, then the sizes between: what time may cut off comes last."""
    return 2 if case["tokens"] in BETWEEN else bool(case["parameters"])


def run_case(case: Case, device: torch.device) -> Case:
    if case["event"] == "start":
        inputs(shape(device.type), 1, device, 0)
        return {}
    if case["event"] == "machine":
        return {**describe(device), "copy_bytes_per_second": copy_rate() if device.type == "cuda" else None}
    if case["event"] == "warm":
        for n in (17, 64, 8192):
            _way(case, "fresh").compute(inputs(shape(device.type), n, device, 0))
        return {}
    return _checks(case, device) if case["event"] == "check" else _timed(case, device)


def _way(case: Case, form: str) -> Way:
    of = FORMS[case["op"], form]
    if case["backend"] == VLLM:
        assert of.vllm is not None
        return Way(VLLM, of.vllm)
    return bound(case["backend"], of, case["parameters"])


def _checks(case: Case, device: torch.device) -> Case:
    """Against exact arithmetic, and bit by bit in place: `bad` holds the first cases that fail."""
    found: Case = {"ok": True, "bad": []}
    function = partial(dispatch.operations(case["backend"])[case["op"]], **case["parameters"])
    for n in case["tokens"]:
        for seed in range(case["inputs"]):
            told = check(case["op"], function, inputs(shape(device.type), n, device, 1000 * seed + n))
            if seed == 0:
                found[str(n)] = {name: value for name, value in told.items() if name not in ("ok", "finite")}
            if not told["ok"]:
                found["ok"] = False
                found["bad"].append([n, seed, told])
    found["bad"] = found["bad"][:5]
    return found


@cache
def _inputs(tokens: int, device: torch.device, seed: int) -> Inputs:
    """Kept: every case has the same, and there are many cases."""
    return inputs(shape(device.type), tokens, device, seed)


def _timed(case: Case, device: torch.device) -> Case:
    of, n = FORMS[case["op"], case["form"]], case["tokens"]
    sets, nbytes = rotating(of, partial(_inputs, n, device))
    kept = [pristine(of, one) for one in sets]
    found = timed(of, _way(case, case["form"]), sets, kept, case["seconds"], device, None, nbytes)
    for one, copies in zip(sets, kept, strict=True):
        restore(one, copies)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the graph's outputs; the next case has a graph of its own
    return {"dims": shape(device.type).name, "bytes": nbytes, **found}


def serve() -> int:
    """Run the cases that come in as JSON lines, and answer each with one."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    for line in sys.stdin:
        case = json.loads(line)
        try:
            found = run_case(case, device)
        except Exception as error:  # one case's failure is that case's result; a broken context fails the next at once
            found = {"error": f"{type(error).__name__}: {str(error)[:400]}"}
        print(json.dumps(found), flush=True)
    return 0


class Server:
    """One process that runs cases."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "impl.bench.mhc_trial", "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.ask({"event": "start"}, START_SECONDS)

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
    points = {json.dumps([c["backend"], c["op"], c["parameters"]]): c for c in todo}
    waiting = list(points.values())
    errors: dict[str, str] = {}

    def work() -> None:
        server = Server()
        while waiting:
            try:
                case = waiting.pop(0)
            except IndexError:
                break
            found = server.ask({**case, "event": "warm"}, 60)
            if "error" in found:
                errors[json.dumps([case["backend"], case["op"], case["parameters"]])] = found["error"]
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
    parser = argparse.ArgumentParser(prog="python -m impl.bench.mhc_trial", description=__doc__)
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

        backends = [name for name in options.backends.split(",") if name != VLLM or _importable("vllm")]
        todo = [case for name in backends for case in cases(name, options.seeds)]
        todo = [case for case in todo if all(word in json.dumps(case) for word in options.only.split(","))]
        todo.sort(key=rank)
        compiled: Case = {"event": "compiled"}
        triton = [case for case in todo if case["backend"] == "triton"]
        compiling = threading.Thread(target=lambda: compiled.update(errors=compile_all(triton)))
        compiling.start()
        if "cuda" in backends:
            subprocess.run([sys.executable, "-m", "impl.ops.cuda.build"])
        # While Triton compiles, what needs no clock; then the clock alone on the card.
        early = [case for case in todo if case["backend"] == "cuda" and case["event"] == "check"]
        server, losses = Server(), Counter[tuple[Any, Any]]()
        for case in [*early, {"event": "join"}, {"event": "machine"}, *(case for case in todo if case not in early)]:
            if case["event"] == "join":
                compiling.join()
                put(compiled)
                continue
            if time.monotonic() - began > options.seconds:
                put({"event": "stopped"})
                break
            operation = (case.get("backend"), case.get("op"))
            if losses[operation] >= LOSSES:
                continue
            found = server.ask(case, VLLM_SECONDS if case.get("backend") == VLLM else CASE_SECONDS)
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
