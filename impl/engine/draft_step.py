"""The step of a draft's query rows: K a request, which see each other and the context before them.

Built on the device from where verification left each request, with static shapes, so that it can be captured. Source:
deepseek_v4_dspark.md sections 3.4 and 4.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from impl.dims import Dims
from impl.engine.step import Step


def draft_step(
    dims: Dims,
    anchors: Tensor,
    first: Tensor,
    limits: Tensor,
    request_rows: Tensor,
    block_tables: dict[str, Tensor],
    groups: Iterable[str],
) -> Step:
    """K query rows of each of R requests, at positions first to first + K - 1; all inputs int64 [R].

    A request's rows hold its anchor and then noise. Each sees the last `window` positions before `first` and the whole
    block of K, in `window + K` columns. Rows at or beyond `limits` have no page: they write to the null block and
    nobody sees them.
    """
    k, tokens = dims.draft_tokens, dims.swa_page_tokens
    n, device = anchors.shape[0], anchors.device
    ids = torch.full((n, k), dims.noise_token_id, dtype=torch.int64, device=device)
    ids[:, 0] = anchors
    columns = first[:, None] + torch.arange(-dims.window, k, device=device)
    seen = (columns >= 0) & (columns < limits[:, None])
    columns = columns.clamp(0, dims.max_model_len - 1)
    page = columns.div(tokens, rounding_mode="floor")
    offset = columns - page * tokens
    swa_slots, window_slots = {}, {}
    for group in sorted(set(groups)):
        slots = (block_tables[group][request_rows[:, None], page] * tokens + offset) * seen
        swa_slots[group] = slots[:, dims.window :].reshape(-1)
        window_slots[group] = _each_query(slots, k)
    return Step(
        token_ids=ids.view(-1),
        positions=columns[:, dims.window :].reshape(-1),
        request_rows=request_rows[:, None].expand(n, k).reshape(-1),
        n_decode=n * k,
        block_tables=block_tables,
        swa_slots=swa_slots,
        window_slots=window_slots,
        window_valid=_each_query(seen, k),
        state_slots={},
        emissions={},
        visible={},
    )


def _each_query(of_request: Tensor, k: int) -> Tensor:
    """[R * K, columns] of [R, columns]: the same for each query row of a request."""
    n, width = of_request.shape
    return of_request[:, None].expand(n, k, width).reshape(n * k, width)
