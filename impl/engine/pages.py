"""The page pool: one tensor a page size, cut into layers' views that share block ids; and the block tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.index_rows import IndexRows
from impl.engine.step import PageShape, state_group
from impl.kv_geometry import BUCKETS, Bucket, Group, KvGeometry

Pool = Mapping[Bucket, Tensor]
Changes = dict[tuple[int, int, int], int]
"""(group index, row, page) -> block"""


@dataclass(frozen=True)
class LayerPages:
    """The cache of one layer: contiguous uint8 [n_blocks, page_bytes] tensors; None where the layer has none."""

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
    index_rows: IndexRows | None = None
    """Which entries the step's tokens read; all dense layers share one."""


def allocate_pool(geometry: KvGeometry, n_blocks: int, device: torch.device | str) -> Pool:
    """uint8 [slots, n_blocks, page_bytes] per bucket that the shape has; block 0 is the null block."""
    return {
        bucket: torch.zeros(
            (geometry.slots(bucket), n_blocks, geometry.page_bytes(bucket)), dtype=torch.uint8, device=device
        )
        for bucket in BUCKETS
        if geometry.slots(bucket)
    }


def layer_pages(dims: Dims, geometry: KvGeometry, pool: Pool, index_rows: IndexRows | None = None) -> list[LayerPages]:
    """Each target layer's views of the pool, uint8 [n_blocks, page_bytes]; dense layers read by `index_rows`.

    Raises ValueError for a shape whose compressor states need more than one group a ratio, which a step cannot name.
    """
    names = {group.name for group in geometry.groups}
    for ratio in set(dims.compress_ratios) - {0}:
        if state_group(ratio) not in names:
            raise ValueError(f"compress_ratios {dims.compress_ratios} split {state_group(ratio)} in groups: use fewer")

    def view(layer: int, kind: str) -> Tensor:
        page = geometry.page(layer, kind)  # type: ignore[arg-type]
        return pool[page.bucket][page.slot]

    layers = []
    for layer, ratio in enumerate(dims.compress_ratios):
        indexed, dense = ratio == 4, ratio > 4
        layers.append(
            LayerPages(
                swa_group=geometry.page(layer, "swa").group,
                swa=view(layer, "swa"),
                compressed=view(layer, "c4a" if indexed else "c128a") if ratio else None,
                index_keys=view(layer, "c4_index") if indexed else None,
                state=view(layer, "c4_state" if indexed else "c128_state") if indexed or dense else None,
                index_state=view(layer, "c4_index_state") if indexed else None,
                index_rows=index_rows if dense else None,
            )
        )
    return layers


def draft_pages(dims: Dims, geometry: KvGeometry, pool: Pool) -> list[LayerPages]:
    """Each draft layer's views of the pool: sliding-window pages only."""
    pages = [geometry.page(dims.n_layers + i, "swa") for i in range(geometry.n_draft_layers)]
    return [LayerPages(swa_group=page.group, swa=pool[page.bucket][page.slot]) for page in pages]


def page_shape(dims: Dims, geometry: KvGeometry) -> PageShape:
    """Entries a page of each kind holds, as a step needs them."""
    kinds = {4: "c4_state"} | {ratio: "c128_state" for ratio in dims.compress_ratios if ratio > 4}
    return PageShape(
        window=dims.window,
        swa_tokens=geometry.formats["swa"].tokens,
        block_tokens=dims.block_tokens,
        state_tokens={r: geometry.formats[kinds[r]].tokens for r in sorted({*dims.compress_ratios} - {0})},  # type: ignore[index]
    )


class BlockTables:
    """Persistent block tables of the running batch, one int64 [max_num_seqs, max_blocks] a group.

    All are views of one tensor, so that a step's changes cost one copy to the device.
    """

    def __init__(
        self, groups: Sequence[Group], max_num_seqs: int, max_model_len: int, device: torch.device | str
    ) -> None:
        widths = [-(-max_model_len // group.tokens) for group in groups]
        self.flat = torch.zeros(max_num_seqs * sum(widths), dtype=torch.int64, device=device)
        self._starts = [max_num_seqs * sum(widths[:i]) for i in range(len(groups))]
        self._widths = widths
        self.tables: dict[str, Tensor] = {
            group.name: self.flat[start : start + max_num_seqs * width].view(max_num_seqs, width)
            for group, start, width in zip(groups, self._starts, widths, strict=True)
        }

    @property
    def nbytes(self) -> int:
        return self.flat.nbytes

    def apply(self, changes: Changes) -> None:
        """Enter `changes`, and empty them."""
        if not changes:
            return
        update = torch.tensor([self.places(changes), list(changes.values())], dtype=torch.int64).to(self.flat.device)
        self.flat[update[0]] = update[1]
        changes.clear()

    def places(self, changes: Changes) -> list[int]:
        """Where in `flat` each of them goes."""
        return [self._starts[group] + row * self._widths[group] + page for group, row, page in changes]
