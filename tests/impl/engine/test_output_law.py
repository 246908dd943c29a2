"""Sampled output of the whole engine against the target's own probabilities, and the two planted defects of the law."""

from __future__ import annotations

import math
from collections import Counter
from functools import cache

import pytest
from scipy import stats

from impl.dims import PICO
from impl.engine.acceptance import synthetic_conditional_rates
from impl.engine.request import Request
from impl.engine.runner import Runner
from tests.impl.engine.engines import boot_runner, generate, make_request

DIMS = PICO.with_changes(name="small", vocab_size=8, noise_token_id=7, max_num_seqs=32)
PROMPT = [1, 5, 2, 6, 3, 3, 0, 4]
N = 480
ALPHA = 1e-3

pytestmark = pytest.mark.slow


@cache
def runner_of(method: str = "dspark", **settings: object) -> Runner:
    return boot_runner(DIMS, budget=48 << 20, speculative=method, **settings)  # type: ignore[arg-type]


def sampled(n: int = N, n_out: int = 3, **params: object) -> list[Request]:
    return [make_request(PROMPT, temperature=1.0, seed=i, max_tokens=n_out, **params) for i in range(n)]


@cache
def probabilities(top_k: int = DIMS.vocab_size) -> dict[tuple[int, int], float]:
    """p(first two tokens) by the target, exactly, within the likeliest `top_k` of each."""
    runner = boot_runner(DIMS)

    def next_token(prompt: list[int]) -> dict[int, float]:
        runner.scheduler.add(make_request(prompt, max_tokens=1, logprobs=DIMS.vocab_size))
        (event,) = runner.step()
        assert event.logprobs is not None
        kept = {token: math.exp(value) for token, value in event.logprobs.top[:top_k]}
        return {token: p / sum(kept.values()) for token, p in kept.items()}

    return {
        (first, second): p * q
        for first, p in next_token(PROMPT).items()
        for second, q in next_token([*PROMPT, first]).items()
    }


def p_value(outputs: list[list[int]], law: dict[tuple[int, int], float] | None = None) -> float:
    """Chi-square of the first two tokens: the second is the first one that drafts decide."""
    law, seen = law or probabilities(), Counter((out[0], out[1]) for out in outputs)
    pairs = sorted(law, key=law.__getitem__, reverse=True)
    frequent = [pair for pair in pairs if law[pair] * len(outputs) >= 5]
    rest = 1 - sum(law[pair] for pair in frequent)
    observed = [seen[pair] for pair in frequent]
    expected = [law[pair] * len(outputs) for pair in frequent]
    if rest * len(outputs) >= 1:
        observed.append(len(outputs) - sum(observed))
        expected.append(rest * len(outputs))
    scale = len(outputs) / sum(expected)
    return float(stats.chisquare(observed, [e * scale for e in expected]).pvalue)


@pytest.mark.parametrize(
    ("method", "settings"),
    [("dspark", {}), ("dspark", {"eager": False}), ("dspark", {"draft_sample_method": "greedy"}), ("mtp", {})],
    ids=["dspark", "dspark-replay", "dspark-greedy-drafts", "mtp"],
)
def test_the_law_of_sampled_output_is_the_targets(method: str, settings: dict[str, object]) -> None:
    runner = runner_of(method, **settings)
    assert runner.rounds is not None
    before = runner.rounds.counts
    assert p_value(generate(runner, sampled())) > ALPHA
    assert 0.02 < (runner.rounds.counts.since(before).acceptance_rate or 0) < 0.95


def test_the_law_stands_where_blocks_are_taken_back() -> None:
    """A resumed request's rounds begin elsewhere than they would have: other tokens of the same law."""
    runner = boot_runner(DIMS, budget=48 << 20, speculative="dspark")
    runner.n_blocks = 150
    runner.allocate_pages()
    requests = sampled(320, n_out=12)
    outputs = generate(runner, requests)
    assert p_value(outputs) > ALPHA
    resumed = [out for out, request in zip(outputs, requests, strict=True) if request.n_preemptions]
    assert len(resumed) > 40
    assert p_value(resumed) > ALPHA


def test_tokens_outside_top_k_are_never_drawn_and_the_law_is_the_cut_one() -> None:
    outputs = generate(runner_of(), sampled(top_k=3))
    law = probabilities(top_k=3)
    assert {(out[0], out[1]) for out in outputs} <= law.keys()
    assert p_value(outputs, law) > ALPHA


@pytest.fixture(scope="module")
def right() -> list[list[int]]:
    return generate(runner_of(), sampled())


def test_replay_draws_the_tokens_of_eager(right: list[list[int]]) -> None:
    assert generate(runner_of(eager=False), sampled(200)) == right[:200]


def test_reassigned_draft_logits_are_stale_under_replay_and_break_the_law(right: list[list[int]]) -> None:
    toggles = "draft_logits_persistent=off"
    stale = runner_of(toggles=toggles, eager=False)
    outputs = generate(stale, sampled())
    assert p_value(outputs) < 1e-9
    assert "draft_logits_persistent" not in stale.markers.taken
    eager = runner_of(toggles=toggles)
    assert generate(eager, sampled(200)) == right[:200]


def test_the_stale_handoff_hides_at_temperature_zero_and_at_the_size_captured_last(right: list[list[int]]) -> None:
    stale = runner_of(toggles="draft_logits_persistent=off", eager=False)
    greedy = [make_request(PROMPT[i:], max_tokens=9) for i in range(6)]
    same = [make_request(PROMPT[i:], max_tokens=9) for i in range(6)]
    assert generate(stale, greedy) == generate(boot_runner(DIMS), same)
    assert [generate(stale, [request])[0] for request in sampled(24)] == right[:24]


def test_positional_binding_is_silent_without_rates_and_wrong_with_them(right: list[list[int]]) -> None:
    off = "rejection_keyword_binding=off"
    assert generate(runner_of(toggles=off), sampled(200)) == right[:200]
    rates = synthetic_conditional_rates(DIMS.draft_tokens, rates=(0.9, 0.6, 0.3, 0.0, 0.0))
    survival = []
    for toggles in ("", off):
        runner = runner_of(toggles=toggles, synthetic_rates=rates)
        generate(runner, sampled(96, n_out=24))
        assert runner.rounds is not None
        survival.append(runner.rounds.counts)
        assert ("rejection_keyword_binding" in runner.markers.taken) == (not toggles)
    (good, bad), n = survival, survival[0].drafts
    # A round near a request's end has fewer drafts than five, so the first position is the one without that.
    for counts, follows in ((good, True), (bad, False)):
        accepted = counts.accepted_per_position[0]
        assert (stats.binomtest(accepted, counts.drafts, 0.9).pvalue > ALPHA) == follows
    assert n > 150
