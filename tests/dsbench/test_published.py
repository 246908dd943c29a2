"""The source document's table: what is stored, and how far the size model is off."""

import dataclasses

import pytest

from dsbench import published
from impl.dims import FLASH
from impl.toggles import REGISTRY


def test_only_names_and_block_counts_are_stored():
    assert {f.name for f in dataclasses.fields(published.State)} == {"name", "blocks", "toggle"}
    assert [state.blocks for state in published.STATES] == [10_511, 10_761, 11_010, 11_010, 11_259, 11_509, 11_571]


def test_bytes_and_size_model_of_the_reference():
    rows = published.rows(8192, 524_288)
    assert [row.capacity.used_bytes for row in rows] == [
        11_321_608_320, 11_590_888_320, 11_859_091_200, 11_859_091_200, 12_127_294_080, 12_396_574_080, 12_463_355_520,
    ]  # fmt: skip
    assert [row.step_bytes // 2**20 for row in rows] == [0, 256, 256, 0, 256, 256, 64]
    assert [row.modelled.blocks for row in rows] == [10_511, 10_760, 11_009, 11_009, 11_258, 11_507, 11_570]
    assert [row.block_distance for row in rows] == [0, -1, -1, -1, -1, -2, -1]
    assert min(row.token_distance for row in rows) == -208


def test_no_start_inside_a_block_makes_all_rows_exact():
    """The one or two blocks are not an artefact of starting at a block's edge."""
    block, wanted = 1_077_120, [state.blocks for state in published.STATES]
    steps = [row.step_bytes for row in published.rows(8192, 524_288)]
    freed = [sum(steps[: i + 1]) for i in range(len(steps))]
    for offset in range(0, block, 576):
        assert [(wanted[0] * block + offset + f) // block for f in freed] != wanted


def test_steps_come_from_the_registry(monkeypatch):
    toggle = dataclasses.replace(REGISTRY["mhc_input_reuse"], expected_bytes=lambda dims: 3 * 2**30)
    monkeypatch.setattr(published, "REGISTRY", {**REGISTRY, "mhc_input_reuse": toggle})
    rows = published.rows(8192, 524_288)
    assert rows[-1].step_bytes == 3 * 2**30
    assert rows[-1].block_distance > 2000


def test_other_version_counts_the_same_bytes():
    later = published.rows(8192, 524_288, "0.26.0")
    assert (later[0].capacity.blocks_per_max_request, f"{later[0].capacity.max_concurrency:.2f}") == (7994, "1.31")
    packed = published.rows(8192, 524_288, "0.33.0")
    assert packed[0].capacity.blocks == 10_511 * 1_077_120 // 1_002_240


@pytest.mark.parametrize("toggle", [None, "c128_indices_in_place"])
def test_changes_outside_the_profile_step_by_nothing(toggle):
    assert published.profile_bytes(toggle, FLASH) == 0
