"""The shape of a model that vLLM serves, from its config.json (torch-free): what is projected is what was measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from impl.dims import FLASH, Dims

ARCHITECTURE = "DeepseekV4ForCausalLM"
FIELDS = {
    "hidden_size": "hidden_size",
    "num_attention_heads": "n_heads",
    "head_dim": "head_dim",
    "qk_rope_head_dim": "rope_dim",
    "q_lora_rank": "q_lora_rank",
    "o_groups": "o_groups",
    "o_lora_rank": "o_lora_rank",
    "sliding_window": "window",
    "index_n_heads": "index_heads",
    "index_head_dim": "index_dim",
    "index_topk": "index_topk",
    "n_routed_experts": "n_experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_width",
    "num_hash_layers": "n_hash_layers",
    "vocab_size": "vocab_size",
    "hc_sinkhorn_iters": "sinkhorn_iters",
    "n_mtp_layers": "n_draft_layers",
    "dspark_block_size": "draft_tokens",
    "dspark_markov_rank": "markov_rank",
    "dspark_noise_token_id": "noise_token_id",
    "hc_mult": "hc_mult",
}
"""Whole numbers of the file, and the field of Dims that each is."""


def dims_of_config(path: Path) -> Dims:
    """Dims of a DeepSeek V4 with a DSpark draft; limits of serving are those of flash.

    Raises ValueError, in one line, for a file that is none, another architecture, and a key that is missing or odd.
    """
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"--config {path}: {error.strerror}; name a model's config.json") from None
    except ValueError:
        raise ValueError(f"--config {path}: it is not JSON; name a model's config.json") from None
    architectures = config.get("architectures") if isinstance(config, dict) else None
    if not isinstance(config, dict) or architectures != [ARCHITECTURE]:
        raise ValueError(f"--config {path}: architectures are {architectures}; only {ARCHITECTURE} is projected")
    layers = _whole(path, config, "num_hidden_layers")
    ratios = _numbers(path, config, "compress_ratios")
    if len(ratios) < layers:
        raise ValueError(f"--config {path}: compress_ratios has {len(ratios)} entries for {layers} num_hidden_layers")
    known: dict[str, Any] = {ours: _whole(path, config, theirs) for theirs, ours in FIELDS.items()}
    known |= {"compress_ratios": ratios[:layers], "aux_layers": _numbers(path, config, "dspark_target_layer_ids")}
    try:
        return FLASH.with_changes(name=f"{layers}-layer", **known)
    except ValueError as error:
        raise ValueError(f"--config {path}: {error}") from None


def _whole(path: Path, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or not _is_whole(value):
        raise ValueError(f"--config {path}: {key} is {value!r}; it must be a whole number from 0")
    return value


def _numbers(path: Path, config: dict[str, Any], key: str) -> tuple[int, ...]:
    value = config.get(key)
    if not isinstance(value, list) or not value or not all(map(_is_whole, value)):
        raise ValueError(f"--config {path}: {key} is {str(value)[:60]}; it must be a list of whole numbers from 0")
    return tuple(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


__all__ = ["FIELDS", "dims_of_config"]
