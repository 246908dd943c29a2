"""`python -m impl.projection.allocations --device cuda`: each toggle's operation, allocated and projected.

The same function runs twice: on the device, where the CUDA allocator counts (on the CPU: live storages), and under
FakeTensorMode, as a projection does. Exit code 1 where they differ by more than LIMIT.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

from impl.dims import SHAPES, Dims
from impl.engine.profile import LiveBytes
from impl.projection.boot import fake_tensors
from impl.projection.cases import CASES, Bench, Case
from impl.projection.rank import PLATFORMS, TENSOR_PARALLEL, Rank
from impl.toggles import ToggleSet

MIB = 1 << 20
LIMIT = 2 * MIB


@dataclass(frozen=True)
class Allocation:
    """Bytes of one toggle's operation, off and on: allocated by the device, and projected."""

    toggle: str
    operation: str
    figure: str
    device_off: int
    device_on: int
    projected_off: int
    projected_on: int
    taken: bool
    """Whether the optimized branch says that it ran, on the device and in the projection."""
    refused: str
    """Why it did not, where it says so."""

    @property
    def saved(self) -> int:
        return self.device_off - self.device_on

    @property
    def projected(self) -> int:
        return self.projected_off - self.projected_on

    @property
    def difference(self) -> int:
        """The largest disagreement: of the operation off, on, or of what the toggle saves."""
        off, on = self.device_off - self.projected_off, self.device_on - self.projected_on
        return max(abs(off), abs(on), abs(off - on))

    @property
    def agrees(self) -> bool:
        return self.difference <= LIMIT and (self.taken or bool(self.refused))

    def to_json(self) -> dict[str, Any]:
        derived = {"saved": self.saved, "projected": self.projected, "difference": self.difference}
        return {**asdict(self), **derived}


class Counter(Protocol):
    def now(self) -> int: ...
    def restart(self) -> None: ...
    def most(self) -> int: ...


class _Allocator:
    """The CUDA allocator's bytes."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def now(self) -> int:
        torch.cuda.synchronize(self.device)
        return torch.cuda.memory_allocated(self.device)

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def most(self) -> int:
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device)


class _Live:
    """Live storages; serve-only regions count like the rest, as they do for an allocator."""

    def __init__(self, live: LiveBytes) -> None:
        self.live = live
        live.begin_serve_only = live.end_serve_only = lambda: None  # type: ignore[method-assign]

    def now(self) -> int:
        return self.live.live

    def restart(self) -> None:
        self.live.reset_peak()

    def most(self) -> int:
        return self.live.peak


def compare(case: Case, dims: Dims, platform_: str, device: torch.device) -> Allocation:
    """One case on the device and projected, with its toggle off and on."""
    off, on = ToggleSet(case.requires), ToggleSet((*case.requires, case.toggle))
    device_off, _, _ = measure(case, dims, platform_, device, off)
    device_on, took, refused = measure(case, dims, platform_, device, on)
    with fake_tensors():
        cpu = torch.device("cpu")
        projected_off, _, _ = measure(case, dims, platform_, cpu, off)
        projected_on, would_take, _ = measure(case, dims, platform_, cpu, on)
    return Allocation(
        case.toggle, case.operation, case.figure, device_off, device_on, projected_off, projected_on,
        taken=took and would_take, refused=refused,
    )  # fmt: skip


@torch.no_grad()
def measure(case: Case, dims: Dims, platform_: str, device: torch.device, toggles: ToggleSet) -> tuple[int, bool, str]:
    """Bytes of one case, whether the toggle's branch was taken, and why it was refused.

    A peak is that of the operation's third run: the first sizes the workspace and loads libraries, the second finds
    the workspace locked.
    """
    gc.collect()
    with _counter(device) as counter:
        bench = Bench.of(dims, platform_, device, toggles)
        before = counter.now()
        prepared = case.prepare(bench)
        if case.figure == "resident":
            size = counter.now() - before
        else:
            prepared()
            bench.workspace.lock()
            prepared()
            before = counter.now()
            counter.restart()
            prepared()
            size = counter.most() - before
        marker = bench.markers.to_json().get(case.toggle, {"taken": 0, "refused": {}})
        # What is resident is there or not; nothing has run that could say so.
        return size, marker["taken"] > 0 or case.figure == "resident", "; ".join(marker["refused"])


@contextmanager
def _counter(device: torch.device) -> Iterator[Counter]:
    if device.type == "cuda":
        yield _Allocator(device)
        return
    with LiveBytes() as live:
        yield _Live(live)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m impl.projection.allocations", description=__doc__)
    parser.add_argument("--device", default="cuda", help="where the operations run: cuda, cuda:1 or cpu")
    parser.add_argument("--dims", choices=list(SHAPES), default="flash", help="model shape")
    parser.add_argument("-T", "--max-num-batched-tokens", type=int, metavar="N", help="tokens of the step")
    parser.add_argument("--platform", choices=PLATFORMS, default="sm90", help="whose attention kernels pad queries")
    parser.add_argument("--tp", type=int, choices=TENSOR_PARALLEL, default=1, help="tensor-parallel ranks")
    parser.add_argument("-t", "--toggle", action="append", metavar="NAME", help="toggle to measure (default: all)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record there")
    args = parser.parse_args(argv)
    known = [case.toggle for case in CASES]
    try:
        device = torch.device(args.device)
        dims = SHAPES[args.dims]
        if args.max_num_batched_tokens is not None:
            dims = dims.with_changes(max_num_batched_tokens=args.max_num_batched_tokens)
        rank = Rank(dims, args.platform, args.tp)
        for name in args.toggle or ():
            if name not in known:
                raise ValueError(f"no operation of toggle '{name}' is measured: one of {', '.join(known)}")
        if device.type == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: torch sees no CUDA device here; use --device cpu with --dims pico")
    except (ValueError, RuntimeError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    chosen = [case for case in CASES if not args.toggle or case.toggle in args.toggle]
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        found = [compare(case, rank.dims, args.platform, device) for case in chosen]
    ok = all(row.agrees for row in found)
    print(_table(found))
    if args.json:
        args.json.write_text(json.dumps(_record(rank, device, found, ok), indent=2) + "\n")
    return 0 if ok else 1


def _record(rank: Rank, device: torch.device, found: list[Allocation], ok: bool) -> dict[str, Any]:
    cuda = device.type == "cuda"
    return {
        "schema": 1,
        "kind": "allocations",
        "device": torch.cuda.get_device_name(device) if cuda else "cpu",
        "source": "cuda-allocator" if cuda else "live-bytes",
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "dims": rank.model.to_json(),
        "platform": rank.platform,
        "tp": rank.tp,
        "limit_bytes": LIMIT,
        "agree": ok,
        "operations": [row.to_json() for row in found],
    }


def _table(found: list[Allocation]) -> str:
    head = f"{'toggle':<24}{'operation':<24}{'figure':<10}{'device saves':>16}{'projected':>16}{'differs by':>16}"
    lines = [head]
    for row in found:
        figures = "".join(f"{size / MIB:>12,.3f} MiB" for size in (row.saved, row.projected, row.difference))
        note = "" if row.taken else f"  not taken: {row.refused or 'no reason given'}"
        lines.append(f"{row.toggle:<24}{row.operation:<24}{row.figure:<10}{figures}{note}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
