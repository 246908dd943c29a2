"""A draft's run learns, leaves its target alone, resumes to the bit, and refuses what it cannot do."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from impl.dims import PICO, Dims
from impl.model.draft_weights import load_draft_weights
from impl.model.weights import save_weights
from impl.train import draft_loop
from impl.train.draft import main
from impl.train.draft_loop import DraftSettings
from impl.train.loop import initial_weights
from impl.train.prefetch import step_rows, stream
from impl.train.runs import Call, save_checkpoint

Weights = dict[str, torch.Tensor]
SETTINGS = DraftSettings(steps=4, seed=5, warmup=0.5, anchor_share=0.05)


def run(tiny: Dims, target: Weights, out: Path, stop_at: int | None = None) -> Weights:
    """Train to the end, or to step `stop_at` and then save, load and go on."""
    state = draft_loop.new_draft_state(tiny, target, SETTINGS, "cpu")
    if stop_at is not None:
        call = Call(steps=stop_at)
        assert not draft_loop.train_draft(state, target, tiny, SETTINGS, out, lambda report: None, call=call)
        state = draft_loop.load_draft_checkpoint(out / "checkpoint.pt", tiny, target, SETTINGS, "cpu")
        assert state.step == stop_at
    assert draft_loop.train_draft(state, target, tiny, SETTINGS, out, lambda report: None, report_every=2)
    weights, dims = load_draft_weights(out / "tiny-dspark.safetensors")
    assert dims == tiny
    return weights


def test_resumed_equals_uninterrupted_and_target_stays(tiny: Dims, tiny_weights: Weights, tmp_path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in tiny_weights.items()}
    whole = run(tiny, tiny_weights, tmp_path / "whole")
    parted = run(tiny, tiny_weights, tmp_path / "parted", stop_at=2)
    start = draft_loop.initial_draft_weights(tiny, tiny_weights, 5)
    for name, tensor in whole.items():
        assert torch.equal(tensor, parted[name]), name
        assert not torch.equal(tensor, start[name]), name
    assert all(torch.equal(tensor, before[name]) for name, tensor in tiny_weights.items())
    assert not any(tensor.requires_grad for tensor in tiny_weights.values())


def test_loss_falls_and_acceptance_rises(tiny: Dims, tiny_weights: Weights, tmp_path: Path) -> None:
    settings = DraftSettings(steps=12, learning_rate=2e-2, warmup=0.1, anchor_share=0.1)
    # A target that leaves something to learn: its text law is sharp and depends on the last token.
    target = tiny_weights | {"lm_head": tiny_weights["lm_head"] * 2}
    state = draft_loop.new_draft_state(tiny, target, settings, "cpu")
    draft_loop.train_draft(state, target, tiny, settings, tmp_path, lambda report: None, report_every=3)
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curve] == [3, 6, 9, 12]
    assert curve[-1]["distance"] < curve[0]["distance"] - 0.1
    assert curve[-1]["acceptance_length"] > curve[0]["acceptance_length"]
    assert curve[-1]["tokens"] == state.tokens > 12 * 2000


def positions(lengths: list[int]) -> torch.Tensor:
    return torch.cat([torch.arange(n) for n in lengths])


def test_anchors_have_context_and_a_label() -> None:
    context = positions([6, 6, 8])
    weights = torch.tensor([0, 1, 1, 0, 0.3, 1, *[0, 0, 0.5, 1, 0, 0], *[0, 1, 1, 1, 1, 1, 1, 0.3]])
    # Row i can be an anchor when row i + 1 is a label of its sequence and i is not a first row.
    wanted = {1, 3, 4, 7, 8, 13, 14, 15, 16, 17, 18}
    settings = DraftSettings(anchor_share=len(wanted) / len(weights) + 1e-6)
    for step in range(5):
        picked = draft_loop.pick_anchors(context, weights, settings, step).tolist()
        assert set(picked) == wanted
        assert len(picked) == len(wanted)


def test_anchors_favour_answers_and_change_with_the_step() -> None:
    context = positions([2000])
    weights = torch.where(torch.arange(2000) % 2 == 0, 1.0, 0.03)
    picks = [draft_loop.pick_anchors(context, weights, DraftSettings(anchor_share=0.1), step) for step in (0, 0, 1)]
    assert torch.equal(picks[0], picks[1])
    assert not torch.equal(picks[0], picks[2])
    before_answers = (picks[0] % 2 == 1).float().mean()
    assert before_answers > 0.8  # ten to one by weight


def test_rate_warms_up_then_decays() -> None:
    settings = DraftSettings(steps=1000, learning_rate=1.0)
    rates = [draft_loop.learning_rate(step / 1000, settings) for step in range(1000)]
    assert 0 < rates[0] < 0.05
    assert rates[40:] == sorted(rates[40:], reverse=True)
    assert rates[20] < rates[40] == max(rates)
    assert rates[-1] < 0.02


@pytest.mark.parametrize(("field", "value"), [("seed", 9), ("target", "other"), ("gamma", 7.0), ("steps", 8)])
def test_resume_refuses_other_settings(
    tiny: Dims, tiny_weights: Weights, tmp_path: Path, field: str, value: float | str
) -> None:
    save_checkpoint(tmp_path / "c.pt", draft_loop.new_draft_state(tiny, tiny_weights, SETTINGS, "cpu"), tiny, SETTINGS)
    other = dataclasses.replace(SETTINGS, **{field: value})
    with pytest.raises(ValueError, match=f"another {field}"):
        draft_loop.load_draft_checkpoint(tmp_path / "c.pt", tiny, tiny_weights, other, "cpu")


def test_workers_give_the_same_text_in_order() -> None:
    made = stream("pico", 3, 4, 1, 2, lambda step: step / 10)
    for step in range(4, 9):
        wanted = step_rows("pico", 3, step, step / 10, 1)
        got = next(made)
        assert list(got) == list(wanted)
        for kind, (ids, weights) in got.items():
            assert (ids == wanted[kind][0]).all()
            assert (weights == wanted[kind][1]).all()
    made.close()


def test_command_trains_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_weights(tmp_path / "pico.safetensors", initial_weights(PICO, 0), PICO)
    arguments = ["--target", str(tmp_path / "pico.safetensors"), "--steps", "1", "--out", str(tmp_path / "run")]
    assert main(arguments) == 0
    written = capsys.readouterr().out.strip()
    assert written == str(tmp_path / "run" / "pico-dspark.safetensors")
    assert load_draft_weights(Path(written))[1] == PICO
    assert main(arguments) == 2
    assert "add --resume" in capsys.readouterr().err
    save_weights(tmp_path / "pico.safetensors", initial_weights(PICO, 1), PICO)
    assert main([*arguments, "--resume"]) == 2
    assert "another target" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps must be above 0"),
        (["--workers", "-1"], "--workers must be at least 0"),
        (["--steps", "1", "--minutes", "1"], "not allowed with"),
    ],
)
def test_bad_options_stop_before_anything_is_written(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([*arguments, "--out", str(tmp_path / "run")])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_missing_target_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--target", str(tmp_path / "none.safetensors"), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: no weights at")
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_training_never_imports_the_held_out_module() -> None:
    code = "import sys, impl.train.draft_command; sys.exit('impl.train.heldout' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
