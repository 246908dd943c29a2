"""Residual and input reuse: vLLM's own seam of each version against ours, over the same kernels."""

import pytest
import torch

from impl.vllm_plugin.install import PATCHES
from impl.vllm_plugin.patch import MODEL, VERSIONS
from tests.impl.vllm_plugin import kernels
from tests.impl.vllm_plugin.mhc_modules import FUSED, tilelang

RESIDUAL, INPUT = "mhc_residual_reuse", "mhc_input_reuse"


@pytest.fixture
def seam(sources, stand_in, arm):
    """A model module whose seam is patched for an arm; returns it, vLLM's own seam, and the markers."""

    def build(version, toggles):
        markers = arm(toggles)
        module = stand_in(MODEL, **{FUSED: getattr(tilelang(sources(version), version, stand_in), FUSED)})
        original = getattr(module, FUSED)
        for name in toggles.split(","):
            PATCHES[name].hooks[MODEL](module, version)
        return getattr(module, FUSED), original, markers

    return build


def run(function, step, norm=True):
    weights = kernels.random_weights()
    e = kernels.EPS
    return function(
        step["x"], step["residual"], step["post"], step["comb"], weights["fn"], weights["scale"], weights["base"],
        e["rms_eps"], e["pre_eps"], e["sinkhorn_eps"], e["post_mult"], e["repeat"], n_splits=1, tile_n=1,
        norm_weight=weights["norm"] if norm else None, norm_eps=1e-6,
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("toggles", [RESIDUAL, INPUT, f"{RESIDUAL},{INPUT}"])
@pytest.mark.parametrize("norm", [True, False])
def test_same_bits_in_the_old_buffers(version, toggles, norm, seam):
    ours, original, markers = seam(version, toggles)
    expected = run(original, kernels.random_step(40), norm)
    step = kernels.random_step(40)
    old, used = step["residual"].data_ptr(), step["x"].data_ptr()
    found = run(ours, step, norm)
    for a, b in zip(found, expected, strict=True):
        assert a.shape == b.shape
        assert torch.equal(a, b)
    assert (found[0].data_ptr() == old) == (RESIDUAL in toggles)
    assert (found[3].data_ptr() == used) == (INPUT in toggles)
    assert dict(markers.taken) == dict.fromkeys(toggles.split(","), 1)
    assert not markers.refused


@pytest.mark.parametrize(("version", "most"), [("0.25.1", 16), ("0.26.0", 16), ("0.33.0", 32)])
def test_the_small_token_path_is_left_alone(version, most, seam):
    ours, _, markers = seam(version, f"{RESIDUAL},{INPUT}")
    with pytest.raises(AssertionError, match="small-token kernel"):
        run(ours, kernels.random_step(most))
    assert not markers.taken
    assert set(markers.skipped) == {RESIDUAL, INPUT}
    run(ours, kernels.random_step(most + 1))
    assert markers.taken[RESIDUAL] == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_a_view_of_a_larger_buffer_is_refused(version, seam):
    ours, original, markers = seam(version, f"{RESIDUAL},{INPUT}")
    step = kernels.random_step(40)
    workspace = torch.empty(2, 40, kernels.HIDDEN, dtype=torch.bfloat16)
    workspace[0] = step["x"]
    found = run(ours, {**step, "x": workspace[0]})
    assert markers.taken == {RESIDUAL: 1}
    assert markers.refused[INPUT] == {"the sublayer output is a view of a larger buffer": 1}
    assert torch.equal(found[3], run(original, kernels.random_step(40))[3])


def test_a_workspace_of_the_very_size_is_refused(seam, stand_in):
    ours, _, markers = seam("0.26.0", INPUT)
    step = kernels.random_step(40)
    manager = type("Manager", (), {"_current_workspaces": [None, step["x"].view(torch.uint8)]})
    stand_in("vllm.v1.worker.workspace", _manager=manager)
    run(ours, step)
    assert markers.refused[INPUT] == {"the sublayer output is workspace memory": 1}


def test_without_the_toggle_the_seam_is_vllms_own(seam):
    ours, _, markers = seam("0.26.0", RESIDUAL)
    ours.reuse.clear()
    step = kernels.random_step(40)
    assert run(ours, step)[0].data_ptr() != step["residual"].data_ptr()
    assert not markers.taken
