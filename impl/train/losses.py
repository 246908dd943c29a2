"""What training minimises: weighted next-token cross-entropy, and the indexer's ranking loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from impl.dims import Dims
from impl.train.attention import WHOLE, View
from impl.train.forward import Parts, Trace, Weights, forward
from impl.train.packing import ANSWER


class Part(NamedTuple):
    """One batch's share of a step. All tensors are scalars on the weights' device but for the loads."""

    loss: Tensor
    """To differentiate: weighted mean cross-entropy and the index term, times the batch's share."""
    answer_loss: Tensor
    """Mean cross-entropy, nats, over answer characters only."""
    index_kl: Tensor
    expert_load: dict[int, Tensor]


def batch_loss(
    weights: Weights, ids: Tensor, token_weights: Tensor, dims: Dims, share: float, index_weight: float, dense: bool,
    row_floor: float | None = None, parts: Parts | None = None, view: View = WHOLE,
) -> Part:  # fmt: skip
    """The weighted mean cross-entropy of the batch's targets plus `index_weight` times the index term, times `share`.

    ids int64 and token_weights fp32 `[rows, length]`: a weight is that of its token as a target. The index term is
    KL(attention mass || softmax of scores), mean over rows and layers; it reaches the indexer's own parameters only.
    With `row_floor` a row counts in it by its target's weight, but for at least that: the rows that answer are few.
    """
    targets, target_weights = ids[:, 1:], token_weights[:, 1:]
    trace = Trace([], {}, None if row_floor is None else target_weights.clamp_min(row_floor))
    logits = forward(weights, ids[:, :-1], dims, dense=dense, trace=trace, parts=parts, view=view)
    nats = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    kl = torch.stack(trace.index_kl).mean() if trace.index_kl else torch.zeros((), device=ids.device)
    loss = share * ((nats * target_weights).sum() / target_weights.sum() + index_weight * kl)
    answers = (target_weights == ANSWER).float()
    answer_loss = (nats.detach() * answers).sum() / answers.sum().clamp_min(1.0)
    return Part(loss, answer_loss, kl.detach(), trace.expert_load)
