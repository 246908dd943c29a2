"""Starts with random weights: the finishing step that 0.26.0's dummy loader leaves out, and a shorter start-up.

`--load-format dummy` of 0.26.0 fails an assertion on DeepSeek V4's first layer, which reads weights that only the real
loader derives (vllm_hooks.md section 5). With DSBENCH_VLLM_FAST_START=1 kernel warm-ups are skipped as well: first
requests then pay for compiling, so such a boot is fit for memory figures and, once warmed by requests, for speed. It is
for DeepSeek V4: other models would lose torch.compile.
"""

from __future__ import annotations

import functools
import os
from types import ModuleType
from typing import Any

from impl.vllm_plugin.hooks import after_import
from impl.vllm_plugin.patch import MODEL, replace
from impl.vllm_plugin.sites import Calls, Symbol

LOADER = "vllm.model_executor.model_loader.dummy_loader"
WORKER = "vllm.v1.worker.gpu_worker"
REGISTRY = "vllm.model_executor.models.registry"
FAST_START = "DSBENCH_VLLM_FAST_START"
NEEDS_FINISHING = ("0.26.0",)
SHORTER = {
    "VLLM_USE_BREAKABLE_CUDAGRAPH": "1",  # read when the model's code is imported, which is earlier now
    "VLLM_DEEP_GEMM_WARMUP": "skip",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_BLOCKSCALE_FP8_GEMM_FLASHINFER": "0",
}

SITES = {
    "0.26.0": (
        Symbol(LOADER, "DummyModelLoader.load_weights", ("self", "model", "model_config")),
        Symbol(MODEL, "DeepseekV4Model.finalize_mhc_broadcast_weights", ("self",)),
        Symbol(REGISTRY, "_run_in_subprocess", ("fn",)),
        Symbol(WORKER, "kernel_warmup"),
        Symbol(WORKER, "warmup_kernels"),
        Calls(WORKER, "Worker.compile_or_warm_up_model", "kernel_warmup", times=1),
        Calls(WORKER, "Worker.compile_or_warm_up_model", "warmup_kernels", times=1),
    ),
}


def install(version: str) -> None:
    if version in NEEDS_FINISHING:
        after_import(LOADER, _finish_weights)
    if os.environ.get(FAST_START) == "1":
        for name, value in SHORTER.items():
            os.environ.setdefault(name, value)
        after_import(WORKER, _skip_warm_ups)
        after_import(REGISTRY, _inspect_in_process)


def _finish_weights(module: ModuleType) -> None:
    load = module.DummyModelLoader.load_weights

    @functools.wraps(load)
    def load_and_finish(self: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        done = load(self, model, *args, **kwargs)
        finish = getattr(getattr(model, "model", None), "finalize_mhc_broadcast_weights", None)
        if finish is not None:
            finish()
        return done

    module.DummyModelLoader.load_weights = load_and_finish


def _skip_warm_ups(module: ModuleType) -> None:
    def skipped(*args: Any, **kwargs: Any) -> None:
        return None

    for name in ("kernel_warmup", "warmup_kernels"):
        if hasattr(module, name):
            setattr(module, name, skipped)


def _inspect_in_process(module: ModuleType) -> None:
    """Model inspection without a process of its own, which would import torch and vLLM once more."""
    if hasattr(module, "_run_in_subprocess"):
        replace(module, "_run_in_subprocess", lambda fn: fn())


__all__ = ["FAST_START", "SITES", "install"]
