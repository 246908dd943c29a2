"""What each toggle takes away at the flash widths, and that its branch, and nothing else, is what does it."""

import pytest

from impl.engine.index_rows import IndexRows
from impl.model.attention import Attention
from impl.model.draft import Draft
from impl.model.streams import Seam
from impl.model.target import Target
from tests.impl.projection.thin import edited, projected, step, thin

MIB = 1 << 20
STEPS = {
    "mtp_hidden_skip": (256 * MIB, {"load": 256 * MIB}),
    "q_in_place": (256 * MIB, {"serve": 256 * MIB}),
    "c128_indices_in_place": (0, {"serve": 128 * MIB}),
    "mhc_final_fused": (256 * MIB, {"profile": 256 * MIB}),
    "mhc_residual_reuse": (256 * MIB, {"profile": 256 * MIB}),
    "mhc_input_reuse": (64 * MIB, {"profile": 64 * MIB}),
    "c128a_topk_shared": (0, {"after profile": 128 * MIB}),
    "dflash_staging_skip": (64 * MIB, {"init": 64 * MIB}),
}
BRANCHES = {
    "mtp_hidden_skip": (Target, "__init__", "if not self.skip_mtp_hidden:", "if True:"),
    "q_in_place": (Attention, "_queries", "if self.q_in_place and not refusal:", "if False:"),
    "c128_indices_in_place": (IndexRows, "for_layer", "if not self.in_place:", "if True:"),
    "mhc_final_fused": (Target, "__init__", 'toggles.on("mhc_final_fused") and self.mtp_hidden is None', "False"),
    "mhc_residual_reuse": (Seam, "__call__", "residual_out=residual_out", "residual_out=None"),
    "mhc_input_reuse": (Seam, "__call__", "input_out=input_out", "input_out=None"),
    "c128a_topk_shared": (IndexRows, "__init__", "self.decode if self.shared else ", ""),
    "dflash_staging_skip": (Draft, "__init__", 'if not toggles.on("dflash_staging_skip"):', "if True:"),
}


@pytest.mark.parametrize("toggle", STEPS)
def test_a_step_is_the_toggles_buffer_and_half_the_tokens_are_half_of_it(toggle):
    line, phases = STEPS[toggle]
    found, half = step(toggle), step(toggle, tokens=4096)
    assert (found.line_bytes, found.phases) == (line, phases)
    assert (half.line_bytes, half.phases) == (line // 2, {name: size // 2 for name, size in phases.items()})
    assert found.modelled == (toggle == "q_in_place")
    assert not found.refused


@pytest.mark.parametrize("toggle", STEPS)
def test_without_its_branch_a_toggle_takes_nothing_away(toggle, monkeypatch):
    owner, name, old, new = BRANCHES[toggle]
    monkeypatch.setattr(owner, name, edited(getattr(owner, name), old, new))
    found = step(toggle, run=projected)
    assert (found.line_bytes, found.phases) == (0, {})


def test_index_maps_fall_to_one_a_step():
    two = thin((4, 4, 128, 128))
    maps = [projected(two, toggles).index_maps_per_step for toggles in ((), ("c128_indices_in_place",))]
    assert maps == [2, 1]


def test_a_rank_whose_queries_are_padded_keeps_its_scratch():
    found = step("q_in_place", platform="sm90")
    assert (found.line_bytes, found.phases, found.modelled) == (0, {}, False)
    assert found.refused == ("32 local heads, the kernel reads 64: the query needs padded storage of its own",)
