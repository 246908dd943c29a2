"""Held-out acceptance: the target's text, rounds over it, and calibration."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from impl.dims import PICO, Dims
from impl.model.draft_weights import random_draft_weights, save_draft_weights
from impl.model.weights import save_weights
from impl.tokenizer import BOS, EOS, PAD, encode
from impl.train import evaluate_draft
from impl.train.draft_forward import target_context
from impl.train.draft_prompts import kinds, prompts
from impl.train.forward import forward
from impl.train.loop import initial_weights

Weights = dict[str, torch.Tensor]
TEXTS = ["7*8=", "17+25=", "Q: 3\nA:", "kx=42\nky="]


def test_greedy_text_is_argmax_one_at_a_time(tiny: Dims, tiny_weights: Weights) -> None:
    ids, first, length = evaluate_draft.continue_text(tiny_weights, tiny, TEXTS, 6, 0.0)
    for text, row, start, end in zip(TEXTS, ids.tolist(), first.tolist(), length.tolist(), strict=True):
        wanted = [BOS, *encode(text)]
        assert start == len(wanted)
        for _ in range(6):
            if wanted[-1] != EOS:
                wanted.append(int(forward(tiny_weights, torch.tensor([wanted]), tiny)[0, -1].argmax()))
        assert row[:end] == wanted
        assert set(row[end:]) <= {PAD}


def test_sampled_text_stops_at_eos_and_follows_the_seed(tiny: Dims, tiny_weights: Weights) -> None:
    likely_end = tiny_weights | {"lm_head": tiny_weights["lm_head"] * 0.01}  # near uniform over 100 tokens
    ids, first, length = evaluate_draft.continue_text(likely_end, tiny, TEXTS * 4, 24, 1.0, seed=1)
    again = evaluate_draft.continue_text(likely_end, tiny, TEXTS * 4, 24, 1.0, seed=1)[0]
    assert torch.equal(ids, again)
    ended = length < first + 24
    assert 0 < int(ended.sum()) < 12  # 1 - 0.99**24 = 0.21 of 16 expected
    for row, start, end in zip(ids.tolist(), first.tolist(), length.tolist(), strict=True):
        assert EOS not in row[start : end - 1]
        assert row[end - 1] == EOS or end == start + 24


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_that_knows_the_target_is_always_accepted(
    tiny: Dims, tiny_weights: Weights, tiny_draft: Weights, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    ids, first, length = evaluate_draft.continue_text(tiny_weights, tiny, TEXTS, 11, temperature)
    real = evaluate_draft.draft

    def knowing(draft_weights, target, context, anchors, dims):  # type: ignore[no-untyped-def]
        drafted = real(draft_weights, target, context, anchors, dims)
        rows = evaluate_draft.block_rows(context, anchors, dims.draft_tokens)[0]
        return drafted._replace(logits=context.logits[rows])

    monkeypatch.setattr(evaluate_draft, "draft", knowing)
    played = evaluate_draft.play(tiny_draft, tiny_weights, tiny, ids, first, length, temperature)
    # Eleven tokens: one from the prefill, then rounds of five drafts and a bonus: 6 tokens, and 4 of the text are left.
    full = [end - start for start, end in zip(first.tolist(), length.tolist(), strict=True)]
    rounds = sum(-(-(n - 1) // 6) for n in full)
    assert played.counts.drafts == rounds
    assert played.counts.accepted == sum(n - 1 - (n - 1) // 6 for n in full)
    assert all(accepted for _, accepted in played.judged)


def test_rounds_equal_a_plain_replay(tiny: Dims, tiny_weights: Weights, tiny_draft: Weights) -> None:
    """At temperature 0, round by round with a block drafted alone, from the emitted tokens only."""
    sharp = tiny_draft | {"draft.markov.w1": tiny_draft["draft.markov.w1"] * 0.1}
    ids, first, length = evaluate_draft.continue_text(tiny_weights, tiny, TEXTS, 20, 0.0)
    played = evaluate_draft.play(sharp, tiny_weights, tiny, ids, first, length, 0.0)
    accepted_total = rounds = 0
    for row, start, end in zip(ids.tolist(), first.tolist(), length.tolist(), strict=True):
        text, at = row[:end], start
        while at < end - 1:
            context = target_context(tiny_weights, [torch.tensor([text])], tiny)
            logits = evaluate_draft.draft(sharp, tiny_weights, context, torch.tensor([at]), tiny).logits[0]
            accepted = 0
            for token, expected in zip(logits.argmax(-1).tolist(), text[at + 1 :], strict=False):
                if token != expected:
                    break
                accepted += 1
            accepted_total, rounds, at = accepted_total + accepted, rounds + 1, at + accepted + 1
    assert (played.counts.drafts, played.counts.accepted) == (rounds, accepted_total)


def test_acceptance_given_the_text() -> None:
    q, p = torch.tensor([[[0.1, 0.6, 0.3]]]), torch.tensor([[[0.5, 0.3, 0.2]]])
    for token, wanted in enumerate((0.2, 1.0, 1.0)):
        got = evaluate_draft.acceptance(q.log(), p.log(), torch.tensor([[token]]), 1.0)
        assert float(got) == pytest.approx(wanted)
    assert [float(evaluate_draft.acceptance(q.log(), p.log(), torch.tensor([[t]]), 0.0)) for t in range(3)] == [0, 1, 0]


def test_calibration_error() -> None:
    calibrated = [(0.25, i < 25) for i in range(100)] + [(0.85, i < 85) for i in range(100)]
    assert evaluate_draft.calibration_error(calibrated) == pytest.approx(0.0, abs=1e-9)
    assert evaluate_draft.calibration_error([(0.9, False)] * 3 + [(0.1, False)]) == pytest.approx((2.7 + 0.1) / 4)
    assert evaluate_draft.calibration_error([(1.0, True)]) == 0.0


@pytest.mark.parametrize("shape", ["pico", "micro"])
def test_prompts_are_held_out_and_no_more_than_asked(shape: str) -> None:
    for kind in kinds(shape):
        texts = prompts(shape, kind, 10)
        assert 5 <= len(texts) <= 10
        assert texts == prompts(shape, kind, 10)
        assert len(set(texts)) == len(texts)


def test_files_that_do_not_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_weights(tmp_path / "t.safetensors", initial_weights(PICO, 0), PICO)
    other = PICO.with_changes(expert_width=32)
    save_draft_weights(tmp_path / "d.safetensors", random_draft_weights(other), other)
    assert evaluate_draft.main([str(tmp_path / "t.safetensors"), str(tmp_path / "d.safetensors")]) == 2
    assert "drafts for another shape" in capsys.readouterr().err
    assert evaluate_draft.main([str(tmp_path / "t.safetensors"), str(tmp_path / "none.safetensors")]) == 2
    assert "impl.train.draft" in capsys.readouterr().err
