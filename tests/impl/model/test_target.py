"""The toggles on the whole model: bytes exactly as the registry says, outputs bit for bit the baseline's."""

from functools import cache

import pytest
import torch

from impl.dims import PICO, Dims
from impl.engine.runner import EngineConfig, Runner
from impl.engine.step import Step
from impl.handshake import Handshake, Markers
from impl.model.target import Target
from impl.model.weights import random_weights
from impl.ops import mhc
from impl.ops.workspace import Workspace
from impl.toggles import REGISTRY, ToggleSet

LADDER = ("mtp_hidden_skip", "mhc_final_fused", "mhc_residual_reuse", "mhc_input_reuse")
COMPONENT = {"kv.persistent_bytes": "persistent_bytes", "kv.peak_activation_bytes": "peak_activation_bytes"}


def runner(toggles: str, dims: Dims = PICO) -> Runner:
    config = EngineConfig(dims, ToggleSet.parse(toggles), memory_budget=256 << 20, load_format="dummy")
    return Runner(config, Handshake(None))


@cache
def components(toggles: str, dims: Dims) -> dict[str, int]:
    profile = runner(toggles, dims).profile
    return {name: getattr(profile, name) for name in ("weights_bytes", "workspace_bytes", *COMPONENT.values())}


def change(toggles: str, base: str = "", dims: Dims = PICO) -> dict[str, int]:
    """Bytes each component changes by, where it changes."""
    before, after = components(base, dims), components(toggles, dims)
    return {name: after[name] - before[name] for name in before if after[name] != before[name]}


@pytest.mark.parametrize(
    "dims",
    [
        PICO,
        PICO.with_changes(max_num_batched_tokens=512),
        PICO.with_changes(hidden_size=128),
        PICO.with_changes(max_num_batched_tokens=100, hidden_size=96),
    ],
    ids=["pico", "T=512", "H=128", "T=100,H=96"],
)
@pytest.mark.parametrize("name", LADDER)
def test_each_toggle_saves_exactly_its_bytes_in_its_component(name, dims):
    toggle = REGISTRY[name]
    base = ",".join(toggle.requires)
    expected = toggle.expected_bytes(dims)
    assert change(",".join([*toggle.requires, name]), base, dims) == {COMPONENT[toggle.primary]: -expected}


def test_the_ladder_adds_up_to_the_byte():
    for i, name in enumerate(LADDER):
        toggle = REGISTRY[name]
        step = change(",".join(LADDER[: i + 1]), ",".join(LADDER[:i]))
        assert step == {COMPONENT[toggle.primary]: -toggle.expected_bytes(PICO)}, name


def test_reuse_is_additive_without_the_other_toggles():
    both = change("mhc_residual_reuse,mhc_input_reuse")
    alone = [change(name)["peak_activation_bytes"] for name in ("mhc_residual_reuse", "mhc_input_reuse")]
    assert both == {"peak_activation_bytes": sum(alone)}


def test_the_peak_is_at_a_seam_and_names_what_reuse_removes():
    sites = [t.site for t in runner("").profile.peak]
    assert sum("mhc.py" in site and site.endswith(" seam") for site in sites) >= 3
    reused = [t.site for t in runner("mhc_residual_reuse,mhc_input_reuse").profile.peak]
    big = [s for s in reused if s.endswith(" seam")]
    assert len(big) < sum(s.endswith(" seam") for s in sites)


def outputs(toggles: str, step: Step, seed: int = 0) -> tuple[torch.Tensor, ...]:
    engine = runner(toggles)
    out = engine.target.forward(step, engine.pages)
    cache = [p.clone() for layer in engine.pages for p in (layer.swa, layer.compressed, layer.state) if p is not None]
    return out.hidden.clone(), out.aux.clone(), *cache


def null_step(engine: Runner, n: int, n_decode: int) -> Step:
    """`n` rows over the null block: decode rows of different requests, then one prefill."""
    positions = [400 + i for i in range(n_decode)] + list(range(n - n_decode))
    rows = [*range(n_decode), *[n_decode % 8] * (n - n_decode)]
    ids = [(7 * i + 3) % 95 for i in range(n)]
    return engine._build(ids, positions, [r % 8 for r in rows], n_decode)


@pytest.mark.parametrize(("n", "n_decode"), [(1, 1), (16, 5), (17, 5), (32, 0), (33, 8), (128, 3), (256, 8)])
def test_all_toggles_together_change_no_bit(n, n_decode):
    step = null_step(runner(""), n, n_decode)
    for base, new in zip(outputs("", step), outputs(",".join(LADDER), step), strict=True):
        assert torch.equal(base, new)


@pytest.mark.parametrize("name", ["mhc_residual_reuse", "mhc_input_reuse"])
def test_a_thousand_rows_change_no_bit(name):
    dims = PICO.with_changes(max_num_batched_tokens=1000)
    engine, base = runner(name, dims), runner("", dims)
    step = null_step(base, 1000, 4)
    assert torch.equal(engine.target.forward(step, engine.pages).hidden, base.target.forward(step, base.pages).hidden)
    assert engine.markers.taken[name] > 0


def test_the_small_path_control_changes_tokens():
    step = null_step(runner(""), 4, 4)
    assert not torch.equal(outputs("", step)[0], outputs("residual_reuse_small_path", step)[0])


def test_markers_count_the_branches_that_ran():
    engine = runner(",".join(LADDER))
    before = dict(engine.markers.taken)
    engine.target.forward(null_step(engine, 40, 0), engine.pages)
    seams = 2 * PICO.n_layers - 1
    assert {name: engine.markers.taken[name] - before.get(name, 0) for name in LADDER} == {
        "mtp_hidden_skip": 1, "mhc_final_fused": 2, "mhc_residual_reuse": seams, "mhc_input_reuse": seams,
    }  # fmt: skip
    assert not any(engine.markers.refused.values())
    assert runner("").markers.to_json() == {}


def test_a_deleted_reuse_branch_leaves_no_marker(monkeypatch):
    """What editing the branch out of the seam does: fresh memory in both arms, so nothing to count."""
    real = mhc.seam

    def without_input_reuse(*args, input_out=None, **kwargs):
        return real(*args, **kwargs)

    monkeypatch.setattr(mhc, "seam", without_input_reuse)
    engine = runner("mhc_input_reuse")
    assert engine.markers.to_json() == {}
    assert engine.profile.peak_activation_bytes == runner("").profile.peak_activation_bytes


def test_a_reader_that_keeps_y_gets_its_value_and_costs_the_saving(monkeypatch):
    kept = {}
    real = Target.forward

    def keep_y(self, step, pages):
        for layer in self.layers:
            inner = layer.moe.forward

            def forward(cell, ids, workspace, inner=inner, layer=layer):
                kept[layer] = inner(cell, ids, workspace)
                return kept[layer]

            layer.moe = type("Kept", (), {"forward": staticmethod(forward)})()
        return real(self, step, pages)

    monkeypatch.setattr(Target, "forward", keep_y)
    engine = runner("mhc_input_reuse")
    counts = engine.markers.to_json()["mhc_input_reuse"]
    assert counts["refused"] == {"another reference to it is alive": 2 * (PICO.n_layers - 1)}


def test_the_mtp_method_keeps_its_buffer():
    markers, toggles = Markers(), ToggleSet.parse("mtp_hidden_skip")
    target = Target(
        PICO, random_weights(PICO), toggles, markers, Workspace(), torch.device("cpu"), method="mtp"
    )  # fmt: skip
    assert target.mtp_hidden is not None
    assert markers.to_json()["mtp_hidden_skip"]["taken"] == 0
    assert "inert" in next(iter(markers.refused["mtp_hidden_skip"]))
