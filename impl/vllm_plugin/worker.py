"""What every vLLM worker writes into the boot's folder: conditions, KV profile in bytes, markers.

Figures are the worker's own, read where vLLM computes them; log lines round them and only one rank prints them
(kv_profile.md sections 5 and 6). A figure this version or platform does not have is None.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

from impl.handshake import Handshake
from impl.vllm_plugin import state
from impl.vllm_plugin.conditions import conditions
from impl.vllm_plugin.moe import sequence_parallel

GPU_WORKER = "vllm.v1.worker.gpu_worker"
CPU_WORKER = "vllm.v1.worker.cpu_worker"
RUNNERS = {"vllm.v1.worker.gpu.model_runner": "GPUModelRunner", "vllm.v1.worker.gpu_model_runner": "GPUModelRunner"}
FLUSH_S = 1.0
LATER = (
    "blocks",
    "kv_bytes",
    "block_bytes",
    "resident_bytes",
    "graph_bytes",
    "runtime_peak_bytes",
    "index_maps_per_step",
)
"""Figures that are None until a later stage, or for good: nobody counts index maps here."""


class Report:
    """One worker's files. The profile is written as soon as it is known and again when later steps add to it."""

    def __init__(self, worker: Any, version: str) -> None:
        parallel = worker.vllm_config.parallel_config
        rank = worker.rank + (parallel.data_parallel_rank or 0) * parallel.world_size
        self.handshake = Handshake.from_environment(rank)
        self.worker = worker
        self.version = version
        self.profile: dict[str, Any] = dict.fromkeys(LATER)
        self._flushed: Any = None
        self._writing = threading.Lock()
        self._serving_from: int | None = None

    def start(self) -> None:
        self.handshake.conditions(conditions(self.worker, self.version))

    def profiled(self, before: dict[str, int | None], available: int) -> None:
        self.profile.update(profile(self.worker, before, available), stage="profiled")
        self.write()

    def pages_allocated(self, kv_cache_config: Any) -> None:
        """After pages and attention metadata exist: what else stays allocated beside the pages.

        As asked for: the allocator rounds the one block of the pages up, by up to 1 MiB, not alike for every number.
        """
        kv_bytes = _storage_bytes(_flat(getattr(self.worker.model_runner, "kv_caches", ())))
        allocated = _requested(self.worker.device)
        blocks = getattr(kv_cache_config, "num_blocks", None)
        self.profile.update(
            blocks=blocks,
            kv_bytes=kv_bytes,
            block_bytes=kv_bytes // blocks if blocks and kv_bytes else None,
            resident_bytes=allocated - kv_bytes if allocated is not None and kv_bytes else None,
            stage="pages allocated",
        )
        self.write()

    def graphs_captured(self, graph_bytes: Any) -> None:
        self.profile["graph_bytes"] = int(graph_bytes or 0)
        self.write()

    def serving(self) -> None:
        """From here on the allocator's peak is that of serving."""
        self.profile.update(graph_bytes=self.profile["graph_bytes"] or 0, stage="serving")
        torch = _cuda()
        if torch is not None:
            torch.cuda.synchronize(self.worker.device)
            torch.cuda.reset_peak_memory_stats(self.worker.device)
            self._serving_from = torch.cuda.memory_allocated(self.worker.device)
            self.profile["serving_allocated_bytes"] = self._serving_from
        self.write()
        threading.Thread(target=self._flush_for_ever, name="dsbench-markers", daemon=True).start()
        atexit.register(self.flush)

    def write(self) -> None:
        with self._writing:
            self.handshake.kv_profile(self.profile)
            self.handshake.markers(state.markers)

    def flush(self) -> None:
        """Write what has changed since the last time."""
        if self._serving_from is not None:
            peak = _allocator("max_memory_allocated", self.worker.device)
            # 0 is no reading: nothing has been served yet.
            self.profile["runtime_peak_bytes"] = peak - self._serving_from or None if peak is not None else None
        now = (state.markers.to_json(), self.profile.get("runtime_peak_bytes"))
        if now != self._flushed:
            self._flushed = now
            self.write()

    def _flush_for_ever(self) -> None:
        while True:
            time.sleep(FLUSH_S)
            self.flush()


_reports: dict[int, Report] = {}


def _report(worker: Any, version: str) -> Report:
    if id(worker) not in _reports:
        _reports[id(worker)] = Report(worker, version)
    return _reports[id(worker)]


def profile(worker: Any, before: dict[str, int | None], available: int) -> dict[str, Any]:
    """Bytes by component, after `determine_available_memory` has returned `available`.

    `load_bytes` is what vLLM calls weights: all that loading allocated, a staging buffer included. `weights_bytes` are
    parameters and module buffers alone; `persistent_bytes` is what else was allocated before the profile.
    """
    runner, cache = worker.model_runner, worker.vllm_config.cache_config

    def figure(name: str, owner: Any = worker) -> int | None:
        value = getattr(owner, name, None)
        return int(value) if value is not None else None

    allocated, parameters = before["allocated_bytes"], before["parameter_bytes"]
    return {
        "source": "pinned" if cache.kv_cache_memory_bytes else "vllm-memory-profiling",
        "device": str(getattr(worker, "device", "unknown")),
        "requested_bytes": figure("requested_memory"),
        "weights_bytes": parameters,
        "load_bytes": figure("model_memory_usage", runner),
        "persistent_bytes": None if allocated is None or parameters is None else allocated - parameters,
        "peak_activation_bytes": figure("peak_activation_memory"),
        "non_torch_bytes": figure("non_torch_memory"),
        "total_consumed_bytes": figure("total_consumed"),
        "graph_estimate_bytes": figure("cudagraph_memory_estimate"),
        "available_bytes": int(available),
        "allocated_before_bytes": allocated,
        "allocated_bytes": _allocator("memory_allocated", worker.device),
        "allocator_peak_bytes": _allocator("max_memory_allocated", worker.device),
        "initial_free_bytes": figure("free_memory", getattr(worker, "init_snapshot", None)),
        "workspace_bytes": _workspace_bytes(),
        **sequence_parallel(_models(runner)),
    }


def _before_profile(worker: Any) -> dict[str, int | None]:
    """Allocated bytes, and those of parameters and module buffers: the rest persists for other reasons."""
    allocated = _allocator("memory_allocated", worker.device)
    return {"allocated_bytes": allocated, "parameter_bytes": _parameter_bytes(_models(worker.model_runner))}


def _models(runner: Any) -> list[Any]:
    """The target and the draft; None for one that is not there."""
    return [getattr(runner, "model", None), getattr(getattr(runner, "speculator", None), "model", None)]


def _parameter_bytes(models: Iterable[Any]) -> int | None:
    found = [model for model in models if hasattr(model, "parameters")]
    return _storage_bytes(tensor for model in found for tensor in (*model.parameters(), *model.buffers()))


def _storage_bytes(tensors: Iterable[Any]) -> int | None:
    """Bytes of all storages, each once: layers share weights, and packed KV pages lie in one allocation."""
    storages = {storage.data_ptr(): storage.nbytes() for storage in (tensor.untyped_storage() for tensor in tensors)}
    return sum(storages.values()) or None


def _flat(tensors: Iterable[Any]) -> Iterator[Any]:
    for tensor in tensors:
        if isinstance(tensor, list | tuple):
            yield from _flat(tensor)
        elif tensor is not None:
            yield tensor


def _workspace_bytes() -> int | None:
    manager = getattr(sys.modules.get("vllm.v1.worker.workspace"), "_manager", None)
    buffers = getattr(manager, "_current_workspaces", None)
    return None if buffers is None else sum(b.untyped_storage().nbytes() for b in buffers if b is not None)


def _cuda() -> Any:
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_initialized() else None


def _allocator(name: str, device: Any) -> int | None:
    """A figure of torch.cuda for the worker's device: the thread that flushes has none of its own."""
    torch = _cuda()
    return int(getattr(torch.cuda, name)(device)) if torch is not None else None


def _requested(device: Any) -> int | None:
    """Bytes asked for and not yet freed, before the allocator's rounding."""
    torch = _cuda()
    return int(torch.cuda.memory_stats(device)["requested_bytes.all.current"]) if torch is not None else None


def patch_worker(module: ModuleType, version: str) -> None:
    """Hook of a worker's module: wrap what its own class defines."""
    cls = getattr(module, "Worker" if module.__name__ == GPU_WORKER else "CPUWorker")
    for name, wrap in _WRAPPERS.items():
        if name in vars(cls):
            setattr(cls, name, wrap(vars(cls)[name], version))


def patch_runner(module: ModuleType, version: str) -> None:
    """Hook of a runner's module: graph bytes as the runner measures them."""
    cls = getattr(module, RUNNERS[module.__name__], None)
    if cls is None or not hasattr(cls, "capture_model"):
        return
    capture = cls.capture_model

    @functools.wraps(capture)
    def capture_model(self: Any, *args: Any, **kwargs: Any) -> Any:
        graph_bytes = capture(self, *args, **kwargs)
        if not kwargs.get("profile_only"):
            for report in _reports.values():
                report.graphs_captured(graph_bytes)
        return graph_bytes

    cls.capture_model = capture_model


def _wrap_profile(determine: Callable[..., int], version: str) -> Callable[..., int]:
    @functools.wraps(determine)
    def determine_available_memory(self: Any) -> int:
        report = _report(self, version)
        report.start()
        before = _before_profile(self)
        available = determine(self)
        report.profiled(before, available)
        return available

    return determine_available_memory


def _wrap_pages(initialize: Callable[..., Any], version: str) -> Callable[..., Any]:
    @functools.wraps(initialize)
    def initialize_from_config(self: Any, kv_cache_config: Any) -> Any:
        done = initialize(self, kv_cache_config)
        _report(self, version).pages_allocated(kv_cache_config)
        return done

    return initialize_from_config


def _wrap_warm_up(warm_up: Callable[..., Any], version: str) -> Callable[..., Any]:
    @functools.wraps(warm_up)
    def compile_or_warm_up_model(self: Any) -> Any:
        done = warm_up(self)
        _report(self, version).serving()
        return done

    return compile_or_warm_up_model


_WRAPPERS = {
    "determine_available_memory": _wrap_profile,
    "initialize_from_config": _wrap_pages,
    "compile_or_warm_up_model": _wrap_warm_up,
}

__all__ = ["CPU_WORKER", "GPU_WORKER", "RUNNERS", "Report", "patch_runner", "patch_worker", "profile"]
