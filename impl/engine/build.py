"""What an engine is made of, as its conditions say: its sources, and whether its products keep a row's bits."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from impl.dims import Dims
from impl.ops.linear import linear
from impl.ops.workspace import Workspace


def sources_digest() -> str:
    """sha256 over this package's Python files: an edit between two boots of an experiment must show."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()


@torch.no_grad()
def batch_invariant(
    weights: dict[str, Tensor], dims: Dims, device: torch.device, row_counts: Sequence[int] = (2, 3, 5, 17)
) -> bool:
    """Whether a row of `linear` has the same bits alone and in a batch, at every width of this model.

    Measured on this machine and not taken from a library's word: up to T rows, on one matrix of each shape.
    """
    workspace = Workspace(device)
    gen = torch.Generator().manual_seed(0)
    n_rows = max(*row_counts, dims.max_num_batched_tokens)
    by_shape = {tuple(w.shape): w for w in weights.values() if w.dim() == 2 and w.is_floating_point()}
    for (_, width), matrix in by_shape.items():
        batch = torch.randn(n_rows, width, generator=gen).to(device, torch.bfloat16)
        with workspace.scope():
            alone = [linear(batch[i : i + 1], matrix, workspace)[0].clone() for i in range(4)]
            for n in (*row_counts, n_rows):
                with workspace.scope():
                    together = linear(batch[:n], matrix, workspace)
                    if any(not torch.equal(together[i], row) for i, row in enumerate(alone[:n])):
                        return False
    return True
