"""mHC on Hopper in CUDA C++: the seam, PRE, the heads, POST and its mean (`mhc*.cu`).

Many tokens go to blocks that stay and read their streams once, those of the heads to thread-block clusters; few go to
two kernels that use the whole card. Outputs may alias inputs at any number of tokens: what another block has written is
read only once that block has told.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from impl.ops.cuda.build import CAPABILITY, lacking, load
from impl.ops.mhc import HeadWeights, SeamOutput, SeamWeights
from impl.ops.places import check_outputs, dense_rows

HIDDEN, STREAMS = 4096, 4
"""What the sources are built for."""
SEAM, PRE, HEAD = 0, 1, 2
FEW = 64
"""At most this many tokens go to `mhc_few.cu` where no tuning says otherwise."""
SPLITS, SLICES, SUMS = 128, 16, 32
"""Splits of the columns there, slices of them in `mhc_many.cu`, and numbers that each keeps of a token."""
TILE = 16
"""Tokens that `mhc_many.cu` counts together."""
THREADS = 256
HINTS = {"streaming": 0, "plain": 1, "no_allocate": 2}
CLUSTERS = {"cluster": 8, "chains": 2, "stages": 1, "blocks": 1}
"""How heads of many tokens are cut where no tuning says otherwise."""


class _Args(ctypes.Structure):
    """`Args` of mhc_parts.cuh, field by field; its size is asked of every library that is loaded."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("residual", "y", "post", "comb", "fn", "scale", "base", "norm")),
        *((name, ctypes.c_void_p) for name in ("residual_out", "input_out", "mean", "post_out", "comb_out")),
        *((name, ctypes.c_float) for name in ("hc_eps", "rms_eps", "post_mult")),
        *((name, ctypes.c_int) for name in ("iters", "tokens", "mean_row")),
    ]


def seam(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: SeamWeights, *,
    residual_out: Tensor | None = None, input_out: Tensor | None = None, **tuning: int,
) -> SeamOutput:  # fmt: skip
    """As `impl.ops.mhc.seam`; `residual_out` may be `residual` and `input_out` may be `y` at any number of tokens.

    tuning: `splits` of the columns for few tokens, and `tiles` of 16 that a block goes through; or for many `groups` of
    16 multiprocessors that make streams while the others finish rows (0: up to 7, as fit), and `early` (1: fn is read
    while the counts are cleared; 2: while the kernel in front still ends, which must not write it).
    """
    new = torch.empty_like(residual) if residual_out is None else residual_out
    layer_input = torch.empty_like(y) if input_out is None else input_out
    new_post, new_comb = torch.empty_like(post), torch.empty_like(comb)
    _launch(
        SEAM, tuning, residual, weights, y=y, post=post, comb=comb, residual_out=new, input_out=layer_input,
        post_out=new_post, comb_out=new_comb, norm=weights.norm,
    )  # fmt: skip
    return SeamOutput(new, new_post, new_comb, layer_input)


def pre(residual: Tensor, weights: SeamWeights, **tuning: int) -> SeamOutput:
    """As `impl.ops.mhc.pre`; tuning as of `seam`."""
    n, hc, hidden = residual.shape
    layer_input = residual.new_empty(n, hidden)
    post = residual.new_empty(n, hc, dtype=torch.float32)
    comb = residual.new_empty(n, hc, hc, dtype=torch.float32)
    _launch(PRE, tuning, residual, weights, input_out=layer_input, post_out=post, comb_out=comb, norm=weights.norm)
    return SeamOutput(residual, post, comb, layer_input)


def post_head(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, weights: HeadWeights, out: Tensor,
    mean: Tensor | None = None, **tuning: int,
) -> None:  # fmt: skip
    """As `impl.ops.mhc.post_head`; `out` may be `y`, or `mean` may be where the tuning is not for few tokens. Rows of
    `mean` may lie apart.

    tuning: `splits` and `tiles` as of `seam`; or blocks of a `cluster`, `chains` of a block, `stages` (tiles of a
    chain that are there or on their way) and `blocks` of a multiprocessor.
    """
    if mean is not None and mean.data_ptr() == y.data_ptr():
        if "splits" in tuning:
            raise ValueError("mean must not be y with splits: the second kernel for few tokens reads y again")
        tuning = CLUSTERS | tuning
    _launch(HEAD, tuning, residual, weights, y=y, post=post, comb=comb, input_out=out, mean=mean)


def post_streams(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, *,
    out: Tensor | None = None, threads: int = THREADS, hint: str = "streaming",
) -> Tensor:  # fmt: skip
    """As `impl.ops.mhc.post_streams`; `out` may be `residual`. hint: how its bytes go past the caches, of HINTS."""
    new = torch.empty_like(residual) if out is None else out
    _launch_post(residual, threads, hint, y=y, post=post, comb=comb, residual_out=new)
    return new


def post_mean(
    residual: Tensor, y: Tensor, post: Tensor, comb: Tensor, out: Tensor, *,
    threads: int = THREADS, hint: str = "streaming",
) -> None:  # fmt: skip
    """As `impl.ops.mhc.post_mean`; `out` may be `y`, and its rows may lie apart."""
    _launch_post(residual, threads, hint, y=y, post=post, comb=comb, mean=out)


def _launch(
    mode: int, tuning: Mapping[str, int], residual: Tensor, weights: SeamWeights | HeadWeights, **tensors: Tensor | None
) -> None:
    if "splits" in tuning or (not tuning and residual.shape[0] <= FEW):
        name, cut = "mhc_few", {"splits": SPLITS, "tiles": 1}
    elif mode == HEAD:
        name, cut = "mhc_heads", dict(CLUSTERS)
    else:
        name, cut = "mhc_many", {"groups": 0, "early": 0}
    unknown = sorted(set(tuning) - set(cut))
    if unknown:
        raise ValueError(f"unknown tuning {unknown[0]}={tuning[unknown[0]]}: known are {', '.join(cut)}")
    cut |= tuning
    args = _args(residual, fn=weights.fn, scale=weights.scale, base=weights.base, **tensors)
    if args is None:
        return
    args.hc_eps, args.rms_eps = weights.hc_eps, weights.rms_eps
    if isinstance(weights, SeamWeights):
        args.post_mult, args.iters = weights.post_mult, weights.sinkhorn_iters
    if name == "mhc_heads":
        _run(name, residual, cut, *cut.values(), ctypes.byref(args))
        return
    parts = SLICES if name == "mhc_many" else cut["splits"]
    counts = -(-args.tokens // TILE) if name == "mhc_many" else 0
    sums = residual.new_empty(args.tokens * parts * SUMS + counts, dtype=torch.float32)
    _run(name, residual, cut, mode, *cut.values(), ctypes.byref(args), ctypes.c_void_p(sums.data_ptr()))


def _launch_post(residual: Tensor, threads: int, hint: str, **tensors: Tensor) -> None:
    if hint not in HINTS:
        raise ValueError(f"unknown hint '{hint}': known are {', '.join(HINTS)}")
    args = _args(residual, **tensors)
    if args is not None:
        _run("mhc_post", residual, {"threads": threads}, threads, HINTS[hint], ctypes.byref(args))


def _args(residual: Tensor, **tensors: Tensor | None) -> _Args | None:
    """Pointers of contiguous tensors of one device; None where there are no tokens."""
    n, hc, hidden = residual.shape
    if (hc, hidden) != (STREAMS, HIDDEN):
        raise ValueError(f"these kernels are built for {STREAMS} streams of {HIDDEN}, got {hc} of {hidden}")
    given = {name: tensor for name, tensor in {"residual": residual, **tensors}.items() if tensor is not None}
    for name, tensor in given.items():
        wanted = torch.bfloat16 if name in BF16 else torch.float32
        rows = name == "mean" and tensor.shape == (n, HIDDEN)
        dense = dense_rows(tensor) if rows else tensor.is_contiguous() and name != "mean"
        if tensor.dtype != wanted or not dense or tensor.device != residual.device:
            raise ValueError(
                f"{name} must be contiguous {wanted} on {residual.device}, got {tensor.dtype} {tuple(tensor.shape)}, "
                f"strides {tensor.stride()} on {tensor.device}"
            )
        numbers = n * PER_TOKEN[name] if name in PER_TOKEN else FIXED.get(name, tensor.numel())
        unaligned = tensor.data_ptr() % 16 or (rows and _row(tensor) * tensor.element_size() % 16)
        if tensor.numel() < numbers or (unaligned and name not in SCALARS):
            raise ValueError(
                f"{name} must have {numbers} numbers from a multiple of 16 bytes on, got {tuple(tensor.shape)} "
                f"at {tensor.data_ptr() % 16} bytes past one"
            )
    outputs = {name: given[name] for name in OUTPUTS if name in given}
    check_outputs(outputs, {name: given[name] for name in given.keys() - outputs.keys()}, MAY_BE)
    args = _Args(tokens=n, mean_row=_row(given["mean"]) if "mean" in given else 0)
    for name, tensor in given.items():
        setattr(args, name, tensor.data_ptr())
    return args if n else None


def _row(rows: Tensor) -> int:
    """Numbers from one row to the next."""
    return HIDDEN if rows.is_contiguous() else rows.stride(0)


def _run(name: str, residual: Tensor, cut: Mapping[str, int], *arguments: Any) -> None:
    """One launch on the current stream. Raises RuntimeError with CUDA's own words, or for what was not compiled."""
    library = _library(name, residual.device.index or 0)
    stream = torch.cuda.current_stream(residual.device).cuda_stream
    with torch.cuda.device(residual.device):  # the default stream is the one of the device at hand
        code = getattr(library, f"{name}_launch")(*arguments, ctypes.c_void_p(stream))
    if code < 0:
        raise RuntimeError(f"{name}.cu: no kernel of {', '.join(f'{key} {value}' for key, value in cut.items())}")
    if code:
        raise RuntimeError(f"{name}.cu: {getattr(library, f'{name}_error')(code).decode()}")


BF16 = {"residual", "y", "residual_out", "input_out", "mean"}
PER_TOKEN = {
    "residual": STREAMS * HIDDEN, "residual_out": STREAMS * HIDDEN, "y": HIDDEN, "input_out": HIDDEN, "mean": HIDDEN,
    "post": STREAMS, "post_out": STREAMS, "comb": STREAMS * STREAMS, "comb_out": STREAMS * STREAMS,
}  # fmt: skip
FIXED = {"norm": HIDDEN}
SCALARS = {"scale", "base"}
"""Read a number at a time, from any address."""
OUTPUTS = ("residual_out", "input_out", "mean", "post_out", "comb_out")
MAY_BE = {"residual_out": "residual", "input_out": "y", "mean": "y"}
"""In place means the same memory: an output a few tokens beside an input is read by blocks it is not for."""


@cache
def _library(name: str, device: int) -> ctypes.CDLL:
    capability = torch.cuda.get_device_capability(device)
    if capability != CAPABILITY:
        raise RuntimeError(f"{name}.cu is built for compute capability {CAPABILITY}, got {capability}")
    return checked(name, load(name))


def checked(name: str, library: ctypes.CDLL) -> ctypes.CDLL:
    """A library that reads its arguments as they are laid out here. Raises RuntimeError for another one."""
    if (theirs := library.mhc_args_bytes()) != ctypes.sizeof(_Args):
        raise RuntimeError(
            f"{name}.cu reads arguments of {theirs} bytes, mhc.py writes {ctypes.sizeof(_Args)}: build it again"
        )
    getattr(library, f"{name}_error").restype = ctypes.c_char_p
    return library


OPERATIONS: Mapping[str, Callable[..., Any]] = {
    "mhc_seam": seam,
    "mhc_post_head": post_head,
    "mhc_post_mean_head": post_head,
    "mhc_post_mean": post_mean,
    "mhc_post": post_streams,
    "mhc_pre": pre,
}
_FEW: list[dict[str, Any]] = [
    {"splits": 128}, {"splits": 64}, {"splits": 128, "tiles": 2}, {"splits": 128, "tiles": 4},
    {"splits": 64, "tiles": 2}, {"splits": 64, "tiles": 4},
]  # fmt: skip
_MANY: list[dict[str, Any]] = [*({"groups": 7, "early": early} for early in (2, 0, 1)), {"groups": 6}]
_HEAD: list[dict[str, Any]] = [
    {"cluster": cluster, "chains": chains, "stages": stages, "blocks": blocks}
    for cluster, chains, stages, blocks in ((8, 2, 1, 1), (16, 3, 1, 1), (16, 1, 2, 2))
]
_POST: list[dict[str, Any]] = [{"threads": threads, "hint": hint} for hint in HINTS for threads in (128, 256, 512)]
VARIANTS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "mhc_seam": [*_MANY, *_FEW],
    "mhc_post_head": [*_HEAD, *_FEW],
    "mhc_post_mean_head": [*_HEAD, *_FEW],
    "mhc_post_mean": _POST,
    "mhc_post": _POST,
    "mhc_pre": [*_MANY, *_FEW],
}

__all__ = ["OPERATIONS", "VARIANTS", "lacking", "post_head", "post_mean", "post_streams", "pre", "seam"]
