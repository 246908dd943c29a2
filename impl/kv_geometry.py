"""Pages of the KV cache, pool blocks, and what a budget of bytes is worth (torch-free).

The pool is an array of blocks. A block has three buckets of equal pages: *big* (C4A, sliding window, compressor
states), *index* (indexer keys and indexer states) and *small* (dense compressed states). Layers whose pages are filled
at the same pace form a group; every layer of a group has its own slot of its bucket. A block belongs to one group at a
time, so the groups lie over the same bytes and never overlap (kv_profile.md, sections 2 to 4).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

from impl.dims import Dims

Bucket = Literal["big", "index", "small"]
Kind = Literal["c4a", "c4_index", "c128a", "swa", "c4_state", "c4_index_state", "c128_state"]
GroupKind = Literal["full", "swa", "c4_state", "c128_state"]
Rule = Literal["may-2026", "0.25.1", "0.26.0", "0.33.0"]

BUCKETS: tuple[Bucket, ...] = ("big", "index", "small")
DEFAULT_CONCURRENT_BATCHES: dict[Rule, int] = {"may-2026": 1, "0.25.1": 1, "0.26.0": 2, "0.33.0": 2}
"""Batches in flight each version counts at its defaults; the older two count one, whatever the scheduler does."""

RULES: tuple[Rule, ...] = tuple(DEFAULT_CONCURRENT_BATCHES)
C4_OVERLAP = 2
"""A C4 row is made of the last two runs of four tokens, and its state row holds both halves."""
FP32 = 4
BF16 = 2
INDEX_SCALE_BYTES = 4


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _floor_power_of_two(n: int) -> int:
    return 1 << (n.bit_length() - 1) if n > 0 else 0


@dataclass(frozen=True)
class PageFormat:
    """One kind of page: `rows` rows of `row_bytes`, stored in `page_bytes` of `bucket`."""

    kind: Kind
    bucket: Bucket
    rows: int
    row_bytes: int
    tokens: int
    """Tokens of context one page covers (a C4A row covers 4)."""
    alignment: int
    page_bytes: int

    @property
    def content_bytes(self) -> int:
        return self.rows * self.row_bytes

    @property
    def aligned_bytes(self) -> int:
        return _ceil_div(self.content_bytes, self.alignment) * self.alignment


@dataclass(frozen=True)
class Page:
    """Where one layer keeps one kind of page: `slot` of `bucket`, in every block that `group` owns."""

    layer: int
    """0 .. n_layers-1 are target layers, the draft's follow."""
    kind: Kind
    bucket: Bucket
    slot: int
    group: str


@dataclass(frozen=True)
class Group:
    """Pages that share one block table: their layers, and how many tokens of context a block covers."""

    name: str
    kind: GroupKind
    tokens: int
    lookback: int | None
    """Tokens before a step's first that must still be there; None keeps the whole context."""
    pages: tuple[Page, ...]

    def blocks(self, in_flight_tokens: int, max_model_len: int) -> int:
        """Blocks that one request of `max_model_len` tokens needs at most."""
        if self.lookback is None:
            return _ceil_div(max_model_len, self.tokens)
        return _ceil_div(min(self.lookback + in_flight_tokens, max_model_len), self.tokens) + 1


@dataclass(frozen=True)
class Capacity:
    """What `available_bytes` hold. Only the bytes are a measurement: the rest follows from geometry and limits."""

    available_bytes: int
    block_bytes: int
    """B."""
    blocks: int
    """n = available // B."""
    blocks_per_max_request: int
    """R: blocks one request of max_model_len tokens needs by this version's rule."""
    tokens: int
    """int(n / R * max_model_len), in floating point as the engine computes it."""
    max_concurrency: float
    """n / R."""
    max_model_len: int
    in_flight_tokens: int
    """T in the formula: max_num_batched_tokens times the batches in flight, where the version counts them."""
    rule: Rule
    reported_bytes_per_token: float
    """R * B / max_model_len: bytes of KV behind one *reported* token."""
    fixed_blocks_per_request: int
    """Blocks of R that do not grow with the context."""

    @property
    def used_bytes(self) -> int:
        return self.blocks * self.block_bytes

    @property
    def fixed_bytes_per_request(self) -> int:
        return self.fixed_blocks_per_request * self.block_bytes


@dataclass(frozen=True)
class KvGeometry:
    """Page formats, groups and slots of one model shape."""

    dims: Dims
    n_draft_layers: int
    formats: dict[Kind, PageFormat]
    groups: tuple[Group, ...]
    group_width: int
    """d: layers to a group of big pages."""

    @classmethod
    def of(cls, dims: Dims, n_draft_layers: int | None = None) -> KvGeometry:
        """Geometry of `dims` with its draft layers, or `n_draft_layers` of them (sliding window only).

        Raises ValueError for ratios that do not fit the block.
        """
        n_draft_layers = dims.n_draft_layers if n_draft_layers is None else n_draft_layers
        _check(dims, n_draft_layers)
        formats = _formats(dims)
        c4 = [i for i, ratio in enumerate(dims.compress_ratios) if ratio == 4]
        dense = [i for i, ratio in enumerate(dims.compress_ratios) if ratio > 4]
        every = list(range(dims.n_layers + n_draft_layers))
        width = group_width([len(c4), len(every), len(c4), len(dense)], at_least=len(c4))
        groups = _groups(dims, formats, c4, dense, every, width)
        return cls(dims, n_draft_layers, formats, tuple(groups), width)

    @cached_property
    def pages(self) -> tuple[Page, ...]:
        """Every layer's pages, group by group."""
        return tuple(page for group in self.groups for page in group.pages)

    @cached_property
    def _by_layer(self) -> dict[tuple[int, Kind], Page]:
        return {(page.layer, page.kind): page for page in self.pages}

    @cached_property
    def _by_name(self) -> dict[str, Group]:
        return {group.name: group for group in self.groups}

    def page(self, layer: int, kind: Kind) -> Page:
        """The page of one layer and kind; KeyError where the layer has none."""
        return self._by_layer[layer, kind]

    def group(self, name: str) -> Group:
        return self._by_name[name]

    def slots(self, bucket: Bucket) -> int:
        """Pages of `bucket` in one block: as many as the widest group uses."""
        return max((page.slot + 1 for page in self.pages if page.bucket == bucket), default=0)

    def page_bytes(self, bucket: Bucket) -> int:
        """Stored bytes of one page of `bucket`; 0 if the shape has none."""
        return max((f.page_bytes for f in self.formats.values() if f.bucket == bucket), default=0)

    @cached_property
    def bucket_bytes(self) -> int:
        """Bytes of one block: the buckets side by side (1,077,120 at flash)."""
        return sum(self.slots(bucket) * self.page_bytes(bucket) for bucket in BUCKETS)

    @cached_property
    def full_page_bytes(self) -> int:
        """P0: pages of the full-attention group, 0 where no layer is compressed."""
        return sum(self._group_bytes(group) for group in self.groups if group.lookback is None)

    def block_bytes(self, rule: Rule) -> int:
        """B, the pool bytes of one block, by version (section 4.2).

        may-2026 gives all buckets the same number of slots; 0.25.1 and 0.26.0 sum the buckets; 0.33.0 takes the widest
        group. This engine allocates by the bucket sum.
        """
        if rule == "may-2026":
            return max(self.slots(b) for b in BUCKETS) * sum(self.page_bytes(b) for b in BUCKETS)
        if rule == "0.33.0":
            return max(self._group_bytes(group) for group in self.groups)
        return self.bucket_bytes

    def blocks_per_max_request(self, in_flight_tokens: int, max_model_len: int, rule: Rule) -> int:
        """R (sections 3 and 4.2): bytes of the pages one longest request touches over P0; 0.33.0 adds up the blocks.

        A shape without C4A layers adds up the blocks under every rule: the pool hands them out so, and P0 is no
        measure of a block there.
        """
        need = [(group, group.blocks(in_flight_tokens, max_model_len)) for group in self.groups]
        if rule == "0.33.0" or "c4a" not in self.formats:
            return sum(blocks for _, blocks in need)
        return _ceil_div(sum(blocks * self._group_bytes(group) for group, blocks in need), self.full_page_bytes)

    def capacity(
        self,
        available_bytes: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        rule: Rule = "0.26.0",
        concurrent_batches: int | None = None,
    ) -> Capacity:
        """Blocks, tokens and concurrency of `available_bytes` by one version's rule.

        `concurrent_batches` are the batches in flight (PP + 1 with async scheduling, 1 without), where the version
        counts them. Raises ValueError for an unknown rule or a limit below 1.
        """
        if available_bytes < 0:
            raise ValueError(f"available bytes must not be negative, got {available_bytes}: raise the memory budget")
        blocks = available_bytes // self.block_bytes(_known_rule(rule))
        capacity = self.capacity_of_blocks(blocks, max_num_batched_tokens, max_model_len, rule, concurrent_batches)
        return replace(capacity, available_bytes=available_bytes)

    def capacity_of_blocks(
        self,
        blocks: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        rule: Rule = "0.26.0",
        concurrent_batches: int | None = None,
    ) -> Capacity:
        """The same for a known number of blocks; available bytes are then exactly theirs."""
        if blocks < 0:
            raise ValueError(f"blocks must not be negative, got {blocks}")
        block_bytes = self.block_bytes(_known_rule(rule))
        in_flight = max_num_batched_tokens * _concurrent_batches(rule, concurrent_batches)
        for name, value in (("max_num_batched_tokens", in_flight), ("max_model_len", max_model_len)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        per_request = self.blocks_per_max_request(in_flight, max_model_len, rule)
        growing = sum(g.blocks(in_flight, max_model_len) for g in self.groups if g.lookback is None)
        return Capacity(
            available_bytes=blocks * block_bytes,
            block_bytes=block_bytes,
            blocks=blocks,
            blocks_per_max_request=per_request,
            tokens=int(blocks / per_request * max_model_len),
            max_concurrency=blocks / per_request,
            max_model_len=max_model_len,
            in_flight_tokens=in_flight,
            rule=rule,
            reported_bytes_per_token=per_request * block_bytes / max_model_len,
            fixed_blocks_per_request=per_request - growing,
        )

    def marginal_bytes_per_token(self, rule: Rule = "0.26.0") -> float:
        """Pool bytes of one more token of context inside a request: B over the block's tokens, 0 if windows are all."""
        return self.block_bytes(rule) / self.dims.block_tokens if self.full_page_bytes else 0.0

    @property
    def full_bytes_per_token(self) -> float:
        """Bytes of one more token in full-attention pages alone, padding of groups left out."""
        return self.full_page_bytes / self.dims.block_tokens

    @property
    def content_bytes_per_token(self) -> float:
        """Bytes of one more token without any padding of pages."""
        full = (page for group in self.groups if group.lookback is None for page in group.pages)
        return sum(self.formats[page.kind].content_bytes / self.formats[page.kind].tokens for page in full)

    def _group_bytes(self, group: Group) -> int:
        return sum(self.page_bytes(page.bucket) for page in group.pages)


def group_width(counts: list[int], at_least: int) -> int:
    """d >= at_least that wastes the fewest slots when each count is split into groups of d; the smallest on a tie."""

    def padding(d: int) -> int:
        return sum(_ceil_div(count, d) * d - count for count in counts)

    return min(range(max(at_least, 1), max(counts) + 1), key=padding)


def state_scale_bytes(dims: Dims) -> int:
    """Scale bytes of a packed state: one a quantization group and one of padding (8 at flash, 2 at pico)."""
    return _ceil_div(dims.nope_dim, dims.quant_group) + 1 if dims.nope_dim else 1


def page_alignment(dims: Dims) -> int:
    """Bytes of a state's data row, fp8 then bf16; pages are rounded up to a multiple of it (576 at flash)."""
    return dims.nope_dim + BF16 * dims.rope_dim


def _check(dims: Dims, n_draft_layers: int) -> None:
    if n_draft_layers < 0:
        raise ValueError(f"n_draft_layers must not be negative, got {n_draft_layers}")
    if not dims.compress_ratios:
        raise ValueError("compress_ratios is empty: name one ratio a layer")
    odd = sorted(r for r in set(dims.compress_ratios) if r != 0 and r < 4)
    if odd:
        raise ValueError(f"compress_ratios hold {odd[0]}: a ratio is 0 (window only), 4 (C4A) or larger (dense)")
    large = sorted({r for r in dims.compress_ratios if r > 4})
    if len(large) > 1:
        raise ValueError(f"compress_ratios hold {large}: one dense ratio a shape")
    for ratio in (4, *large):
        if dims.block_tokens % ratio:
            raise ValueError(f"block_tokens {dims.block_tokens} must be a multiple of the ratio {ratio}")


def _formats(dims: Dims) -> dict[Kind, PageFormat]:
    """Formats of the kinds this shape has. A state page holds the largest power of two of rows that fits the KV page
    of its bucket, and at least one: then the bucket's page grows to hold it."""
    align = page_alignment(dims)
    window_rows = dims.block_tokens // 4
    state_bytes = align + state_scale_bytes(dims)
    state_rows_bytes: dict[Kind, int] = {}
    kv: list[tuple[Kind, Bucket, int, int, int]] = [("swa", "big", window_rows, state_bytes, window_rows)]
    if 4 in dims.compress_ratios:
        kv.append(("c4a", "big", window_rows, state_bytes, dims.block_tokens))
        kv.append(("c4_index", "index", window_rows, dims.index_dim + INDEX_SCALE_BYTES, dims.block_tokens))
        state_rows_bytes["c4_state"] = 2 * C4_OVERLAP * dims.head_dim * FP32
        state_rows_bytes["c4_index_state"] = 2 * C4_OVERLAP * dims.index_dim * FP32
    if any(ratio > 4 for ratio in dims.compress_ratios):
        kv.append(("c128a", "small", dims.block_tokens // dims.large_ratio, state_bytes, dims.block_tokens))
        state_rows_bytes["c128_state"] = 2 * dims.head_dim * FP32

    bucket_of: dict[Kind, Bucket] = {"c4_state": "big", "c4_index_state": "index", "c128_state": "big"}
    content: dict[Bucket, int] = {bucket: rows * row for _, bucket, rows, row, _ in kv}
    for kind, row in state_rows_bytes.items():
        content[bucket_of[kind]] = max(content[bucket_of[kind]], row)
    stored = {bucket: _ceil_div(size, align) * align for bucket, size in content.items()}

    rows_of = {kind: _floor_power_of_two(stored[bucket_of[kind]] // row) for kind, row in state_rows_bytes.items()}
    if "c4_state" in rows_of:  # one block table serves both, so they turn over together
        rows_of["c4_state"] = rows_of["c4_index_state"] = min(rows_of["c4_state"], rows_of["c4_index_state"])
    kinds = kv + [(kind, bucket_of[kind], rows_of[kind], row, rows_of[kind]) for kind, row in state_rows_bytes.items()]
    return {
        kind: PageFormat(kind, bucket, rows, row, tokens, align, stored[bucket])
        for kind, bucket, rows, row, tokens in kinds
    }


def _groups(
    dims: Dims, formats: dict[Kind, PageFormat], c4: list[int], dense: list[int], every: list[int], width: int
) -> Iterator[Group]:
    def pages(name: str, layers: list[int], *kinds: Kind) -> list[Page]:
        return [Page(layer, kind, formats[kind].bucket, i, name) for kind in kinds for i, layer in enumerate(layers)]

    def split(kind: GroupKind, layers: list[int], lookback: int, *kinds: Kind) -> Iterator[Group]:
        parts = [layers[i : i + width] for i in range(0, len(layers), width)]
        for i, part in enumerate(parts):
            name = kind if len(parts) == 1 else f"{kind}.{i}"
            yield Group(name, kind, formats[kinds[0]].tokens, lookback, tuple(pages(name, part, *kinds)))

    if c4 or dense:
        full = [*pages("full", c4, "c4a", "c4_index"), *pages("full", dense, "c128a")]
        yield Group("full", "full", dims.block_tokens, None, tuple(full))
    yield from split("swa", every, dims.window - 1, "swa")
    if c4:
        yield from split("c4_state", c4, C4_OVERLAP * 4 - 1, "c4_state", "c4_index_state")
    if dense:
        yield from split("c128_state", dense, dims.large_ratio - 1, "c128_state")


def _known_rule(rule: Rule) -> Rule:
    if rule not in RULES:
        raise ValueError(f"unknown rule {rule!r}: one of {', '.join(RULES)}")
    return rule


def _concurrent_batches(rule: Rule, concurrent: int | None) -> int:
    if concurrent is None:
        return DEFAULT_CONCURRENT_BATCHES[rule]
    if concurrent < 1:
        raise ValueError(f"concurrent batches must be at least 1, got {concurrent}")
    if concurrent > 1 and DEFAULT_CONCURRENT_BATCHES[rule] == 1:
        raise ValueError(f"rule {rule} counts one batch in flight, got {concurrent}: use 0.26.0 or 0.33.0")
    return concurrent
