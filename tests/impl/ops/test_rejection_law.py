"""The output law of rejection sampling: chi-square at 1e-3 over 1e5 requests, and planted defects it must see."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from scipy import stats
from torch import Tensor

import impl.ops.rejection as rejection
from impl.engine.acceptance import AcceptanceCounts, synthetic_conditional_rates
from impl.ops.rejection import RejectionOutput, draft_tag, rejection_sample
from impl.ops.sampling import TAG_DRAFT, TAG_VERIFY, SamplingRows, gumbel, sample
from impl.ops.workspace import Workspace

N = 100_000
ALPHA = 1e-3
K = 3
WORKSPACE = Workspace()


class Chain(NamedTuple):
    """A target and a draft whose logits depend on the previous token only; [V, V] each."""

    target: Tensor
    draft: Tensor


def chain(width: int, noise: float = 1.0, scale: float = 1.2, seed: int = 3) -> Chain:
    g = torch.Generator().manual_seed(seed)
    target = torch.randn(width, width, generator=g) * scale
    return Chain(target, target + torch.randn(width, width, generator=g) * noise)


def draft_by_round(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor, k: int) -> Tensor:
    return draw(logits, temperature, seeds, positions, draft_tag(k))


def draft_by_row(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor, k: int) -> Tensor:
    """A separate stream, but one that the next round meets again."""
    return draw(logits, temperature, seeds, positions + k, TAG_DRAFT)


def draft_with_the_verify_noise(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor, k: int) -> Tensor:
    """vLLM up to 0.26: proposal and residual share one key."""
    return draw(logits, temperature, seeds, positions + k, TAG_VERIFY)


def draw(logits: Tensor, temperature: float, seeds: Tensor, positions: Tensor, tag: int) -> Tensor:
    n = seeds.shape[0]
    keep = torch.zeros(n, dtype=torch.int64)
    rows = SamplingRows(torch.full((n,), temperature), keep, torch.ones(n), seeds, positions, False, False)
    return sample(logits, rows, WORKSPACE, tag)


class Round(NamedTuple):
    target_logits: Tensor
    draft_tokens: Tensor
    draft_logits: Tensor
    temperature: Tensor
    seeds: Tensor
    positions: Tensor
    n_drafted: Tensor


Handoff = Callable[[Tensor], Tensor | None]
Draw = Callable[[Tensor, float, Tensor, Tensor, int], Tensor]


def propose(
    model: Chain, anchor: Tensor, seeds: Tensor, positions: Tensor, temperature: float = 1.0, k: int = K,
    draw_draft: Draw = draft_by_round,
) -> Round:  # fmt: skip
    n, tokens = anchor.shape[0], [anchor]
    for step in range(k):
        tokens.append(draw_draft(model.draft[tokens[-1]], temperature, seeds, positions, step))
    prefix = torch.stack(tokens, 1)
    return Round(
        target_logits=model.target[prefix],
        draft_tokens=prefix[:, 1:],
        draft_logits=model.draft[prefix[:, :-1]],
        temperature=torch.full((n,), temperature),
        seeds=seeds,
        positions=positions,
        n_drafted=torch.full((n,), k),
    )


def generate(
    model: Chain,
    n_tokens: int,
    temperature: float = 1.0,
    block: bool = False,
    draw_draft: Draw = draft_by_round,
    handoff: Handoff = lambda logits: logits,
    ragged: bool = False,
) -> Tensor:
    """int64 [N, n_tokens]: tokens of N requests that all start behind token 0, in as many rounds as it takes."""
    seeds, positions = torch.arange(N) + 10**6, torch.full((N,), 7)
    anchor = torch.zeros(N, dtype=torch.int64)
    text = torch.full((N, n_tokens + K + 1), -1)
    length = torch.zeros(N, dtype=torch.int64)
    for _ in range(n_tokens):
        proposal = propose(model, anchor, seeds, positions, temperature, draw_draft=draw_draft)
        if ragged:
            proposal = proposal._replace(n_drafted=(seeds + positions) % (K + 1))
        proposal = proposal._replace(draft_logits=handoff(proposal.draft_logits))
        out = rejection_sample(*proposal, workspace=WORKSPACE, block_verification=block)
        # Requests that have enough tokens write into columns that are cut off.
        place = torch.minimum(length[:, None] + torch.arange(K + 1), torch.tensor(n_tokens + K))
        text.scatter_(1, place, torch.where(out.tokens >= 0, out.tokens, text.gather(1, place)))
        anchor = out.tokens.gather(1, out.n_accepted[:, None])[:, 0]
        length = (length + out.n_sampled).clamp(max=n_tokens)
        positions = positions + out.n_sampled
    return text[:, :n_tokens]


def p_value(text: Tensor, target: Tensor, temperature: float = 1.0) -> float:
    """Chi-square of the joint law of the tokens against the target's own chain."""
    p = (target.double() / temperature).softmax(-1)
    law, cell = p[0], text[:, 0]
    for t in range(1, text.shape[1]):
        law = (law.view(-1, p.shape[0], 1) * p).flatten()
        cell = cell * p.shape[0] + text[:, t]
    counts = torch.bincount(cell, minlength=law.numel())
    return stats.chisquare(counts.numpy(), (law * N).numpy()).pvalue


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(("temperature", "ragged"), [(1.0, False), (0.7, True)])
def test_three_tokens_have_the_joint_law_of_the_target(temperature: float, ragged: bool, block: bool) -> None:
    model = chain(4)
    text = generate(model, 3, temperature, block, ragged=ragged)
    for n in (1, 2, 3):
        assert p_value(text[:, :n], model.target, temperature) > ALPHA


def test_the_marginal_has_the_law_of_the_target_on_a_larger_vocabulary() -> None:
    model = chain(12, noise=1.5)
    assert p_value(generate(model, 1), model.target) > ALPHA


@pytest.mark.parametrize("block", [False, True])
def test_drafts_that_were_not_drawn_leave_the_law_alone(block: bool) -> None:
    """One-hot q: drafts are the draft's argmax."""
    model = chain(4)
    text = generate(model, 2, block=block, draw_draft=lambda logits, *_: logits.argmax(-1), handoff=lambda _: None)
    assert p_value(text, model.target) > ALPHA


def test_noise_shared_by_draft_and_residual_biases_the_law() -> None:
    model = chain(4)
    text = generate(model, 1, draw_draft=draft_with_the_verify_noise)
    assert p_value(text, model.target) < ALPHA


def test_drafts_counted_by_row_suit_the_plain_test_but_bias_block_verification() -> None:
    """A discarded draft was not looked at by the plain test; block verification looked at it."""
    model = chain(4)
    assert p_value(generate(model, 2, draw_draft=draft_by_row), model.target) > ALPHA
    assert p_value(generate(model, 2, draw_draft=draft_by_row, block=True), model.target) < ALPHA


def test_uniforms_counted_by_row_bias_block_verification(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_row(seeds: Tensor, positions: Tensor, k_max: int, workspace: Workspace) -> Tensor:
        with workspace.scope():
            rows = [gumbel(seeds, positions + k, rejection.TAG_ACCEPT, 1, workspace)[:, 0] for k in range(k_max)]
            return -(-torch.stack(rows, 1).double()).exp()

    monkeypatch.setattr(rejection, "_log_uniforms", by_row)
    model = chain(4)
    assert p_value(generate(model, 3, block=True), model.target) < ALPHA


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize(
    "handoff",
    [lambda logits: logits.roll(1, 0), torch.zeros_like, lambda logits: logits / 2],
    ids=["another request's", "zero-filled", "another temperature's"],
)
def test_draft_logits_other_than_those_drawn_from_break_the_law(handoff: Handoff, block: bool) -> None:
    model = chain(4)
    # Behind token 0 all requests have one context; another request's logits are seen from the second token on.
    text = generate(model, 2, block=block, handoff=handoff)
    assert p_value(text, model.target) < ALPHA


def test_stale_draft_logits_raise_the_acceptance_rate_and_break_the_law() -> None:
    """Reference section 4: 0.39-0.68 fresh; 0.96-0.998 of another context; 0.91-0.98 zero-filled."""
    n, width = 20_000, 256
    model = chain(width, noise=2.0, scale=3.0)
    # Half of the requests behind token 0; in between, others behind other tokens.
    anchor = torch.where(torch.arange(n) % 2 == 0, 0, torch.arange(n) % width)
    fresh = propose(model, anchor, torch.arange(n), torch.full((n,), 3))
    p = model.target[0].double().softmax(-1)
    seen = {}
    for name, logits in [
        ("fresh", fresh.draft_logits),
        ("other", fresh.draft_logits.roll(1, 0)),
        ("zero", torch.zeros_like(fresh.draft_logits)),
    ]:
        out = rejection_sample(*fresh._replace(draft_logits=logits), workspace=WORKSPACE)
        emitted = torch.bincount(out.tokens[::2, 0], minlength=width) / (n / 2)
        seen[name] = (out.n_accepted[1::2] > 0).double().mean(), (emitted - p).abs().sum() / 2
    assert 0.39 < seen["fresh"][0] < 0.68
    assert seen["other"][0] > 0.95
    assert seen["zero"][0] > 0.88
    assert seen["fresh"][1] < 0.03
    assert min(seen["other"][1], seen["zero"][1]) > 0.3


def test_block_verification_accepts_no_less() -> None:
    model = chain(8, noise=1.5)
    proposal = propose(model, torch.zeros(N, dtype=torch.int64), torch.arange(N), torch.full((N,), 3))
    plain, block = (
        rejection_sample(*proposal, workspace=WORKSPACE, block_verification=block).n_accepted.double()
        for block in (False, True)
    )
    assert block.mean() > plain.mean() + 0.05


def test_acceptance_is_what_the_overlap_of_the_laws_says() -> None:
    """Exact a_k of section 6: E over x ~ q of prod_{j<k} min(1, p/q) times 1 - |p_k - q_k| / 2."""
    model = chain(5)
    p, q = model.target.double().softmax(-1), model.draft.double().softmax(-1)
    overlap = torch.minimum(p, q)
    reach, exact = torch.eye(5, dtype=torch.float64)[0], []
    for _ in range(K):
        reach = reach @ overlap
        exact.append(reach.sum().item())
    proposal = propose(model, torch.zeros(N, dtype=torch.int64), torch.arange(N), torch.full((N,), 3))
    assert_rates(rejection_sample(*proposal, workspace=WORKSPACE), exact)


def counts_of(out: RejectionOutput, k: int) -> AcceptanceCounts:
    per_position = tuple(int((out.n_accepted > i).sum()) for i in range(k))
    n = out.n_accepted.shape[0]
    return AcceptanceCounts(n, n * k, int(out.n_accepted.sum()), per_position)


def assert_rates(out: RejectionOutput, asked: list[float]) -> None:
    """Each a_k within a two-sided binomial bound at ALPHA, and the length with them."""
    counts = counts_of(out, len(asked))
    for accepted, rate in zip(counts.accepted_per_position, asked, strict=True):
        assert stats.binomtest(accepted, counts.drafts, rate).pvalue > ALPHA
    assert counts.acceptance_length == pytest.approx(1 + sum(asked), abs=0.03)


ASKED = [[0.9, 0.7, 0.7, 0.2, 0.0], [1.0, 1.0, 0.341, 0.0, 0.0]]


def synthetic_round(temperature: float, n: int = N) -> Round:
    model = chain(4)
    anchor = torch.arange(n) % 4
    return propose(model, anchor, torch.arange(n), torch.full((n,), 3), temperature, k=5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("asked", ASKED)
def test_synthetic_acceptance_has_the_asked_rates(asked: list[float], temperature: float) -> None:
    rates = torch.tensor(synthetic_conditional_rates(5, asked))
    proposal = synthetic_round(temperature)
    out = rejection_sample(*proposal, synthetic_conditional_rates=rates, workspace=WORKSPACE)
    assert_rates(out, asked)
    first = out.n_accepted == 0
    if temperature == 0:
        # drafts are accepted wrong as they are; a rejected position emits the target's argmax
        assert torch.equal(out.tokens[first, 0], proposal.target_logits[first, 0].argmax(-1))
        known = rejection_sample(
            *proposal, synthetic_conditional_rates=rates, workspace=WORKSPACE, all_greedy=True
        )  # fmt: skip
        assert torch.equal(known.tokens, out.tokens)
    elif first.any():
        # never a token of which the draft has too much already
        p, q = proposal.target_logits[first, 0].softmax(-1), proposal.draft_logits[first, 0].softmax(-1)
        assert (p - q).gather(1, out.tokens[first, :1]).min() > -1e-6


def test_synthetic_acceptance_still_rejects_what_is_no_draft() -> None:
    proposal = synthetic_round(1.0, 100)
    proposal.draft_tokens[:, 2] = -1
    out = rejection_sample(*proposal, synthetic_conditional_rates=torch.ones(5), workspace=WORKSPACE)
    assert out.n_accepted.eq(2).all()


@pytest.mark.parametrize("asked", ASKED)
def test_rates_bound_by_position_fall_into_the_mapping_and_are_silently_wrong(asked: list[float]) -> None:
    """The off state of `rejection_keyword_binding`: no error, no asked rates, draft logits of slots 0 and 1."""
    rates = torch.tensor(synthetic_conditional_rates(5, asked))
    proposal = synthetic_round(1.0)
    right = rejection_sample(*proposal, synthetic_conditional_rates=rates, workspace=WORKSPACE)
    wrong = rejection_sample(*proposal, rates, workspace=WORKSPACE)
    assert_rates(right, asked)
    with pytest.raises(AssertionError):
        assert_rates(wrong, asked)
    # What happened: the truncated rates chose slots, and requests beyond them read the last one's.
    slots = torch.cat((rates, rates[-1].expand(N - 5))).long()
    explained = rejection_sample(*proposal, draft_logits_index_mapping=slots, workspace=WORKSPACE)
    assert set(slots.tolist()) <= {0, 1}
    assert torch.equal(wrong.tokens, explained.tokens)
    # And the law is not the target's either: tokens behind anchor 1, judged by the draft logits of anchor 0.
    p = proposal.target_logits[1, 0].double().softmax(-1)
    emitted = torch.bincount(wrong.tokens[1::4, 0], minlength=4)
    assert stats.chisquare(emitted.numpy(), (p * emitted.sum()).numpy()).pvalue < ALPHA
