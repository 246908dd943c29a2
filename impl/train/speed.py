"""How fast training would run here, by each means: `python -m impl.train.speed --dims micro --device cuda`.

Every means starts from the same weights and text; its first loss and gradient norm are printed, and must agree.
`--check` compares their losses over more steps instead, and ends in 1 when they disagree.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from impl.dims import SHAPES, Dims
from impl.train import draft_loop, loop
from impl.train.agreement import checked
from impl.train.draft_loop import DraftSettings, new_draft_state
from impl.train.forward import compiled
from impl.train.graphs import Timed
from impl.train.loop import Settings, new_state
from impl.train.options import set_precision
from impl.train.prefetch import Rows, step_rows, stream
from impl.train.runs import Means, State, parameters, timed

MEANS = {"plain": Means(), "graphs": Means(graphs=True), "compiled": Means(graphs=True, compiled=True)}
PLAN = 1_000_000
"""Steps of the run that the trial pretends to be in."""
STAGES = {"looking back": 0.1, "dense": 0.35, "all": 0.9}
"""Name -> progress of the text and the run."""

Step = Callable[[State, Mapping[str, Rows]], Any]


def target_steps(dims: Dims, args: argparse.Namespace, means: Means) -> tuple[State, Step, Timed]:
    settings = Settings(**loop.RECIPES.get(dims.name, {}) | {"steps": PLAN, "scale": args.scale})
    state = new_state(dims, settings, args.device)
    work = timed(state, means, lambda use: loop.differentiate(state, dims, settings, compiled() if use else None))
    return state, lambda state, batches: loop.train_step(state, settings, batches, work), work


def draft_steps(dims: Dims, args: argparse.Namespace, means: Means) -> tuple[State, Step, Timed]:
    """The draft of an untrained target."""
    settings = DraftSettings(**draft_loop.RECIPES.get(dims.name, {}) | {"steps": PLAN, "scale": args.scale})
    target = {name: tensor.to(args.device) for name, tensor in loop.initial_weights(dims, 0).items()}
    state = new_draft_state(dims, target, settings, args.device)
    work = timed(state, means, lambda use: draft_loop.differentiate(state, target, dims, settings, use))
    return state, lambda state, batches: draft_loop.draft_step(state, settings, batches, work), work


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def first_step(state: State, step: Step, batches: Mapping[str, Rows]) -> str:
    """Loss and gradient norm of one step."""
    norms: list[Tensor] = []
    clip = torch.nn.utils.clip_grad_norm_

    def noted(*arguments: Any, **options: Any) -> Tensor:
        norms.append(clip(*arguments, **options))
        return norms[-1]

    torch.nn.utils.clip_grad_norm_ = noted
    try:
        point = step(state, batches)
    finally:
        torch.nn.utils.clip_grad_norm_ = clip
    loss = point.loss if isinstance(point, loop.Point) else point.terms[0]
    return f"first loss {loss.item():.5f}, gradient norm {norms[0].item():.5f}"


def measure(
    state: State,
    step: Step,
    work: Timed,
    texts: Mapping[str, Sequence[Mapping[str, Rows]]],
    seconds: float,
    device: str,
) -> None:
    """Print the set-up time and, for every stage, tokens a second and the milliseconds of a step."""
    share = seconds / len(texts)
    for stage, prepared in texts.items():
        state.step = int(STAGES[stage] * PLAN)
        started = time.monotonic()
        for batches in prepared:
            step(state, batches)
        wait(device)
        set_up = time.monotonic() - started
        started, before, steps = time.monotonic(), state.tokens, 0
        while time.monotonic() - started < share or not steps:
            for batches in prepared:
                step(state, batches)
            wait(device)
            steps += len(prepared)
        spent = time.monotonic() - started
        rate = f"{(state.tokens - before) / spent:>11,.0f} tokens/s {1000 * spent / steps:>8.1f} ms a step"
        print(f"    {stage:<13} {rate} (first {len(prepared)} steps with set-up {set_up:.1f} s)", flush=True)
        split(state, work, prepared, device)


def split(state: State, work: Timed, prepared: Sequence[Mapping[str, Rows]], device: str) -> None:
    """Print what a batch of the target of each shape takes alone; the rest of a step is the optimizer and copies."""
    if "lm_head" not in state.weights:
        return
    dense = state.step < PLAN / 2
    batches = {ids.shape: (ids, weights, len(step)) for step in prepared for ids, weights in step.values()}
    for shape, (ids, weights, kinds) in batches.items():
        tensors = torch.from_numpy(ids).to(device).long(), torch.from_numpy(weights).to(device)
        work(*tensors, share=1 / kinds, dense=dense)
        wait(device)
        started = time.monotonic()
        for _ in range(3):
            work(*tensors, share=1 / kinds, dense=dense)
        wait(device)
        spent = (time.monotonic() - started) / 3
        print(f"      rows x length {shape[0]} x {shape[1]}: {1000 * spent:.1f} ms alone, "
              f"{ids.size / spent:,.0f} tokens/s", flush=True)  # fmt: skip
    for parameter in parameters(state):
        if parameter.grad is not None:
            parameter.grad.zero_()


def text_rate(name: str, scale: int, workers: int, seconds: float) -> None:
    with closing(stream(name, 1, 0, scale, workers)) as made:
        next(made)  # workers start
        started, tokens = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            tokens += sum(ids.size for ids, _ in next(made).values())
        print(f"text from {workers} workers: {tokens / (time.monotonic() - started):,.0f} tokens/s", flush=True)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m impl.train.speed", description=__doc__)
    parser.add_argument("--dims", choices=("pico", "micro"), default="micro")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--scale", type=int, default=1, help="multiplies the rows of every step")
    parser.add_argument("--seconds", type=float, default=6.0, help="timed, for each means (default 6)")
    parser.add_argument("--means", default="graphs,compiled", help=f"of {', '.join(MEANS)} (default graphs,compiled)")
    parser.add_argument("--check", action="store_true", help="compare losses step by step, at each reach")
    parser.add_argument("--draft", action="store_true", help="train a draft instead of a target")
    parser.add_argument("--workers", type=int, default=0, help="also time this many processes that make text")
    parser.add_argument("--threads", type=int, default=1)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = arguments()
    args = parser.parse_args(argv)
    names = args.means.split(",")
    for name in names:
        if name not in MEANS:
            parser.error(f"--means: no '{name}', only {', '.join(MEANS)}")
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device cuda: this torch sees no CUDA device; use --device cpu")
    if args.device == "cpu" and any(MEANS[name].graphs for name in names):
        parser.error("--device cpu runs --means plain only")
    torch.set_num_threads(args.threads)
    dims = SHAPES[args.dims]
    set_precision(dims, args.device)
    if args.check:
        return checked(dims, args.scale, args.device, {name: MEANS[name] for name in names})
    if args.workers:
        text_rate(dims.name, args.scale, args.workers, 3.0)
    stages = {"all": 1.0} if args.draft else STAGES
    texts = {
        stage: [step_rows(dims.name, 0, n, progress, args.scale) for n in range(4)]
        for stage, progress in stages.items()
    }
    for name in names:
        started = time.monotonic()
        state, step, work = (draft_steps if args.draft else target_steps)(dims, args, MEANS[name])
        state.step = int(STAGES["all"] * PLAN)
        print(f"{name}: {first_step(state, step, next(iter(texts['all'])))}", flush=True)
        measure(state, step, work, texts, args.seconds, args.device)
        if args.device == "cuda":
            whole, peak = time.monotonic() - started, torch.cuda.max_memory_reserved() / 2**30
            print(
                f"    {peak:.1f} GiB reserved at most; {work.setup_seconds:.1f} s set-up in {whole:.1f} s", flush=True
            )
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
    return 0


if __name__ == "__main__":
    sys.exit(main())
