"""Drawing tokens: counter-based noise, Gumbel-max with temperature, top-k and top-p, and logprobs.

Noise is Philox4x32-10 keyed by the request's seed and counted by the position of the logits row, a
tag (draft or verify) and the vocabulary entry: it depends on nothing else, so a request draws the
same tokens alone and in any batch, on every device. Source: Salmon et al., "Parallel random numbers:
as easy as 1, 2, 3" (SC11), whose test vectors the tests check.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from impl.ops.workspace import Workspace

TAG_VERIFY = 0
"""Noise of the target's own rows."""
TAG_DRAFT = 1
"""Noise of draft rows at the same positions."""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


@dataclass(frozen=True)
class SamplingRows:
    """Per logits row, how its token is drawn; all tensors on the logits' device."""

    temperature: Tensor
    """fp32 [n]; 0 is greedy."""
    top_k: Tensor
    """int64 [n]; 0 keeps all."""
    top_p: Tensor
    """fp32 [n]; 1 keeps all."""
    seed: Tensor
    """int64 [n]: the request's 64 bits."""
    position: Tensor
    """int64 [n]: position of the row (the drawn token's own position is one more)."""
    greedy: bool
    """Whether every row is greedy; known on the host, so that nothing waits for the device."""
    cut: bool
    """Whether any row has a top_k or top_p."""

    @classmethod
    def of(
        cls,
        params: Sequence[tuple[float, int, float, int]],
        positions: Sequence[int],
        device: torch.device | str,
    ) -> SamplingRows:
        """From (temperature, top_k, top_p, seed) of each row and the rows' positions."""
        temperature, top_k, top_p, seed = zip(*params, strict=True)
        signed = [s - (1 << 64) if s >= 1 << 63 else s for s in seed]
        floats = torch.tensor([temperature, top_p], dtype=torch.float32).to(device)
        ints = torch.tensor([top_k, signed, positions], dtype=torch.int64).to(device)
        return cls(
            temperature=floats[0],
            top_k=ints[0],
            top_p=floats[1],
            seed=ints[1],
            position=ints[2],
            greedy=not any(temperature),
            cut=any(top_k) or any(p < 1 for p in top_p),
        )


class Logprobs(NamedTuple):
    chosen: Tensor
    """fp32 [n]: natural log of the drawn token's probability"""
    ids: Tensor
    """int64 [n, k]: likeliest tokens, likeliest first, lowest id first on a tie"""
    top: Tensor
    """fp32 [n, k]"""


def sample(logits: Tensor, rows: SamplingRows, workspace: Workspace, tag: int = TAG_VERIFY) -> Tensor:
    """int64 [n] tokens for fp32 logits [n, V]; the lowest id wins a tie. Large temporaries are workspace memory."""
    best = logits.argmax(-1)
    if rows.greedy:
        return best
    with workspace.scope():
        scores = workspace.empty(tuple(logits.shape), torch.float32)
        # Greedy rows divide by one, and are not used.
        warmth = torch.where(rows.temperature > 0, rows.temperature, 1.0)
        torch.div(logits, warmth[:, None], out=scores)
        if rows.cut:
            _cut(scores, rows, workspace)
        scores += gumbel(rows.seed, rows.position, tag, logits.shape[1], workspace)
        return torch.where(rows.temperature > 0, scores.argmax(-1), best)


def cut_logits_(logits: Tensor, rows: SamplingRows, workspace: Workspace) -> None:
    """Set logits fp32 [n, V] to -inf for the tokens that a row's top-k and top-p leave out; in place."""
    with workspace.scope():
        scores = workspace.empty(tuple(logits.shape), torch.float32)
        torch.div(logits, torch.where(rows.temperature > 0, rows.temperature, 1.0)[:, None], out=scores)
        _cut(scores, rows, workspace)
        outside = workspace.empty(tuple(logits.shape), torch.bool)
        logits.masked_fill_(torch.eq(scores, -torch.inf, out=outside), -torch.inf)


def logprobs(logits: Tensor, tokens: Tensor, n_top: int, workspace: Workspace) -> Logprobs:
    """Log probabilities by the logits themselves: before temperature and cuts."""
    with workspace.scope():
        logs = workspace.empty(tuple(logits.shape), torch.float32)
        torch.log_softmax(logits, -1, out=logs)
        ordered = workspace.empty(tuple(logits.shape), torch.float32)
        order = workspace.empty(tuple(logits.shape), torch.int64)
        torch.sort(logs, dim=-1, descending=True, stable=True, out=(ordered, order))
        chosen = logs.gather(-1, tokens[:, None])[:, 0]
        return Logprobs(chosen, order[:, :n_top].clone(), ordered[:, :n_top].clone())


def _cut(scores: Tensor, rows: SamplingRows, workspace: Workspace) -> None:
    """Set scores outside a row's top-k, and then outside its top-p of what is left, to -inf; in place.

    Kept are the first k in order of score, lowest id first on a tie, and of these the fewest whose
    probabilities reach p.
    """
    shape = tuple(scores.shape)
    with workspace.scope():
        ordered, order = workspace.empty(shape, torch.float32), workspace.empty(shape, torch.int64)
        torch.sort(scores, dim=-1, descending=True, stable=True, out=(ordered, order))
        keep, other = workspace.empty(shape, torch.bool), workspace.empty(shape, torch.bool)
        rank = torch.arange(shape[1], device=scores.device)
        limit = torch.where(rows.top_k > 0, rows.top_k, shape[1])
        torch.ge(rank, limit[:, None], out=other)
        ordered.masked_fill_(other, -torch.inf)
        mass, before = workspace.empty(shape, torch.float32), workspace.empty(shape, torch.float32)
        torch.softmax(ordered, -1, out=mass)
        torch.cumsum(mass, -1, out=before)
        before -= mass
        mass_limit = torch.where(rows.top_p < 1, rows.top_p, torch.inf)
        torch.ge(before, mass_limit[:, None], out=keep)
        keep |= other
        keep[:, 0] = False  # the likeliest always stays
        other.scatter_(1, order, keep)
        scores.masked_fill_(other, -torch.inf)


def gumbel(seed: Tensor, position: Tensor, tag: int, width: int, workspace: Workspace) -> Tensor:
    """Standard Gumbel noise fp32 [n, width] (workspace memory): -log(-log(u)), u in (0, 1) of 32 random bits.

    Entry 4 i + w is word w of counter (i, position, tag, 0) under the seed's low and high half as keys.
    Logarithms are taken in fp64 and rounded once, so that devices agree.
    """
    n, n_counters = seed.shape[0], -(-width // 4)
    noise = workspace.empty((n, width), torch.float32)
    with workspace.scope():
        counter = workspace.empty((4, n, n_counters), torch.int64)
        counter[0] = torch.arange(n_counters, device=seed.device)
        counter[1] = (position & _MASK)[:, None]
        counter[2] = tag
        counter[3] = 0
        words = philox(counter, torch.stack((seed & _MASK, (seed >> 32) & _MASK)), workspace)
        u = workspace.empty((n, n_counters, 4), torch.float64)
        for column, word in zip(u.unbind(-1), words, strict=True):
            column.copy_(word)
        u.add_(0.5).mul_(2.0**-32).log_().neg_().log_().neg_()
        noise.copy_(u.view(n, -1)[:, :width])
    return noise


def philox(counter: Tensor, key: Tensor, workspace: Workspace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox4x32-10: four random words a counter, each int64 [n, m] below 2^32.

    counter: int64 [4, n, m] below 2^32, written over; key: int64 [2, n]. The words live in the counter's
    memory and in the workspace's present scope. A product of two 32-bit words fills int64 modulo 2^64; the
    arithmetic shift is masked to its high word.
    """
    c0, c1, c2, c3 = counter.unbind()
    p0, p1 = workspace.empty((2, *c0.shape), torch.int64).unbind()
    rounds = torch.arange(_ROUNDS, device=key.device)[:, None]
    keys_0 = ((key[0] + rounds * _WEYL[0]) & _MASK)[:, :, None].unbind()
    keys_1 = ((key[1] + rounds * _WEYL[1]) & _MASK)[:, :, None].unbind()
    for key_0, key_1 in zip(keys_0, keys_1, strict=True):
        torch.mul(c0, _MULTIPLIERS[0], out=p0)
        torch.mul(c2, _MULTIPLIERS[1], out=p1)
        torch.bitwise_right_shift(p1, 32, out=c0).bitwise_and_(_MASK).bitwise_xor_(c1).bitwise_xor_(key_0)
        torch.bitwise_right_shift(p0, 32, out=c2).bitwise_and_(_MASK).bitwise_xor_(c3).bitwise_xor_(key_1)
        # The low words are the new odd words; the old ones' memory holds the next products.
        c1, c3, p0, p1 = p1.bitwise_and_(_MASK), p0.bitwise_and_(_MASK), c3, c1
    return c0, c1, c2, c3
