"""How a loaded model runs its MoE layers: with all tokens on every rank, or each rank with its share of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

OWN_FLAGS = ("use_sequence_parallel", "is_sequence_parallel")
"""What a model's MoE layer keeps of the gate: DeepSeek V4's of 0.33, those of other models."""


def sequence_parallel(models: Iterable[Any]) -> dict[str, int | None]:
    """MoE layers of these models, how many of them run sequence-parallel, and 1 where all do, else 0.

    Read from the layers as they were built, not from the gate: up to 0.26 DeepSeek V4's MoE never asks it. The counts
    are None where a layer does not tell, and the flag where there is no MoE layer, too.
    """
    found = [m for model in models if hasattr(model, "modules") for m in model.modules() if _is_layer(m)]
    told = [_runs(layer) for layer in found]
    known = [runs for runs in told if runs is not None]
    parallel = sum(known) if len(known) == len(told) else None
    active = int(parallel == len(told)) if told and parallel is not None else None
    return {"moe_layers": len(told), "moe_layers_sequence_parallel": parallel, "moe_sp_active": active}


def _is_layer(module: Any) -> bool:
    return callable(getattr(getattr(module, "experts", None), "modules", None))


def _runs(layer: Any) -> bool | None:
    """By the layer's own flag and by its experts' token shards; both where both are told."""
    shards = getattr(_config(layer.experts), "sp_size", None)
    told = [flag for flag in (_own(layer), None if shards is None else shards > 1) if flag is not None]
    return all(told) if told else None


def _own(layer: Any) -> bool | None:
    flags = [getattr(layer, name) for name in OWN_FLAGS if isinstance(getattr(layer, name, None), bool)]
    return flags[0] if flags else None


def _config(experts: Any) -> Any:
    """vLLM's FusedMoEParallelConfig of a layer's experts; None for experts of other kinds."""
    return getattr(getattr(experts, "moe_config", None), "moe_parallel_config", None)


__all__ = ["sequence_parallel"]
