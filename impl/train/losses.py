"""What training minimises: weighted next-token cross-entropy, and the indexer's ranking loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.train.data import ANSWER, Batch
from impl.train.forward import Trace, Weights, forward


@dataclass(frozen=True)
class Part:
    """One batch's share of a step."""

    loss: Tensor
    """Scalar to differentiate: cross-entropy sum over `weight_sum`, plus the index term."""
    answer_loss: float
    """Mean cross-entropy, nats, over answer characters only."""
    index_kl: float
    expert_load: dict[int, Tensor]


def weight_total(batches: list[Batch]) -> float:
    return sum(sum(map(sum, batch.weights)) for batch in batches)


def batch_loss(
    weights: Weights, batch: Batch, dims: Dims, weight_sum: float, index_weight: float, dense: bool
) -> Part:
    """Cross-entropy of the batch, each target times its weight, over the whole step's `weight_sum`.

    The index term is KL(attention mass || softmax of scores), mean over rows, times `index_weight`; it reaches the
    indexer's own parameters only.
    """
    device = weights["embed"].device
    ids = torch.tensor(batch.ids, device=device)
    targets, target_weights = ids[:, 1:], torch.tensor(batch.weights, device=device)[:, 1:]
    trace = Trace([], {})
    logits = forward(weights, ids[:, :-1], dims, dense=dense, trace=trace)
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    kl = torch.stack(trace.index_kl).mean() if trace.index_kl else torch.zeros((), device=device)
    loss = (nats * target_weights).sum() / weight_sum + index_weight * kl
    answers = (target_weights == ANSWER).float()
    answer_loss = (nats.detach() * answers).sum() / answers.sum().clamp_min(1.0)
    return Part(loss, answer_loss.item(), kl.item(), trace.expert_load)
