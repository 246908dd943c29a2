"""The residual streams between sublayers, and the right to write over what is dead.

Liveness of a seam (deepseek_v4_dspark.md section 2.2): POST is the last reader of the old streams
and of the sublayer output y, so the new streams may take the old ones' memory and the layer input
may take y's. That holds only for private dense storage that nobody else will read, and only in the
large-token path; `refusal` checks it at every seam and the seam falls back to fresh memory.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from impl.handshake import Markers
from impl.ops import dispatch, mhc
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet


@dataclass
class Streams:
    """The model's state between two sublayers. Each tensor is owned here alone."""

    residual: Tensor | None
    """bf16 [N, hc, H]"""
    post: Tensor | None = None
    """fp32 [N, hc]"""
    comb: Tensor | None = None
    """fp32 [N, hc, hc]"""
    y: Tensor | None = None
    """bf16 [N, H]: output of the last sublayer, not yet added to the streams"""

    def pending(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """What POST reads; only after a sublayer has run."""
        assert self.residual is not None
        assert self.y is not None
        assert self.post is not None
        assert self.comb is not None
        return self.residual, self.y, self.post, self.comb

    def added(self, shape: str) -> Tensor:
        """POST: the new streams, bf16 [N, hc, H], in memory of their own. shape: the model's, by name."""
        residual, y, post, comb = self.pending()
        add = dispatch.kernel("mhc_post", residual.device, shape, residual.shape[0]) or mhc.post_streams
        return add(residual, y, post, comb)

    def clear(self) -> None:
        self.residual = self.post = self.comb = self.y = None


class Seam:
    """One seam of the model with its reuse switches."""

    def __init__(
        self,
        weights: mhc.SeamWeights,
        toggles: ToggleSet,
        markers: Markers,
        workspace: Workspace,
        shape: str = dispatch.ANY,
    ) -> None:
        """`shape` is the model's, by name: what the tuning table knows it by."""
        self.weights = weights
        self.shape = shape
        self.reuse_residual = toggles.on("mhc_residual_reuse")
        self.reuse_input = toggles.on("mhc_input_reuse")
        self.alias_small_path = toggles.on("residual_reuse_small_path")
        self.markers = markers
        self.workspace = workspace

    def __call__(self, streams: Streams) -> list[Tensor]:
        """Advance `streams` over one seam; returns the layer input, bf16 [N, H], as the only reference to it."""
        if streams.y is None:
            assert streams.residual is not None
            n, _, _ = streams.residual.shape
            pre = dispatch.kernel("mhc_pre", streams.residual.device, self.shape, n) or mhc.pre
            new = pre(streams.residual, self.weights)
            streams.post, streams.comb = new.post, new.comb
            return [new.layer_input]
        residual, y, post, comb = streams.pending()
        streams.clear()
        small = residual.shape[0] <= mhc.SMALL_TOKENS
        residual_out = residual if self._may_take("mhc_residual_reuse", self.reuse_residual, residual, small) else None
        input_out = y if self._may_take("mhc_input_reuse", self.reuse_input, y, small) else None
        seam = dispatch.kernel("mhc_seam", residual.device, self.shape, residual.shape[0]) or mhc.seam
        if small and self.alias_small_path:
            # The race is the reference's: kernels whose programs own their columns have none.
            residual_out, seam = residual, mhc.seam
        new = seam(residual, y, post, comb, self.weights, residual_out=residual_out, input_out=input_out)
        took_residual, took_input = same_storage(new.residual, residual), same_storage(new.layer_input, y)
        del residual, y, residual_out, input_out
        if took_residual:
            self._took("residual_reuse_small_path" if small else "mhc_residual_reuse", new.residual)
        if took_input:
            self._took("mhc_input_reuse", new.layer_input)
        streams.residual, streams.post, streams.comb = new.residual, new.post, new.comb
        return [new.layer_input]

    def _may_take(self, toggle: str, on: bool, tensor: Tensor, small: bool) -> bool:
        """Whether the seam writes over `tensor`; says why where the toggle is on and it does not."""
        if not on:
            return False
        if small:
            self.markers.skip(toggle, "small-token path: its programs re-read what others write")
            return False
        reason = reuse_refusal(tensor, self.workspace, holders=_SEAM_HOLDERS)
        if reason:
            self.markers.refuse(toggle, reason)
        return not reason

    def _took(self, toggle: str, tensor: Tensor) -> None:
        """Count a reuse, unless the memory turns out to have another holder now that the dead tensor is gone."""
        # Three know it: the seam's result, this parameter and getrefcount's own argument.
        if sole_holder(tensor) and sys.getrefcount(tensor) <= 3:
            self.markers.take(toggle)
        else:
            self.markers.refuse(toggle, "something still holds the memory that was written over")


_SEAM_HOLDERS = 2
"""References a seam itself keeps while it asks: the caller's local and the method's parameter."""


def reuse_refusal(tensor: Tensor, workspace: Workspace, *, holders: int) -> str:
    """Why a tensor is not private dense storage that only `holders` local names refer to; empty when it is.

    A view held elsewhere shows in the storage's use count, a second name in Python's reference count.
    """
    if not tensor.is_contiguous() or tensor.storage_offset():
        return "not contiguous from the start of its storage"
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        return "a view of a larger buffer"
    if workspace.owns(tensor):
        return "workspace memory"
    if not sole_holder(tensor):
        return "another view of its storage is alive"
    # Above the holders: this function's parameter and getrefcount's own argument.
    if sys.getrefcount(tensor) > holders + 2:
        return "another reference to it is alive"
    return ""


def same_storage(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors lie in one storage; fake tensors, which have no addresses, can be asked too."""
    return bool(a.untyped_storage()._cdata == b.untyped_storage()._cdata)


def sole_holder(tensor: Tensor) -> bool:
    """Whether a tensor is all that holds its storage.

    A second tensor shows in torch's use count, a kept storage object in Python's count of references to it.
    """
    return _holders(tensor) <= _holders(torch.empty(1))


def _holders(tensor: Tensor) -> int:
    storage = tensor.untyped_storage()
    return int(torch._C._storage_Use_Count(storage._cdata)) + sys.getrefcount(storage)
