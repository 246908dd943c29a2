"""Noise, cuts and logprobs against published vectors, the float64 definitions, and statistics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from impl.ops.sampling import TAG_DRAFT, TAG_VERIFY, SamplingRows, gumbel, logprobs, philox, sample
from impl.ops.workspace import Workspace

# Random123, tests/kat_vectors: "philox 4x32 10".
VECTORS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def rows_of(params: list[tuple[float, int, float, int]], positions: list[int]) -> SamplingRows:
    return SamplingRows.of(params, positions, "cpu")


def test_philox_matches_the_published_vectors() -> None:
    words = torch.tensor([counter for counter, _, _ in VECTORS], dtype=torch.int64).T[:, :, None].contiguous()
    key = torch.tensor([key for _, key, _ in VECTORS], dtype=torch.int64).T
    workspace = Workspace()
    with workspace.scope():
        out = torch.stack(philox(words, key, workspace))
    assert out[:, :, 0].T.tolist() == [list(expected) for _, _, expected in VECTORS]


def philox_reference(counter: tuple[int, ...], key: tuple[int, int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & 0xFFFFFFFF, (p0 >> 32) ^ c[3] ^ k[1], p0 & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**64 - 1),
    position=st.integers(0, 2**31),
    tag=st.sampled_from([TAG_VERIFY, TAG_DRAFT]),
    width=st.integers(1, 9),
)
def test_noise_is_counted_by_index_position_and_tag(seed: int, position: int, tag: int, width: int) -> None:
    rows = rows_of([(1.0, 0, 1.0, 5), (1.0, 0, 1.0, seed)], [0, position])
    workspace = Workspace()
    with workspace.scope():
        noise = gumbel(rows.seed, rows.position, tag, width, workspace)[1].clone()
    words = [philox_reference((i // 4, position, tag, 0), (seed & 0xFFFFFFFF, seed >> 32))[i % 4] for i in range(width)]
    expected = [-math.log(-math.log((word + 0.5) / 2**32)) for word in words]
    torch.testing.assert_close(noise, torch.tensor(expected, dtype=torch.float32), rtol=2e-7, atol=1e-7)


def test_gumbel_noise_is_finite_and_has_its_law() -> None:
    workspace = Workspace()
    rows = rows_of([(1.0, 0, 1.0, seed) for seed in range(64)], [7] * 64)
    with workspace.scope():
        noise = gumbel(rows.seed, rows.position, TAG_VERIFY, 301, workspace).clone()
    assert torch.isfinite(noise).all()
    assert stats.kstest(noise.flatten().double().numpy(), "gumbel_r").pvalue > 1e-3


def draws(logits: torch.Tensor, params: tuple[float, int, float], n: int, tag: int = TAG_VERIFY) -> torch.Tensor:
    """n independent draws of one distribution: seeds and positions both vary."""
    rows = rows_of([(*params, 1000 + i // 64) for i in range(n)], [i % 64 for i in range(n)])
    return sample(logits.expand(n, -1).contiguous(), rows, Workspace(), tag)


@pytest.mark.parametrize(("temperature", "tag"), [(1.0, TAG_VERIFY), (0.6, TAG_VERIFY), (1.7, TAG_DRAFT)])
def test_draws_follow_the_softmax(temperature: float, tag: int) -> None:
    logits = torch.tensor([2.0, 1.0, 0.3, 0.0, -0.5, -1.0, 1.5])
    n = 20_000
    counts = torch.bincount(draws(logits, (temperature, 0, 1.0), n, tag), minlength=7)
    expected = (logits.double() / temperature).softmax(-1) * n
    assert stats.chisquare(counts.numpy(), expected.numpy()).pvalue > 1e-3


def kept_by_definition(logits: torch.Tensor, temperature: float, top_k: int, top_p: float) -> set[int]:
    order = sorted(range(len(logits)), key=lambda i: (-float(logits[i]), i))
    order = order[: top_k or len(order)]
    weights = [math.exp(float(logits[i]) / temperature) for i in order]
    kept, mass = set(), 0.0
    for token, weight in zip(order, weights, strict=True):
        if kept and top_p < 1 and mass >= top_p:
            break
        kept.add(token)
        mass += weight / sum(weights)
    return kept


@pytest.mark.parametrize(("top_k", "top_p"), [(1, 1.0), (3, 1.0), (0, 0.55), (4, 0.8), (0, 1e-9), (50, 0.999)])
def test_cuts_keep_what_their_definition_keeps_and_renormalize(top_k: int, top_p: float) -> None:
    logits = torch.tensor([0.1, 1.0, 1.0, -0.4, 2.0, 0.3])  # 1 and 2 tie
    kept = sorted(kept_by_definition(logits, 0.9, top_k, top_p))
    n = 8_000
    counts = torch.bincount(draws(logits, (0.9, top_k, top_p), n), minlength=6)
    assert set(counts.nonzero().flatten().tolist()) == set(kept)
    if len(kept) > 1:
        expected = (logits[kept].double() / 0.9).softmax(-1) * n
        assert stats.chisquare(counts[kept].numpy(), expected.numpy()).pvalue > 1e-3


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    logits = torch.zeros(3, 257)
    logits[1, [40, 200]] = 3.0
    logits[2, 256] = 1e-7
    rows = rows_of([(0.0, 5, 0.1, 1)] * 3, [0, 1, 2])
    assert sample(logits, rows, Workspace()).tolist() == [0, 40, 256]


PARAMS = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0, 2.0]),
    st.sampled_from([0, 1, 5, 60]),
    st.sampled_from([1.0, 0.9, 0.2]),
    st.integers(0, 2**64 - 1),
)


@settings(max_examples=60, deadline=None)
@given(params=st.lists(PARAMS, min_size=1, max_size=9), width=st.integers(1, 130), data=st.data())
def test_a_row_draws_the_same_token_alone_and_in_any_batch(
    params: list[tuple[float, int, float, int]], width: int, data: st.DataObject
) -> None:
    logits = torch.randn(len(params), width, generator=torch.Generator().manual_seed(width)) * 3
    positions = data.draw(st.lists(st.integers(0, 5000), min_size=len(params), max_size=len(params)))
    workspace = Workspace()
    together = sample(logits, rows_of(params, positions), workspace).tolist()
    alone = [
        sample(logits[i : i + 1], rows_of([params[i]], [positions[i]]), workspace).item() for i in range(len(params))
    ]
    assert together == alone


def test_seed_position_and_tag_each_change_the_noise() -> None:
    workspace = Workspace()
    rows = rows_of([(1.0, 0, 1.0, s) for s in (1, 2, 1, 1 << 40)], [3, 3, 4, 3])
    with workspace.scope():
        verify = gumbel(rows.seed, rows.position, TAG_VERIFY, 16, workspace).clone()
        draft = gumbel(rows.seed, rows.position, TAG_DRAFT, 16, workspace).clone()
    everything = torch.cat((verify, draft))
    assert len({tuple(row) for row in everything.tolist()}) == 8


@settings(max_examples=30, deadline=None)
@given(n=st.integers(1, 5), width=st.integers(1, 120), n_top=st.integers(0, 20))
def test_logprobs_match_float64(n: int, width: int, n_top: int) -> None:
    logits = torch.randn(n, width, generator=torch.Generator().manual_seed(n * 1000 + width)) * 4
    tokens = torch.arange(n) % width
    got = logprobs(logits, tokens, n_top, Workspace())
    expected = logits.double().log_softmax(-1)
    torch.testing.assert_close(got.chosen.double(), expected[torch.arange(n), tokens], atol=1e-5, rtol=1e-5)
    top = expected.sort(dim=-1, descending=True, stable=True)
    torch.testing.assert_close(got.top.double(), top.values[:, :n_top], atol=1e-5, rtol=1e-5)
    assert got.ids.shape == (n, min(n_top, width))
    torch.testing.assert_close(expected.gather(1, got.ids), top.values[:, :n_top], atol=1e-5, rtol=1e-5)


def test_large_temporaries_come_from_the_workspace() -> None:
    workspace = Workspace()
    logits, params = torch.randn(4, 1000), [(1.0, 5, 0.9, i) for i in range(4)]
    sample(logits, rows_of(params, [0] * 4), workspace)
    workspace.lock()
    assert sample(logits, rows_of(params, [0] * 4), workspace).shape == (4,)
    assert workspace.nbytes >= 4 * 1000 * (4 + 4 + 8)
