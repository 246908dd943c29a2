"""Head counts of the attention kernels of each platform: what a projection's queries are padded to (torch-free)."""

from __future__ import annotations

import difflib

CPU_HEAD_MULTIPLE = 4
"""The embedded engine's own kernels: matrix rows keep their bits in multiples of four."""

KERNEL_HEADS: dict[str, tuple[int, ...]] = {"sm90": (64, 128), "sm120": (32, 64, 128)}
"""Heads a packed-cache kernel can be asked for (deepseek_v4_dspark.md 3.7): FlashMLA, FlashInfer up to vLLM 0.26.
FlashInfer's 16 needs four ranks or more, so it is left out."""

PLATFORMS = ("cpu", *KERNEL_HEADS)


def padded_heads(platform: str, local_heads: int) -> int:
    """Heads of the query tensor that a platform's attention reads, for `local_heads` heads on one rank.

    Raises ValueError for an unknown platform, or for more heads than its kernels have.
    """
    if local_heads < 1:
        raise ValueError(f"local_heads must be at least 1, got {local_heads}")
    if platform == "cpu":
        return -(-local_heads // CPU_HEAD_MULTIPLE) * CPU_HEAD_MULTIPLE
    if platform not in KERNEL_HEADS:
        near = difflib.get_close_matches(platform, PLATFORMS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(PLATFORMS)}"
        raise ValueError(f"unknown platform '{platform}': {hint}")
    for heads in KERNEL_HEADS[platform]:
        if heads >= local_heads:
            return heads
    raise ValueError(
        f"{platform} has no attention kernel for {local_heads} heads: at most {KERNEL_HEADS[platform][-1]}"
    )


def query_in_place_refusal(local_heads: int, heads: int) -> str | None:
    """Why the projection's own output cannot be the kernel's query; None where it can."""
    if local_heads == heads:
        return None
    return f"{local_heads} local heads, the kernel reads {heads}: the query needs padded storage of its own"


__all__ = ["PLATFORMS", "padded_heads", "query_in_place_refusal"]
