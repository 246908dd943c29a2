"""A seam reuses memory only where nobody can notice, and says what it did."""

import pytest
import torch

from impl.engine.profile import LiveBytes
from impl.handshake import Markers
from impl.model.streams import Seam, Streams
from impl.ops import mhc
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet
from tests.impl.ops.test_mhc import pending, seam_weights

BOTH = "mhc_residual_reuse,mhc_input_reuse"


def seam_with(toggles: str, workspace: Workspace | None = None) -> tuple[Seam, Markers]:
    markers = Markers()
    return Seam(seam_weights(64), ToggleSet.parse(toggles), markers, workspace or Workspace()), markers


def streams_of(n: int, seed: int = 0) -> Streams:
    residual, y, post, comb = pending(n, 64, seed)
    return Streams(residual, post, comb, y)


def run(toggles: str, streams: Streams) -> tuple[Streams, torch.Tensor, Markers]:
    seam, markers = seam_with(toggles)
    (layer_input,) = seam(streams)
    return streams, layer_input, markers


@pytest.mark.parametrize("toggles", ["mhc_residual_reuse", "mhc_input_reuse", BOTH])
@pytest.mark.parametrize("n", [1, 16, 17, 32, 33, 128, 256, 1000])
def test_outputs_are_the_baselines_bit_for_bit(toggles, n):
    base, base_input, base_markers = run("", streams_of(n, n))
    new, new_input, markers = run(toggles, streams_of(n, n))
    for one, other in [
        (base.residual, new.residual),
        (base.post, new.post),
        (base.comb, new.comb),
        (base_input, new_input),
    ]:
        assert torch.equal(one, other)
    assert base_markers.to_json() == {}
    for name in toggles.split(","):
        counts = markers.to_json()[name]
        if n > 16:
            assert counts == {"taken": 1, "refused": {}, "skipped": {}}
        else:
            why = "small-token path: its programs re-read what others write"
            assert counts == {"taken": 0, "refused": {}, "skipped": {why: 1}}


@pytest.mark.parametrize("n", [1, 6, 12, 16])
def test_the_control_aliases_the_small_path_and_is_wrong(n):
    base, *_ = run("", streams_of(n))
    new, _, markers = run("residual_reuse_small_path", streams_of(n))
    assert not torch.equal(base.post, new.post)
    assert markers.taken == {"residual_reuse_small_path": 1}


@pytest.mark.parametrize(
    ("toggle", "spoil", "reason"),
    [
        ("mhc_input_reuse", lambda s: s.y, "another reference to it is alive"),
        ("mhc_residual_reuse", lambda s: s.residual, "another reference to it is alive"),
        ("mhc_input_reuse", lambda s: s.y[3:9], "another view of its storage is alive"),
        ("mhc_residual_reuse", lambda s: s.residual.flatten(1), "another view of its storage is alive"),
    ],
)
def test_a_tensor_somebody_holds_is_left_alone(toggle, spoil, reason):
    streams = streams_of(40)
    held = spoil(streams)
    before = held.clone()
    _, _, markers = run(toggle, streams)
    assert torch.equal(held, before)
    assert markers.to_json()[toggle] == {"taken": 0, "refused": {reason: 1}, "skipped": {}}


@pytest.mark.parametrize("hold", [lambda y: y.untyped_storage(), lambda y: y.detach(), lambda y: y[:0]])
def test_memory_held_in_any_form_is_left_alone(hold):
    streams = streams_of(40)
    kept = hold(streams.y)
    _, _, markers = run("mhc_input_reuse", streams)
    assert markers.taken["mhc_input_reuse"] == 0
    assert sum(markers.refused["mhc_input_reuse"].values()) == 1
    del kept


def test_a_holder_that_appears_while_the_seam_runs_is_no_reuse(monkeypatch):
    """Somebody keeps y from inside the seam: the memory was written over, so nothing is counted as taken."""
    kept = []
    real = mhc.seam

    def keeping(residual, y, *args, **kwargs):
        kept.append(y)
        return real(residual, y, *args, **kwargs)

    monkeypatch.setattr(mhc, "seam", keeping)
    _, _, markers = run("mhc_input_reuse", streams_of(40))
    assert markers.taken["mhc_input_reuse"] == 0
    assert list(markers.refused["mhc_input_reuse"]) == ["something still holds the memory that was written over"]


def test_part_of_a_larger_buffer_is_refused():
    streams = streams_of(40)
    larger = torch.zeros(80, 64, dtype=torch.bfloat16)
    larger[:40] = streams.y
    streams.y = larger[:40]
    _, _, markers = run("mhc_input_reuse", streams)
    assert markers.to_json()["mhc_input_reuse"]["refused"] == {"a view of a larger buffer": 1}


def test_workspace_memory_is_refused():
    workspace = Workspace()
    with workspace.scope():
        workspace.empty((40, 64), torch.bfloat16)
    workspace.lock()
    seam, markers = seam_with("mhc_input_reuse", workspace)
    streams = streams_of(40)
    with workspace.scope():
        y = workspace.empty((40, 64), torch.bfloat16)
        y.copy_(streams.y)
        streams.y = y
        del y
        seam(streams)
    assert markers.to_json()["mhc_input_reuse"]["refused"] == {"workspace memory": 1}


def peak_of_two_seams(toggles: str, hold: bool, n: int = 300) -> int:
    """Peak bytes over seam, sublayer, seam; with `hold`, somebody keeps each sublayer output a while longer."""
    seam, _ = seam_with(toggles)
    live = LiveBytes()
    kept = None
    with live:
        streams = streams_of(n)
        live.track([seam.weights.fn, seam.weights.scale, seam.weights.base, seam.weights.norm])
        before = live.live
        live.reset_peak()
        for _ in range(3):
            if hold:
                kept = streams.y
            cell = seam(streams)
            streams.y = cell.pop() * 1.0
    del kept
    return live.peak - before


def test_input_reuse_saves_one_row_buffer_and_a_kept_reference_saves_nothing():
    rows = 300 * 64 * 2
    assert peak_of_two_seams("", False) - peak_of_two_seams("mhc_input_reuse", False) == rows
    assert peak_of_two_seams("", True) - peak_of_two_seams("mhc_input_reuse", True) == 0


def test_both_reuses_add_up():
    rows, streams = 300 * 64 * 2, 300 * 4 * 64 * 2
    base = peak_of_two_seams("", False)
    assert base - peak_of_two_seams("mhc_residual_reuse", False) == streams
    assert base - peak_of_two_seams(BOTH, False) == streams + rows
