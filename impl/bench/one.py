"""Calls of one operation on one backend at one point, for a profiler or a memory checker: `python -m impl.bench.one`.

No timing and no other kernels than the inputs' own; the last line says what ran.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import torch

from impl.bench.backends import NAMES, VLLM, Way, absent, bound
from impl.bench.cases import CASES, shape


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.bench.one", description=__doc__.splitlines()[0])
    parser.add_argument("--op", choices=sorted({case.op for case in CASES}), required=True)
    parser.add_argument("--form", help="default: the operation's first, fresh buffers where it has them")
    parser.add_argument("--backend", choices=NAMES, default="cuda")
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--parameters", type=json.loads, default={}, help="the point, as a JSON object")
    parser.add_argument("--calls", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    device = torch.device(args.device)
    forms = [case for case in CASES if case.op == args.op]
    case = next((c for c in forms if args.form in (None, c.form)), None)
    if case is None:
        return _refused(f"unknown form '{args.form}' of {args.op}: known are {', '.join(c.form for c in forms)}")
    if reason := absent(args.backend, case, device):
        return _refused(f"{args.backend} has no {args.op} here: {reason}")
    if args.backend == VLLM:
        assert case.vllm is not None
        way = Way(VLLM, case.vllm)
    else:
        way = bound(args.backend, case, args.parameters)
    inputs = case.build(shape(device.type), args.tokens, device, 1)
    for _ in range(args.calls):
        way.compute(inputs)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print(f"{case.name}  {args.backend}  tokens={args.tokens}  parameters={args.parameters}  calls={args.calls}")
    return 0


def _refused(why: str) -> int:
    print(f"impl.bench.one: {why}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
