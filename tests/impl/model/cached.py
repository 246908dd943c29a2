"""One layer's pages and block tables, made by hand: shuffled block ids, every group with blocks of its own."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from impl.dims import PICO, Dims
from impl.engine.index_rows import IndexRows
from impl.engine.pages import LayerPages
from impl.engine.step import PageShape, Step, build_step, state_group
from impl.handshake import Markers
from impl.kv_geometry import KvGeometry
from impl.model.attention import Attention
from impl.model.weights import parameter_shapes
from impl.ops.rope import RopeTable
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

ODD = PICO.with_changes(
    name="odd", hidden_size=26, compress_ratios=(0, 4, 8), n_heads=6, head_dim=20, rope_dim=6, q_lora_rank=13,
    o_groups=3, o_lora_rank=5, window=11, block_tokens=16, index_heads=3, index_dim=10, index_topk=5,
    n_experts=5, experts_per_token=3, expert_width=7, max_model_len=400, aux_layers=(2,),
)  # fmt: skip
WIDE = PICO.with_changes(
    name="wide", compress_ratios=(0, 4, 128), n_heads=8, head_dim=112, rope_dim=16, index_dim=8, window=64,
    block_tokens=256, aux_layers=(2,),
)  # fmt: skip
"""Two quantization groups of unequal width, an indexer narrower than the rope part, micro's window and blocks."""


def weights(dims: Dims, seed: int = 0) -> dict[str, Tensor]:
    """Nothing at a neutral value: norms, sinks, biases and position terms all count."""
    gen = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in parameter_shapes(dims).items():
        if name.endswith("tid2eid"):
            noise = torch.rand(dims.vocab_size, dims.n_experts, generator=gen)
            tensors[name] = noise.topk(dims.experts_per_token).indices.to(torch.int32)
        elif name.endswith("norm"):
            tensors[name] = 0.5 + torch.rand(shape, generator=gen)
        else:
            tensors[name] = torch.randn(shape, generator=gen) * (1.0 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5)
    return tensors


class CachedLayer:
    """Attention of one layer over pages of its own, for requests of at most `length` tokens."""

    def __init__(
        self, dims: Dims, layer: int, requests: int = 1, length: int = 320, fill: int = 0, toggles: str = "",
        platform: str = "cpu",
    ) -> None:  # fmt: skip
        self.dims, self.layer, ratio = dims, layer, dims.compress_ratios[layer]
        self.weights = weights(dims, layer)
        self.markers, switches = Markers(), ToggleSet.parse(toggles)
        self.attention = Attention(
            dims, layer, dict(self.weights), RopeTable(dims, ratio), switches, self.markers, platform=platform
        )
        # A step of these tests may have more rows than a step of the engine.
        wide = dims.with_changes(max_num_batched_tokens=max(dims.max_num_batched_tokens, requests * length))
        self.rows = IndexRows(wide, switches, self.markers, "cpu") if ratio > 4 else None
        self.workspace = Workspace()
        formats = KvGeometry.of(dims, 0).formats
        state = "c4_state" if ratio == 4 else "c128_state"
        tokens = {"swa.0": dims.swa_page_tokens}
        if ratio:
            tokens |= {"full": dims.block_tokens, state_group(ratio): formats[state].rows}
        self.shape = PageShape(
            window=dims.window,
            swa_tokens=dims.swa_page_tokens,
            block_tokens=dims.block_tokens,
            state_tokens={ratio: formats[state].rows} if ratio else {},
        )
        needed = {group: requests * -(-length // size) for group, size in tokens.items()}
        ids = random.Random(layer).sample(range(1, sum(needed.values()) + 1), sum(needed.values()))
        self.tables = {}
        for group, size in tokens.items():
            table = torch.zeros(requests, -(-dims.max_model_len // size), dtype=torch.int64)
            for row in range(requests):
                for page in range(-(-length // size)):
                    table[row, page] = ids.pop()
            self.tables[group] = table

        def pages(kind: str) -> Tensor:
            made = torch.full((sum(needed.values()) + 1, formats[kind].page_bytes), fill, dtype=torch.uint8)
            made[0] = 0
            return made

        indexed = ratio == 4
        self.pages = LayerPages(
            swa_group="swa.0",
            swa=pages("swa"),
            compressed=pages("c4a" if indexed else "c128a") if ratio else None,
            index_keys=pages("c4_index") if indexed else None,
            state=pages(state) if ratio else None,
            index_state=pages("c4_index_state") if indexed else None,
            index_rows=self.rows,
        )

    def contents(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self.pages).items() if isinstance(value, Tensor)}

    def step(self, positions: list[int], requests: list[int] | None = None, decodes: int = 0) -> Step:
        rows = requests or [0] * len(positions)
        return build_step([0] * len(positions), positions, rows, decodes, self.tables, self.shape, torch.device("cpu"))

    def forward(self, cell: list[Tensor], step: Step, workspace: Workspace | None = None) -> Tensor:
        """What the target does with a step: its index rows, then the layer."""
        workspace = workspace or self.workspace
        if self.rows is not None:
            self.rows.build(step, workspace)
        return self.attention.forward(cell, step, self.pages, workspace)

    def run(self, x: Tensor, positions: list[int], requests: list[int] | None = None, decodes: int = 0) -> Tensor:
        return self.forward([x.clone()], self.step(positions, requests, decodes))
