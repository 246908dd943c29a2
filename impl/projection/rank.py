"""What one rank of a tensor-parallel model computes: its heads, groups and expert columns, on one platform."""

from __future__ import annotations

from dataclasses import dataclass

from impl.dims import Dims
from impl.platforms import KERNEL_HEADS, padded_heads

PLATFORMS = tuple(KERNEL_HEADS)
TENSOR_PARALLEL = (1, 2)


@dataclass(frozen=True)
class Rank:
    """One of `tp` equal ranks. Raises ValueError for one that cannot be, or an unknown platform."""

    model: Dims
    """The whole model."""
    platform: str
    tp: int

    def __post_init__(self) -> None:
        if self.tp not in TENSOR_PARALLEL:
            raise ValueError(f"tp must be one of {', '.join(map(str, TENSOR_PARALLEL))}, got {self.tp}")
        for name in ("n_heads", "o_groups", "expert_width", "vocab_size"):
            if getattr(self.model, name) % self.tp:
                raise ValueError(f"{self.model.name}: {name} {getattr(self.model, name)} does not split over {self.tp}")
        padded_heads(self.platform, self.dims.n_heads)

    @property
    def dims(self) -> Dims:
        """Dims of the forward pass on this rank.

        Split: attention heads and their output groups, inner columns of experts. Whole: the latent, indexer and
        compressor, mHC streams (deepseek_v4_dspark.md 2.3), and the vocabulary: logits are gathered before sampling.
        """
        model, tp = self.model, self.tp
        return model.with_changes(
            n_heads=model.n_heads // tp, o_groups=model.o_groups // tp, expert_width=model.expert_width // tp
        )

    @property
    def heads(self) -> int:
        """Heads the platform's attention kernel reads (deepseek_v4_dspark.md 3.7)."""
        return padded_heads(self.platform, self.dims.n_heads)


__all__ = ["PLATFORMS", "TENSOR_PARALLEL", "Rank"]
