"""Index rows of a step: exact parts, stale tails, one map for all layers, refusals, and engines that run on them."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.dims import PICO, Dims
from impl.engine import faults
from impl.engine.config import EngineConfig
from impl.engine.faults import Faults
from impl.engine.graphs import CaptureError, capture
from impl.engine.index_rows import IndexRows
from impl.engine.runner import Runner
from impl.engine.step import Step
from impl.handshake import Handshake, Markers
from impl.ops.workspace import Workspace
from impl.toggles import REGISTRY, ToggleSet
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

TWO = PICO.with_changes(name="two", compress_ratios=(0, 4, 32, 4, 32), max_num_batched_tokens=48, max_num_seqs=4)
"""Two dense layers, and few enough rows that prompts are cut and mixed with decodes."""
MEMORY = ("c128a_topk_shared", "q_in_place", "c128_indices_in_place")
ALL = ",".join(MEMORY)


def index_rows(toggles: str, **settings_: object) -> IndexRows:
    return IndexRows(TWO, ToggleSet.parse(toggles), Markers(), "cpu", **settings_)  # type: ignore[arg-type]


def some_step(n: int, n_decode: int, seed: int = 0) -> Step:
    """A step of n rows whose tables are full; what index rows do not read is not there."""
    gen = torch.Generator().manual_seed(seed)
    positions = torch.randint(0, TWO.max_model_len, (n,), generator=gen)
    blocks = torch.randint(1, 1000, (8, TWO.max_model_len // TWO.block_tokens), generator=gen)
    none = torch.zeros(0, dtype=torch.int64)
    return Step(
        token_ids=torch.zeros(n, dtype=torch.int64), positions=positions, n_decode=n_decode,
        request_rows=torch.randint(0, 8, (n,), generator=gen), block_tables={"full": blocks}, swa_slots={},
        window_slots={}, window_valid=none, state_slots={}, emissions={}, visible={32: (positions + 1) // 32},
    )  # fmt: skip


def by_token(step: Step) -> list[list[int]]:
    """The slots each token reads, from the definition."""
    table, rows = step.block_tables["full"].tolist(), step.request_rows.tolist()
    seen = [(p + 1) // 32 for p in step.positions.tolist()]
    return [[table[r][i // 2] * 2 + i % 2 for i in range(n)] for r, n in zip(rows, seen, strict=True)]


def read(rows: IndexRows, step: Step, part: slice) -> list[list[int]]:
    workspace = Workspace()
    dense = rows.for_layer(step, workspace)
    hidden = torch.zeros((part.stop - part.start, TWO.index_row_width), dtype=torch.bool)
    with workspace.scope():
        slots = dense.slots(part, hidden, workspace).view(hidden.shape)
        return [
            [s for s, h in zip(*row, strict=True) if not h] for row in zip(slots.tolist(), hidden.tolist(), strict=True)
        ]


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, TWO.max_num_batched_tokens), share=st.floats(0, 1), seed=st.integers(0, 999),
    toggles=st.sampled_from(["", *MEMORY, ALL]), cut=st.floats(0, 1),
)  # fmt: skip
def test_every_token_reads_its_own_entries_whatever_came_before(n, share, seed, toggles, cut):
    """Two steps after each other in the same buffers, of other sizes and parts: tails are stale, and harmless."""
    rows = index_rows(toggles)
    for step in (some_step(TWO.max_num_batched_tokens, 20, seed + 1), some_step(n, round(share * n), seed)):
        rows.lens.fill_(TWO.index_row_width)
        rows.build(step, Workspace())
        wanted, total = by_token(step), step.n_tokens
        for _ in range(2):
            assert read(rows, step, slice(0, total)) == wanted
        first = min(round(cut * total), total - 1)
        assert read(rows, step, slice(first, total)) == wanted[first:]


@pytest.mark.parametrize("n_decode", [0, 1, 31, 47, 48])
def test_parts_of_the_shared_buffer_are_exact(n_decode):
    rows, step = index_rows("c128a_topk_shared"), some_step(48, n_decode)
    rows.decode.fill_(-99)
    rows.build(step, Workspace())
    dense = rows.for_layer(step, Workspace())
    assert rows.decode is rows.prefill
    assert not (rows.decode == -99).any()
    assert dense.decode.shape[0] + rows.local(step).shape[0] == 48
    assert dense.decode.storage_offset() == 0
    assert rows.local(step).storage_offset() == n_decode * TWO.index_row_width
    assert dense.decode.is_contiguous()
    assert rows.local(step).is_contiguous()
    assert rows.markers.taken["c128a_topk_shared"] == 1


def test_bytes_of_the_buffers_and_maps_of_two_layers():
    size = TWO.max_num_batched_tokens * TWO.index_row_width * 4
    assert index_rows("").nbytes - index_rows("c128a_topk_shared").nbytes == size
    step, apart, once = some_step(48, 5), index_rows(""), index_rows("c128_indices_in_place")
    for rows in (apart, once):
        rows.build(step, Workspace())
        first, second = (rows.for_layer(step, Workspace()) for _ in range(2))
        assert torch.equal(first.prefill, second.prefill)
    assert (apart.maps, once.maps) == (2, 1)
    assert first.prefill.data_ptr() == once.prefill.data_ptr()
    once.build(step, Workspace())
    once.for_layer(step, Workspace())
    assert once.maps == 1
    assert once.markers.taken["c128_indices_in_place"] == 3


def test_only_decodes_map_nothing():
    rows, step = index_rows("c128_indices_in_place"), some_step(7, 7)
    rows.build(step, Workspace())
    assert read(rows, step, slice(0, 7)) == by_token(step)
    assert rows.maps == 0
    assert rows.markers.taken["c128_indices_in_place"] == 0


def test_rows_of_another_step_and_local_rows_after_the_map_are_refused():
    rows, old, new = index_rows("c128_indices_in_place"), some_step(9, 2), some_step(9, 2, seed=1)
    rows.build(old, Workspace())
    assert rows.local(old)[:, 0].max() <= 0
    rows.for_layer(old, Workspace())
    with pytest.raises(RuntimeError, match="global already"):
        rows.local(old)
    rows.build(new, Workspace())
    with pytest.raises(RuntimeError, match="another step"):
        rows.for_layer(old, Workspace())


def test_local_readers_and_mixed_graphs_are_refused_with_the_reason():
    rows = index_rows(ALL, local_readers=[3], mixed_graphs=True)
    assert "layers 3 read local indices" in next(iter(rows.markers.refused["c128_indices_in_place"]))
    assert "mixes decode and prefill rows" in next(iter(rows.markers.refused["c128a_topk_shared"]))
    step = some_step(20, 6)
    rows.build(step, Workspace())
    assert read(rows, step, slice(0, 20)) == by_token(step)
    assert rows.local(step)[:, 0].max() <= 0
    assert rows.decode.data_ptr() != rows.prefill.data_ptr()
    assert not rows.markers.taken


def test_a_graph_that_would_freeze_the_parting_row_is_not_captured():
    workspace = Workspace()
    rows = index_rows("c128a_topk_shared")
    mixed, decodes = some_step(20, 6), some_step(20, 20)
    for step in (mixed, decodes):
        rows.build(step, workspace)
    workspace.lock()
    with pytest.raises(CaptureError, match="6 decode and 14 prefill rows"):
        capture(lambda: rows.build(mixed, workspace), "cpu")
    replay = capture(lambda: rows.build(decodes, workspace), "cpu")
    decodes.positions.copy_(some_step(20, 20, seed=5).positions)
    decodes.visible[32].copy_((decodes.positions + 1) // 32)
    rows.decode.fill_(3)
    replay.run()
    assert [[s for s in row if s >= 0] for row in rows.decode[:20].tolist()] == by_token(decodes)


def workload() -> list:
    prompts = [*random_prompts(6, 90, seed=3), *random_prompts(1, 1, seed=4)]
    prompts.append([7 * i % 95 for i in range(150)])
    return [make_request(p, max_tokens=9, logprobs=3) for p in prompts]


def outcome(toggles: str, **how: object) -> tuple[Runner, list[list[int]], list[object]]:
    """Tokens and logprobs to the last bit: prompts cut into chunks beside decodes, over pages that hold NaN."""
    runner = boot_runner(TWO, toggles=toggles, **how)
    for tensor in runner.pool.values():
        tensor[:, 1:].fill_(0xFF)
    requests = workload()
    logs: list[object] = []
    step = runner.step
    runner.step = lambda: [logs.append(e.logprobs) or e for e in step()]  # type: ignore[method-assign,func-returns-value]
    return runner, generate(runner, requests, every=1), logs


@pytest.fixture(scope="module")
def baseline():
    return outcome("")


@pytest.mark.parametrize("toggles", [*MEMORY, ALL])
def test_a_toggle_changes_no_bit_of_tokens_and_logprobs(baseline, toggles):
    runner, tokens, logs = outcome(toggles)
    assert tokens == baseline[1]
    assert logs == baseline[2]
    assert all(runner.markers.taken[name] > 0 for name in toggles.split(","))
    assert not any(runner.markers.refused.values())


def test_replayed_rounds_over_the_shared_buffer_give_the_tokens_of_eager(baseline):
    runner, tokens, _ = outcome(ALL, eager=False, capture="rounds")
    assert tokens == baseline[1]
    assert runner.target_replay is not None
    assert sum(g["replays"] for g in runner.target_replay.graphs.report()["graphs"].values()) > 0


@pytest.mark.parametrize("control", ["c128_double_map", "c128_row_corrupt:4"])
@pytest.mark.parametrize("beside", ["", ALL])
def test_controls_change_tokens(baseline, control, beside):
    runner, tokens, _ = outcome(",".join(filter(None, [control, beside])))
    assert tokens != baseline[1]
    assert runner.markers.taken[control.partition(":")[0]] > 0


@pytest.mark.parametrize("name", ["c128a_topk_shared", "c128_indices_in_place"])
def test_a_deleted_branch_leaves_no_marker_and_no_saving(monkeypatch, name):
    real = IndexRows.__init__

    def without(self, dims, toggles, *args, **kwargs):
        kept = [t for t in toggles.names() if t != name]
        real(self, dims, ToggleSet(kept), *args, **kwargs)

    monkeypatch.setattr(IndexRows, "__init__", without)
    runner, base = boot_runner(toggles=name), boot_runner()
    assert runner.markers.taken[name] == 0
    figures = [(r.resident_bytes, r.profile.runtime_peak_bytes) for r in (runner, base)]
    assert figures[0] == figures[1]


def figures(toggles: str, dims: Dims) -> dict[str, int]:
    runner = Runner(EngineConfig(dims, ToggleSet.parse(toggles), 1 << 28, load_format="dummy"), Handshake(None))
    names = ("persistent_bytes", "workspace_bytes", "peak_activation_bytes", "runtime_peak_bytes")
    known = {name: getattr(runner.profile, name) for name in names}
    return {**known, "resident_bytes": runner.resident_bytes, "maps": runner.index_maps_per_step}


@pytest.mark.parametrize("dims", [TWO, PICO.with_changes(max_num_batched_tokens=100)], ids=["two", "T=100"])
def test_each_toggle_saves_exactly_its_bytes_where_they_live_and_moves_no_line(dims):
    base = figures("", dims)
    total = dict.fromkeys(base, 0)
    for name in MEMORY:
        new, toggle = figures(name, dims), REGISTRY[name]
        change = {key: new[key] - base[key] for key in base if new[key] != base[key]}
        wanted = {toggle.primary.removeprefix("kv."): -toggle.expected_bytes(dims)}
        if name == "c128_indices_in_place" and base["maps"] > 1:
            wanted["maps"] = 1 - base["maps"]
        assert change == wanted
        total = {key: total[key] + change.get(key, 0) for key in total}
    together = figures(ALL, dims)
    assert {key: together[key] - base[key] for key in base} == total


def test_leak_shows_in_what_stays_and_slow_step_takes_longer(monkeypatch):
    leaked, base = figures("leak:4096", TWO), figures("", TWO)
    assert leaked["resident_bytes"] - base["resident_bytes"] == 2 * 4096
    slept: list[float] = []
    clock = iter([10.0, 12.0])
    monkeypatch.setattr(faults, "time", SimpleNamespace(sleep=slept.append, perf_counter=lambda: next(clock)))
    markers = Markers()
    with Faults(ToggleSet.parse("slow_step:25"), markers, "cpu").around_step():
        pass
    assert slept == [0.5]
    assert markers.taken["slow_step"] == 1


def test_without_dense_layers_the_toggles_are_inert_and_say_so():
    dims = PICO.with_changes(compress_ratios=(0, 4, 4, 4))
    runner = boot_runner(dims, toggles="c128a_topk_shared,c128_indices_in_place")
    assert runner.index_rows is None
    for name in ("c128a_topk_shared", "c128_indices_in_place"):
        assert "inert" in next(iter(runner.markers.refused[name]))
    assert runner.index_maps_per_step == 0
