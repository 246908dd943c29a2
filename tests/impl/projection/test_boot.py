"""Projections against the engine that really boots, and against weights that were really loaded."""

from itertools import pairwise

import pytest
import torch

from impl.dims import FLASH, PICO
from impl.projection.boot import project
from impl.projection.ladder import ORDER, ladder
from impl.projection.rank import Rank
from impl.projection.weights import stored_bytes, weight_lines
from impl.toggles import ToggleSet
from tests.impl.engine.engines import boot_runner
from tests.impl.projection.thin import thin

MIB = 1 << 20
MHC = ("mtp_hidden_skip", "mhc_final_fused", "mhc_residual_reuse", "mhc_input_reuse")


@pytest.mark.parametrize("toggles", [(), MHC], ids=["baseline", "mhc"])
def test_an_engine_of_real_tensors_peaks_where_its_projection_does(toggles):
    engine = boot_runner(toggles=",".join(toggles), speculative="dspark").profile
    found = project(Rank(PICO, "cpu", 1), ToggleSet(toggles))
    profile = found.phase("profile")
    assert profile.bytes == engine.peak_activation_bytes
    assert [(s.where, s.bytes) for s in profile.sites[:3]] == [(t.site, t.bytes) for t in engine.peak[:3]]
    assert found.workspace_bytes == engine.workspace_bytes


def test_layers_that_are_skipped_would_have_changed_nothing():
    rank = thin((0, 0, 0, 0, 4, 128))
    for toggles in ((), (*MHC, "c128_indices_in_place")):
        short = project(rank, ToggleSet(toggles))
        whole = project(rank, ToggleSet(toggles), every_layer=True)
        assert short.phases == whole.phases
        assert short.index_maps_per_step == whole.index_maps_per_step
        assert short.workspace_bytes == whole.workspace_bytes
        ran = [arm.markers.get("mhc_residual_reuse", {"taken": 0})["taken"] for arm in (short, whole)]
        assert not toggles or ran[0] < ran[1], "some layers were skipped"


def test_a_projection_leaves_no_fake_tensor_behind():
    from impl.engine import step

    project(thin((0, 0)), ToggleSet())
    assert type(step._last(4, torch.device("cpu"))) is torch.Tensor


@pytest.mark.parametrize(("tp", "measured"), [(1, 7_833_804_800), (2, 4_333_077_504)])
def test_weights_by_rule_are_the_load_that_was_measured(tp, measured):
    """h200.md: six layers, 16 fp8 experts, loaded by vLLM 0.26.0, with two rope caches and the C4A rows beside them."""
    six = FLASH.with_changes(
        compress_ratios=(0, 0, 4, 128, 4, 128), aux_layers=(3, 4, 5), n_experts=16, n_hash_layers=1
    )
    rope = 2 * 1_048_576 * 64 * 4
    rows = 8192 * 512 * 4
    counted = sum(line.bytes for line in weight_lines(six, tp, "fp8"))
    assert abs(counted + rope + rows - measured) < 0.001 * measured


def test_scales_are_counted():
    assert stored_bytes((256, 129), "fp8") == 256 * 129 + 4 * 2 * 2
    assert stored_bytes((2, 64, 32), "fp4") == 2 * 64 * 32 // 2 + 2 * 64
    assert stored_bytes((3,), "fp32") == 12


def test_a_rank_that_cannot_be_is_named():
    with pytest.raises(ValueError, match="unknown platform 'sm70'"):
        Rank(FLASH, "sm70", 1)
    with pytest.raises(ValueError, match="tp must be one of 1, 2, got 3"):
        Rank(FLASH, "sm90", 3)
    with pytest.raises(ValueError, match="o_groups 1 does not split over 2"):
        Rank(FLASH.with_changes(o_groups=1), "sm90", 2)


@pytest.mark.slow
def test_the_whole_model_at_three_states_of_the_ladder():
    states = [project(Rank(FLASH, "sm120", 2), ToggleSet(ORDER[:n])) for n in (0, 3, 6)]
    lines = [arm.line_bytes for arm in states]
    assert [before - after for before, after in pairwise(lines)] == [512 * MIB, 576 * MIB]
    assert [arm.modelled_reservation_bytes for arm in states] == [256 * MIB, 0, 0]
    assert [arm.phase("serve").bytes for arm in states] == [384 * MIB, 0, 0]
    assert [arm.index_maps_per_step for arm in states] == [20, 1, 1]


def test_a_ladder_has_each_toggle_alone_and_after_the_others():
    found = ladder(thin((0, 0)), ("mtp_hidden_skip", "mhc_final_fused", "dflash_staging_skip"), workers=1)
    assert [step.toggle for step in found.alone] == ["mtp_hidden_skip", "mhc_final_fused"]
    assert [step.line_bytes for step in found.alone] == [256 * MIB] * 2
    assert [step.toggle for step in found.cumulative] == ["mtp_hidden_skip", "mhc_final_fused"]
    assert [(step.toggle, dict(step.phases)) for step in found.apart] == [("dflash_staging_skip", {"init": 64 * MIB})]
    assert set(found.arms) == {
        frozenset(),
        frozenset({"mtp_hidden_skip"}),
        frozenset({"mtp_hidden_skip", "mhc_final_fused"}),
        frozenset({"dflash_staging_skip"}),
    }, "an arm that two steps share is projected once"
