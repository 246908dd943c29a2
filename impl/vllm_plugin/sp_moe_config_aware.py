"""Toggle `sp_moe_config_aware`: the gate of sequence-parallel MoE asks the model, where vLLM asks for DP > 1.

The rule is `impl.sp_moe.config_aware`. Flipping the gate turns off the padding of the shared expert's shares, so a
start where that padding is not empty is refused: the weights would no longer fit (source_pr.md section 7).

The marker counts answers of the gate that were flipped; whether MoE layers run sequence-parallel for it is read from
the layers (`impl.vllm_plugin.moe`). Up to 0.26 DeepSeek V4's MoE never asks the gate: there the padding alone goes.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from impl import sp_moe
from impl.vllm_plugin import state
from impl.vllm_plugin.facts import TOKEN_SHARD_BACKENDS, Facts, first, on_v4_gpu
from impl.vllm_plugin.patch import DRAFT, MODEL, MTP, PARALLEL_CONFIG, V033, Patch, replace, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

TOGGLE = "sp_moe_config_aware"
GATE = "use_sequence_parallel_moe"
GATE_033 = "_use_sequence_parallel"
"""0.33's own gate of DeepSeek V4: draft and MTP import it by name from the model's module, so after its hook."""


def _patch_config(module: ModuleType, version: str) -> None:
    backends, upstream = TOKEN_SHARD_BACKENDS[version], module.ParallelConfig.use_sequence_parallel_moe.fget

    def gate(self: Any) -> bool:
        config = sp_moe.MoeConfig(
            "deepseek_v4", bool(self.enable_expert_parallel), self.tensor_parallel_size, self.data_parallel_size,
            self.all2all_backend in backends,
        )  # fmt: skip
        on, was = sp_moe.config_aware(config), upstream(self)
        if on and not was:
            state.take(TOGGLE)
        return on or was

    module.ParallelConfig.use_sequence_parallel_moe = property(gate)


def _patch_model(module: ModuleType, version: str) -> None:
    if version not in V033:
        return
    upstream = getattr(module, GATE_033)

    def gate(vllm_config: Any) -> bool:
        parallel = vllm_config.parallel_config
        was = upstream(vllm_config)
        on = parallel.pipeline_parallel_size == 1 and parallel.use_sequence_parallel_moe
        if on and not was:
            state.take(TOGGLE)
        return bool(on or was)

    replace(module, GATE_033, gate)


def _refuse(facts: Facts) -> str | None:
    if reason := first(on_v4_gpu(facts)):
        return reason
    config = sp_moe.MoeConfig("deepseek_v4", facts.expert_parallel, facts.tp, facts.dp, facts.token_shards)
    if not sp_moe.config_aware(config):
        return "the gate stays off: it needs expert parallelism, TP > 1 and an all-to-all backend of token shards"
    if sp_moe.requires_dp(config):
        return "the gate is on already: DP > 1"
    share = facts.tp * sp_moe.QUANT_BLOCK
    if facts.expert_width % share:
        return (
            f"the shared expert's width {facts.expert_width} is no multiple of {share}: flipping the gate drops the "
            "padding that its shares need"
        )
    return None


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(
        every=(
            Symbol(PARALLEL_CONFIG, f"ParallelConfig.{GATE}", ("self",)),
            Symbol(MODEL, "DeepseekV4Model.load_weights"),
        ),
        up_to_026=(
            Text(
                MODEL,
                "DeepseekV4Model.load_weights",
                "pad_shared_expert = (getattr(self.quant_config, 'weight_block_size', None) is not None and not "
                "self.parallel_config.use_sequence_parallel_moe)",
            ),
        ),
        v033=(
            Symbol(MODEL, GATE_033, ("vllm_config",)),
            Symbol(DRAFT, GATE_033),
            Symbol(MTP, GATE_033),
            Calls(MODEL, "DeepseekV4Model.__init__", GATE_033, times=1, positional=1),
        ),
    ),
    hooks={PARALLEL_CONFIG: _patch_config, MODEL: _patch_model},
    refuse=_refuse,
)

__all__ = ["PATCH"]
