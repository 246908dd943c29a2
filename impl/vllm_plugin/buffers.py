"""Whether a tensor may be written over: preconditions of the toggles that reuse memory."""

from __future__ import annotations

import sys
from typing import Any

WORKSPACE = "vllm.v1.worker.workspace"
_asked: set[tuple[str, tuple[int, ...]]] = set()


def reuse_refusal(what: str, tensor: Any) -> str:
    """Why `tensor` is not private dense storage; empty where it is.

    A view of a larger buffer (an all-reduce's, a workspace's) shows in its storage's size at every call; whether a
    workspace is exactly as large is asked at the first call of each shape, for vLLM keeps or regrows them whole.
    """
    if not tensor.is_contiguous() or tensor.storage_offset():
        return f"{what} is not contiguous from the start of its storage"
    if tensor.untyped_storage().nbytes() != tensor.numel() * tensor.element_size():
        return f"{what} is a view of a larger buffer"
    key = (what, tuple(tensor.shape))
    if key not in _asked:
        if _in_workspace(tensor):
            return f"{what} is workspace memory"
        _asked.add(key)
    return ""


def _in_workspace(tensor: Any) -> bool:
    manager = getattr(sys.modules.get(WORKSPACE), "_manager", None)
    address = tensor.untyped_storage().data_ptr()
    return any(
        buffer is not None and buffer.untyped_storage().data_ptr() == address
        for buffer in getattr(manager, "_current_workspaces", ())
    )


__all__ = ["reuse_refusal"]
