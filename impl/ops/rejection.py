"""Verifying drafted tokens: accept, resample or add a bonus token so that the output law is the target's.

Per request, row k of the target judges draft k; the emitted tokens are the accepted drafts and one more
token, from the row behind them. Three streams of Philox noise (`impl.ops.sampling`) never meet:

- draft k of a round: `draft_tag(k)`, at the position of the round's first logits row;
- acceptance uniforms: entry k of `TAG_ACCEPT`, at the same position;
- the extra token: `TAG_VERIFY`, at the position of its own row, as a plain step draws it.

The first two are counted by round, not by row: block verification looks at every draft and uniform of a
round, also behind the last accepted one, and the next round must not meet what was looked at.
Everything has static shapes and stays on the device. Source: deepseek_v4_dspark.md section 5.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from impl.ops.sampling import TAG_DRAFT, TAG_VERIFY, gumbel
from impl.ops.workspace import Workspace

TAG_ACCEPT = 2
"""Uniforms of the acceptance test."""


class RejectionOutput(NamedTuple):
    tokens: Tensor
    """int64 [R, K+1]: accepted drafts, then one more token, then -1."""
    n_sampled: Tensor
    """int64 [R]: tokens emitted, n_accepted + 1."""
    n_accepted: Tensor
    """int64 [R]"""


def draft_tag(k: int) -> int:
    """Noise tag of a round's draft k (from 0), for `sample` at the position of the round's first logits row."""
    return TAG_DRAFT + (k << 8)


def rejection_sample(
    target_logits: Tensor,
    draft_tokens: Tensor,
    draft_logits: Tensor | None,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    n_drafted: Tensor,
    draft_logits_index_mapping: Tensor | None = None,
    synthetic_conditional_rates: Tensor | None = None,
    *,
    workspace: Workspace,
    block_verification: bool = False,
    all_greedy: bool = False,
) -> RejectionOutput:
    """One round of R requests with up to K drafts over V tokens. Large temporaries are workspace memory.

    target_logits fp32 [R, K+1, V]: after every processing of the request (penalties, bias, tokens outside
        top-k and top-p set to -inf) except the division by temperature, which is done here.
    draft_tokens int64 [R, K]: an id outside 0..V-1 (-1 by convention) means no draft: that row and what
        follows is not verified, and the extra token is drawn from p there.
    draft_logits [slots, K or more, V], any float dtype, before temperature: exactly what each draft was drawn
        from. None: drafts were not drawn, q is one at the draft. A row with NaN or +inf is as no draft.
    temperature fp32 [R]: 0 is greedy, and reads no draft logits.
    seeds int64 [R]. positions int64 [R]: position of each request's first logits row; row j is j further.
    n_drafted int64 [R]: drafts at and after it do not exist. 0 is a plain step, bit for bit as `sample`.
    draft_logits_index_mapping [R]: slot of each request in draft_logits; None: row r is request r's.
        Read as a kernel reads its pointer, unchecked: values are truncated to integers and clamped to the
        slots, and requests beyond its end read its last entry. **The op cannot tell rates from a map: bind
        these two optional arguments by keyword** (toggle `rejection_keyword_binding`).
    synthetic_conditional_rates fp32 [K or more]: accept draft k iff u_k < rate k, at any temperature. The
        output law is then not the target's.
    block_verification: judge the drafts of a round jointly; excludes synthetic rates.
    all_greedy: every temperature is 0, known on the host, so that no softmax and no noise is computed.

    A target row with NaN, with +inf or with nothing finite accepts no draft and emits the argmax of its
    non-NaN entries, lowest id first. Where no token has p > q after a rejection (only by rounding, or with
    synthetic rates), the extra token is drawn from p. Raises ValueError on shapes that do not fit.
    """
    n, n_rows, width = target_logits.shape
    k_max = n_rows - 1
    _check(target_logits, draft_tokens, draft_logits, draft_logits_index_mapping, synthetic_conditional_rates)
    if block_verification and synthetic_conditional_rates is not None:
        raise ValueError("block verification excludes synthetic acceptance rates; leave one of them out")
    with workspace.scope():
        comparable = workspace.empty((n, n_rows, width), torch.float32)
        torch.nan_to_num(target_logits, nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf, out=comparable)
        best = comparable.argmax(-1)
    readable = target_logits.amax(-1).isfinite()
    drafted = torch.arange(k_max, device=draft_tokens.device) < n_drafted[:, None]
    valid = drafted & (draft_tokens >= 0) & (draft_tokens < width) & readable[:, :k_max]
    drafts = draft_tokens.clamp(0, width - 1)

    greedy = temperature <= 0
    passed = drafts == best[:, :k_max]
    if synthetic_conditional_rates is not None:
        passed = _log_uniforms(seeds, positions, k_max, workspace).exp() < synthetic_conditional_rates[:k_max]
    if all_greedy:
        n_accepted = _leading(valid & passed)
        return _emit(drafts, n_accepted, _at(best, n_accepted))

    with workspace.scope():
        warmth = torch.where(greedy, 1.0, temperature)
        scores = workspace.empty((n, n_rows, width), torch.float32)
        torch.div(target_logits, warmth[:, None, None], out=scores)
        log_p = workspace.empty((n, n_rows, width), torch.float32)
        torch.log_softmax(scores, -1, out=log_p)
        log_q = _draft_log_probabilities(drafts, draft_logits, draft_logits_index_mapping, warmth, width, workspace)

        log_kept = torch.zeros_like(temperature)
        if synthetic_conditional_rates is not None:
            n_accepted = _leading(valid & passed)
        else:
            valid &= greedy[:, None] | ~log_q[:, :, 0].isnan()
            log_u = _log_uniforms(seeds, positions, k_max, workspace)
            log_p_x = log_p[:, :k_max].gather(-1, drafts[:, :, None])[:, :, 0]
            log_q_x = log_q.gather(-1, drafts[:, :, None])[:, :, 0]
            likely = log_p_x > log_u + log_q_x
            n_accepted = _leading(valid & torch.where(greedy[:, None], passed, likely))
            if block_verification:
                by_block, log_kept = _verify_block(log_p, log_q, log_p_x - log_q_x, _leading(valid), log_u, workspace)
                n_accepted = torch.where(greedy, n_accepted, by_block)
        rejected = n_accepted < _leading(valid)
        drawn = _extra_token(scores, log_p, log_q, log_kept, rejected, n_accepted, seeds, positions, workspace)
    settled = greedy | ~_at(readable, n_accepted)
    return _emit(drafts, n_accepted, torch.where(settled, _at(best, n_accepted), drawn))


def _check(
    target_logits: Tensor,
    draft_tokens: Tensor,
    draft_logits: Tensor | None,
    mapping: Tensor | None,
    rates: Tensor | None,
) -> None:
    n, n_rows, width = target_logits.shape
    k_max = n_rows - 1
    if tuple(draft_tokens.shape) != (n, k_max):
        raise ValueError(f"draft_tokens is {tuple(draft_tokens.shape)}; target_logits asks for {(n, k_max)}")
    if draft_logits is not None:
        slots, columns, draft_width = draft_logits.shape
        if columns < k_max or draft_width != width or (mapping is None and slots < n):
            raise ValueError(f"draft_logits is {tuple(draft_logits.shape)}; need {(n, k_max, width)}, or a mapping")
    if rates is not None and rates.shape[0] < k_max:
        raise ValueError(f"synthetic_conditional_rates has {rates.shape[0]} entries; need one for each of {k_max}")


def _leading(flags: Tensor) -> Tensor:
    """int64 [R]: how many entries of bool [R, K] hold before the first that does not."""
    return flags.to(torch.int64).cumprod(-1).sum(-1)


def _at(values: Tensor, index: Tensor) -> Tensor:
    """values[r, index[r]] of [R, m]."""
    return values.gather(1, index[:, None])[:, 0]


def _emit(drafts: Tensor, n_accepted: Tensor, extra: Tensor) -> RejectionOutput:
    place = torch.arange(drafts.shape[1] + 1, device=drafts.device)
    candidates = torch.cat((drafts, extra[:, None]), 1)
    tokens = torch.where(place < n_accepted[:, None], candidates, -1)
    tokens = torch.where(place == n_accepted[:, None], extra[:, None], tokens)
    return RejectionOutput(tokens, n_accepted + 1, n_accepted)


def _log_uniforms(seeds: Tensor, positions: Tensor, k_max: int, workspace: Workspace) -> Tensor:
    """log u, fp64 [R, K], for uniforms in (0, 1); entry k does not depend on K. Gumbel noise is -log(-log u)."""
    with workspace.scope():
        return -(-gumbel(seeds, positions, TAG_ACCEPT, k_max, workspace).to(torch.float64)).exp()


def _draft_log_probabilities(
    drafts: Tensor,
    draft_logits: Tensor | None,
    mapping: Tensor | None,
    warmth: Tensor,
    width: int,
    workspace: Workspace,
) -> Tensor:
    """log q, fp32 [R, K, V] (workspace memory)."""
    n, k_max = drafts.shape
    log_q = workspace.empty((n, k_max, width), torch.float32)
    if draft_logits is None:
        return log_q.fill_(-torch.inf).scatter_(-1, drafts[:, :, None], 0.0)
    rows = torch.arange(n, device=drafts.device)
    if mapping is not None and mapping.shape[0] > 0:
        rows = mapping[rows.clamp(max=mapping.shape[0] - 1)].to(torch.int64).clamp(0, draft_logits.shape[0] - 1)
    with workspace.scope():
        own = workspace.empty((n, k_max, width), draft_logits.dtype)
        torch.index_select(draft_logits[:, :k_max], 0, rows, out=own)
        warm = workspace.empty((n, k_max, width), torch.float32)
        torch.div(own.to(torch.float32), warmth[:, None, None], out=warm)
        return torch.log_softmax(warm, -1, out=log_q)


def _verify_block(
    log_p: Tensor, log_q: Tensor, log_ratio: Tensor, n_valid: Tensor, log_u: Tensor, workspace: Workspace
) -> tuple[Tensor, Tensor]:
    """Accepted drafts int64 [R] and log of their kept probability P_tau fp32 [R] (0 where all were accepted).

    P_k = min(P_{k-1} p(x_k) / q(x_k), 1). A prefix of k drafts is kept with h_k = m_k / (m_k + 1 - P_k) where
    m_k = sum_v max(P_k p_v - q_v, 0), the last valid prefix with h = P; the longest prefix kept wins.
    """
    n, k_max = log_u.shape
    kept = [torch.zeros_like(log_p[:, 0, 0])]
    for k in range(k_max):
        # Neither p nor q reaches the draft: -inf - -inf; such a draft is not kept.
        kept.append((kept[-1] + log_ratio[:, k]).nan_to_num(nan=-torch.inf, neginf=-torch.inf).clamp(max=0.0))
    log_kept = torch.stack(kept, 1)
    n_accepted = torch.zeros_like(n_valid)
    with workspace.scope():
        mass_p, mass_q = (workspace.empty((n, log_p.shape[-1]), torch.float32) for _ in range(2))
        for k in range(1, k_max + 1):
            keep = log_kept[:, k].exp().to(torch.float64)
            chance = keep
            if k < k_max:
                torch.add(log_p[:, k], log_kept[:, k, None], out=mass_p).exp_()
                torch.exp(log_q[:, k], out=mass_q)
                left = mass_p.sub_(mass_q).clamp_(min=0.0).sum(-1, dtype=torch.float64)
                denominator = left + 1 - keep
                # 0/0: nothing is left to correct, so the prefix is kept.
                inside = torch.where(denominator > 0, left / denominator, 1.0)
                chance = torch.where(n_valid == k, keep, inside)
            wins = (log_u[:, k - 1].exp() <= chance) & (k <= n_valid)
            n_accepted = torch.where(wins, k, n_accepted)
    return n_accepted, _at(log_kept, n_accepted)


def _extra_token(
    scores: Tensor,
    log_p: Tensor,
    log_q: Tensor,
    log_kept: Tensor,
    rejected: Tensor,
    n_accepted: Tensor,
    seeds: Tensor,
    positions: Tensor,
    workspace: Workspace,
) -> Tensor:
    """int64 [R]: drawn from max(P p - q, 0) where a draft was rejected, else from p with the bits of a plain step."""
    n, n_rows, width = scores.shape
    row = n_accepted[:, None, None].expand(n, 1, width)
    with workspace.scope():
        drawn = workspace.empty((n, 1, width), torch.float32)
        torch.gather(scores, 1, row, out=drawn)
        if n_rows > 1:
            kept, gap = (workspace.empty((n, 1, width), torch.float32) for _ in range(2))
            torch.gather(log_p, 1, row, out=kept).add_(log_kept[:, None, None])
            torch.gather(log_q, 1, row.clamp(max=n_rows - 2), out=gap).sub_(kept)
            # log(P p - q) = log(P p) + log(1 - exp(gap)); a gap of NaN or of 0 and more has no mass.
            possible = gap < 0
            residual = kept.add_(gap.expm1_().neg_().log_())
            residual.masked_fill_(~possible, -torch.inf)
            use = rejected[:, None, None] & possible.any(-1, keepdim=True)
            torch.where(use, residual, drawn, out=drawn)
        noise = gumbel(seeds, positions + n_accepted, TAG_VERIFY, width, workspace)
        return drawn[:, 0].add_(noise).argmax(-1)
