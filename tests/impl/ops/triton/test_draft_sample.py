"""Drafts drawn in Triton against the torch reference, token by token: on a GPU, or by Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")
import triton
import triton.language as tl

from impl.ops.draft_sample import draft_sample
from impl.ops.sampling import SamplingRows, gumbel
from impl.ops.triton import sampling
from impl.ops.workspace import Workspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def reference_noise(seeds, positions, tag, width):
    workspace = Workspace(DEVICE)
    with workspace.scope():
        return gumbel(seeds, positions, tag, width, workspace).clone()


@triton.jit
def _noise(seeds, positions, near, exact, tag, BLOCK: tl.constexpr):
    row, part = tl.program_id(0), tl.program_id(1)
    words = sampling.noise_words(tl.load(seeds + row), tl.load(positions + row), tag, part * BLOCK, BLOCK)
    place = (row * tl.num_programs(1) + part) * BLOCK + tl.arange(0, BLOCK)
    tl.store(near + place, sampling.gumbel_near(words))
    tl.store(exact + place, sampling.gumbel_exact(words))


def test_noise_is_the_references():
    """Exact to the last bit of fp32, but for the logarithms' own last bit; the fast one within 1e-5."""
    seeds = torch.tensor([0, 7, -1, 2**62 + 12345], device=DEVICE)
    positions = torch.tensor([0, 5, 70_000, 2**33], device=DEVICE)
    near, exact = torch.empty(4, 4096, device=DEVICE), torch.empty(4, 4096, device=DEVICE)
    _noise[(4, 8)](seeds, positions, near, exact, 513, BLOCK=512)
    wanted = reference_noise(seeds, positions, 513, 4096)
    torch.testing.assert_close(exact, wanted, atol=0, rtol=2**-23)
    torch.testing.assert_close(near, wanted, atol=2e-5, rtol=0)


def rows(n, temperature, seed=3):
    gen = torch.Generator().manual_seed(seed)
    seeds = torch.randint(0, 2**40, (n,), generator=gen).tolist()
    params = [(t, 0, 1.0, s) for t, s in zip(temperature, seeds, strict=True)]
    return SamplingRows.of(params, torch.randint(0, 9999, (n,), generator=gen).tolist(), DEVICE)


@pytest.mark.parametrize(("width", "block"), [(100, 16), (100, 256), (1000, 128)])
def test_tokens_and_kept_logits_are_the_references(width, block):
    n, k = 12, 2
    how = rows(n, [0.0, 0.7, 1.0, 1.3] * 3)
    logits = torch.randn(n, width, generator=torch.Generator().manual_seed(width)).to(DEVICE) * 2
    slots = torch.randperm(20, generator=torch.Generator().manual_seed(1))[:n].to(DEVICE)
    kept, own = torch.zeros(20, 5, width, device=DEVICE), torch.zeros(20, 5, width, device=DEVICE)
    wanted = draft_sample(logits, k, how, kept, slots, Workspace(DEVICE))
    hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)
    for early in sorted({False, hopper}):
        found = sampling.draft_sample(logits, k, how, own, slots, block=block, early=early)
        assert torch.equal(found, wanted)
    assert torch.equal(own, kept)
    assert torch.equal(own[slots, k], logits)


def test_the_lowest_id_wins_a_tie_and_nothing_possible_ends():
    logits = torch.full((3, 100), -5.0, device=DEVICE)
    logits[0, [17, 60, 99]] = 4.0
    logits[2] = -torch.inf
    how = rows(3, [0.0, 0.0, 1.0])
    kept = torch.zeros(3, 1, 100, device=DEVICE)
    found = sampling.draft_sample(logits, 0, how, kept, torch.arange(3, device=DEVICE), block=16)
    assert found.tolist() == [17, 0, 0]


def test_a_near_tie_across_blocks_is_decided_exactly():
    """All candidates within the fast noise's error of each other, each in a block of its own."""
    n, width = 8, 64
    how = rows(n, [1.0] * n)
    noise = reference_noise(how.seed, how.position, 1, width)
    gap = torch.randint(0, 3, (n, width), generator=torch.Generator().manual_seed(2)).to(DEVICE) * 2e-6
    logits = 3.0 - noise + gap
    kept, own = torch.zeros(n, 1, width, device=DEVICE), torch.zeros(n, 1, width, device=DEVICE)
    slots = torch.arange(n, device=DEVICE)
    wanted = draft_sample(logits, 0, how, kept, slots, Workspace(DEVICE))
    assert torch.equal(sampling.draft_sample(logits, 0, how, own, slots, block=16), wanted)


def test_cuts_are_refused():
    how = SamplingRows.of([(1.0, 5, 1.0, 3)], [0], DEVICE)
    logits = torch.zeros(1, 32, device=DEVICE)
    with pytest.raises(ValueError, match="top-k"):
        sampling.draft_sample(
            logits, 0, how, torch.zeros(1, 1, 32, device=DEVICE), torch.zeros(1, device=DEVICE).long()
        )


def test_columns_of_a_wider_table_are_read_as_they_are():
    n, width = 6, 70
    dense = rows(n, [0.0, 0.7, 1.0] * 2)
    spread = SamplingRows(
        *(torch.stack((v, v + 1), 1)[:, 0] for v in (dense.temperature, dense.top_k, dense.top_p, dense.seed,
                                                     dense.position)), False, False,
    )  # fmt: skip
    logits = torch.randn(n, width, generator=torch.Generator().manual_seed(4)).to(DEVICE)
    slots = torch.stack((torch.arange(n), torch.arange(n) + 1), 1).to(DEVICE)[:, 0]
    kept = torch.zeros(2, 9, 2, width, device=DEVICE)
    wanted = sampling.draft_sample(logits, 1, dense, kept[0], slots.contiguous(), block=16)
    assert torch.equal(sampling.draft_sample(logits, 1, spread, kept[1], slots, block=16), wanted)
    assert torch.equal(kept[0], kept[1])


def test_rows_that_are_not_dense_and_slots_that_are_too_few_are_refused():
    how, kept = rows(2, [1.0, 1.0]), torch.zeros(2, 1, 32, device=DEVICE)
    slots = torch.arange(2, device=DEVICE)
    with pytest.raises(ValueError, match="dense along their rows"):
        sampling.draft_sample(torch.zeros(2, 64, device=DEVICE)[:, ::2], 0, how, kept, slots)
    with pytest.raises(ValueError, match=r"kept logits \(2, 32\) do not take 2 rows of 32"):
        sampling.draft_sample(torch.zeros(2, 32, device=DEVICE), 0, how, kept, slots[:1])
