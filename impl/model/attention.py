"""The attention sublayer: projections, cache writes, selection, attention over cached entries, output.

Every token reads window and compressed entries from the pages, also those of its own step, which are written first.
So a token's result depends on its row and the cache, not on how a prompt was cut or on who shares the step.
Source: deepseek_v4_dspark.md, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.index_rows import GlobalRows
from impl.engine.pages import LayerPages
from impl.engine.profile import serve_only
from impl.engine.step import Step
from impl.handshake import Markers
from impl.kv_geometry import KvGeometry
from impl.model.fused import stack
from impl.model.select import Candidates, Query, choose
from impl.ops import dispatch, indexer, packed_kv
from impl.ops.attention import one_launch, padded_columns, sink_attention
from impl.ops.compressor import columns_of, pool, score_offsets
from impl.ops.insert import Places, insert_states
from impl.ops.linear import grouped_linear, linear, padded_rows
from impl.ops.norm import rms_norm_
from impl.ops.rope import RopeTable, conjugate_rows, rotate_, table_rows
from impl.ops.tiles import tiles
from impl.ops.workspace import Workspace
from impl.platforms import padded_heads, query_in_place_refusal
from impl.toggles import ToggleSet

TILE = 256
"""Token rows projected at a time."""
ATTEND_TILE = 64
"""Token rows that attend at a time, fewer where their entries would take more than TILE_BYTES."""
TILE_BYTES = 64 << 20
LEAST_CHUNK = 128
MOST_CHUNKS = 16
"""Candidates are scored in chunks of one width: at least 128 entries, and at most 16 chunks for the longest context."""


class Projected(NamedTuple):
    """What the input leaves behind in the workspace once it is gone."""

    rope: Tensor
    """complex64 [N, rope_dim / 2]: table rows of the tokens"""
    q: Tensor
    """bf16 [N, n_heads, D]: the projection's own output, neither normed nor rotated"""
    index_codes: Tensor | None
    """uint8 [N, index heads padded, index_dim]: e4m3 indexer queries"""
    index_weight: Tensor | None
    """fp32 [N, index heads padded]: head weights with the queries' scales"""


class Attention:
    """Attention of one layer; ratio 0 sees the window only, 4 the indexer's choice too, larger ones all entries."""

    def __init__(
        self,
        dims: Dims,
        layer: int,
        weights: Mapping[str, Tensor],
        rope_table: RopeTable,
        toggles: ToggleSet,
        markers: Markers,
        *,
        platform: str = "cpu",
    ) -> None:
        """`weights` is the model's flat dictionary; its entries become views of this layer's matrices.

        `platform` says to how many heads its kernels pad the queries.
        """
        at = f"layers.{layer}."
        self.dims, self.rope_table = dims, rope_table
        self.ratio = dims.compress_ratios[layer]
        self.layout = packed_kv.StateLayout.of(dims)
        self.window_packing = self.layout.packing(dims.swa_page_tokens)
        self.heads = padded_heads(platform, dims.n_heads)
        self.q_in_place = toggles.on("q_in_place")
        self.markers = markers
        self.index_heads = padded_rows(dims.index_heads) if self.ratio == 4 else 0
        self.q_norm, self.kv_norm = weights[f"{at}attn.q_norm"].float(), weights[f"{at}attn.kv_norm"].float()
        self.eps = self.kv_norm.new_full((1,), dims.rms_norm_eps)
        self.sink = torch.full((self.heads,), -torch.inf, device=self.kv_norm.device)
        self.sink[: dims.n_heads] = weights[f"{at}attn.sink"]
        self.wo_a, self.wo_b = weights[f"{at}attn.wo_a"].float(), weights[f"{at}attn.wo_b"].float()

        # Everything that reads x is one product, and everything that reads the low-rank query another.
        inputs = [(f"{at}attn.wqkv_a", dims.q_lora_rank + dims.head_dim)]
        self.query_rows = padded_rows(dims.n_heads) * dims.head_dim
        queries = [(f"{at}attn.wq_b", self.query_rows)]
        self.state_columns: list[int] = []
        """Widths of the compressor-state rows, the layer's own and the indexer's."""
        self.selected = 0
        """Columns of compressed entries a token attends to."""
        if self.ratio:
            compressors = [(f"{at}compressor.", dims.head_dim)]
            if self.ratio == 4:
                compressors.append((f"{at}indexer.compressor.", dims.index_dim))
                queries.append((f"{at}indexer.wq_b", self.index_heads * dims.index_dim))
            self.state_columns = [2 * columns_of(self.ratio, width) for _, width in compressors]
            inputs += [(f"{name}wkv_gate", n) for (name, _), n in zip(compressors, self.state_columns, strict=True)]
            if self.ratio == 4:
                inputs.append((f"{at}indexer.w", self.index_heads))
            self.score_offsets = score_offsets([weights[f"{name}ape"].float() for name, _ in compressors])
            self.entry_norms = [weights[f"{name}norm"].float() for name, _ in compressors]
            self._size_selection()
        self.head_weight_column = sum(rows for _, rows in inputs) - self.index_heads
        self.w_input, self.w_query = stack(weights, inputs), stack(weights, queries)

        self.columns = padded_columns(dims.window + self.selected)
        per_token = 4 * self.columns * dims.head_dim
        if self.ratio == 4:
            per_token = max(per_token, 4 * self.chunk * dims.index_dim)
        self.tile = max(4, min(ATTEND_TILE, TILE_BYTES // per_token // 4 * 4))

    def _size_selection(self) -> None:
        dims, device = self.dims, self.kv_norm.device
        per_page = dims.block_tokens // self.ratio
        formats = KvGeometry.of(dims).formats
        self.entry_packing = self.layout.packing(per_page)
        self.states_per_page = formats["c4_state" if self.ratio == 4 else "c128_state"].rows
        if self.ratio != 4:
            self.selected = dims.index_row_width
            return
        self.selected = dims.index_topk
        self.key_packing = packed_kv.key_packing(dims, per_page)
        longest = -(-dims.max_model_len // dims.block_tokens) * per_page
        wanted = max(LEAST_CHUNK, dims.index_topk, -(-longest // MOST_CHUNKS))
        self.chunk = -(-wanted // per_page) * per_page
        self.entries = torch.arange(-(-longest // self.chunk) * self.chunk, device=device)

    @torch.no_grad()
    def forward(self, x_cell: list[Tensor], step: Step, pages: LayerPages, workspace: Workspace) -> Tensor:
        """y, bf16 [N, H] in storage of its own, of the one tensor x in `x_cell`, bf16 [N, H].

        x is taken out of the cell and dropped before y is allocated. Writes the step's cache entries into `pages`.
        """
        with workspace.scope():
            projected = self._project(x_cell, step, pages, workspace)
            n, device = step.n_tokens, projected.q.device
            y = torch.empty((n, self.dims.hidden_size), dtype=torch.bfloat16, device=device)
            with serve_only():
                q = self._queries(projected, step, workspace)
                dense = pages.index_rows.for_layer(step, workspace) if pages.index_rows is not None else None
                for part in tiles(n, self.tile):
                    with workspace.scope():
                        self._attend(q, dense, projected, step, pages, part, _rows(y, part), workspace)
                del q, dense
            return y

    def _queries(self, projected: Projected, step: Step, workspace: Workspace) -> Tensor:
        """What attention reads, bf16 [N, padded heads, D], normed and rotated: in the projection's output, or apart."""
        raw = projected.q
        n, n_heads, width = raw.shape
        refusal = query_in_place_refusal(n_heads, self.heads) if self.q_in_place else ""
        if refusal:
            self.markers.refuse("q_in_place", refusal)
        if self.q_in_place and not refusal:
            q = raw
            self.markers.take("q_in_place")
        else:
            q = torch.empty((n, self.heads, width), dtype=raw.dtype, device=raw.device)
            if n_heads < self.heads:
                q[:, n_heads:].zero_()
        by_kernel = dispatch.kernel("query_norm_rope", q.device, self.dims, 1)  # one point whatever the tokens
        if by_kernel is not None:
            by_kernel(raw, step.positions, self.rope_table.rows, self.eps, workspace, q[:, :n_heads])
            return q
        for part in tiles(n, TILE):
            with workspace.scope():
                rows = _rows(raw, part)
                tile = workspace.empty(rows.shape, torch.float32).copy_(rows)
                rotate_(rms_norm_(tile, self.eps, workspace), _rows(projected.rope, part))
                _rows(q, part)[:, :n_heads].copy_(tile)
        return q

    def _project(self, x_cell: list[Tensor], step: Step, pages: LayerPages, workspace: Workspace) -> Projected:
        """Read x, tile by tile; store window states, compressor states and the entries they complete."""
        dims = self.dims
        x = x_cell.pop()
        n = x.shape[0]
        emission = step.emissions.get(self.ratio) if self.ratio else None
        emitted = emission.rows.shape[0] if emission is not None else 0
        rope = workspace.empty((n + emitted, dims.rope_dim // 2), torch.complex64)
        table_rows(self.rope_table.rows, step.positions, rope[:n])
        out = Projected(
            rope=rope[:n],
            q=workspace.empty((n, dims.n_heads, dims.head_dim), torch.bfloat16),
            index_codes=self._index_empty(n, (dims.index_dim,), torch.uint8, workspace),
            index_weight=self._index_empty(n, (), torch.float32, workspace),
        )
        with workspace.scope():
            # Window states of the tokens, then the entries the step completes: one norm, rotation and packing.
            latents = workspace.empty((n + emitted, dims.head_dim), torch.float32)
            for part in tiles(n, TILE):
                with workspace.scope():
                    self._project_tile(x, step, pages, part, _rows(latents, part), out, workspace)
            del x
            if emission is not None:
                assert pages.state is not None
                table_rows(self.rope_table.rows, emission.positions, rope[n:])
                pool(pages.state, self.states_per_page, emission, self.ratio, latents[n:], workspace)
            rms_norm_(latents, self.eps, workspace)
            latents[:n].mul_(self.kv_norm)
            if emission is not None:
                latents[n:].mul_(self.entry_norms[0])
            places = [Places(step.positions, step.swa_slots[pages.swa_group], pages.swa, self.window_packing)]
            if emission is not None:
                assert pages.compressed is not None
                places.append(Places(emission.positions, emission.slots, pages.compressed, self.entry_packing))
            insert_states(latents, rope, self.rope_table.rows, places, self.layout, workspace)
        if emission is not None and self.ratio == 4:
            self._store_keys(step, pages, workspace)
        return out

    def _index_empty(self, n: int, rest: tuple[int, ...], dtype: torch.dtype, workspace: Workspace) -> Tensor | None:
        return workspace.empty((n, self.index_heads, *rest), dtype) if self.ratio == 4 else None

    def _project_tile(
        self, x: Tensor, step: Step, pages: LayerPages, part: slice, latents: Tensor, out: Projected,
        workspace: Workspace,
    ) -> None:  # fmt: skip
        """One tile's queries into `out`, its latents before their norm; its compressor states into the pages."""
        dims, n = self.dims, part.stop - part.start
        from_x = linear(_rows(x, part), self.w_input, workspace)
        low_rank = from_x[:, : dims.q_lora_rank]
        latents.copy_(from_x[:n, dims.q_lora_rank : dims.q_lora_rank + dims.head_dim])
        if self.ratio:
            self._store_states(from_x[:n, dims.q_lora_rank + dims.head_dim :], step, pages, part, workspace)
        rms_norm_(low_rank, self.eps, workspace, self.q_norm)
        from_low = linear(low_rank, self.w_query, workspace)[:n]
        width = dims.n_heads * dims.head_dim
        _rows(out.q, part).copy_(from_low[:, :width].unflatten(1, (dims.n_heads, -1)))
        if out.index_codes is not None and out.index_weight is not None:
            first = self.query_rows
            query = from_low[:, first : first + self.index_heads * dims.index_dim].unflatten(1, (self.index_heads, -1))
            rotate_(query, self._index_rope(_rows(step.positions, part), _rows(out.rope, part), workspace))
            head_weight = from_x[:n, self.head_weight_column : self.head_weight_column + self.index_heads]
            indexer.quantize_query(
                query,
                head_weight,
                dims.index_heads,
                _rows(out.index_codes, part),
                _rows(out.index_weight, part),
                workspace,
            )

    def _index_rope(self, positions: Tensor, rope: Tensor, workspace: Workspace) -> Tensor:
        """Table rows that indexer queries and keys turn by: the layer's own `rope` unless the widths differ."""
        table = self.rope_table.index_rows
        if table is self.rope_table.rows:
            return rope
        return table_rows(table, positions, workspace.empty((len(positions), table.shape[1]), torch.complex64))

    def _store_states(self, rows: Tensor, step: Step, pages: LayerPages, part: slice, workspace: Workspace) -> None:
        """Add the position's offsets to the scores of [kv | score] rows and store them."""
        with workspace.scope():
            phase = workspace.empty((rows.shape[0],), torch.int64)
            torch.remainder(_rows(step.positions, part), self.ratio, out=phase)
            offsets = workspace.empty((rows.shape[0], sum(self.state_columns)), torch.float32)
            torch.index_select(self.score_offsets, 0, phase, out=offsets)
            states = offsets.add_(rows[:, : offsets.shape[1]])
            slots, per_page = _rows(step.state_slots[self.ratio], part), self.states_per_page
            blocks = packed_kv.blocks_of(slots, per_page, workspace)
            states.masked_fill_(packed_kv.in_null_block(blocks, workspace), 0.0)
            for cache, own in zip((pages.state, pages.index_state), states.split(self.state_columns, 1), strict=False):
                assert cache is not None
                packed_kv.store_rows(cache, slots, blocks, per_page, own, workspace)

    def _store_keys(self, step: Step, pages: LayerPages, workspace: Workspace) -> None:
        """Make and store the indexer keys of the entries this step completes."""
        assert pages.index_state is not None
        assert pages.index_keys is not None
        emission, width = step.emissions[self.ratio], self.dims.index_dim
        with workspace.scope():
            keys = workspace.empty((emission.rows.shape[0], width), torch.float32)
            pool(pages.index_state, self.states_per_page, emission, self.ratio, keys, workspace)
            rms_norm_(keys, self.eps, workspace, self.entry_norms[1])
            table = self.rope_table.index_rows
            turn = workspace.empty((len(keys), table.shape[1]), torch.complex64)
            rotate_(keys, table_rows(table, emission.positions, turn))
            codes = workspace.empty(keys.shape, torch.uint8)
            scale = workspace.empty((len(keys), 1), torch.float32)
            packed_kv.quantize_(packed_kv.round_bf16_(keys, workspace), scale.view(-1), codes)
            packed_kv.store(
                pages.index_keys, emission.slots, self.key_packing, codes, scale.view(torch.uint8), workspace
            )

    def _attend(
        self, q: Tensor, dense: GlobalRows | None, projected: Projected, step: Step, pages: LayerPages, part: slice,
        y: Tensor, workspace: Workspace,
    ) -> None:  # fmt: skip
        """Attention and output projection of the tokens `part`, into `y`."""
        dims, n = self.dims, part.stop - part.start
        hidden = workspace.empty((n, self.columns), torch.bool).fill_(True)
        torch.logical_not(_rows(step.window_valid, part), out=hidden[:, : dims.window])
        rounded = workspace.empty((n, dims.n_heads, dims.head_dim), torch.bfloat16)
        if one_launch(q.device, dims.head_dim, dims.window + self.selected):
            with workspace.scope():
                self._attend_at_once(q, dense, projected, step, pages, part, hidden, rounded, workspace)
        else:
            o = workspace.empty((n, self.heads, dims.head_dim), torch.float32)
            with workspace.scope():
                states = workspace.empty((n, self.columns, dims.head_dim), torch.float32)
                with workspace.scope():
                    self._gather(dense, projected, step, pages, part, states, hidden, workspace)
                sink_attention(_rows(q, part), states, hidden, self.sink, o, workspace)
            rotate_(o, conjugate_rows(_rows(projected.rope, part), workspace))
            rounded.copy_(o[:, : dims.n_heads])
        low = grouped_linear(rounded.view(n, dims.o_groups, -1), self.wo_a, workspace)
        y.copy_(linear(low, self.wo_b, workspace)[:n])

    def _attend_at_once(
        self, q: Tensor, dense: GlobalRows | None, projected: Projected, step: Step, pages: LayerPages, part: slice,
        hidden: Tensor, out: Tensor, workspace: Workspace,
    ) -> None:  # fmt: skip
        """Everything between the choice of entries and the output projection by one kernel, into `out`."""
        from impl.ops.triton.attention import attend

        selected = None
        if self.selected:
            assert pages.compressed is not None
            missing = hidden[:, self.dims.window : self.dims.window + self.selected]
            if self.ratio > 4:
                assert dense is not None
                slots = dense.slots(part, missing, workspace)
            else:
                slots, _ = self._selected_slots(projected, step, pages, part, missing, workspace)
            selected = slots, pages.compressed, self.entry_packing
        window = _rows(step.window_slots[pages.swa_group], part).reshape(-1), pages.swa, self.window_packing
        attend(
            _rows(q, part), window, selected, hidden, self.sink, _rows(step.positions, part), self.rope_table.rows,
            self.layout, out,
        )  # fmt: skip

    def _gather(
        self, dense: GlobalRows | None, projected: Projected, step: Step, pages: LayerPages, part: slice,
        states: Tensor, hidden: Tensor, workspace: Workspace,
    ) -> None:  # fmt: skip
        """The window's states and the selected entries into `states`; entries not there are marked in `hidden`."""
        window, n = self.dims.window, states.shape[0]
        count = n * (window + self.selected)
        data = workspace.empty((count, self.layout.data_bytes), torch.uint8)
        scales = workspace.empty((count, self.layout.scale_bytes), torch.uint8)
        slots = _rows(step.window_slots[pages.swa_group], part).reshape(-1)
        blocks = packed_kv.blocks_of(slots, self.window_packing.per_page, workspace)
        first = n * window
        packed_kv.gather(pages.swa, slots, blocks, self.window_packing, data[:first], scales[:first], workspace)
        targets = [states[:, :window]]
        if self.selected:
            assert pages.compressed is not None
            last = window + self.selected
            missing = hidden[:, window:last]
            if self.ratio > 4:
                assert dense is not None
                slots = dense.slots(part, missing, workspace)
                blocks = packed_kv.blocks_of(slots, self.entry_packing.per_page, workspace)
            else:
                slots, blocks = self._selected_slots(projected, step, pages, part, missing, workspace)
            packed_kv.gather(
                pages.compressed, slots, blocks, self.entry_packing, data[first:], scales[first:], workspace
            )
            targets.append(states[:, window:last])
        packed_kv.unpack_states(data, scales, self.layout, targets, workspace)

    def _selected_slots(
        self, projected: Projected, step: Step, pages: LayerPages, part: slice, hidden: Tensor, workspace: Workspace
    ) -> tuple[Tensor, Tensor]:
        """Slots and blocks, int64 [n * selected], of the compressed entries the indexer chooses for the tokens."""
        n, per_page = hidden.shape[0], self.entry_packing.per_page
        table = step.block_tables["full"]
        of_token = workspace.empty((n, table.shape[1]), torch.int64)
        torch.index_select(table, 0, _rows(step.request_rows, part), out=of_token)
        local = workspace.empty((n, self.selected), torch.int64)
        assert projected.index_codes is not None
        assert projected.index_weight is not None
        assert pages.index_keys is not None
        query = Query(_rows(projected.index_codes, part), _rows(projected.index_weight, part), self.dims.index_heads)
        candidates = Candidates(pages.index_keys, of_token, self.key_packing, self.chunk, self.entries)
        choose(query, candidates, _rows(step.visible[4], part), step.max_position, local, workspace)
        torch.lt(local, 0, out=hidden)
        page = workspace.empty(local.shape, torch.int64)
        torch.floor_divide(local.clamp_min_(0), per_page, out=page)
        local.sub_(page, alpha=per_page)
        blocks = workspace.empty(local.shape, torch.int64)
        torch.gather(of_token, 1, page, out=blocks)
        return local.add_(blocks, alpha=per_page).view(-1), blocks.view(-1)


def _rows(tensor: Tensor, part: slice) -> Tensor:
    """`tensor[part]`, without a new view where that is all of it."""
    return tensor if part.stop - part.start == tensor.shape[0] else tensor[part]
