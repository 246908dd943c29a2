"""Live bytes against arithmetic, and against an independent measure: the growth of the process's peak RSS."""

import subprocess
import sys

import torch

from impl.engine.profile import LiveBytes, MemoryMeter, serve_only
from impl.ops.workspace import Workspace

MIB = 1 << 20


def test_live_bytes_follow_allocation_views_growth_and_death():
    with LiveBytes() as live:
        a = torch.zeros(1000, dtype=torch.float32)
        assert live.live == 4000
        view = a.view(10, 100)[2:]
        assert live.live == 4000
        del a
        assert live.live == 4000, "a view keeps its storage"
        b = torch.empty(0)
        torch.add(view, 1, out=b)
        assert live.live == 4000 + b.untyped_storage().nbytes(), "out= into an empty tensor is an allocation"
        b.resize_(5000)
        assert live.live == 4000 + 20000
        del view, b
        assert live.live == 0
    assert live.peak == 24000


def test_the_peak_names_what_was_alive_and_where():
    with LiveBytes() as live:
        workspace = Workspace()
        with workspace.scope():
            kept = workspace.empty((100,), torch.uint8)
            gone = kept.float()
            del gone
            after = kept.clone()
    del after, kept
    assert live.peak == 500
    largest = max(live.peak_tensors, key=lambda t: t.bytes)
    assert (largest.bytes, largest.dtype, largest.shape, largest.site) == (400, "float32", (100,), "outside impl")
    sites = [t.site for t in live.peak_tensors]
    assert any(site.startswith("impl/ops/workspace.py:") and site.endswith(" empty") for site in sites)


def test_meter_splits_the_components():
    with MemoryMeter(torch.device("cpu")) as meter:
        weights = [torch.zeros(250), torch.zeros(250).view(25, 10)]
        buffer = torch.zeros(75, dtype=torch.uint8)
        workspace = Workspace()

        def step() -> None:
            with workspace.scope():
                workspace.empty((128,), torch.uint8)
                x = torch.zeros(1000, dtype=torch.uint8)
                y = x.clone()
                del x
                y.clone()

        profile = meter.profile(weights, workspace, step)
    assert profile.weights_bytes == 2000
    assert profile.persistent_bytes == buffer.nbytes
    assert profile.workspace_bytes == 128
    assert profile.peak_activation_bytes == 2000
    assert profile.non_torch_bytes is None
    assert profile.source == "live-bytes"
    assert [t.bytes for t in profile.peak] == [1000, 1000]
    assert profile.available_bytes(10_000) == 10_000 - 2000 - 75 - 128 - 2000


def test_serve_only_operations_move_their_own_peak_and_borrowed_buffers_no_figure():
    with MemoryMeter(torch.device("cpu")) as meter:
        borrowed = torch.zeros(500, dtype=torch.uint8)

        def step() -> None:
            x = torch.zeros(1000, dtype=torch.uint8)
            with serve_only():
                a = x.clone()
                b = torch.cat((a, a, a))
                del a
                b.clone()
                del b
            x.clone()
            with serve_only():
                x.clone()

        profile = meter.profile([], Workspace(), step, borrowed.nbytes)
        del borrowed
        kept = torch.zeros(70, dtype=torch.uint8)
        assert meter.allocated_bytes() == kept.nbytes
    assert profile.persistent_bytes == 0
    assert profile.peak_activation_bytes == 2000
    assert profile.runtime_peak_bytes == 6000
    assert [t.bytes for t in profile.runtime_peak] == [3000, 3000]
    assert profile.available_bytes(10_000) == 8000
    with serve_only():  # no meter: nothing to tell
        pass


RSS_SCRIPT = """
import ctypes, resource, sys, torch
from impl.engine.profile import LiveBytes
from impl.ops import mhc
from tests.impl.ops.test_mhc import seam_weights
torch.set_num_threads(1)
ctypes.CDLL("libc.so.6").mallopt(-3, 1 << 20)  # M_MMAP_THRESHOLD: freed tensors go back to the system at once
n, hidden = 8192, 1024
w = seam_weights(hidden)
def state():
    streams = torch.empty(n, 4, hidden, dtype=torch.bfloat16).normal_()
    return [streams, torch.empty(n, hidden, dtype=torch.bfloat16).normal_(), torch.rand(n, 4), torch.rand(n, 4, 4)]
def run(reuse):
    residual, y, post, comb = args = state()
    mhc.seam(*args, w, residual_out=residual if reuse else None, input_out=y if reuse else None)
small = [t[:300].clone() for t in state()]
mhc.seam(*small, w)
def rss():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith("VmHWM"))
def reset():
    open("/proc/self/clear_refs", "w").write("5")
reuse = sys.argv[1] == "reuse"
reset(); before = rss(); run(reuse); grown = rss() - before
with LiveBytes() as live:
    run(reuse)
print(grown, live.peak)
"""


def test_live_bytes_agree_with_the_growth_of_the_peak_resident_set():
    grown, live = {}, {}
    for mode in ("fresh", "reuse"):
        out = subprocess.check_output([sys.executable, "-c", RSS_SCRIPT, mode], text=True)
        grown[mode], live[mode] = map(int, out.split())
        assert abs(grown[mode] - live[mode]) < 0.10 * live[mode], (mode, grown[mode], live[mode])
    saved = 8192 * 4 * 1024 * 2 + 8192 * 1024 * 2
    assert live["fresh"] - live["reuse"] == saved
    assert abs(grown["fresh"] - grown["reuse"] - saved) < 0.10 * saved
