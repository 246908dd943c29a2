"""Sampling to time: one draft a request with its logits kept, and the verification of a round; tokens are requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from impl.bench.case import Case, Inputs, Outputs, integers, normal, size, workspace
from impl.dims import Dims
from impl.ops.sampling import SamplingRows

MOST = 64
"""Requests of one step, at most."""


def _rows(dims: Dims, requests: int, device: torch.device, seed: int) -> SamplingRows:
    keep = torch.zeros(requests, dtype=torch.int64, device=device)
    return SamplingRows(
        torch.full((requests,), 0.8, device=device), keep, keep + 1.0, integers(device, seed, 1 << 40, requests),
        integers(device, seed + 1, dims.max_model_len, requests), False, False,
    )  # fmt: skip


def draft_inputs(dims: Dims, requests: int, device: torch.device, seed: int) -> Inputs:
    return {
        "logits": 3 * normal(device, seed, requests, dims.vocab_size), "k": 1,
        "how": _rows(dims, requests, device, seed),
        "kept": torch.zeros((requests, dims.draft_tokens, dims.vocab_size), device=device),
        "slots": torch.arange(requests, device=device),
    }  # fmt: skip


def round_inputs(dims: Dims, requests: int, device: torch.device, seed: int) -> Inputs:
    """Drafts that are likely under the target, so that rounds end at every place."""
    k = dims.draft_tokens
    target = 3 * normal(device, seed, requests, k + 1, dims.vocab_size)
    draft = target[:, :k] + normal(device, seed + 1, requests, k, dims.vocab_size)
    how = _rows(dims, requests, device, seed)
    starts = torch.arange(requests + 1, device=device) * (k + 1)
    each = torch.arange(requests, device=device)
    drafts = (draft * 4).argmax(-1)
    return {
        "target": target, "draft": draft, "drafts": drafts, "temperature": how.temperature, "seeds": how.seed,
        "positions": how.position, "n_drafted": torch.full((requests,), k, device=device), "starts": starts.int(),
        "each": each.int(), "expanded": each.int().repeat_interleave(k + 1),
        "place": torch.arange(k + 1, device=device).int().repeat(requests),
        "row_positions": (how.position[:, None] + torch.arange(k + 1, device=device)).flatten(),
        "drafted": torch.cat((drafts[:, :1], drafts), 1).flatten(),
    }  # fmt: skip


def _draft(function: Callable[..., Any], i: Inputs) -> Outputs:
    tokens = function(i["logits"], i["k"], i["how"], i["kept"], i["slots"], workspace(i["logits"]))
    return tokens, i["kept"]


def _round(function: Callable[..., Any], i: Inputs) -> Outputs:
    return tuple(
        function(
            target_logits=i["target"], draft_tokens=i["drafts"], draft_logits=i["draft"], temperature=i["temperature"],
            seeds=i["seeds"], positions=i["positions"], n_drafted=i["n_drafted"], workspace=workspace(i["target"]),
        )
    )  # fmt: skip


def _vllm_draft(i: Inputs) -> Outputs:
    """vLLM's noise is its own, so its tokens are others."""
    from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample

    if "column" not in i:
        i["column"], i["map"] = torch.tensor(i["k"], device=i["logits"].device), i["slots"].int()
    how = i["how"]
    tokens = gumbel_sample(
        i["logits"], i["map"], how.temperature, how.seed, how.position, apply_temperature=True,
        output_processed_logits=i["kept"], output_processed_logits_col=i["column"],
    )  # fmt: skip
    return tokens, i["kept"]


def _vllm_round(i: Inputs) -> Outputs:
    from vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils import rejection_sample

    # vLLM takes logits that are divided by the temperature already, and leaves -1 out.
    tokens, n_sampled = rejection_sample(
        target_logits=i["target"].flatten(0, 1),
        draft_logits=i["draft"],
        draft_sampled=i["drafted"],
        cu_num_logits=i["starts"],
        pos=i["row_positions"],
        idx_mapping=i["each"],
        expanded_idx_mapping=i["expanded"],
        expanded_local_pos=i["place"],
        temperature=i["temperature"],
        seed=i["seeds"],
        num_speculative_steps=i["drafts"].shape[1],
    )
    return tokens, n_sampled


CASES = (
    Case("draft_sample", "logits kept", draft_inputs, _draft, lambda i: 2 * size(i["logits"]), _vllm_draft, most=MOST),
    Case("rejection", "residual", round_inputs, _round,
         lambda i: size(i["target"], i["draft"]) + size(i["target"]) // i["target"].shape[1], _vllm_round, most=MOST),
)  # fmt: skip

__all__ = ["CASES"]
