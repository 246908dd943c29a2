"""Rejection sampling on a CUDA device: the CPU's tokens, no wait for the device, and captured replay."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from impl.ops.rejection import draft_tag, rejection_sample
from impl.ops.sampling import SamplingRows, sample
from impl.ops.workspace import Workspace

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

RATES = torch.tensor([1.0, 0.8, 0.5, 0.5, 0.1])
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "block": {"block_verification": True},
    "synthetic": {"synthetic_conditional_rates": RATES},
    "misbound": {"draft_logits_index_mapping": RATES},
}


def arguments(device: str) -> list[Tensor]:
    """64 requests, a quarter of them greedy, with 0 to 5 drafts."""
    n, k, width = 64, 5, 1000
    g = torch.Generator().manual_seed(0)
    target = torch.randn(n, k + 1, width, generator=g) * 3
    draft = target[:, :k] + torch.randn(n, k, width, generator=g)
    row = torch.arange(n)
    temperature = torch.where(row % 4 == 0, 0.0, 0.9)
    rows = SamplingRows(temperature, row * 0, torch.ones(n), row * 12345, row * 3, False, False)
    tokens = torch.stack([sample(draft[:, j], rows, Workspace(), draft_tag(j)) for j in range(k)], 1)
    everything = (target, tokens, draft, temperature, rows.seed, rows.position, row % (k + 1))
    return [tensor.to(device) for tensor in everything]


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_the_cpus_and_nothing_waits(mode: str) -> None:
    expected = rejection_sample(*arguments("cpu"), **MODES[mode], workspace=Workspace())
    given, workspace = arguments("cuda"), Workspace("cuda")
    more = {name: value.cuda() if isinstance(value, Tensor) else value for name, value in MODES[mode].items()}
    rejection_sample(*given, **more, workspace=workspace)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = rejection_sample(*given, **more, workspace=workspace)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(out.tokens.cpu(), expected.tokens)


def test_replay_reads_its_inputs_again() -> None:
    given, workspace = arguments("cuda"), Workspace("cuda")
    first = rejection_sample(*given, workspace=workspace)
    workspace.lock()
    rejection_sample(*given, workspace=workspace)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = rejection_sample(*given, workspace=workspace)
    given[5] += 17
    graph.replay()
    torch.cuda.synchronize()
    replayed = out.tokens.clone()
    assert torch.equal(replayed, rejection_sample(*given, workspace=workspace).tokens)
    assert not torch.equal(replayed, first.tokens)
