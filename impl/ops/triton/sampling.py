"""Drawing drafts in Triton: the noise of `impl.ops.sampling`, bit for bit, without its fp64 logarithms everywhere.

A first pass scores every entry in fp32 and keeps the best of each block; it also writes the logits that verification
will read. A second pass scores again, in fp64 as the reference does, only the blocks whose best is within SLACK of the
row's: nearly always one. Both passes read the same logits; the drawn token is the reference's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from impl.ops.sampling import SamplingRows
from impl.ops.workspace import Workspace

TAG_DRAFT = 1
SLACK = tl.constexpr(1e-3)
"""More than fp32 noise can be off, by far: about 1e-5."""
VECTORS = ["temperature", "seeds", "positions", "slots"]
"""Read a number a request, wherever they begin: another batch must not ask for another compilation."""


@triton.jit
def noise_words(seed, position, tag, start, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """uint32 [BLOCK]: random words of the entries from `start` (a multiple of 4) on. Four entries share a counter."""
    counter = (start // 4 + tl.arange(0, BLOCK // 4)).to(tl.uint32)
    zero = counter * 0
    w0, w1, w2, w3 = tl.philox(
        seed, counter, zero + (position & 0xFFFFFFFF).to(tl.uint32), (zero + tag).to(tl.uint32), zero
    )
    return tl.reshape(tl.join(tl.join(w0, w2), tl.join(w1, w3)), (BLOCK,))


@triton.jit
def gumbel_near(words):  # type: ignore[no-untyped-def]
    """Gumbel noise in fp32, off by about 1e-5 at most: near u = 1 the logarithm is a series in 1 - u."""
    t = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    series = t * (1.0 + t * (0.5 + t * (0.33333333 + t * (0.25 + t * (0.2 + t * 0.16666667)))))
    u = (words.to(tl.float32) + 0.5) * 2.3283064365386963e-10
    rare = tl.where(t < 0.1, series, -tl.log(tl.minimum(u, 0.95)))
    return -tl.log(rare)


@triton.jit
def gumbel_exact(words):  # type: ignore[no-untyped-def]
    """Gumbel noise as the reference rounds it: fp64 logarithms, then fp32."""
    u = (words.to(tl.float64) + 0.5) * 2.3283064365386962890625e-10
    return (-tl.log(-tl.log(u))).to(tl.float32)


@triton.jit
def better(value, index, best, best_index):  # type: ignore[no-untyped-def]
    """Whether a block's best comes before the best so far: greater, or as great and earlier."""
    return (value > best) | ((value == best) & (index < best_index))


@triton.jit(do_not_specialize_on_alignment=VECTORS)
def _near_kernel(  # type: ignore[no-untyped-def]
    logits, temperature, seeds, positions, kept, slots, best, width, stride, kept_stride, n_blocks, tag,
    BLOCK: tl.constexpr, KEEP: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = part * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    x = tl.load(logits + row * stride + column, mask=inside, other=-float("inf"))
    if KEEP:
        tl.store(kept + tl.load(slots + row) * kept_stride + column, x, mask=inside)
    warmth = tl.load(temperature + row)
    if warmth > 0:
        words = noise_words(tl.load(seeds + row), tl.load(positions + row), tag, part * BLOCK, BLOCK)
        x = tl.where(inside, tl.div_rn(x, tl.zeros_like(x) + warmth) + gumbel_near(words), -float("inf"))
    tl.store(best + row * n_blocks + part, tl.max(x, 0))


@triton.jit(do_not_specialize_on_alignment=VECTORS)
def _exact_kernel(  # type: ignore[no-untyped-def]
    logits, temperature, seeds, positions, best, out, width, stride, n_blocks, tag,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    if EARLY:
        tl.extra.cuda.gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCKS)
    bests = tl.load(best + row * n_blocks + part, mask=part < n_blocks, other=-float("inf"))
    warmth, seed, position = tl.load(temperature + row), tl.load(seeds + row), tl.load(positions + row)
    top = tl.max(bests, 0)
    limit = top - SLACK - tl.abs(top) * 1e-6 if warmth > 0 else top
    value, index, seen = -float("inf"), width, 0
    while (tl.max(bests, 0) >= limit) & (seen < n_blocks):
        block = tl.argmax(bests, 0)
        column = block * BLOCK + tl.arange(0, BLOCK)
        inside = column < width
        x = tl.load(logits + row * stride + column, mask=inside, other=-float("inf"))
        if warmth > 0:
            words = noise_words(seed, position, tag, block * BLOCK, BLOCK)
            x = tl.where(inside, tl.div_rn(x, tl.zeros_like(x) + warmth) + gumbel_exact(words), -float("inf"))
        here = tl.max(x, 0)
        where = block * BLOCK + tl.argmax(x, 0)
        first = better(here, where, value, index)
        value, index = tl.where(first, here, value), tl.where(first, where, index)
        # Taken blocks fall below every limit; a limit of -inf ends with the last block.
        bests = tl.where(part == block, -float("inf"), bests)
        seen += 1
    tl.store(out + row, index.to(tl.int64))


def draw(
    logits: Tensor,
    how: SamplingRows,
    tag: int,
    kept: Tensor | None,
    slots: Tensor | None,
    block: int,
    warps: int,
    last_warps: int,
    early: bool,
) -> Tensor:
    """int64 [R] tokens of fp32 logits [R, V]; `kept`, [slots, V] with any stride between slots, gets the logits. early:
    the second kernel is launched before the first has ended (compute capability 9.0 and later)."""
    n, width = logits.shape
    if how.cut:
        raise ValueError("this kernel draws from all of a row: cut logits by top-k and top-p before, or use torch")
    n_blocks = triton.cdiv(width, block)
    tokens = torch.empty(n, dtype=torch.int64, device=logits.device)
    best = torch.empty((n, n_blocks), dtype=torch.float32, device=logits.device)
    if width > 1 and (logits.stride(1) != 1 or (kept is not None and kept.stride(1) != 1)):
        raise ValueError(f"logits must be dense along their rows, got strides {logits.stride()}")
    if kept is not None and (kept.shape[1] != width or slots is None or slots.shape[0] != n):
        raise ValueError(f"kept logits {tuple(kept.shape)} do not take {n} rows of {width} at as many slots")
    slots = slots if slots is None else slots.contiguous()
    rows = (logits, *(vector.contiguous() for vector in (how.temperature, how.seed, how.position)))
    if n:
        _near_kernel[(n, n_blocks)](
            *rows, logits if kept is None else kept, tokens if slots is None else slots, best, width,
            logits.stride(0), 0 if kept is None else kept.stride(0), n_blocks, tag,
            BLOCK=block, KEEP=kept is not None, EARLY=early, num_warps=warps,
        )  # fmt: skip
        _exact_kernel[(n,)](
            *rows, best, tokens, width, logits.stride(0), n_blocks, tag,
            BLOCK=block, BLOCKS=triton.next_power_of_2(n_blocks), EARLY=early, num_warps=last_warps,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    return tokens


def draft_sample(
    logits: Tensor,
    k: int,
    how: SamplingRows,
    kept: Tensor,
    slots: Tensor,
    workspace: Workspace | None = None,
    *,
    block: int = 1024,
    warps: int = 4,
    last_warps: int = 8,
    early: bool = False,
) -> Tensor:
    """As `impl.ops.draft_sample.draft_sample`; rows hold no NaN. Raises ValueError where a row has top-k or top-p."""
    return draw(logits, how, TAG_DRAFT + (k << 8), kept[:, k], slots, block, warps, last_warps, early)


OPERATIONS: Mapping[str, Callable[..., Any]] = {"draft_sample": draft_sample}
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "draft_sample": [
        *({"block": b, "warps": w} for b, w in ((1024, 4), (512, 4), (512, 2), (2048, 8))),
        {"block": 1024, "warps": 4, "last_warps": 4},
        *({"block": b, "warps": w, "early": True} for b, w in ((1024, 4), (512, 4), (512, 2), (256, 2))),
    ],
}

__all__ = ["OPERATIONS", "VARIANTS", "better", "draft_sample", "gumbel_exact", "gumbel_near", "noise_words"]
