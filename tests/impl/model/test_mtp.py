"""The MTP layer: its input mix in float64, its window steps against the host's, drafts one application at a time."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from impl.dims import PICO
from impl.engine.blocks import BlockAllocator
from impl.engine.pages import BlockTables, allocate_pool, draft_pages, page_shape
from impl.engine.step import build_step, window_step
from impl.handshake import Markers
from impl.kv_geometry import KvGeometry
from impl.model.draft_logits import DraftLogits
from impl.model.mtp import PREFIX, Mtp, random_mtp_weights
from impl.ops import mhc
from impl.ops.sampling import SamplingRows
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

CPU = torch.device("cpu")
LENGTHS = (3, 45)
"""Context rows by request."""


class Bench:
    def __init__(self) -> None:
        gen = torch.Generator().manual_seed(3)
        self.embed = torch.randn(PICO.vocab_size, PICO.hidden_size, generator=gen)
        self.lm_head = torch.randn(PICO.vocab_size, PICO.hidden_size, generator=gen)
        self.weights = {name.removeprefix(PREFIX): t for name, t in random_mtp_weights(PICO, 4).items()}
        for name in ("embed_norm", "hidden_norm"):
            self.weights[name] = 0.5 + torch.rand(PICO.hidden_size, generator=gen)
        markers, self.workspace = Markers(), Workspace()
        self.logits = DraftLogits(PICO, True, True, markers, CPU)
        self.mtp = Mtp(
            PICO, dict(self.weights), self.embed, self.lm_head, self.logits, ToggleSet(), markers, self.workspace, CPU
        )
        geometry = KvGeometry.of(PICO, 1)
        blocks = BlockAllocator(geometry.groups, 400, PICO.max_num_seqs)
        tables = BlockTables(geometry.groups, PICO.max_num_seqs, PICO.max_model_len, CPU)
        for row, n in enumerate(LENGTHS):
            blocks.grow(row, n + PICO.draft_tokens)
        tables.apply(blocks.changes)
        self.tables, self.shape = tables.tables, page_shape(PICO, geometry)
        (self.pages,) = draft_pages(PICO, geometry, allocate_pool(geometry, 400, CPU))
        self.streams = [torch.randn(n, PICO.hc_mult * PICO.hidden_size, generator=gen).bfloat16() for n in LENGTHS]
        self.ids = [torch.randint(0, 90, (n,), generator=gen) for n in LENGTHS]

    def read(self, row: int) -> Tensor:
        n = LENGTHS[row]
        step = build_step([0] * n, list(range(n)), [row] * n, 0, self.tables, self.shape, CPU)
        keep = torch.ones(n, dtype=torch.bool)
        return self.mtp.read_step(self.streams[row], self.ids[row], step, keep, self.pages)

    def propose(self, last: Tensor, rows: list[int]) -> Tensor:
        first = torch.tensor([LENGTHS[row] for row in rows])
        how = SamplingRows.of([(0.0, 0, 1.0, 0)] * len(rows), first.tolist(), CPU)
        at = torch.tensor(rows)
        limits = first + PICO.draft_tokens
        return self.mtp.propose(last, first, limits, at, at, how, self.tables, self.shape, self.pages)


def test_the_mix_is_the_formulas() -> None:
    bench = Bench()
    found = bench.mtp._mix(bench.streams[1].unflatten(1, (PICO.hc_mult, -1)), bench.ids[1]).double()
    w = {name: tensor.double() for name, tensor in bench.weights.items()}

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / torch.sqrt((x**2).mean(-1, keepdim=True) + PICO.rms_norm_eps) * weight

    for row in range(LENGTHS[1]):
        token = norm(bench.embed[bench.ids[1][row]].bfloat16().double(), w["embed_norm"])
        for j, stream in enumerate(bench.streams[1][row].double().view(PICO.hc_mult, -1)):
            expected = w["proj"] @ torch.cat((token, norm(stream, w["hidden_norm"])))
            assert (found[row, j] - expected).abs().max() < 0.03


def test_a_window_step_is_the_hosts_and_hides_what_has_no_page() -> None:
    bench = Bench()
    ids, at, rows = [4, 5, 6], [LENGTHS[0], LENGTHS[1] + 2, 40], [0, 1, 1]
    host = build_step(ids, at, rows, 3, bench.tables, bench.shape, CPU)
    limits = torch.tensor([LENGTHS[0] + 5, LENGTHS[1] + 2, 99])
    step = window_step(
        torch.tensor(ids), torch.tensor(at), limits, torch.tensor(rows), bench.tables, [bench.pages.swa_group],
        bench.shape, PICO.max_model_len,
    )  # fmt: skip
    group = bench.pages.swa_group
    for i in (0, 2):
        assert torch.equal(step.window_slots[group][i], host.window_slots[group][i])
        assert torch.equal(step.window_valid[i], host.window_valid[i])
        assert step.swa_slots[group][i] == host.swa_slots[group][i] > 0
    assert step.swa_slots[group][1] == 0, "at its limit"
    assert not step.window_valid[1, -1]
    assert step.window_valid[1, :-1].all()


@pytest.mark.parametrize("row", [0, 1])
def test_drafts_are_serial_applications_by_hand(row: int) -> None:
    """Each further token's streams by one more host-built row over the same pages."""
    bench, other = Bench(), Bench()
    tokens = bench.propose(bench.read(row)[-1:], [row])[0].tolist()
    streams, expected = other.read(row)[-1:], []
    for k in range(PICO.draft_tokens):
        if k:
            step = build_step([0], [LENGTHS[row] + k - 1], [row], 1, other.tables, other.shape, CPU)
            staged, last = streams.flatten(1), torch.tensor([expected[-1]])
            streams = other.mtp.read_step(staged, last, step, torch.ones(1).bool(), other.pages)
        hidden = mhc.head(streams, other.mtp.head).float()
        normed = hidden / torch.sqrt((hidden**2).mean(-1, keepdim=True) + PICO.rms_norm_eps)
        expected.append(int((normed @ other.lm_head.T).argmax()))
    assert tokens == expected
    assert len(set(tokens)) > 1


def test_a_request_drafts_the_same_alone_and_in_a_batch() -> None:
    bench = Bench()
    last = torch.cat([bench.read(row)[-1:] for row in range(2)])
    together = bench.propose(last, [0, 1])
    alone = [bench.propose(last[row : row + 1], [row])[0] for row in range(2)]
    assert torch.equal(together, torch.stack(alone))
