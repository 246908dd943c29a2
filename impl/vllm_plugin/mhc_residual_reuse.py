"""Toggle `mhc_residual_reuse`: a seam writes its new streams over the old ones (target and draft layers alike)."""

from __future__ import annotations

from impl.vllm_plugin import mhc_seam
from impl.vllm_plugin.patch import MODEL, Patch

PATCH = Patch(
    toggle="mhc_residual_reuse",
    sites=mhc_seam.SITES,
    hooks={MODEL: lambda module, version: mhc_seam.install(module, version, "residual")},
    refuse=mhc_seam.refuse,
)

__all__ = ["PATCH"]
