"""What training minimises: weighted next-token cross-entropy, and the indexer's ranking loss."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.train.forward import Trace, Weights, forward
from impl.train.packing import ANSWER, Batch


@dataclass(frozen=True)
class Part:
    """One batch's share of a step."""

    loss: Tensor
    """Scalar to differentiate: weighted mean cross-entropy and the index term, times the batch's share."""
    answer_loss: float
    """Mean cross-entropy, nats, over answer characters only."""
    index_kl: float
    expert_load: dict[int, Tensor]


def batch_loss(weights: Weights, batch: Batch, dims: Dims, share: float, index_weight: float, dense: bool) -> Part:
    """The weighted mean cross-entropy of the batch's targets plus `index_weight` times the index term, times `share`.

    The index term is KL(attention mass || softmax of scores), mean over rows and layers; it reaches the indexer's own
    parameters only.
    """
    device = weights["embed"].device
    ids = torch.tensor(batch.ids, device=device)
    targets, target_weights = ids[:, 1:], torch.tensor(batch.weights, device=device)[:, 1:]
    trace = Trace([], {})
    logits = forward(weights, ids[:, :-1], dims, dense=dense, trace=trace)
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    kl = torch.stack(trace.index_kl).mean() if trace.index_kl else torch.zeros((), device=device)
    loss = share * ((nats * target_weights).sum() / target_weights.sum() + index_weight * kl)
    answers = (target_weights == ANSWER).float()
    answer_loss = (nats.detach() * answers).sum() / answers.sum().clamp_min(1.0)
    return Part(loss, answer_loss.item(), kl.item(), trace.expert_load)
