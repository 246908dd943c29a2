"""The page pool: one tensor a page size, cut into layers' views that share block ids."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class LayerPages:
    """The cache of one layer. Every tensor is uint8 [n_blocks, page_bytes], contiguous; None where the layer has none."""

    swa_group: str
    """The block-table group its sliding-window pages use."""
    swa: Tensor
    """Packed states, `swa_page_tokens` a page."""
    compressed: Tensor | None = None
    """Packed states, `block_tokens // ratio` a page (group `full`)."""
    index_keys: Tensor | None = None
    """Packed indexer keys, one for each C4A state (group `full`)."""
    state: Tensor | None = None
    """fp32 compressor-state rows (group `c4_state` or `c128_state`)."""
    index_state: Tensor | None = None
    """fp32 rows of the indexer's compressor (group `c4_state`)."""
