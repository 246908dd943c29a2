"""Queries in place: vLLM's own insert method of each version against ours, over operators that mean the same."""

from types import SimpleNamespace

import pytest
import torch

from impl.vllm_plugin import q_in_place
from impl.vllm_plugin.patch import ATTENTION, VERSIONS
from tests.impl.vllm_plugin.extract import module_of

TOGGLE = "q_in_place"
HEADS, WIDTH, BLOCK = 64, 16, 8


def turned(q, positions):
    normed = q.float() * torch.rsqrt(q.float().square().mean(-1, keepdim=True) + 1e-6)
    return (normed + positions.float().view(-1, 1, 1) / 64).to(torch.bfloat16)


@pytest.fixture
def operators(monkeypatch):
    """The two operators; `allocated` counts elements of the query outputs that the insert operator makes."""
    seen = SimpleNamespace(allocated=0, launches=0)

    def insert(q, kv, pages, slots, positions, cos_sin, padded, eps, block):
        assert kv.shape[0] == q.shape[0] == positions.shape[0] >= slots.shape[0]
        assert padded in (8, 16, 32, 64, 128)
        out = q.new_zeros((q.shape[0], padded, q.shape[2]))
        out[:, : q.shape[1]] = turned(q, positions)
        seen.allocated, seen.launches = max(seen.allocated, out.numel()), seen.launches + 1
        for token, slot in enumerate(slots.tolist()):
            if slot >= 0:
                row = (kv[token].float() + positions[token]).remainder(251).to(torch.uint8)
                pages[slot // block].view(block, -1)[slot % block, : row.shape[0]] = row
        return out

    def in_place(q, kv, cache, slots, positions, cos_sin, eps, block):
        assert cache.shape == (1, block, q.shape[-1])
        assert not slots.numel()
        q.copy_(turned(q, positions))

    monkeypatch.setattr(torch.ops._C, q_in_place.INSERT_OP, insert, raising=False)
    monkeypatch.setattr(torch.ops._C, q_in_place.QUERY_OP, in_place, raising=False)
    return seen


@pytest.fixture
def attention(sources, arm, operators):
    def build(version, patched, padded=HEADS):
        markers = arm(TOGGLE if patched else "")
        module = module_of(
            sources(version), ATTENTION, [f"DeepseekV4Attention.{q_in_place.INSERT}"], cast=lambda kind, value: value,
            F=torch.nn.functional,
        )  # fmt: skip
        if patched:
            q_in_place.PATCH.hooks[ATTENTION](module, version)
        built = module.DeepseekV4Attention()
        built.n_local_heads, built.padded_heads, built.head_dim, built.eps = HEADS, padded, WIDTH, 1e-6
        built.rotary_emb = SimpleNamespace(cos_sin_cache=None)
        cache = torch.zeros(40, BLOCK, WIDTH * 2, dtype=torch.uint8)
        built.swa_cache_layer = SimpleNamespace(prefix="swa", kv_cache=cache)
        return built, markers

    return build


def run(built, n, n_slots=None, q=None):
    generator = torch.Generator().manual_seed(n)
    drawn = torch.randn(n, HEADS, WIDTH, generator=generator).bfloat16()
    q = drawn if q is None else q.copy_(drawn)
    kv = torch.randn(n, WIDTH, generator=generator).bfloat16()
    slots = torch.randperm(320, generator=generator)[: n if n_slots is None else n_slots]
    slots[::5] = -1
    metadata = {"swa": SimpleNamespace(slot_mapping=slots, block_size=BLOCK)}
    out = built._fused_qnorm_rope_kv_insert(q, kv, torch.arange(n), metadata)
    return q, out


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("piece", [64, 1024])
def test_same_query_and_cache_without_an_output(version, piece, attention, operators, monkeypatch):
    monkeypatch.setattr(q_in_place, "PIECE", piece)
    n = 300
    plain, _ = attention(version, patched=False)
    _, expected = run(plain, n, n_slots=290)
    assert operators.allocated == n * HEADS * WIDTH
    operators.allocated = operators.launches = 0
    ours, markers = attention(version, patched=True)
    q, found = run(ours, n, n_slots=290)
    assert found.data_ptr() == q.data_ptr()
    assert torch.equal(found, expected)
    assert torch.equal(ours.swa_cache_layer.kv_cache, plain.swa_cache_layer.kv_cache)
    assert operators.allocated == min(piece, 290) * 8 * WIDTH
    assert operators.launches == -(-290 // piece)
    assert markers.taken == {TOGGLE: 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_small_steps_profile_runs_and_padded_heads_stay_vllms(version, attention):
    ours, markers = attention(version, patched=True)
    q, out = run(ours, 128)
    assert out.data_ptr() != q.data_ptr()
    assert set(markers.skipped) == {TOGGLE}
    q = torch.zeros(300, HEADS, WIDTH)
    assert ours._fused_qnorm_rope_kv_insert(q, None, None, None) is q
    padded, markers = attention(version, patched=True, padded=128)
    q, out = run(padded, 300)
    assert out.shape[1] == 128
    assert "64 local heads, the kernel reads 128" in next(iter(markers.refused[TOGGLE]))


def test_a_query_that_is_a_view_is_refused(attention):
    ours, markers = attention("0.26.0", patched=True)
    held = torch.zeros(2, 300, HEADS, WIDTH, dtype=torch.bfloat16)
    q, out = run(ours, 300, q=held[0])
    assert out.data_ptr() != q.data_ptr()
    assert markers.refused[TOGGLE] == {"the projection's output is a view of a larger buffer": 1}
