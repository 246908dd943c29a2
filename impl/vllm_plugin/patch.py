"""One toggle's patch of vLLM: which versions it knows, what it relies on, when it must be refused (torch-free)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from impl.vllm_plugin.facts import Facts
from impl.vllm_plugin.sites import Site

MODEL = "vllm.models.deepseek_v4.nvidia.model"
DRAFT = "vllm.models.deepseek_v4.nvidia.dspark"
MTP = "vllm.models.deepseek_v4.nvidia.mtp"
ATTENTION = "vllm.models.deepseek_v4.attention"
SPARSE_MLA = "vllm.models.deepseek_v4.sparse_mla"
FLASHINFER = "vllm.models.deepseek_v4.nvidia.flashinfer_sparse"
TILELANG = "vllm.model_executor.kernels.mhc.tilelang"
TILELANG_KERNELS = "vllm.model_executor.kernels.mhc.tilelang_kernels"
CACHE_OPS = "vllm.models.deepseek_v4.common.ops.cache_utils"
DFLASH = "vllm.v1.worker.gpu.spec_decode.dflash.speculator"
DSPARK = "vllm.v1.worker.gpu.spec_decode.dspark.speculator"
REJECTION_V2 = "vllm.v1.worker.gpu.spec_decode.rejection_sampler"
REJECTION_V2_UTILS = "vllm.v1.worker.gpu.spec_decode.rejection_sampler_utils"
REJECTION_V1 = "vllm.v1.sample.rejection_sampler"
PARALLEL_CONFIG = "vllm.config.parallel"

UP_TO_026 = ("0.25.1", "0.26.0")
V033 = ("0.33.0",)
VERSIONS = UP_TO_026 + V033


@dataclass(frozen=True)
class Patch:
    toggle: str
    sites: Mapping[str, tuple[Site, ...]]
    """What it relies on, by version; a version that is missing is refused."""
    hooks: Mapping[str, Callable[[ModuleType, str], None]]
    """What to do to a module after its import; the second argument is vLLM's version."""
    refuse: Callable[[Facts], str | None]
    """Why it cannot run under these facts; None where it can."""

    def faults(self, version: str, root: Path) -> list[str]:
        """What it relies on and the sources below `root` lack."""
        return [fault for site in self.sites[version] if (fault := site.fault(root))]


def sites(**by_versions: tuple[Site, ...]) -> dict[str, tuple[Site, ...]]:
    """Sites by version from `every=`, `up_to_026=` and `v033=`; `every` holds in all of them."""
    every = by_versions.get("every", ())
    older = (*every, *by_versions.get("up_to_026", ()))
    newer = (*every, *by_versions.get("v033", ()))
    return {**dict.fromkeys(UP_TO_026, older), **dict.fromkeys(V033, newer)}


def replace(module: ModuleType, name: str, new: Callable[..., Any]) -> None:
    """Put `new` in place of a name of `module`; an unknown name is a defect of the patch."""
    if not hasattr(module, name):
        raise AttributeError(f"{module.__name__} has no {name} to patch")
    setattr(module, name, new)


__all__ = [
    "ATTENTION", "CACHE_OPS", "DFLASH", "DRAFT", "DSPARK", "FLASHINFER", "MODEL", "MTP", "PARALLEL_CONFIG",
    "REJECTION_V1", "REJECTION_V2", "REJECTION_V2_UTILS", "SPARSE_MLA", "TILELANG", "TILELANG_KERNELS", "UP_TO_026",
    "V033", "VERSIONS", "Patch", "replace", "sites",
]  # fmt: skip
