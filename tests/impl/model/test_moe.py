"""The MoE sublayer against a float64 loop over tokens and experts, and against itself: batches, tiles, memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from impl.dims import PICO, Dims
from impl.model import moe
from impl.model.moe import Moe
from impl.ops.workspace import Workspace
from tests.impl.model.cached import ODD, weights
from tests.impl.model.live_bytes import LiveBytes

MANY = PICO.with_changes(name="many", n_experts=24, experts_per_token=6, expert_width=20)
LAYERS = [(PICO, 0), (PICO, 1), (ODD, 0), (ODD, 1), (MANY, 1)]
by_layer = pytest.mark.parametrize(("dims", "layer"), LAYERS, ids=lambda v: v if isinstance(v, int) else v.name)


def case(dims: Dims, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    gen = torch.Generator().manual_seed(seed)
    x = 2 * torch.randn(n, dims.hidden_size, generator=gen)
    return x.bfloat16(), torch.randint(0, dims.vocab_size, (n,), generator=gen)


def run(layer: Moe, x: torch.Tensor, ids: torch.Tensor, workspace: Workspace | None = None) -> torch.Tensor:
    return layer.forward([x.clone()], ids, workspace or Workspace())


def plain(w: dict[str, torch.Tensor], dims: Dims, layer: int, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    at, inner = f"layers.{layer}.moe.", dims.expert_width
    w = {name.removeprefix(at): value.double() for name, value in w.items() if name.startswith(at)}

    def ffn(w13: torch.Tensor, w2: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        gate = (w13[:inner] @ v).clamp(max=10.0)
        return w2 @ (gate / (1 + torch.exp(-gate)) * (w13[inner:] @ v).clamp(-10.0, 10.0))

    out = []
    for v, token in zip(x.double(), ids.tolist(), strict=True):
        s = [math.sqrt(math.log1p(math.exp(logit))) for logit in (w["gate"] @ v).tolist()]
        if "tid2eid" in w:
            picked = w["tid2eid"][token].long().tolist()
        else:
            rank = sorted(range(dims.n_experts), key=lambda e: (-(s[e] + w["bias"][e].item()), e))
            picked = rank[: dims.experts_per_token]
        total = sum(s[e] for e in picked)
        y = ffn(w["shared_w13"], w["shared_w2"], v)
        for e in picked:
            y = y + 1.5 * s[e] / total * ffn(w["w13"][e], w["w2"][e], v)
        out.append(y)
    return torch.stack(out)


@by_layer
def test_it_agrees_with_float64(dims, layer):
    w, (x, ids) = weights(dims), case(dims, 60)
    wanted = plain(w, dims, layer, x, ids)
    got = run(Moe(dims, layer, dict(w)), x, ids)
    torch.testing.assert_close(got.double(), wanted, rtol=2**-8, atol=2e-4 * wanted.abs().max().item())


def test_the_bias_and_the_table_decide_who_computes():
    """A layer that routes by something else than its own rule must not pass the test above by luck."""
    w, (x, ids) = weights(PICO), case(PICO, 60)
    base = [run(Moe(PICO, layer, dict(w)), x, ids) for layer in (0, 1)]
    w["layers.0.moe.tid2eid"] = (w["layers.0.moe.tid2eid"] + 1) % PICO.n_experts
    w["layers.1.moe.bias"] = torch.tensor([9.0, 9.0, 0.0, 0.0])
    for layer in (0, 1):
        changed = run(Moe(PICO, layer, dict(w)), x, ids)
        assert (changed != base[layer]).any(1).float().mean() > 0.3
        torch.testing.assert_close(changed.double(), plain(w, PICO, layer, x, ids), rtol=2**-8, atol=5e-3)


@by_layer
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 300), threads=st.sampled_from([1, 2]))
def test_a_row_has_the_same_bits_in_any_batch(dims, layer, seed, n, threads):
    sublayer, (x, ids) = Moe(dims, layer, weights(dims)), case(dims, 300)
    workspace = Workspace()
    y = run(sublayer, x, ids, workspace)
    rows = torch.randperm(300, generator=torch.Generator().manual_seed(seed))[:n]
    torch.set_num_threads(threads)
    got = run(sublayer, x[rows], ids[rows], workspace)
    torch.set_num_threads(1)
    assert torch.equal(got, y[rows])
    assert torch.equal(run(sublayer, x[rows[:1]], ids[rows[:1]], workspace), y[rows[:1]])


@by_layer
def test_tiles_and_a_locked_workspace_change_nothing(dims, layer, monkeypatch):
    w, (x, ids) = weights(dims), case(dims, 103)
    workspace = Workspace()
    y = run(Moe(dims, layer, dict(w)), x, ids, workspace)
    workspace.lock()
    assert torch.equal(run(Moe(dims, layer, dict(w)), x, ids, workspace), y)
    monkeypatch.setattr(moe, "TILE", 8)
    assert torch.equal(run(Moe(dims, layer, dict(w)), x, ids, workspace), y)


@by_layer
@pytest.mark.parametrize("n", [1, 16, 256, 1000])
def test_the_input_dies_before_the_output_is_allocated_and_all_else_is_workspace(dims, layer, n):
    sublayer, (x, ids) = Moe(dims, layer, weights(dims)), case(dims, n)
    workspace = Workspace()
    y = run(sublayer, x, ids, workspace)
    assert y.dtype == torch.bfloat16
    assert y.is_contiguous()
    assert y.untyped_storage().nbytes() == y.numel() * 2
    assert not workspace.owns(y)
    workspace.lock()
    own = [v for v in vars(sublayer).values() if isinstance(v, torch.Tensor)]
    with LiveBytes([*own, ids, workspace.buffer]) as live:
        cell = [x.clone()]
        y = sublayer.forward(cell, ids, workspace)
    assert not cell
    assert live.live == y.nbytes
    assert live.peak - y.nbytes <= 64 * n


@by_layer
def test_it_runs_on_shapes_alone(dims, layer):
    sublayer = Moe(dims, layer, weights(dims))
    with FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.empty(70, dims.hidden_size, dtype=torch.bfloat16)
        y = sublayer.forward([x], torch.zeros(70, dtype=torch.int64), Workspace())
    assert y.shape == (70, dims.hidden_size)


@by_layer
def test_the_weights_become_views_of_the_layer_s_matrices_with_the_same_values(dims, layer):
    held, before = weights(dims), weights(dims)
    sublayer = Moe(dims, layer, held)
    for name, value in held.items():
        assert torch.equal(value, before[name]), name
    stacked = {t.untyped_storage().data_ptr() for t in (sublayer.up, sublayer.down)}
    for name in ("w13", "w2", "shared_w13", "shared_w2", "gate"):
        assert held[f"layers.{layer}.moe.{name}"].untyped_storage().data_ptr() in stacked
