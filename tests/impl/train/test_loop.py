"""A run learns, resumes to the bit, and refuses what it cannot do."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from impl.dims import Dims
from impl.model.weights import load_weights, save_weights
from impl.train import loop, runs
from impl.train.__main__ import main
from impl.train.loop import Settings
from impl.train.packing import COARSE, COUNTED, TALLY
from impl.train.prefetch import Rows, step_rows
from impl.train.runs import Call, Means


def run(tiny: Dims, settings: Settings, out: Path, stop_at: int | None = None) -> dict[str, torch.Tensor]:
    """Train to the end, or to step `stop_at` and then save, load and go on."""
    state = loop.new_state(tiny, settings, "cpu")
    if stop_at is not None:
        assert not loop.train(state, tiny, settings, out, lambda report: None, call=Call(steps=stop_at))
        state = loop.load_checkpoint(out / "checkpoint.pt", tiny, settings, "cpu")
        assert state.step == stop_at
    assert loop.train(state, tiny, settings, out, lambda report: None, report_every=2)
    return load_weights(out / "tiny.safetensors")[0]


def test_resumed_equals_uninterrupted(tiny: Dims, tmp_path: Path) -> None:
    settings = Settings(steps=4, seed=5, warmup_steps=2)
    whole = run(tiny, settings, tmp_path / "whole")
    parted = run(tiny, settings, tmp_path / "parted", stop_at=2)
    start = loop.initial_weights(tiny, 5)
    assert whole.keys() == parted.keys()
    for name, tensor in whole.items():
        assert torch.equal(tensor, parted[name]), name
    assert not torch.equal(whole["layers.1.indexer.wq_b"], start["layers.1.indexer.wq_b"])
    assert not torch.equal(whole["layers.1.moe.bias"], start["layers.1.moe.bias"])
    assert torch.equal(whole["layers.0.moe.tid2eid"], start["layers.0.moe.tid2eid"])


def test_a_refinement_resumes_whatever_order_its_weights_came_in(tiny: Dims, tmp_path: Path) -> None:
    start = dict(sorted(loop.initial_weights(tiny, 5).items(), reverse=True))
    settings = Settings(steps=3, seed=6, warmup_steps=2)
    state = loop.new_state(tiny, settings, "cpu", start)
    loop.train(state, tiny, settings, tmp_path, lambda report: None, call=Call(steps=2))
    again = loop.load_checkpoint(tmp_path / "checkpoint.pt", tiny, settings, "cpu")
    for name, tensor in state.weights.items():
        if tensor.requires_grad:
            kept, moment = (of.optimizer.state[of.weights[name]]["exp_avg"] for of in (again, state))
            assert torch.equal(kept, moment), name


def rows(step: int) -> Rows:
    """Two short rows of a step."""
    ids = np.random.default_rng(step).integers(0, 100, (2, 49)).astype(np.int16)
    return ids, np.ones(ids.shape, np.float32)


def test_resumed_across_a_change_of_reach(tiny: Dims, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(name: str, seed: int, first_step: int, *others: Any) -> Generator[dict[str, Rows], None, None]:
        for step in itertools.count(first_step):
            yield {"text": rows(step)}

    monkeypatch.setattr(loop, "stream", short)
    settings = Settings(steps=2, seed=5, warmup_steps=2, narrow=((0.25, 1), (0.5, 3)))
    assert [loop.reach_at(progress, settings) for progress in (0.0, 0.25, 0.5)] == [1, 3, None]
    whole = run(tiny, settings, tmp_path / "whole")
    parted = run(tiny, settings, tmp_path / "parted", stop_at=1)
    assert all(torch.equal(tensor, parted[name]) for name, tensor in whole.items())
    wide = run(tiny, dataclasses.replace(settings, narrow=()), tmp_path / "wide")
    assert not torch.equal(wide["lm_head"], whole["lm_head"])


def test_a_coarse_batch_teaches_no_c4a_entry(tiny: Dims) -> None:
    settings = Settings(steps=4)
    for name in ("near", COARSE, COUNTED, TALLY):
        state = loop.new_state(tiny, settings, "cpu")
        work = runs.timed(state, Means(), lambda use, state=state: loop.differentiate(state, tiny, settings))
        loop.train_step(state, settings, {name: rows(0)}, work)
        moments = state.optimizer.state[state.weights["layers.1.compressor.wkv_gate"]]["exp_avg"]
        assert (moments == 0).all() == (name in (COARSE, COUNTED))


def test_loss_falls(tiny: Dims, tmp_path: Path) -> None:
    settings = Settings(steps=20, warmup_steps=3, learning_rate=1e-2)
    state = loop.new_state(tiny, settings, "cpu")
    loop.train(state, tiny, settings, tmp_path, lambda report: None, report_every=4)
    curve = [json.loads(line) for line in (tmp_path / "curve.jsonl").read_text().splitlines()]
    assert [point["step"] for point in curve] == [4, 8, 12, 16, 20]
    assert curve[-1]["loss"] < curve[0]["loss"] - 0.5
    assert curve[-1]["progress"] < 1.0
    assert curve[-1]["tokens"] == state.tokens > 20 * 2000


def test_time_budget_ends_a_run(tiny: Dims) -> None:
    settings = Settings(minutes=2.0)
    state = loop.new_state(tiny, settings, "cpu")
    state.seconds = 60.0
    assert runs.progress_of(state, settings) == 0.5
    state.seconds = 130.0
    assert runs.progress_of(state, settings) == 1.0


def test_rate_warms_up_then_decays() -> None:
    settings = Settings(steps=1000, warmup_steps=10, learning_rate=1.0)
    rates = [loop.learning_rate(step, step / 1000, settings) for step in range(1000)]
    assert rates[0] < 0.11
    assert max(rates) == pytest.approx(1.0, abs=1e-3)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.02


def test_a_call_of_minutes_stops_short_of_the_run_unless_it_is_the_last(tiny: Dims, tmp_path: Path) -> None:
    settings = Settings(minutes=60.0)
    state = loop.new_state(tiny, settings, "cpu")
    reports: list[loop.Report] = []
    assert not loop.train(state, tiny, settings, tmp_path, reports.append, call=Call(minutes=0.005))
    assert 0 < runs.progress_of(state, settings) < 0.001
    assert reports[-1].step == state.step
    state = loop.load_checkpoint(tmp_path / "checkpoint.pt", tiny, settings, "cpu")
    assert loop.train(state, tiny, settings, tmp_path, reports.append, call=Call(minutes=0.01, last=True))
    assert runs.progress_of(state, settings) == pytest.approx(1.0)
    assert reports[-1].minutes == pytest.approx(60.0, abs=0.1)


def test_setting_up_is_no_training(tiny: Dims, tmp_path: Path) -> None:
    settings = Settings(minutes=60.0)
    state = loop.new_state(tiny, settings, "cpu")
    work = runs.timed(state, Means(), lambda use: loop.differentiate(state, tiny, settings))
    plain = work.work

    def slow(*tensors: torch.Tensor, **constants: object) -> object:
        work.setup_seconds += 1000.0
        return plain(*tensors, **constants)

    work.work = slow
    data = step_rows("tiny", 0, 0, 0.5, 1)
    runs.run(state, tiny, settings, tmp_path, lambda: loop.train_step(state, settings, data, work), loop.mean_report,
             lambda report: None, Call(steps=2), work, 1, 60.0)  # fmt: skip
    assert state.step == 2
    assert state.seconds == 0.0
    # Nor is it in a run's last call, which is spread over what training time is left.
    runs.run(state, tiny, settings, tmp_path, lambda: loop.train_step(state, settings, data, work), loop.mean_report,
             lambda report: None, Call(steps=1, minutes=60.0, last=True), work, 1, 60.0)  # fmt: skip
    assert state.seconds == 0.0


def test_compact_checkpoints_are_smaller_and_load(tiny: Dims, tmp_path: Path) -> None:
    settings = Settings(steps=4)
    state = loop.new_state(tiny, settings, "cpu")
    loop.train(state, tiny, settings, tmp_path, lambda report: None, call=Call(steps=2))
    whole = (tmp_path / "checkpoint.pt").stat().st_size
    runs.save_checkpoint(tmp_path / "checkpoint.pt", state, tiny, settings, compact=True)
    assert (tmp_path / "checkpoint.pt").stat().st_size < 0.8 * whole
    again = loop.load_checkpoint(tmp_path / "checkpoint.pt", tiny, settings, "cpu")
    for name, tensor in state.weights.items():
        assert torch.equal(tensor, again.weights[name])
        if tensor.requires_grad:
            kept, moment = (of.optimizer.state[of.weights[name]]["exp_avg_sq"] for of in (again, state))
            assert kept.dtype == torch.float32
            torch.testing.assert_close(kept, moment, rtol=2**-8, atol=0)
    assert loop.train(again, tiny, settings, tmp_path, lambda report: None)


@pytest.mark.parametrize(("field", "value"), [("seed", 9), ("learning_rate", 0.5), ("steps", 8)])
def test_resume_refuses_other_settings(tiny: Dims, tmp_path: Path, field: str, value: float) -> None:
    settings = Settings(steps=7)
    runs.save_checkpoint(tmp_path / "c.pt", loop.new_state(tiny, settings, "cpu"), tiny, settings)
    with pytest.raises(ValueError, match=f"another {field}"):
        loop.load_checkpoint(tmp_path / "c.pt", tiny, dataclasses.replace(settings, **{field: value}), "cpu")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "0"], "--steps must be above 0"),
        (["--minutes", "-1"], "--minutes must be above 0"),
        (["--dims", "flash"], "invalid choice: 'flash'"),
        (["--steps", "1", "--minutes", "1"], "not allowed with"),
        (["--of", "0"], "--of must be above 0"),
        (["--steps", "1", "--of", "2.5"], "--of must be whole with --steps"),
        (["--steps", "1", "--last"], "--last goes with --minutes and --of"),
        (["--workers", "-1"], "--workers must be at least 0"),
        (["--steps", "1", "--graphs"], "--graphs needs --device cuda"),
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


def test_resume_without_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--steps", "1", "--resume", "--out", str(tmp_path / "run")]) == 2
    assert "start without --resume" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "checkpoint.pt").write_bytes(b"x")
    assert main(["--steps", "1", "--out", str(tmp_path)]) == 2
    assert "add --resume" in capsys.readouterr().err


def test_start_from_trained_weights_skips_the_easy_part(tiny: Dims, tmp_path: Path) -> None:
    first = run(tiny, Settings(steps=1), tmp_path / "first")
    settings = Settings(steps=1, seed=1, refine=True)
    state = loop.new_state(tiny, settings, "cpu", first)
    seen: dict[str, float] = {}
    assert torch.equal(state.weights["lm_head"], first["lm_head"])
    loop.train(state, tiny, settings, tmp_path / "second", lambda report: seen.update(report.answer_loss))
    assert set(seen) == {"arithmetic", "mixed", "near", "far"}


def test_start_from_another_shape(tiny: Dims, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_weights(tmp_path / "tiny.safetensors", loop.initial_weights(tiny, 0), tiny)
    start = str(tmp_path / "tiny.safetensors")
    assert main(["--steps", "1", "--start-from", start, "--out", str(tmp_path / "run")]) == 2
    assert "cannot start from it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_steps_and_goes_on(tiny: Dims, tmp_path: Path, number: int) -> None:
    """Ctrl-C or SIGTERM ends a run after a whole step, with a checkpoint; resumed, it ends in the same bits."""
    settings = Settings(steps=6, seed=3)
    whole = run(tiny, settings, tmp_path / "whole")
    out = tmp_path / "stopped"
    state = loop.new_state(tiny, settings, "cpu")
    with pytest.raises(KeyboardInterrupt) as stop:
        loop.train(state, tiny, settings, out, lambda report: os.kill(os.getpid(), number), report_every=2)
    assert isinstance(stop.value, runs.Terminated) == (number == signal.SIGTERM)
    state = loop.load_checkpoint(out / "checkpoint.pt", tiny, settings, "cpu")
    assert state.step == 3
    loop.train(state, tiny, settings, out, lambda report: None, report_every=2)
    resumed = load_weights(out / "tiny.safetensors")[0]
    assert all(torch.equal(resumed[name], whole[name]) for name in whole)
