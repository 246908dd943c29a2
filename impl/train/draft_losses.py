"""What training of the draft minimises, and what its drafts would be worth (deepseek_v4_dspark.md sections 6 and 7)."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CE, DISTANCE, CONFIDENCE = 0.1, 0.9, 1.0
"""Weights of the three terms."""


class Terms(NamedTuple):
    loss: Tensor
    ce: Tensor
    """Cross-entropy of the text's tokens, nats"""
    distance: Tensor
    """||p_d - p_t||_1, 0 to 2"""
    confidence: Tensor
    """Binary cross-entropy of the confidence, nats"""


def draft_loss(
    logits: Tensor, confidence: Tensor, target_logits: Tensor, labels: Tensor, valid: Tensor, gamma: float
) -> Terms:
    """Scalars: 0.1 CE + 0.9 ||p_d - p_t||_1 + 1.0 BCE, each a mean over drafts of weight exp(-k / gamma).

    logits, target_logits fp32 `[N, K, V]`; confidence fp32, before the sigmoid, labels int64 and valid bool `[N, K]`.
    Only a block's drafts before the first that is not valid count. The confidence learns 1 - 0.5 ||p_d - p_t||_1, the
    chance that the draft is accepted.
    """
    counted = valid.int().cumprod(1)
    weight = counted * torch.exp(-torch.arange(valid.shape[1], device=valid.device) / gamma)
    total = weight.sum().clamp_min(1e-9)
    log_p = torch.log_softmax(logits, dim=-1)
    nats = -log_p.gather(-1, labels.unsqueeze(-1)).squeeze(-1)
    distance = (log_p.exp() - torch.softmax(target_logits, dim=-1)).abs().sum(-1)
    acceptance = (1 - 0.5 * distance.detach()).clamp(0, 1)
    surprise = F.binary_cross_entropy_with_logits(confidence, acceptance, reduction="none")
    ce, far, bce = ((weight * term).sum() / total for term in (nats, distance, surprise))
    return Terms(CE * ce + DISTANCE * far + CONFIDENCE * bce, ce, far, bce)


@torch.no_grad()
def survival(logits: Tensor, target_logits: Tensor, labels: Tensor, valid: Tensor) -> Tensor:
    """Expected a_k `[K]` at temperature 1, over blocks whose text was drawn from the target (section 6, exact form).

    a_k is the mean of prod_{j<k} min(1, q_j(x_j) / p_j(x_j)) times 1 - 0.5 ||p_k - q_k||_1; a block counts at draft k
    while its text is valid that far.
    """
    log_q, log_p = torch.log_softmax(logits, dim=-1), torch.log_softmax(target_logits, dim=-1)
    ratio = (log_q - log_p).gather(-1, labels.unsqueeze(-1)).squeeze(-1).clamp_max(0).exp()
    reached = F.pad(ratio.cumprod(1)[:, :-1], (1, 0), value=1.0)
    overlap = 1 - 0.5 * (log_q.exp() - log_p.exp()).abs().sum(-1)
    counted = valid.int().cumprod(1)
    return (counted * reached * overlap).sum(0) / counted.sum(0).clamp_min(1)
