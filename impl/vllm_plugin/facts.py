"""What a start's configuration says, as far as a toggle's preconditions ask (torch-free)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DEEPSEEK_V4 = "DeepseekV4ForCausalLM"


@dataclass(frozen=True)
class Facts:
    version: str
    """vLLM's, without a local part: 0.26.0."""
    platform: str
    """sm90, sm100, sm120, ..., cpu or other."""
    architecture: str
    method: str | None
    """Speculative method; None without speculation."""
    runner: str
    """v1 or v2: vLLM's model runner."""
    heads: int
    tp: int
    pp: int
    dp: int
    expert_parallel: bool
    graph_mode: str
    """Name of vLLM's CUDAGraphMode, such as FULL_AND_PIECEWISE or NONE."""
    draft_sample_method: str = "greedy"
    synthetic: bool = False
    """Whether rejection is synthetic."""
    expert_width: int = 0
    """Inner width of the shared expert; 0 where there is none."""
    token_shards: bool = False
    """Whether the all-to-all backend takes token shards."""
    hidden: int = 0
    """Width of a residual stream; 0 where the model does not say."""
    streams: int = 0
    """Residual streams of the model; 0 where it has none."""

    @property
    def capability(self) -> tuple[int, int] | None:
        """Compute capability as far as the platform's name tells it; None off NVIDIA."""
        return (int(self.platform[2:-1]), 0) if self.platform.startswith("sm") else None

    @property
    def is_v4(self) -> bool:
        return self.architecture == DEEPSEEK_V4


def read(vllm_config: Any, version: str, platform: str) -> Facts:
    """Facts of vLLM's VllmConfig, which differs little between versions; what a version lacks keeps its default."""
    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    hf, speculative = model.hf_config, vllm_config.speculative_config
    mode = vllm_config.compilation_config.cudagraph_mode
    architectures = getattr(hf, "architectures", None) or ["unknown"]
    return Facts(
        version=version,
        platform=platform,
        architecture=architectures[0],
        method=speculative.method if speculative is not None else None,
        runner="v2" if getattr(vllm_config, "use_v2_model_runner", False) else "v1",
        heads=int(getattr(hf, "num_attention_heads", 0) or 0),
        tp=parallel.tensor_parallel_size,
        pp=parallel.pipeline_parallel_size,
        dp=parallel.data_parallel_size,
        expert_parallel=bool(parallel.enable_expert_parallel),
        graph_mode=getattr(mode, "name", str(mode)),
        draft_sample_method=str(getattr(speculative, "draft_sample_method", "greedy")),
        synthetic=getattr(speculative, "rejection_sample_method", None) == "synthetic",
        expert_width=int(getattr(hf, "moe_intermediate_size", 0) or 0) * int(getattr(hf, "n_shared_experts", 0) or 0),
        token_shards=parallel.all2all_backend in TOKEN_SHARD_BACKENDS.get(version, ()),
        hidden=int(getattr(hf, "hidden_size", 0) or 0),
        streams=int(getattr(hf, "hc_mult", 0) or 0),
    )


TOKEN_SHARD_BACKENDS: dict[str, tuple[str, ...]] = {
    version: (
        "allgather_reducescatter", "deepep_high_throughput", "deepep_low_latency", "mori_high_throughput",
        "mori_low_latency", "nixl_ep", *more,
    )
    for version, more in {
        "0.25.1": (),
        "0.26.0": (),
        "0.33.0": ("deepep_v2", "flashinfer_nvlink_one_sided", "passthrough"),
    }.items()
}  # fmt: skip
"""All-to-all backends of sequence-parallel MoE, as vLLM's own gate lists them."""


def on_v4_gpu(facts: Facts) -> str | None:
    """Why this is no DeepSeek V4 on an NVIDIA GPU; None where it is."""
    if not facts.is_v4:
        return f"it patches DeepSeek V4, and this model is {facts.architecture}"
    if not facts.platform.startswith("sm"):
        return f"it patches vLLM's NVIDIA code, and this platform is {facts.platform}"
    return None


def one_stage(facts: Facts) -> str | None:
    """Why buffers may outlive a pipeline stage; None with one stage."""
    return None if facts.pp == 1 else f"it needs one pipeline stage, and pipeline_parallel_size is {facts.pp}"


def first(*reasons: str | None) -> str | None:
    return next(filter(None, reasons), None)


__all__ = ["DEEPSEEK_V4", "TOKEN_SHARD_BACKENDS", "Facts", "first", "on_v4_gpu", "one_stage", "read"]
