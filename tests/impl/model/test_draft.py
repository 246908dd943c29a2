"""The serving draft against the same block in float64, row by row; and what must not touch it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from impl.dims import PICO, Dims
from impl.engine.blocks import BlockAllocator
from impl.engine.pages import BlockTables, allocate_pool, draft_pages, page_shape
from impl.engine.step import Step, build_step
from impl.handshake import Markers
from impl.kv_geometry import KvGeometry
from impl.model.draft import Draft, Proposal
from impl.model.draft_logits import DraftLogits
from impl.model.draft_weights import draft_parameter_shapes
from impl.ops import packed_kv
from impl.ops.sampling import SamplingRows
from impl.ops.workspace import Workspace
from impl.toggles import REGISTRY, ToggleSet
from tests.impl.engine.engines import boot_runner
from tests.impl.train import plain_draft

CPU = torch.device("cpu")
ANCHORS = (1, 20, 33, 70)
"""Positions of the anchors, by request row: fewer context rows than the window, and more."""


def random_weights(dims: Dims) -> dict[str, Tensor]:
    """Nothing at a neutral value: norms, sinks and biases count."""
    gen = torch.Generator().manual_seed(5)
    weights = {}
    for name, shape in draft_parameter_shapes(dims).items():
        flat = len(shape) == 1
        weights[name] = torch.randn(shape, generator=gen) * (0.5 if flat else shape[-1] ** -0.5)
        if name.endswith("norm"):
            weights[name] = 0.5 + torch.rand(shape, generator=gen)
    return weights


class Bench:
    """A draft over pages of its own, with contexts of random aux means already inserted."""

    def __init__(self, toggles: str = "", dims: Dims = PICO, pool_fill: int = 0) -> None:
        self.dims = dims
        gen = torch.Generator().manual_seed(1)
        self.embed = torch.randn(dims.vocab_size, dims.hidden_size, generator=gen)
        self.lm_head = torch.randn(dims.vocab_size, dims.hidden_size, generator=gen) * dims.hidden_size**-0.5
        self.weights = random_weights(dims)
        own = {name.removeprefix("draft."): tensor.clone() for name, tensor in self.weights.items()}
        self.markers, self.workspace = Markers(), Workspace()
        self.logits = DraftLogits(dims, True, True, self.markers, CPU)
        self.draft = Draft(
            dims, own, self.embed, self.lm_head, self.logits, ToggleSet.parse(toggles), self.markers, self.workspace,
            CPU,
        )  # fmt: skip
        geometry = KvGeometry.of(dims, dims.n_draft_layers)
        blocks = BlockAllocator(geometry.groups, 600, dims.max_num_seqs)
        tables = BlockTables(geometry.groups, dims.max_num_seqs, dims.max_model_len, CPU)
        for row, anchor in enumerate(ANCHORS):
            blocks.grow(row, anchor + dims.draft_tokens)
        tables.apply(blocks.changes)
        self.tables, self.shape = tables.tables, page_shape(dims, geometry)
        pool = allocate_pool(geometry, 600, CPU)
        for pages in pool.values():
            pages[:, 1:] = pool_fill
        self.pages = draft_pages(dims, geometry, pool)
        self.aux = [torch.randn(n, 2 * dims.hidden_size, generator=gen).bfloat16() for n in ANCHORS]
        for row in range(len(ANCHORS)):
            self.insert(row)

    def step(self, row: int, positions: list[int]) -> Step:
        n = len(positions)
        return build_step([0] * n, positions, [row] * n, 0, self.tables, self.shape, CPU)

    def insert(self, row: int) -> None:
        n = ANCHORS[row]
        for part in (slice(0, n // 2), slice(n // 2, n)):
            step = self.step(row, list(range(n))[part]) if part.stop > part.start else None
            if step is not None:
                self.draft.insert_context(self.aux[row][part], step, torch.ones(step.n_tokens).bool(), self.pages)

    def propose(self, rows: list[int], limits: list[int] | None = None, temperature: float = 0.0) -> Proposal:
        first = torch.tensor([ANCHORS[row] for row in rows])
        ends = first + self.dims.draft_tokens if limits is None else torch.tensor(limits)
        params = [(temperature, 0, 1.0, 7 + row) for row in rows]
        how = SamplingRows.of(params, first.tolist(), CPU)
        at = torch.tensor(rows)
        return self.draft.propose(at + 11, first, ends, at, at, how, self.tables, self.pages)

    def states(self, layer: int, row: int, positions: list[int]) -> Tensor:
        """fp32 [n, D] as the cache has them."""
        pages, attention = self.pages[layer], self.draft.layers[layer].attention
        slots = self.step(row, positions).swa_slots[pages.swa_group]
        with self.workspace.scope():
            n, layout, packing = len(positions), attention.layout, attention.window_packing
            data = torch.empty(n, layout.data_bytes, dtype=torch.uint8)
            scales = torch.empty(n, layout.scale_bytes, dtype=torch.uint8)
            blocks = slots // packing.per_page
            packed_kv.gather(pages.swa, slots, blocks, packing, data, scales, self.workspace)
            out = torch.empty(n, 1, self.dims.head_dim)
            packed_kv.unpack_states(data, scales, layout, [out], self.workspace)
            return out[:, 0]


@dataclass
class Plain:
    logits: np.ndarray
    confidence: np.ndarray


def plain(bench: Bench, row: int, drafts: list[int], dims: Dims) -> Plain:
    weights = {name: tensor.double().numpy() for name, tensor in bench.weights.items()}
    target = {"embed": bench.embed.double().numpy(), "lm_head": bench.lm_head.double().numpy()}
    ids = [0] * ANCHORS[row] + [row + 11, *drafts]
    logits, confidence, _ = plain_draft.block(weights, target, ids, bench.aux[row].double().numpy(), ANCHORS[row], dims)
    return Plain(logits, 1 / (1 + np.exp(-confidence)))


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench()


@pytest.mark.parametrize("row", range(len(ANCHORS)))
def test_logits_and_confidence_are_those_of_the_formulas(bench: Bench, row: int) -> None:
    drafts = bench.propose([row])
    tokens = drafts.tokens[0].tolist()
    assert bench.logits.values is not None
    found = bench.logits.values[row].double().numpy()
    assert tokens == found.argmax(-1).tolist(), "greedy drafts are the logits' best, left to right"
    right = plain(bench, row, tokens, PICO)
    error = np.abs(found - right.logits).mean()
    assert error < 0.04 * np.abs(right.logits).mean()
    # The formulas round nothing; the engine stores streams, projections and queries in bf16.
    assert np.abs(drafts.confidence[0].numpy() - right.confidence).max() < 0.04
    if ANCHORS[row] > PICO.window:
        for window in (PICO.window - 1, PICO.window + 1):
            other = plain(bench, row, tokens, PICO.with_changes(window=window))
            assert np.abs(found - other.logits).mean() > 1.5 * error, "the window's edge must be seen"
    other = plain(bench, row, [(t + 1) % 95 for t in tokens], PICO)
    assert np.abs(found[1:] - other.logits[1:]).mean() > 5 * error, "each draft must condition on the one before it"


def test_context_states_are_those_of_the_formulas(bench: Bench) -> None:
    row, n = 3, ANCHORS[3]
    w = {name.removeprefix("draft."): tensor.double().numpy() for name, tensor in bench.weights.items()}
    freqs = plain_draft.frequencies(PICO.rope_dim, 0, PICO)
    for layer in range(PICO.n_draft_layers):
        at = f"layers.{layer}.attn."
        found = bench.states(layer, row, list(range(n))).double().numpy()
        for p in range(n):
            main = plain_draft.norm(w["main_proj"] @ bench.aux[row][p].double().numpy(), w["main_norm"])
            latent = plain_draft.norm((w[f"{at}wqkv_a"] @ main)[PICO.q_lora_rank :], w[f"{at}kv_norm"])
            state = plain_draft.rope(latent, p, freqs)
            # e4m3 has 3 bits behind the first, bf16 has 7; main_x was rounded to bf16 before.
            tolerance = np.where(np.arange(PICO.head_dim) < PICO.nope_dim, 2**-4, 2**-7) * np.abs(state) + 0.02
            assert (np.abs(found[p] - state) < tolerance).all()


def test_rows_of_rejected_drafts_write_nothing() -> None:
    bench = Bench()
    positions = [40, 41, 42, 43]
    before = [bench.states(layer, 3, positions) for layer in range(2)]
    aux = torch.randn(4, 2 * PICO.hidden_size, generator=torch.Generator().manual_seed(2)).bfloat16()
    keep = torch.tensor([True, True, False, False])
    bench.draft.insert_context(aux, bench.step(3, positions), keep, bench.pages)
    for layer, old in enumerate(before):
        new = bench.states(layer, 3, positions)
        assert (new != old).any(1).tolist() == keep.tolist()
        assert not bench.pages[layer].swa[0].any(), "the null block holds zeros"


def test_a_request_drafts_the_same_alone_and_in_any_batch(bench: Bench) -> None:
    for temperature in (0.0, 1.0):
        alone = [bench.propose([row], temperature=temperature) for row in range(4)]
        for order in ([0, 1, 2, 3], [3, 1], [2, 0, 3]):
            together = bench.propose(order, temperature=temperature)
            for place, row in enumerate(order):
                assert torch.equal(together.tokens[place], alone[row].tokens[0])
                assert torch.equal(together.confidence[place], alone[row].confidence[0])


def test_sampled_drafts_follow_their_own_logits(bench: Bench) -> None:
    """Gumbel-max with the noise of the round's first row and the draft's own tag."""
    from impl.ops.rejection import draft_tag
    from impl.ops.sampling import sample

    drafts = bench.propose([2, 1], temperature=0.8)
    how = SamplingRows.of([(0.8, 0, 1.0, 9), (0.8, 0, 1.0, 8)], [ANCHORS[2], ANCHORS[1]], CPU)
    assert bench.logits.values is not None
    kept = bench.logits.values[[2, 1]]
    for k in range(PICO.draft_tokens):
        assert torch.equal(sample(kept[:, k], how, bench.workspace, draft_tag(k)), drafts.tokens[:, k])
        assert not torch.equal(sample(kept[:, k], how, bench.workspace), drafts.tokens[:, k]) or k


def test_rows_beyond_the_limit_are_neither_seen_nor_written() -> None:
    """Their pages may be someone else's: the block tables are zero there, and the null block stays zero."""
    row, limit = 3, ANCHORS[3] + 2
    benches = [Bench(), Bench(pool_fill=0xFF)]
    found = []
    for bench in benches:
        last = list(range(limit, ANCHORS[row] + PICO.draft_tokens))
        before = [bench.states(layer, row, last) for layer in range(2)]
        bench.propose([row], limits=[limit])
        assert bench.logits.values is not None
        found.append(bench.logits.values[row].clone())
        for layer in range(2):
            assert torch.equal(bench.states(layer, row, last).nan_to_num(), before[layer].nan_to_num())
            assert not bench.pages[layer].swa[0].any()
    assert torch.equal(*found)


def test_skipping_the_staging_buffer_changes_no_bit() -> None:
    name = "dflash_staging_skip"
    staged, straight = Bench(), Bench(name)
    assert straight.markers.taken[name] > 0
    assert not staged.markers.taken[name]
    for a, b in zip(staged.pages, straight.pages, strict=True):
        assert torch.equal(a.swa, b.swa)
    assert torch.equal(staged.propose([0, 1, 2, 3]).tokens, straight.propose([0, 1, 2, 3]).tokens)


@pytest.mark.parametrize(
    "dims", [PICO, PICO.with_changes(max_num_batched_tokens=100, hidden_size=96)], ids=["pico", "odd"]
)
def test_the_staging_buffer_is_exactly_its_bytes(dims: Dims) -> None:
    name = "dflash_staging_skip"
    profiles = [boot_runner(dims, speculative="dspark", toggles=toggles).profile for toggles in ("", name)]
    changed = {
        part: getattr(profiles[1], part) - getattr(profiles[0], part)
        for part in ("weights_bytes", "persistent_bytes", "workspace_bytes", "peak_activation_bytes")
    }
    expected = REGISTRY[name].expected_bytes
    assert expected is not None
    assert changed == {"weights_bytes": 0, "persistent_bytes": -expected(dims), "workspace_bytes": 0,
                       "peak_activation_bytes": 0}  # fmt: skip


@pytest.mark.parametrize("method", ["none", "mtp"])
def test_without_a_draft_that_stages_the_toggle_says_that_it_is_inert(method: str) -> None:
    runner = boot_runner(speculative=method, toggles="dflash_staging_skip,mtp_hidden_skip")
    said = runner.markers.to_json()
    assert said["dflash_staging_skip"]["taken"] == 0
    assert all(reason.startswith("inert") for reason in said["dflash_staging_skip"]["refused"])
    assert (said["mtp_hidden_skip"]["taken"] > 0) == (method == "none")
