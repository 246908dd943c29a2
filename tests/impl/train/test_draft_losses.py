"""Loss terms and expected acceptance against float64 sums written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impl.train.draft_losses import draft_loss, survival


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def plain_loss(
    logits: np.ndarray, confidence: np.ndarray, target: np.ndarray, labels: np.ndarray, valid: np.ndarray, gamma: float
) -> tuple[float, float, float, float]:
    total = ce = far = bce = 0.0
    for n in range(len(logits)):
        for k in range(logits.shape[1]):
            if not valid[n, k]:
                break
            weight = math.exp(-k / gamma)
            p_d, p_t = softmax(logits[n, k]), softmax(target[n, k])
            distance = np.abs(p_d - p_t).sum()
            accepted, c = 1 - 0.5 * distance, 1 / (1 + math.exp(-confidence[n, k]))
            total += weight
            ce -= weight * math.log(p_d[labels[n, k]])
            far += weight * distance
            bce -= weight * (accepted * math.log(c) + (1 - accepted) * math.log(1 - c))
    ce, far, bce = ce / total, far / total, bce / total
    return 0.1 * ce + 0.9 * far + bce, ce, far, bce


def random_blocks(seed: int, n: int = 7, k: int = 5, v: int = 9) -> tuple[torch.Tensor, ...]:
    gen = torch.Generator().manual_seed(seed)
    valid = torch.rand(n, k, generator=gen) < 0.8
    valid[0] = True
    return (
        torch.randn(n, k, v, generator=gen) * 2, torch.randn(n, k, generator=gen),
        torch.randn(n, k, v, generator=gen) * 2, torch.randint(0, v, (n, k), generator=gen), valid,
    )  # fmt: skip


@given(st.integers(0, 10_000), st.sampled_from([1.0, 4.0, 7.0]))
def test_terms_equal_float64(seed: int, gamma: float) -> None:
    blocks = random_blocks(seed)
    wanted = plain_loss(*(t.double().numpy() if t.is_floating_point() else t.numpy() for t in blocks), gamma)
    assert [float(t) for t in draft_loss(*blocks, gamma)] == pytest.approx(wanted, abs=1e-5)


def test_nothing_counts_behind_an_invalid_label() -> None:
    logits, confidence, target, labels, valid = random_blocks(1)
    valid[:, 2] = False
    before = draft_loss(logits, confidence, target, labels, valid, 4.0)
    logits[:, 2:], confidence[:, 2:], labels[:, 2:] = 5.0, 3.0, 0
    assert draft_loss(logits, confidence, target, labels, valid, 4.0) == before


def test_confidence_target_gives_no_gradient() -> None:
    logits, confidence, target, labels, valid = random_blocks(2)
    logits.requires_grad_()
    terms = draft_loss(logits, confidence.requires_grad_(), target, labels, valid, 4.0)
    (on_logits,) = torch.autograd.grad(terms.confidence, logits, retain_graph=True, allow_unused=True)
    (on_confidence,) = torch.autograd.grad(terms.confidence, confidence)
    assert on_logits is None
    assert on_confidence.abs().max() > 0


def test_best_loss_is_the_targets_own_law() -> None:
    _, confidence, target, labels, valid = random_blocks(3)
    assert float(draft_loss(target, confidence, target, labels, valid, 4.0).distance) == pytest.approx(0, abs=1e-6)


def test_no_valid_label_is_no_loss() -> None:
    blocks = random_blocks(4)
    assert float(draft_loss(*blocks[:4], torch.zeros(7, 5, dtype=torch.bool), 4.0).loss) == 0.0


def test_survival_is_that_of_rejection_sampling() -> None:
    """Chain of three drafts over four tokens: text from p, a draft kept with chance min(1, q/p), counted by hand."""
    rng = np.random.default_rng(0)
    p, q = (rng.dirichlet(np.ones(4), 3) for _ in range(2))
    n = 200_000
    text = np.stack([rng.choice(4, n, p=row) for row in p], 1)
    kept = np.stack([rng.random(n) < np.minimum(1, q[k] / p[k])[text[:, k]] for k in range(3)], 1)
    wanted = kept.cumprod(1).mean(0)
    logits, target = (torch.tensor(x).log().float().expand(n, 3, 4) for x in (q, p))
    got = survival(logits, target, torch.tensor(text), torch.ones(n, 3, dtype=torch.bool)).numpy()
    np.testing.assert_allclose(got, wanted, atol=0.005)
    overlaps = np.minimum(p, q).sum(1)
    np.testing.assert_allclose(got, overlaps.cumprod(), atol=0.005)


def test_survival_counts_valid_blocks_only() -> None:
    logits, _, target, labels, _ = random_blocks(5)
    valid = torch.zeros(7, 5, dtype=torch.bool)
    valid[:3] = True
    got = survival(logits, target, labels, valid)
    assert torch.allclose(got, survival(logits[:3], target[:3], labels[:3], valid[:3]))
