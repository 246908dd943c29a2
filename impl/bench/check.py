"""What a fast kernel must also be: the reference's, vLLM's to the bit where that is said, and the same in place.

Checks, one event each: `in place` (bitwise equal to fresh buffers over ten inputs), `race` (the small-token path in
place, many runs each), `forced race` (the control: a kernel whose programs re-read what others write, which must fail),
`reference` and `vllm` (against the torch reference and vLLM's own operation).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from impl.bench.backends import NAMES, VLLM, Way, absent, ways
from impl.bench.case import Case, Inputs, Outputs, pristine, restore
from impl.bench.cases import CASES, shape
from impl.bench.forced_race import forced_race
from impl.ops.dispatch import TORCH
from impl.ops.mhc import SMALL_TOKENS

Event = dict[str, Any]

IN_PLACE_TOKENS = (1, 7, 8, 16, 17, 32, 33, 128, 1000, 8192)
AGAINST_TOKENS = (1, 16, 6, 33, 64, 1000, 8192)
"""On a CPU the first two."""
INPUTS = 10
SEAM = "mhc_seam"
IN_PLACE = "in place"
BF16_BOUND, FP32_BOUND = 2**-6, 2e-3
"""Largest difference from the reference, as a share of the value and the mean value: two roundings to bf16; what
products in tf32 leave of gates."""
OWN_NOISE = ("draft_sample", "rejection")
"""Operations whose noise vLLM draws otherwise: their outputs are not compared with its."""


def check(
    cases: Sequence[Case], backends: Sequence[str], tokens: Sequence[int] | None, runs: int, device: torch.device
) -> Iterator[Event]:
    """All checks of `cases`; `ok` is False where one fails. tokens: in place of the usual ones."""
    names = tuple(backends) or NAMES
    gpu = device.type == "cuda"
    own = [n for n in names if n != VLLM]
    for case in cases:
        if case.form == IN_PLACE:
            for n in tokens or (IN_PLACE_TOKENS if gpu else IN_PLACE_TOKENS[:8]):
                for way in _ways(case, own, device, n):
                    yield _in_place(case, way, n, device)
    if any(case.op == SEAM for case in cases):
        seam = next(case for case in CASES if case.op == SEAM and case.form == IN_PLACE)
        for n in range(1, SMALL_TOKENS + 1):
            for way in _ways(seam, [name for name in own if name != TORCH], device, n):
                yield _race(seam, way, n, runs, device)
        yield from forced_race(device, min(runs, 100))
    for case in cases:
        for n in tokens or (AGAINST_TOKENS if gpu else AGAINST_TOKENS[:2]):
            if n <= case.most and case.form != IN_PLACE:
                yield from _against(case, names, n, device)


def _ways(case: Case, names: Sequence[str], device: torch.device, tokens: int) -> Iterator[Way]:
    return ways(case, names, device, shape(device.type), tokens, False)


def _sibling(case: Case) -> Case:
    return next(other for other in CASES if other.op == case.op and other.form != IN_PLACE)


def _in_place(case: Case, way: Way, tokens: int, device: torch.device) -> Event:
    """In place against fresh, over inputs of INPUTS seeds. The reference of the small seam is a race on purpose."""
    event: Event = {"event": "check", "check": IN_PLACE, "op": case.op, "backend": way.backend,
                    "parameters": way.parameters, "tokens": tokens}  # fmt: skip
    fresh = next(w for w in _ways(_sibling(case), [way.backend], device, tokens))
    race = case.op == SEAM and way.backend == TORCH and tokens <= SMALL_TOKENS
    equal, refused = 0, ""
    for seed in range(INPUTS):
        inputs = case.build(shape(device.type), tokens, device, seed)
        kept = pristine(case, inputs)
        wanted = [tensor.clone() for tensor in fresh.compute(inputs)]
        restore(inputs, kept)
        try:
            found = way.compute(inputs)
        except ValueError as error:
            refused = str(error)
            continue
        except Exception as error:
            return {**event, "ok": False, "reason": f"{type(error).__name__}: {error}"[:300]}
        equal += same(found, wanted) and writes_over(case, inputs, found)
    if refused:
        return {**event, "inputs": INPUTS, "equal": equal, "reason": f"refused: {refused}", "ok": equal == 0}
    if race:
        return {**event, "check": "forced race", "inputs": INPUTS, "equal": equal, "ok": equal < INPUTS,
                "reason": "the reference of the small-token path: must differ"}  # fmt: skip
    return {**event, "inputs": INPUTS, "equal": equal, "ok": equal == INPUTS}


def same(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def writes_over(case: Case, inputs: Inputs, found: Sequence[Tensor]) -> bool:
    """Whether every changed input is where an output is."""
    places = {tensor.data_ptr() for tensor in found}
    return all(inputs[name].data_ptr() in places for name in case.changed)


def _race(case: Case, way: Way, tokens: int, runs: int, device: torch.device) -> Event:
    """The small-token path in place, `runs` times over the same inputs: how many runs differ from fresh buffers."""
    event: Event = {"event": "check", "check": "race", "op": case.op, "backend": way.backend,
                    "parameters": way.parameters, "tokens": tokens}  # fmt: skip
    inputs = case.build(shape(device.type), tokens, device, tokens)
    kept = pristine(case, inputs)
    try:
        fresh = next(w for w in _ways(_sibling(case), [way.backend], device, tokens))
        wanted = [tensor.clone() for tensor in fresh.compute(inputs)]
        wrong = count_wrong(lambda: way.compute(inputs), lambda: restore(inputs, kept), wanted, runs)
    except ValueError as error:
        return {**event, "runs": 0, "reason": f"refused: {error}", "ok": True}
    except Exception as error:
        return {**event, "ok": False, "reason": f"{type(error).__name__}: {error}"[:300]}
    return {**event, "runs": runs, "wrong": wrong, "ok": wrong == 0}


def count_wrong(run: Callable[[], Outputs], refresh: Callable[[], None], wanted: Sequence[Tensor], runs: int) -> int:
    """Runs whose outputs are not `wanted` to the bit; counted on the device, asked for once."""
    wrong = torch.zeros((), dtype=torch.int64, device=wanted[0].device)
    for _ in range(runs):
        refresh()
        differs = [(a != b).any() for a, b in zip(run(), wanted, strict=True)]
        wrong += torch.stack(differs).any()
    return int(wrong)


def _against(case: Case, names: Sequence[str], tokens: int, device: torch.device) -> Iterator[Event]:
    """Each backend against the reference, and against vLLM's own operation where that is here."""
    others = [name for name in names if name not in (TORCH, VLLM)]
    bases = [TORCH] if case.op in OWN_NOISE else [TORCH, VLLM]
    for base in bases:
        if absent(base, case, device) or not others:
            continue
        for way in _ways(case, others, device, tokens):
            event: Event = {"event": "check", "check": "reference" if base == TORCH else base, "op": case.op,
                            "form": case.form, "backend": way.backend, "parameters": way.parameters,
                            "tokens": tokens}  # fmt: skip
            try:
                other = next(iter(_ways(case, [base], device, tokens)))
                wanted = other.compute(case.build(shape(device.type), tokens, device, 7))
                found = way.compute(case.build(shape(device.type), tokens, device, 7))
            except Exception as error:
                yield {**event, "ok": False, "reason": f"{type(error).__name__}: {error}"[:300]}
                continue
            yield {**event, **difference(found, wanted, case.bitwise if base == VLLM else ())}


def difference(found: Sequence[Tensor], wanted: Sequence[Tensor], exact: Sequence[int]) -> Event:
    """Share of elements that differ, the largest difference in bounds, and whether that is allowed; exact: the outputs
    that may not differ in a bit."""
    count = sum(tensor.numel() for tensor in wanted)
    counts = [int((a != b).sum()) for a, b in zip(found, wanted, strict=True)]
    bits = sum(counts[k] for k in exact)
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        if not b.is_floating_point():
            worst = max(worst, 0.0 if torch.equal(a, b) else float("inf"))
            continue
        bound = BF16_BOUND if b.dtype == torch.bfloat16 else FP32_BOUND
        scale = b.float().abs() + b.float().abs().mean()
        off = ((a.float() - b.float()).abs() / (bound * scale + 1e-30)).nan_to_num(nan=float("inf"))
        worst = max(worst, float(off.max()))
    return {"differ": sum(counts) / count, "worst": worst, "bitwise": bool(bits) or len(exact) == len(counts),
            "ok": not bits and worst <= 1}  # fmt: skip


__all__ = ["check", "count_wrong", "difference", "same"]
