"""Router and experts against float64 loops (section 3.8)."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.ops import moe
from impl.ops.workspace import Workspace


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def plain_route(affinity: list[float], ids: list[int], scale: float) -> list[float]:
    total = sum(affinity[e] for e in ids)
    return [scale * a / total if e in ids else 0.0 for e, a in enumerate(affinity)]


def test_affinity_is_the_root_of_softplus_from_one_end_to_the_other():
    logits = torch.tensor([-200.0, -90.0, -20.0, -1.0, -0.0, 1.0, 19.0, 21.0, 90.0, 1e30])
    wanted = [math.sqrt(max(x, 0.0) + math.log1p(math.exp(-abs(x)))) for x in logits.double().tolist()]
    got = moe.affinities_(logits.clone(), Workspace())
    torch.testing.assert_close(got.double(), torch.tensor(wanted, dtype=torch.float64), rtol=1e-6, atol=1e-20)


@given(st.integers(1, 9), st.integers(1, 12), st.data())
def test_the_best_biased_experts_are_picked_and_weighed_without_the_bias(n, count, data):
    picked = data.draw(st.integers(1, count))
    # Few distinct values, so that ties are common.
    affinity = data.draw(st.lists(st.lists(st.sampled_from([0.5, 1.0, 1.25]), min_size=count, max_size=count),
                                  min_size=n, max_size=n))  # fmt: skip
    bias = data.draw(st.lists(st.sampled_from([0.0, 0.25, -0.75]), min_size=count, max_size=count))
    out = torch.full((n, count), torch.nan)
    ids = torch.zeros(n, dtype=torch.int64)
    moe.route(torch.tensor(affinity), torch.tensor(bias), None, ids, picked, 1.5, out, Workspace())
    for row, got in zip(affinity, out.double(), strict=True):
        best = sorted(range(count), key=lambda e: (-(row[e] + bias[e]), e))[:picked]
        wanted = torch.tensor(plain_route(row, best, 1.5), dtype=torch.float64)
        torch.testing.assert_close(got, wanted, rtol=1e-6, atol=0)


def test_a_hash_layer_picks_by_token_id_whatever_the_affinities():
    table = torch.tensor([[0, 2], [3, 1], [2, 3]])
    affinity = torch.rand(4, 4, generator=torch.Generator().manual_seed(0)) + 0.1
    out = torch.empty(4, 4)
    ids = torch.tensor([1, 0, 2, 1])
    moe.route(affinity, torch.full((4,), torch.nan), table, ids, 2, 1.5, out, Workspace())
    for t, token in enumerate(ids.tolist()):
        wanted = torch.tensor(plain_route(affinity[t].double().tolist(), table[token].tolist(), 1.5)).double()
        torch.testing.assert_close(out[t].double(), wanted, rtol=1e-6, atol=0)


@settings(max_examples=30, deadline=None)
@given(st.sampled_from([4, 8, 12]), st.integers(1, 5), st.integers(1, 20), st.integers(1, 20), st.integers(0, 99))
def test_experts_clamp_gate_and_multiply_by_the_formula(n, count, inner, hidden, seed):
    gate_up = random(n, count * 2 * inner, seed=seed) * 12  # often beyond the clamp of 10
    weight = random(n, count, seed=seed + 1).clamp_min(0)
    down = random(hidden, count * inner, seed=seed + 2)
    x = gate_up.double().view(n, count, 2, inner)
    gate = x[:, :, 0].clamp_max(10.0)
    act = gate / (1 + torch.exp(-gate)) * x[:, :, 1].clamp(-10.0, 10.0)
    wanted = torch.einsum("ne,nei,hei->nh", weight.double(), act, down.double().view(hidden, count, inner))
    workspace = Workspace()
    with workspace.scope():
        got = moe.experts(gate_up, weight, down, 10.0, workspace)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-4, atol=1e-3)


def test_the_clamps_are_one_sided_for_the_gate_and_two_sided_for_up():
    gate_up = torch.tensor([[-30.0, -50.0], [50.0, 50.0], [2.0, -50.0], [-1000.0, 1.0]])
    workspace = Workspace()
    with workspace.scope():
        got = moe.experts(gate_up.clone(), torch.ones(4, 1), torch.ones(1, 1), 10.0, workspace)[:, 0].tolist()
    silu = [g / (1 + math.exp(-g)) for g in (-30.0, 10.0, 2.0)]
    wanted = [silu[0] * -10, silu[1] * 10, silu[2] * -10, 0.0]
    assert all(math.isclose(a, b, rel_tol=1e-5, abs_tol=1e-30) for a, b in zip(got, wanted, strict=True))


@given(st.integers(1, 300), st.integers(0, 299), st.integers(1, 40), st.integers(0, 99))
def test_gates_and_affinities_have_the_same_bits_wherever_a_row_stands(n, row, width, seed):
    """Rows side by side in memory: a vectorized function with another tail would show here."""
    row %= n
    gate, up = random(n, width, seed=seed) * 4, random(n, width, seed=seed + 1)
    alone, together = torch.empty(1, width), torch.empty(n, width)
    one = slice(row, row + 1)
    moe.gated_(gate[one].clone(), up[one].clone(), 10.0, alone, Workspace())
    moe.gated_(gate.clone(), up.clone(), 10.0, together, Workspace())
    assert torch.equal(together[one], alone)
    assert torch.equal(moe.affinities_(gate.clone(), Workspace())[one], moe.affinities_(gate[one].clone(), Workspace()))
