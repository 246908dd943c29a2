"""Seams straight behind seams on a Hopper GPU, in place: what launches that begin before others end could get wrong.

The memory of a call's counts is the call's before, full of counts of whole tiles: one that is not cleared in time is
seen.
"""

import pytest
import torch

from impl.bench.case import copied
from impl.bench.mhc_cases import inputs
from impl.dims import FLASH
from impl.ops.cuda import build
from impl.ops.cuda import mhc as kernels

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == build.CAPABILITY
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HOPPER, reason="a Hopper GPU runs these kernels")]
STEPS = 20
POINTS = [point for point in kernels.VARIANTS["mhc_seam"] if "groups" in point]


def chain(a, variant, waits=False):
    """STEPS seams in place, each on what the last one left. Streams, layer input and gates at the end."""
    weights, post, comb = a["weights"], a["post"], a["comb"]
    for _ in range(STEPS):
        out = kernels.seam(
            a["residual"], a["y"], post, comb, weights, residual_out=a["residual"], input_out=a["y"], **variant
        )  # fmt: skip
        post, comb = out.post, out.comb
        if waits:
            torch.cuda.synchronize()
    return a["residual"], a["y"], post, comb


@pytest.mark.parametrize("variant", POINTS)
@pytest.mark.parametrize("tokens", [16, 1005, 8192])
def test_a_chain_gives_the_bits_of_one_that_waits(variant, tokens):
    a = inputs(FLASH, tokens, torch.device("cuda"), 3)
    wanted = [t.clone() for t in chain(copied(a), POINTS[0], waits=True)]
    found = chain(copied(a), variant)
    assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
    assert all(bool(torch.isfinite(t.float()).all()) for t in wanted)


@pytest.mark.parametrize("variant", POINTS)
@pytest.mark.parametrize("behind", ["nothing", "a memset"])
def test_a_captured_chain_does_so_at_every_replay(variant, behind):
    a = inputs(FLASH, 1005, torch.device("cuda"), 4)
    wanted = [t.clone() for t in chain(copied(a), POINTS[0], waits=True)]
    chain(copied(a), variant)  # the library and its limits are there before the capture
    placed, other = copied(a), torch.ones(1 << 20, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        if behind == "a memset":
            other.zero_()
        found = chain(placed, variant)
    for _ in range(3):
        placed["residual"].copy_(a["residual"])
        placed["y"].copy_(a["y"])
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))
