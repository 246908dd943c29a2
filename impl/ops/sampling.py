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

    Logarithms are taken in fp64 and rounded once, so that devices agree.
    """
    n = seed.shape[0]
    noise = workspace.empty((n, width), torch.float32)
    with workspace.scope():
        n_counters = -(-width // 4)
        words = random_words(seed, position, tag, n_counters, workspace)
        u = workspace.empty((n, n_counters * 4), torch.float64)
        # Word w of counter i is entry 4 i + w.
        u.view(n, -1, 4).copy_(words.permute(1, 2, 0))
        u.add_(0.5).mul_(2.0**-32).log_().neg_().log_().neg_()
        noise.copy_(u[:, :width])
    return noise


def random_words(seed: Tensor, position: Tensor, tag: int, n_counters: int, workspace: Workspace) -> Tensor:
    """Four random words, int64 [4, n, n_counters] below 2^32 (workspace memory), of each row's first counters.

    Counter words: (index, position, tag, 0); key words: the low and the high half of the seed.
    """
    words = workspace.empty((4, seed.shape[0], n_counters), torch.int64)
    words[0] = torch.arange(n_counters, device=seed.device)
    words[1] = (position & _MASK)[:, None]
    words[2] = tag
    words[3] = 0
    philox_(words, torch.stack((seed & _MASK, (seed >> 32) & _MASK)), workspace)
    return words


def philox_(words: Tensor, key: Tensor, workspace: Workspace) -> Tensor:
    """Philox4x32-10 in place: counters int64 [4, n, m] below 2^32 become random words, under keys [2, n].

    Products of two 32-bit words fill int64 modulo 2^64; the arithmetic shift is masked to the high word.
    """
    with workspace.scope():
        shape = (2, *words.shape[1:])
        product, high = workspace.empty(shape, torch.int64), workspace.empty(shape, torch.int64)
        multipliers = _constant(_MULTIPLIERS, words.device)[:, None, None]
        rounds = torch.arange(_ROUNDS, device=words.device)[:, None, None]
        keys = (key + rounds * _constant(_WEYL, words.device)[:, None]) & _MASK
        for round_key in keys.unsqueeze(-1):
            torch.mul(words[0::2], multipliers, out=product)
            torch.bitwise_right_shift(product, 32, out=high).bitwise_and_(_MASK)
            product &= _MASK
            torch.bitwise_xor(high[1], words[1], out=words[0]).bitwise_xor_(round_key[0])
            torch.bitwise_xor(high[0], words[3], out=words[2]).bitwise_xor_(round_key[1])
            words[1] = product[1]
            words[3] = product[0]
    return words


def _constant(values: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=device)
