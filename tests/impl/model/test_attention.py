"""The attention sublayer against a float64 version, and against itself: batches, chunks, garbage, memory."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from impl.dims import MICRO, PICO
from impl.handshake import Markers
from impl.ops import index_map, indexer
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet
from tests.impl.model import plain_attention as plain
from tests.impl.model.cached import ODD, WIDE, CachedLayer
from tests.impl.model.live_bytes import LiveBytes

LAYERS = [(PICO, 0), (PICO, 1), (PICO, 2), (ODD, 0), (ODD, 1), (ODD, 2), (WIDE, 1), (WIDE, 2)]
LENGTH = 300
by_layer = pytest.mark.parametrize(("dims", "layer"), LAYERS, ids=lambda v: v if isinstance(v, int) else v.name)


def inputs(dims, n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, dims.hidden_size, generator=torch.Generator().manual_seed(seed)).bfloat16()


@by_layer
def test_a_prompt_agrees_with_float64(dims, layer, monkeypatch):
    n = 70 if dims is not WIDE else 140
    cached, x = CachedLayer(dims, layer), inputs(dims, n)
    lists = []
    for module, name in ((indexer, "top_entries"), (indexer, "first_entries"), (index_map, "first_entries")):
        monkeypatch.setattr(module, name, spy(getattr(module, name), lists))
    y = torch.cat([cached.run(x[i : i + 10], list(range(i, i + 10))) for i in range(0, n, 10)]).double()
    wanted, choices = plain.attention(cached.weights, dims, layer, x)
    if dims.compress_ratios[layer]:
        got = [[s for s in row if s >= 0] for row in torch.cat(lists).tolist()]
        # fp32 against float64 may swap two entries of nearly equal score.
        assert sum(a != b for a, b in zip(got, choices, strict=True)) <= 1
    off = (y - wanted).abs() / wanted.abs().mean()
    assert off.mean() < 0.01
    assert (off.amax(1) > 0.1).sum() <= 2


def spy(select, lists):
    def and_keep(*args):
        select(*args)
        lists.append(args[-2].clone().long())

    return and_keep


@pytest.fixture(scope="module")
def prefilled():
    """Per layer: two requests of LENGTH tokens in the cache, the inputs, and their outputs of one step a request."""
    known = {}

    def of(dims, layer):
        if (dims, layer) not in known:
            cached, x = CachedLayer(dims, layer, requests=2), inputs(dims, 2 * LENGTH)
            y = [cached.run(x[r * LENGTH :][:LENGTH], list(range(LENGTH)), [r] * LENGTH) for r in range(2)]
            known[dims, layer] = cached, x, torch.cat(y), {k: v.clone() for k, v in cached.contents().items()}
        return known[dims, layer]

    return of


@by_layer
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 300), threads=st.sampled_from([1, 2]), decodes=st.integers(0, 300))
def test_a_row_has_the_same_bits_in_any_batch(prefilled, dims, layer, seed, n, threads, decodes):
    """Any rows of any requests in any order: the same outputs, and the same bytes written again."""
    cached, x, y, before = prefilled(dims, layer)
    rows = torch.randperm(2 * LENGTH, generator=torch.Generator().manual_seed(seed))[:n]
    torch.set_num_threads(threads)
    got = cached.run(x[rows], (rows % LENGTH).tolist(), (rows // LENGTH).tolist(), min(decodes, n))
    torch.set_num_threads(1)
    assert torch.equal(got, y[rows])
    for name, pages in cached.contents().items():
        assert torch.equal(pages, before[name]), name


@by_layer
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 63, 64, 65, 255, 257])
def test_the_last_rows_have_the_same_bits_in_steps_of_any_size(prefilled, dims, layer, n):
    cached, x, y, _ = prefilled(dims, layer)
    got = cached.run(x[LENGTH - n : LENGTH], list(range(LENGTH - n, LENGTH)))
    assert torch.equal(got, y[LENGTH - n : LENGTH])


@by_layer
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_prompt_has_the_same_bits_however_it_is_cut(dims, layer, chunk):
    n, x = 200, inputs(dims, 200, seed=1)
    whole, cut = CachedLayer(dims, layer), CachedLayer(dims, layer)
    y = whole.run(x, list(range(n)))
    parts = [range(i, min(i + chunk, n)) for i in range(0, n, chunk)]
    assert torch.equal(torch.cat([cut.run(x[p.start : p.stop], list(p)) for p in parts]), y)
    for name, pages in cut.contents().items():
        assert torch.equal(pages, whole.contents()[name]), name


@by_layer
def test_what_pages_held_before_does_not_count_and_the_null_block_stays_zero(dims, layer):
    x = inputs(dims, 90)
    clean, dirty = CachedLayer(dims, layer), CachedLayer(dims, layer, fill=255)  # 255 is NaN in e4m3, bf16 and fp32
    assert torch.equal(clean.run(x, list(range(90))), dirty.run(x, list(range(90))))
    for pages in dirty.contents().values():
        assert not pages[0].any()


@by_layer
def test_a_step_without_blocks_leaves_no_trace_and_stays_finite(dims, layer):
    """What a profiling step is: every row of every group points into the null block."""
    cached = CachedLayer(dims, layer)
    for table in cached.tables.values():
        table.zero_()
    y = cached.run(inputs(dims, 90), [*range(80), *[LENGTH - 1] * 10])
    assert y.isfinite().all()
    for pages in cached.contents().values():
        assert not pages.any()


@by_layer
def test_longer_requests_beside_it_change_nothing(prefilled, dims, layer):
    """Candidates are scored as far as the step's longest request reaches."""
    cached, x, y, _ = prefilled(dims, layer)
    early = [5, 37, 64]
    alone = cached.run(x[early], early)
    beside = cached.run(torch.cat([x[early], x[-1:]]), [*early, LENGTH - 1], [0, 0, 0, 1])
    assert torch.equal(alone, y[early])
    assert torch.equal(beside, torch.cat([alone, y[-1:]]))
    step = cached.step(early)
    step.max_position = None
    assert torch.equal(cached.forward([x[early]], step), alone)


@by_layer
def test_a_locked_workspace_gives_the_same_bits(dims, layer):
    cached, x = CachedLayer(dims, layer), inputs(dims, 90)
    growing = cached.run(x, list(range(90)))
    cached.workspace.lock()
    held = cached.workspace.nbytes
    assert torch.equal(cached.run(x, list(range(90))), growing)
    assert torch.equal(cached.run(x[:1], [0]), growing[:1])
    assert cached.workspace.nbytes == held


@by_layer
@pytest.mark.parametrize("n", [1, 16, 256, 300])
def test_the_input_dies_before_the_output_is_allocated_and_all_else_is_workspace(dims, layer, n):
    cached, x = CachedLayer(dims, layer), inputs(dims, n)
    step = cached.step(list(range(n)))
    y = cached.run(x, list(range(n)))
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous()
    assert y.untyped_storage().nbytes() == y.numel() * 2
    assert not cached.workspace.owns(y)

    own = [v for v in vars(cached.attention).values() if isinstance(v, torch.Tensor)]
    if cached.rows is not None:
        own += [cached.rows.columns, cached.rows.lens, cached.rows.decode, cached.rows.prefill]
    step_tensors = [step.positions, step.request_rows, step.window_valid, *step.swa_slots.values()]
    step_tensors += [*step.window_slots.values(), *step.state_slots.values(), *step.visible.values()]
    step_tensors += [t for e in step.emissions.values() for t in vars(e).values()]
    rope = cached.attention.rope_table
    known = [*own, *step_tensors, *cached.contents().values(), *cached.tables.values(), cached.workspace.buffer]
    known += [*getattr(cached.attention, "entry_norms", ()), rope.rows, rope.index_rows]
    with LiveBytes(known) as live:
        cell = [x.clone()]
        out = cached.forward(cell, step)
    assert not cell
    assert live.live == out.nbytes
    # Beside the workspace: padded queries, and a dense layer's global rows.
    scratch = n * cached.attention.heads * dims.head_dim * 2
    scratch += n * dims.index_row_width * 4 if dims.compress_ratios[layer] > 4 else 0
    assert scratch <= live.peak - out.nbytes <= scratch + 64 * n + 1024


@by_layer
def test_queries_in_place_change_no_bit_or_are_refused(prefilled, dims, layer):
    """Mixed rows around the tile's edges; where heads are padded the query keeps storage of its own, and says why."""
    base, x, y, _ = prefilled(dims, layer)
    cached = CachedLayer(dims, layer, requests=2, toggles="q_in_place,c128_indices_in_place,c128a_topk_shared")
    cached.pages, cached.tables = replace(base.pages, index_rows=cached.rows), base.tables
    for n, decodes in ((1, 1), (1, 0), (63, 5), (257, 64), (300, 300), (300, 299)):
        got = cached.run(x[LENGTH - n : LENGTH], list(range(LENGTH - n, LENGTH)), decodes=decodes)
        assert torch.equal(got, y[LENGTH - n : LENGTH])
    padded = cached.attention.heads != dims.n_heads
    assert (cached.markers.taken["q_in_place"] == 0) == padded
    refused = cached.markers.refused["q_in_place"]
    assert sum(refused.values()) == (6 if padded else 0)
    assert all(f"{dims.n_heads} local heads, the kernel reads" in reason for reason in refused)


@pytest.mark.parametrize("platform", ["sm90", "sm120"])
def test_heads_padded_for_a_platform_give_the_same_rows(platform):
    """Zeroed heads beside the real ones; wider than the CPU needs, so the same within rounding of the sums."""
    base, wide = CachedLayer(PICO, 0), CachedLayer(PICO, 0, platform=platform)
    x = inputs(PICO, 70)
    got, wanted = (c.run(x, list(range(70))).float() for c in (wide, base))
    assert wide.attention.heads in (32, 64)
    assert (got - wanted).abs().max() <= 0.01 * wanted.abs().max()


@by_layer
def test_it_runs_on_shapes_alone(dims, layer):
    """Under fake tensors: nothing reads a value, and no shape depends on one."""
    cached = CachedLayer(dims, layer)
    step = cached.step(list(range(70)))
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(70, dims.hidden_size, dtype=torch.bfloat16)
        y = cached.forward([x], step, Workspace())
    assert y.shape == (70, dims.hidden_size)


def test_the_weights_become_views_of_the_layer_s_matrices_with_the_same_values():
    from impl.model.attention import Attention
    from impl.ops.rope import RopeTable
    from tests.impl.model.cached import weights

    held, before = weights(PICO), weights(PICO)
    layer = Attention(PICO, 1, held, RopeTable(PICO, 4), ToggleSet(), Markers())
    for name, value in held.items():
        assert torch.equal(value, before[name]), name
    stacked = {t.untyped_storage().data_ptr() for t in (layer.w_input, layer.w_query)}
    for name in ("attn.wqkv_a", "attn.wq_b", "compressor.wkv_gate", "indexer.wq_b", "indexer.w"):
        assert held[f"layers.1.{name}"].untyped_storage().data_ptr() in stacked


@pytest.mark.slow
def test_micro_agrees_with_float64():
    cached, x = CachedLayer(MICRO, 2, length=512), inputs(MICRO, 200)
    y = cached.run(x, list(range(200))).double()
    wanted, _ = plain.attention(cached.weights, MICRO, 2, x)
    off = (y - wanted).abs() / wanted.abs().mean()
    assert off.mean() < 0.01
    assert (off.amax(1) > 0.1).sum() <= 4
