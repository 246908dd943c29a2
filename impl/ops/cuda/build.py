"""Build a CUDA C++ source into a shared library and load it: `python -m impl.ops.cuda.build` builds all of them.

The library has a plain C interface, so neither PyTorch's headers nor a GPU are needed to build it, only nvcc. It is
kept in a folder by the hash of its sources and flags: $DSBENCH_KERNEL_CACHE, or ~/.cache/dsbench/kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

SOURCES = Path(__file__).parent
FLAGS = ("-std=c++17", "-O3", "-gencode=arch=compute_90a,code=sm_90a", "-shared", "-Xcompiler", "-fPIC")
CAPABILITY = (9, 0)
"""Of the GPUs that can run what FLAGS build: Hopper."""


class NoCompiler(RuntimeError):
    """nvcc is not there, and the library has not been built before."""


@cache
def load(name: str) -> ctypes.CDLL:
    """The library of `name`.cu, built where it is not yet. Raises NoCompiler, or RuntimeError with nvcc's message."""
    return ctypes.CDLL(str(build(name)))


def built(name: str) -> Path:
    """Where the library of `name`.cu is, or would be."""
    text = b"".join(path.read_bytes() for path in (SOURCES / f"{name}.cu", *sorted(SOURCES.glob("*.cuh"))))
    digest = hashlib.sha256(text + " ".join(FLAGS).encode()).hexdigest()[:16]
    return folder() / f"{name}-{digest}.so"


def lacking() -> str:
    """Why the kernels cannot be had here; empty where nvcc is, or where they have been built."""
    if compiler() or all(built(source.stem).exists() for source in SOURCES.glob("*.cu")):
        return ""
    return f"nvcc was not found, and {folder()} does not hold what these sources build"


def build(name: str) -> Path:
    """The path of the library of `name`.cu, built where it is not yet."""
    source, target = SOURCES / f"{name}.cu", built(name)
    if target.exists():
        return target
    nvcc = compiler()
    if nvcc is None:
        raise NoCompiler(f"nvcc was not found, and {target} is not there: set CUDA_HOME, or build it elsewhere")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(f".{os.getpid()}.so")
    done = subprocess.run([nvcc, *FLAGS, "-o", partial, source], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"nvcc could not build {source.name}: {done.stderr.strip()}")
    os.replace(partial, target)
    return target


def build_all() -> list[Path]:
    """Every library, built where it is not yet."""
    return [build(source.stem) for source in sorted(SOURCES.glob("*.cu"))]


def folder() -> Path:
    """Where built libraries are kept."""
    chosen = os.environ.get("DSBENCH_KERNEL_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "dsbench" / "kernels"


def compiler() -> str | None:
    """nvcc of $CUDA_HOME, of the PATH, or of /usr/local."""
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda-13.0", "/usr/local/cuda"]
    candidates = [Path(home, "bin", "nvcc") for home in homes if home]
    return next((str(path) for path in candidates if path.exists()), None) or shutil.which("nvcc")


def main() -> int:
    try:
        print(*build_all(), sep="\n")
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
