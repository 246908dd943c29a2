"""Toggle `mhc_input_reuse`: a seam writes its layer input over the sublayer output that it has consumed."""

from __future__ import annotations

from impl.vllm_plugin import mhc_seam
from impl.vllm_plugin.patch import MODEL, Patch

PATCH = Patch(
    toggle="mhc_input_reuse",
    sites=mhc_seam.SITES,
    hooks={MODEL: lambda module, version: mhc_seam.install(module, version, "input")},
    refuse=mhc_seam.refuse,
)

__all__ = ["PATCH"]
