"""Names and shapes of the DSpark draft's parameters, and their files.

The draft is a stack of decoder layers like a target's window-only ones, without hash routing, between an input mix of
the target's aux means and its own head. Embedding and lm_head are the target's and are in no draft file.
Source: deepseek_v4_dspark.md sections 1.2 and 4.
"""

from __future__ import annotations

from pathlib import Path

import torch

from impl.dims import Dims
from impl.model.weights import fill, parameter_shapes, read, save_weights

PREFIX = "draft."


def draft_dims(dims: Dims) -> Dims:
    """The draft's layers as a model of their own: `n_draft_layers` of ratio 0, none of them hash-routed."""
    return dims.with_changes(compress_ratios=(0,) * dims.n_draft_layers, n_hash_layers=0, aux_layers=())


def draft_parameter_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter of the draft; all are float."""
    h, rank = dims.hidden_size, dims.markov_rank
    shapes: dict[str, tuple[int, ...]] = {
        f"{PREFIX}main_proj": (h, len(dims.aux_layers) * h),
        f"{PREFIX}main_norm": (h,),
    }
    for name, shape in parameter_shapes(draft_dims(dims)).items():
        if name not in ("embed", "lm_head"):
            shapes[f"{PREFIX}{name}"] = shape
    return shapes | {
        f"{PREFIX}markov.w1": (dims.vocab_size, rank),
        f"{PREFIX}markov.w2": (dims.vocab_size, rank),
        f"{PREFIX}confidence": (1, h + rank),
    }


def random_draft_weights(dims: Dims, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Untrained weights of the right scale; what they draft means nothing."""
    return fill(draft_parameter_shapes(dims), dims, seed, dtype)


def save_draft_weights(path: Path, weights: dict[str, torch.Tensor], dims: Dims) -> None:
    """Write `path` (safetensors) with the target's dims in its header."""
    save_weights(path, weights, dims)


def load_draft_weights(path: Path) -> tuple[dict[str, torch.Tensor], Dims]:
    """Tensors of a draft file and the dims of the target that it belongs to.

    Raises ValueError with one line when the file is not a whole set of a draft's parameters.
    """
    mend = "train them with 'python -m impl.train.draft', or use --load-format dummy"
    return read(path, draft_parameter_shapes, mend)
