"""What a vLLM worker says of itself: versions, model, limits, parallelism, graphs, speculation, caches."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from pathlib import Path
from typing import Any

from impl import __version__
from impl.vllm_plugin import state

PACKAGE = Path(__file__).resolve().parents[1]
SOURCES = ("vllm_plugin", "ops", "dims.py", "toggles.py", "handshake.py", "sp_moe.py", "platforms.py")
KINDS = (".py", ".cu", ".cuh", ".json")
"""Of files in a folder of SOURCES."""
CACHES = {
    "tilelang": ("TILELANG_CACHE_DIR", "~/.tilelang"),
    "triton": ("TRITON_CACHE_DIR", "~/.triton/cache"),
    "vllm": ("VLLM_CACHE_ROOT", "~/.cache/vllm"),
}
"""Compile caches: the variable that moves each, and where it is otherwise."""


def conditions(worker: Any, version: str) -> dict[str, Any]:
    """Facts of one worker after its model is loaded. A value vLLM cannot give is None."""
    config = worker.vllm_config
    model, parallel, cache = config.model_config, config.parallel_config, config.cache_config
    scheduler, compilation, speculative = config.scheduler_config, config.compilation_config, config.speculative_config
    mode = compilation.cudagraph_mode
    return {
        "engine": "vllm",
        "vllm": version,
        "torch": _version("torch"),
        "python": platform.python_version(),
        "impl_version": __version__,
        "impl_sources": sources_digest(),
        "device": _device(),
        "toggles": list(state.toggles.names()),
        "model": str(model.model),
        "model_config": _digest(model.hf_config),
        "architecture": (getattr(model.hf_config, "architectures", None) or ["unknown"])[0],
        "dtype": str(model.dtype),
        "load_format": str(config.load_config.load_format),
        "seed": model.seed,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_model_len": model.max_model_len,
        "max_num_seqs": scheduler.max_num_seqs,
        "async_scheduling": getattr(scheduler, "async_scheduling", None),
        "tp_rank": worker.rank % parallel.tensor_parallel_size,
        "tp": parallel.tensor_parallel_size,
        "pp": parallel.pipeline_parallel_size,
        "dp": parallel.data_parallel_size,
        "world_size": parallel.world_size,
        "expert_parallel": bool(parallel.enable_expert_parallel),
        "graph_mode": "eager" if model.enforce_eager else getattr(mode, "name", str(mode)),
        "capture_sizes": list(getattr(compilation, "cudagraph_capture_sizes", None) or ()),
        "runner": "v2" if getattr(config, "use_v2_model_runner", False) else "v1",
        "speculative": speculative.method if speculative is not None else "none",
        "draft_tokens": speculative.num_speculative_tokens if speculative is not None else 0,
        "draft_sample_method": getattr(speculative, "draft_sample_method", None),
        "rejection_sample_method": getattr(speculative, "rejection_sample_method", None),
        "synthetic_acceptance_length": getattr(speculative, "synthetic_acceptance_length", None),
        "synthetic_acceptance_rates": synthetic_rates(speculative),
        "prefix_caching": cache.enable_prefix_caching,
        "kv_cache_dtype": str(cache.cache_dtype),
        "block_size": cache.block_size,
        "gpu_memory_utilization": cache.gpu_memory_utilization,
        "kv_cache_memory_bytes": cache.kv_cache_memory_bytes,
        "num_gpu_blocks_override": cache.num_gpu_blocks_override,
        "startup_plan": os.environ.get("VLLM_ENABLE_STARTUP_PLAN", "0"),
        "cache_state": cache_state(),
        "fast_start": os.environ.get("DSBENCH_VLLM_FAST_START", "0"),
    }


def synthetic_rates(speculative: Any) -> list[float]:
    """Rates by position at which drafts are accepted unseen, to six places; empty where the target verifies.

    vLLM turns a length into rates and forgets it, so that the rates alone tell two such arms apart.
    """
    return [round(float(rate), 6) for rate in getattr(speculative, "synthetic_acceptance_rates", None) or ()]


def cache_state() -> dict[str, str]:
    """Whether each compile cache holds anything when the worker starts: warm or cold."""
    found = {}
    for name, (variable, default) in CACHES.items():
        folder = Path(os.environ.get(variable) or os.path.expanduser(default))
        found[name] = "warm" if folder.is_dir() and any(folder.iterdir()) else "cold"
    return found


def sources_digest() -> str:
    """sha256 over what runs inside vLLM: an edit between two boots of an experiment must show."""
    digest = hashlib.sha256()
    for place in SOURCES:
        path = PACKAGE / place
        for file in sorted(f for f in path.rglob("*") if f.suffix in KINDS) if path.is_dir() else [path]:
            digest.update(f"{file.relative_to(PACKAGE)}\0".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def _digest(hf_config: Any) -> str:
    to_json = getattr(hf_config, "to_json_string", None)
    return hashlib.sha256((to_json() if to_json is not None else repr(hf_config)).encode()).hexdigest()


def _version(module: str) -> str | None:
    return getattr(sys.modules.get(module), "__version__", None)


def _device() -> str:
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return "cpu"
    return str(torch.cuda.get_device_name())


__all__ = ["cache_state", "conditions", "sources_digest", "synthetic_rates"]
