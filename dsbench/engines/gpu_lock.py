"""One harness a GPU: a lock file a GPU in the temporary folder, which the kernel frees when its holder ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from dsbench.boot_files import visible_gpus
from dsbench.engines import devices
from dsbench.errors import InputError
from dsbench.records import Plan


def gpus_of(plan: Plan) -> set[int]:
    """Numbers of the GPUs that the plan's boots may use; none where its engines run on the CPU or run already."""
    if plan.engine == "endpoint":
        return set()
    arms = [arm for arm in plan.arms if plan.engine != "embedded" or "cuda" in (*plan.engine_args, *arm.args)]
    return {gpu["number"] for arm in arms for gpu in devices.reading(visible_gpus(arm))["gpus"]}


@contextlib.contextmanager
def locked(gpus: Iterable[int], place: Path | None = None) -> Iterator[None]:
    """Hold these GPUs against every other dsbench of this machine. InputError if one is held."""
    place = place or Path(tempfile.gettempdir())
    with contextlib.ExitStack() as held:
        for number in sorted(gpus):
            path = place / f"dsbench-gpu{number}.lock"
            descriptor = _opened(path)
            held.callback(os.close, descriptor)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                told = f"GPU {number} is measured by another dsbench, which holds {path}"
                raise InputError(f"{told}: wait for it, or set CUDA_VISIBLE_DEVICES") from None
        yield


def _opened(path: Path) -> int:
    """Another user's file cannot be opened for creation in a shared folder, but can be locked."""
    try:
        return os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return os.open(path, os.O_RDONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
