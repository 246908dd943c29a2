"""The pool and its views: every layer's page is its own bytes of a block, and groups lie over each other."""

from __future__ import annotations

import pytest
import torch

from impl.dims import MICRO, PICO, SHAPES, Dims
from impl.engine.pages import LayerPages, allocate_pool, layer_pages, page_shape
from impl.kv_geometry import KvGeometry

N_BLOCKS = 5


def views(pages: LayerPages) -> dict[str, torch.Tensor]:
    names = ("swa", "compressed", "index_keys", "state", "index_state")
    return {name: getattr(pages, name) for name in names if getattr(pages, name) is not None}


@pytest.mark.parametrize("dims", [PICO, MICRO], ids=lambda dims: dims.name)
def test_views_have_the_shapes_and_kinds_of_their_layer(dims: Dims) -> None:
    geometry = KvGeometry.of(dims)
    layers = layer_pages(dims, geometry, allocate_pool(geometry, N_BLOCKS, "cpu"))
    assert len(layers) == dims.n_layers
    for layer, (ratio, pages) in enumerate(zip(dims.compress_ratios, layers, strict=True)):
        kinds = {0: {"swa"}, 4: {"swa", "compressed", "index_keys", "state", "index_state"}}
        assert set(views(pages)) == kinds.get(ratio, {"swa", "compressed", "state"})
        assert pages.swa_group == geometry.page(layer, "swa").group
        for view in views(pages).values():
            assert view.dtype == torch.uint8
            assert view.is_contiguous()
            assert view.shape[0] == N_BLOCKS
            assert view.shape[1] in {f.page_bytes for f in geometry.formats.values()}
            assert not view.any()


@pytest.mark.parametrize("dims", [PICO, MICRO], ids=lambda dims: dims.name)
def test_pages_of_one_group_share_no_byte(dims: Dims) -> None:
    """Write each page of a group with its own number; nothing is overwritten, block by block."""
    geometry = KvGeometry.of(dims)
    pool = allocate_pool(geometry, N_BLOCKS, "cpu")
    for group in geometry.groups:
        for number, page in enumerate(group.pages):
            pool[page.bucket][page.slot].fill_(number + 1)
        for number, page in enumerate(group.pages):
            assert bool((pool[page.bucket][page.slot] == number + 1).all())


def test_the_pool_has_exactly_the_bytes_of_its_blocks() -> None:
    for dims in (PICO, MICRO):
        for n_draft in (0, dims.n_draft_layers):
            geometry = KvGeometry.of(dims, n_draft)
            pool = allocate_pool(geometry, N_BLOCKS, "cpu")
            assert sum(tensor.nbytes for tensor in pool.values()) == N_BLOCKS * geometry.bucket_bytes


def test_a_view_is_the_pool_itself() -> None:
    geometry = KvGeometry.of(PICO)
    pool = allocate_pool(geometry, N_BLOCKS, "cpu")
    layers = layer_pages(PICO, geometry, pool)
    layers[1].swa[3, 7] = 9
    page = geometry.page(1, "swa")
    assert pool[page.bucket][page.slot, 3, 7] == 9
    assert sum(int(tensor.count_nonzero()) for tensor in pool.values()) == 1


@pytest.mark.parametrize("name", SHAPES)
def test_page_shape_repeats_the_geometry(name: str) -> None:
    dims = SHAPES[name]
    geometry = KvGeometry.of(dims)
    shape = page_shape(dims, geometry)
    assert shape.swa_tokens == dims.swa_page_tokens
    assert shape.state_tokens[4] == geometry.formats["c4_state"].rows
    assert shape.state_tokens[dims.large_ratio] == geometry.formats["c128_state"].rows
    assert set(shape.state_tokens) == {4, dims.large_ratio}


def test_states_in_several_groups_are_refused() -> None:
    dims = PICO.with_changes(compress_ratios=(4, *[32] * 5, 0, 0), aux_layers=(0,))
    geometry = KvGeometry.of(dims, n_draft_layers=0)
    with pytest.raises(ValueError, match="split c128_state in groups"):
        layer_pages(dims, geometry, allocate_pool(geometry, N_BLOCKS, "cpu"))
