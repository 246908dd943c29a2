"""Every figure of the KV reference (kv_profile.md, sections 2 to 4.3), and properties over shapes."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impl.dims import FLASH, MICRO, PICO, Dims
from impl.kv_geometry import BUCKETS, RULES, KvGeometry, group_width, page_alignment, state_scale_bytes

GIB = 2**30
SIX_LAYER = FLASH.with_changes(name="flash6", compress_ratios=(0, 0, 4, 128, 4, 128), aux_layers=(3, 4, 5))
AT_11_61_GIB = int(11.61 * GIB)


@pytest.fixture(scope="module")
def flash() -> KvGeometry:
    return KvGeometry.of(FLASH)


# Section 2: page sizes


@pytest.mark.parametrize(
    ("kind", "rows", "content", "aligned", "stored"),
    [
        ("c4a", 64, 37_376, 37_440, 37_440),
        ("c4_index", 64, 8_448, 8_640, 8_640),
        ("c128a", 2, 1_168, 1_728, 1_728),
        ("swa", 64, 37_376, 37_440, 37_440),
        ("c4_state", 4, 32_768, 32_832, 37_440),
        ("c4_index_state", 4, 8_192, 8_640, 8_640),
        ("c128_state", 8, 32_768, 32_832, 37_440),
    ],
)
def test_flash_pages(flash, kind, rows, content, aligned, stored):
    page = flash.formats[kind]
    assert (page.rows, page.content_bytes, page.aligned_bytes, page.page_bytes) == (rows, content, aligned, stored)


def test_packed_row_sizes(flash):
    assert flash.formats["c4a"].row_bytes == 584
    assert flash.formats["c4_index"].row_bytes == 132
    assert [page_alignment(d) for d in (FLASH, PICO, MICRO)] == [576, 48, 96]
    assert [state_scale_bytes(d) for d in (FLASH, PICO, MICRO)] == [8, 2, 2]


def test_pico_pages_worked_out_by_hand():
    # state 16 fp8 + 16 bf16 + 2 scale = 50 B; 16 states 800 -> 816; 16 keys of 20 B 320 -> 336; 2 states 100 -> 144.
    # State rows 512, 256 and 256 B: 816/512 -> 1, 336/256 -> 1, 816/256 = 3 -> 2.
    formats = KvGeometry.of(PICO).formats
    stored = {kind: (f.rows, f.page_bytes) for kind, f in formats.items()}
    assert stored == {
        "swa": (16, 816), "c4a": (16, 816), "c4_index": (16, 336), "c128a": (2, 144),
        "c4_state": (1, 816), "c4_index_state": (1, 336), "c128_state": (2, 816),
    }  # fmt: skip


def test_micro_pages_worked_out_by_hand():
    # state 32 + 64 + 2 = 98 B; 64 states 6272 -> 6336; 64 keys of 36 B 2304; 2 states 196 -> 288; alignment 96.
    # State rows 1024, 512 and 512 B: 6336/1024 = 6 -> 4, 2304/512 = 4, 6336/512 = 12 -> 8.
    stored = {kind: (f.rows, f.page_bytes) for kind, f in KvGeometry.of(MICRO).formats.items()}
    assert stored == {
        "swa": (64, 6336), "c4a": (64, 6336), "c4_index": (64, 2304), "c128a": (2, 288),
        "c4_state": (4, 6336), "c4_index_state": (4, 2304), "c128_state": (8, 6336),
    }  # fmt: skip


@pytest.mark.parametrize(("head_dim", "rope_dim", "index_dim", "alone"), [(64, 64, 128, (8, 4)), (450, 2, 4, (4, 8))])
def test_states_of_one_group_turn_over_together(head_dim, rope_dim, index_dim, alone):
    dims = FLASH.with_changes(head_dim=head_dim, rope_dim=rope_dim, index_dim=index_dim)
    formats = KvGeometry.of(dims).formats
    pair = [formats["c4_state"], formats["c4_index_state"]]
    assert tuple(1 << (f.page_bytes // f.row_bytes).bit_length() - 1 for f in pair) == alone
    assert [f.rows for f in pair] == [min(alone)] * 2


# Section 3: grouping, B, P0, R


def test_flash_groups(flash):
    assert flash.group_width == group_width([21, 46, 21, 20], at_least=21) == 23
    assert [(g.name, g.tokens, len(g.pages)) for g in flash.groups] == [
        ("full", 256, 21 + 21 + 20),
        ("swa.0", 64, 23),
        ("swa.1", 64, 23),
        ("c4_state", 4, 42),
        ("c128_state", 8, 20),
    ]
    assert [flash.slots(bucket) for bucket in BUCKETS] == [23, 21, 20]


def test_flash_block_and_request(flash):
    assert flash.block_bytes("0.25.1") == 1_077_120
    assert flash.full_page_bytes == 1_002_240
    assert [g.blocks(8192, 524_288) for g in flash.groups] == [2048, 131, 131, 2051, 1041]
    assert flash.blocks_per_max_request(8192, 524_288, "0.25.1") == 5032


def test_lookback(flash):
    """One more token needs the window less itself, and the runs that its compressed row is made of."""
    assert [g.lookback for g in flash.groups] == [None, 127, 127, 7, 127]
    assert [g.blocks(1, 524_288) for g in flash.groups[1:]] == [2 + 1, 2 + 1, 2 + 1, 16 + 1]
    assert [g.lookback for g in KvGeometry.of(PICO).groups] == [None, 31, 31, 31, 7, 31]


def test_lookback_is_capped_at_the_longest_request(flash):
    assert flash.group("swa.0").blocks(8192, 100) == 2 + 1
    assert flash.group("c4_state").blocks(8192, 100) == 25 + 1


# Section 4: the source document's rows, and the figures beside them

PUBLISHED = [
    (10_511, 11_321_608_320, 1_095_149, 2.0888),
    (10_761, 11_590_888_320, 1_121_196, 2.1385),
    (11_010, 11_859_091_200, 1_147_140, 2.1880),
    (11_259, 12_127_294_080, 1_173_083, 2.2375),
    (11_509, 12_396_574_080, 1_199_131, 2.2872),
    (11_571, 12_463_355_520, 1_205_591, 2.2995),
]


@pytest.mark.parametrize(("blocks", "pool_bytes", "tokens", "concurrency"), PUBLISHED)
def test_published_rows(flash, blocks, pool_bytes, tokens, concurrency):
    for capacity in (
        flash.capacity_of_blocks(blocks, 8192, 524_288, "0.25.1"),
        flash.capacity(pool_bytes, 8192, 524_288, "0.25.1"),
        flash.capacity(pool_bytes + 1_077_119, 8192, 524_288, "0.25.1"),
    ):
        assert (capacity.blocks, capacity.used_bytes, capacity.tokens) == (blocks, pool_bytes, tokens)
        assert round(capacity.max_concurrency, 4) == concurrency
    assert flash.capacity(pool_bytes - 1, 8192, 524_288, "0.25.1").blocks == blocks - 1


@pytest.mark.parametrize(
    ("gib", "tokens"),
    [
        (10.54, 1_094_628),
        (10.79, 1_120_676),
        (11.05, 1_147_661),
        (11.30, 1_173_604),
        (11.55, 1_199_548),
        (11.61, 1_205_799),
    ],
)
def test_tokens_from_the_rounded_gib(flash, gib, tokens):
    assert flash.capacity(int(gib * GIB), 8192, 524_288, "0.25.1").tokens == tokens


def test_one_block_is_104_tokens(flash):
    assert round(flash.capacity_of_blocks(1, 8192, 524_288, "0.25.1").max_concurrency * 524_288, 2) == 104.19


def test_bytes_per_token_figures(flash):
    capacity = flash.capacity(AT_11_61_GIB, 8192, 524_288, "0.25.1")
    assert round(capacity.reported_bytes_per_token) == 10_338
    assert flash.marginal_bytes_per_token("0.25.1") == 4207.5
    assert flash.full_bytes_per_token == 3915
    assert flash.content_bytes_per_token == 146 * 21 + 33 * 21 + 4.5625 * 20 == 3850.25
    assert capacity.fixed_blocks_per_request == 2984
    assert round(capacity.fixed_bytes_per_request / GIB, 3) == 2.993


@pytest.mark.parametrize(
    ("batched", "per_request", "tokens"),
    [(2048, 2810, 2_159_282), (4096, 3550, 1_709_178), (8192, 5032, 1_205_799), (16_384, 7994, 759_017)],
)
def test_effect_of_batched_tokens(flash, batched, per_request, tokens):
    capacity = flash.capacity(AT_11_61_GIB, batched, 524_288, "0.25.1")
    assert (capacity.blocks_per_max_request, capacity.tokens) == (per_request, tokens)


@pytest.mark.parametrize(
    ("max_len", "per_request", "tokens", "concurrency"),
    [
        (65_536, 3240, 234_088, 3.57),
        (131_072, 3496, 433_894, 3.31),
        (262_144, 4008, 756_934, 2.89),
        (524_288, 5032, 1_205_799, 2.30),
        (1_048_576, 7080, 1_714_007, 1.63),
    ],
)
def test_effect_of_max_model_len(flash, max_len, per_request, tokens, concurrency):
    capacity = flash.capacity(AT_11_61_GIB, 8192, max_len, "0.25.1")
    assert (capacity.blocks_per_max_request, capacity.tokens) == (per_request, tokens)
    assert round(capacity.max_concurrency, 2) == concurrency


# Section 4.2: versions


def test_block_bytes_by_version(flash):
    assert {rule: flash.block_bytes(rule) for rule in RULES} == {
        "may-2026": (37_440 + 8_640 + 1_728) * 23,
        "0.25.1": 1_077_120,
        "0.26.0": 1_077_120,
        "0.33.0": 1_002_240,
    }
    assert flash.block_bytes("may-2026") == 1_099_584


def test_blocks_per_request_by_version(flash):
    def per_request(rule, batches=None):
        return flash.capacity_of_blocks(1, 8192, 524_288, rule, batches).blocks_per_max_request

    assert (per_request("may-2026"), per_request("0.25.1")) == (5032, 5032)
    assert (per_request("0.26.0"), per_request("0.26.0", 1)) == (7994, 5032)
    assert (per_request("0.33.0"), per_request("0.33.0", 1)) == (8730, 5402)


def test_source_budget_under_later_defaults(flash):
    capacity = flash.capacity_of_blocks(10_511, 8192, 524_288, "0.26.0")
    assert round(capacity.max_concurrency, 2) == 1.31
    # The reference starts from the rounded 10.54 GiB, five blocks below the exact row.
    rounded = flash.capacity(int(10.54 * GIB), 8192, 524_288, "0.26.0")
    assert rounded.blocks == 10_506
    assert rounded.tokens == 689_037


# Section 4.3: real runs


def test_public_report_with_one_mtp_layer():
    mtp = KvGeometry.of(FLASH, n_draft_layers=1)
    capacity = mtp.capacity(int(7.01 * GIB), 8192, 912_128, "0.25.1")
    assert (capacity.blocks_per_max_request, capacity.block_bytes, capacity.tokens) == (6537, 1_039_680, 1_010_080)


def test_six_layer_boot_on_one_gpu():
    six = KvGeometry.of(SIX_LAYER)
    capacity = six.capacity(63_586_506_240, 8192, 65_536, "0.26.0")
    assert (capacity.block_bytes, capacity.blocks, capacity.blocks_per_max_request) == (95_616, 665_019, 6737)
    assert capacity.tokens == 6_469_153
    assert round(capacity.max_concurrency, 2) == 98.71
    assert [len(g.pages) for g in six.groups if g.kind == "swa"] == [2, 2, 2, 2, 1]
    assert six.capacity(63_586_506_240, 8192, 65_536, "0.25.1").tokens != 6_469_153


def test_six_layer_predictions_at_the_long_limit():
    six = KvGeometry.of(SIX_LAYER)
    base = six.capacity(63_586_506_240, 8192, 524_288, "0.26.0")
    all_three = six.capacity(64_190_486_016, 8192, 524_288, "0.26.0")
    assert (base.blocks_per_max_request, base.blocks, all_three.blocks) == (8529, 665_019, 671_336)
    assert (round(base.max_concurrency, 2), round(all_three.max_concurrency, 2)) == (77.97, 78.71)


# Shapes without one of the kinds


def test_windows_only():
    geometry = KvGeometry.of(FLASH.with_changes(compress_ratios=(0, 0), aux_layers=()), n_draft_layers=0)
    assert set(geometry.formats) == {"swa"}
    assert [geometry.slots(b) for b in BUCKETS] == [1, 0, 0]
    assert geometry.block_bytes("0.26.0") == 37_440
    assert geometry.blocks_per_max_request(8192, 524_288, "0.26.0") == 2 * 131
    assert (geometry.marginal_bytes_per_token(), geometry.content_bytes_per_token) == (0, 0)


def test_no_indexed_layer():
    geometry = KvGeometry.of(FLASH.with_changes(compress_ratios=(0, 128, 128), aux_layers=()), n_draft_layers=1)
    assert not {"c4a", "c4_index", "c4_state"} & set(geometry.formats)
    assert geometry.group_width == 1  # widths 1 and 2 waste nothing; the narrow block idles less under full pages
    assert geometry.block_bytes("0.26.0") == 37_440 + 2 * 1_728
    assert geometry.blocks_per_max_request(8192, 524_288, "0.26.0") == 2048 + 4 * 131 + 2 * 1041


def test_no_dense_layer():
    geometry = KvGeometry.of(FLASH.with_changes(compress_ratios=(4, 4), aux_layers=()), n_draft_layers=0)
    assert geometry.slots("small") == geometry.page_bytes("small") == 0
    assert geometry.block_bytes("0.26.0") == geometry.full_page_bytes == 2 * (37_440 + 8_640)
    # ceil((2048 * 92160 + 131 * 2 * 37440 + 2051 * 92160) / 92160)
    assert geometry.blocks_per_max_request(8192, 524_288, "0.26.0") == 2048 + 107 + 2051


def test_more_dense_layers_than_a_group_is_wide():
    geometry = KvGeometry.of(FLASH.with_changes(compress_ratios=(4, 128, 128), aux_layers=()), n_draft_layers=0)
    assert geometry.group_width == 1
    assert [g.name for g in geometry.groups] == [
        "full", "swa.0", "swa.1", "swa.2", "c4_state", "c128_state.0", "c128_state.1",
    ]  # fmt: skip
    assert [geometry.slots(b) for b in BUCKETS] == [1, 1, 2]


# Refusals


@pytest.mark.parametrize(
    ("ratios", "word"),
    [
        ((), "empty"),
        ((0, 2), "compress_ratios hold 2"),
        ((32, 128), "one dense ratio"),
        ((0, 96), "multiple of the ratio 96"),
    ],
)
def test_impossible_ratios(ratios, word):
    with pytest.raises(ValueError, match=word):
        KvGeometry.of(FLASH.with_changes(compress_ratios=ratios, aux_layers=()))


def test_impossible_limits(flash):
    with pytest.raises(ValueError, match="raise the memory budget"):
        flash.capacity(-1, 8192, 524_288)
    with pytest.raises(ValueError, match=r"unknown rule '0\.27'"):
        flash.capacity(1, 8192, 524_288, "0.27")
    with pytest.raises(ValueError, match="max_model_len must be at least 1"):
        flash.capacity(1, 8192, 0)
    with pytest.raises(ValueError, match="max_num_batched_tokens must be at least 1"):
        flash.capacity(1, 0, 10)
    with pytest.raises(ValueError, match="counts one batch in flight"):
        flash.capacity(1, 8192, 10, "0.25.1", 2)


# Properties


@st.composite
def shapes(draw) -> tuple[Dims, int]:
    dense = draw(st.sampled_from([8, 16, 32, 64, 128]))
    block = draw(st.sampled_from([dense, 128, 256]).filter(lambda b: b % dense == 0))
    ratios = draw(st.lists(st.sampled_from([0, 4, dense]), min_size=1, max_size=12))
    rope = draw(st.sampled_from([2, 8, 16, 64]))
    dims = FLASH.with_changes(
        compress_ratios=tuple(ratios),
        aux_layers=(),
        block_tokens=block,
        rope_dim=rope,
        head_dim=rope + draw(st.sampled_from([8, 16, 64, 100, 448])),
        index_dim=draw(st.sampled_from([8, 16, 32, 128])),
        window=draw(st.integers(1, 300)),
    )
    return dims, draw(st.integers(0, 4))


@given(shapes())
def test_pages_hold_their_rows_and_are_aligned(shape):
    geometry = KvGeometry.of(*shape)
    for page in geometry.formats.values():
        assert page.rows >= 1
        assert page.content_bytes <= page.page_bytes
        assert page.page_bytes % page_alignment(shape[0]) == 0
        assert page.page_bytes == geometry.page_bytes(page.bucket)
    states = [f for kind, f in geometry.formats.items() if kind.endswith("state")]
    assert all(f.rows & (f.rows - 1) == 0 for f in states)
    # No page could turn over more slowly: twice the rows fit nowhere that shares its block table.
    if "c4_state" in geometry.formats:
        pair = [geometry.formats[kind] for kind in ("c4_state", "c4_index_state")]
        assert pair[0].rows == pair[1].rows
        assert any(2 * f.content_bytes > f.page_bytes for f in pair)
    if "c128_state" in geometry.formats:
        dense = geometry.formats["c128_state"]
        assert 2 * dense.content_bytes > dense.page_bytes


@given(shapes())
def test_every_layer_has_its_pages_and_no_group_overlaps_itself(shape):
    dims, drafts = shape
    geometry = KvGeometry.of(dims, drafts)
    kinds: dict[int, set[str]] = {}
    for page in geometry.pages:
        assert page.slot < geometry.slots(page.bucket)
        assert page == geometry.page(page.layer, page.kind)
        assert page in geometry.group(page.group).pages
        kinds.setdefault(page.layer, set()).add(page.kind)
    wanted = {0: set(), 4: {"c4a", "c4_index", "c4_state", "c4_index_state"}}
    for layer, ratio in enumerate([*dims.compress_ratios, *[0] * drafts]):
        assert kinds[layer] == {"swa"} | wanted.get(ratio, {"c128a", "c128_state"})
    for group in geometry.groups:
        places = Counter((page.bucket, page.slot) for page in group.pages)
        assert max(places.values()) == 1
    assert sum(geometry.slots(b) * geometry.page_bytes(b) for b in BUCKETS) == geometry.block_bytes("0.26.0")


@given(shapes())
def test_block_bytes_follow_the_counts(shape):
    dims, drafts = shape
    geometry = KvGeometry.of(dims, drafts)
    indexed = sum(r == 4 for r in dims.compress_ratios)
    dense = sum(r > 4 for r in dims.compress_ratios)
    slots = [geometry.slots(b) for b in BUCKETS]
    assert slots == [max(indexed, geometry.group_width), indexed, dense]
    assert geometry.block_bytes("0.33.0") <= geometry.block_bytes("0.26.0") <= geometry.block_bytes("may-2026")


@given(st.lists(st.integers(0, 60), min_size=1, max_size=5).filter(any), st.data())
def test_group_width_wastes_least(counts, data):
    at_least = data.draw(st.integers(0, max(counts)))
    width = group_width(counts, at_least)

    def waste(d: int) -> int:
        return sum(-count % d for count in counts)

    assert width >= max(at_least, 1)
    assert all(waste(width) <= waste(d) for d in range(max(at_least, 1), 80))


@given(shapes(), st.sampled_from(RULES), st.integers(0, 10**12), st.integers(1, 10**5), st.integers(1, 10**6))
def test_capacity_is_whole_blocks_and_never_falls_with_bytes(shape, rule, available, batched, max_len):
    geometry = KvGeometry.of(*shape)
    less = geometry.capacity(available, batched, max_len, rule)
    more = geometry.capacity(available + 10**9, batched, max_len, rule)
    assert 0 <= less.available_bytes - less.used_bytes < less.block_bytes
    assert less.tokens <= more.tokens
    assert less.max_concurrency <= more.max_concurrency
    assert less.tokens <= less.max_concurrency * max_len < less.tokens + 1
    assert geometry.capacity(available, batched * 2, max_len, rule).tokens <= less.tokens


@given(shapes(), st.integers(1, 10**5), st.integers(1, 10**6))
def test_more_batches_in_flight_are_a_larger_step(shape, batched, max_len):
    geometry = KvGeometry.of(*shape)
    two = geometry.capacity(10**9, batched, max_len, "0.26.0", 2)
    assert two == geometry.capacity(10**9, 2 * batched, max_len, "0.26.0", 1)


def test_no_torch_is_imported():
    import subprocess
    import sys

    code = "import sys, impl.kv_geometry; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
