"""A tape gives the bits of eager, reads nothing it did not write, and refuses what it cannot replay."""

from __future__ import annotations

import random
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from torch import Tensor

from impl.engine.arena import Arena
from impl.engine.graphs import CaptureError, GraphCache, GraphPool, capture
from impl.engine.step import Step, build_step
from impl.engine.tape import record
from impl.handshake import Markers
from impl.model.streams import Seam, Streams
from impl.ops import mhc
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet
from tests.impl.engine.engines import boot_runner
from tests.impl.engine.programs import PROGRAMS, Buffers, assert_same, chain, run_program
from tests.impl.ops.test_mhc import head_weights, pending, seam_weights

HIDDEN = 64
MEMORY_TOGGLES = "mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse"


# --- the bits of eager -------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(program=PROGRAMS)
def test_random_programs_replay_bit_for_bit(program):
    eager, captured = Buffers(), Buffers()
    eager.refill(0), captured.refill(0)
    replay = capture(lambda: run_program(program, captured), "cpu")
    assert_same(captured.all(), eager.all())
    for seed in (0, 1, 2):
        eager.refill(seed), captured.refill(seed)
        for _ in range(2):
            assert replay.poison is not None
            replay.poison()
            assert_same(replay.run(), run_program(program, eager))
            assert_same(captured.all(), eager.all())


def refill(tensors: tuple[Tensor, ...], seed: int) -> None:
    for tensor, value in zip(tensors, pending(tensors[0].shape[0], HIDDEN, seed), strict=True):
        tensor.copy_(value)


def mhc_function(kind: str, args: tuple[Tensor, ...]) -> Any:
    residual, y, _, _ = args
    weights, head = seam_weights(HIDDEN), head_weights(HIDDEN)

    def post_head(out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        out, mean = torch.empty_like(y) if out is None else out, torch.empty_like(y)
        mhc.post_head(*args, head, out, mean)
        return out, mean

    return {
        "seam": lambda: mhc.seam(*args, weights),
        "residual reuse": lambda: mhc.seam(*args, weights, residual_out=residual),
        "input reuse": lambda: mhc.seam(*args, weights, input_out=y),
        "both": lambda: mhc.seam(*args, weights, residual_out=residual, input_out=y),
        "pre": lambda: mhc.pre(residual, weights),
        "post_head": post_head,
        "post_head into y": lambda: post_head(y),
    }[kind]


@pytest.mark.parametrize("n", [4, 17, 300])
@pytest.mark.parametrize(
    "kind", ["seam", "residual reuse", "input reuse", "both", "pre", "post_head", "post_head into y"]
)
def test_mhc_replays_bit_for_bit(kind, n):
    eager, captured = pending(n, HIDDEN), pending(n, HIDDEN)
    replay = capture(mhc_function(kind, captured), "cpu")
    for seed in (3, 4):
        refill(eager, seed)
        refill(captured, seed)
        assert replay.poison is not None
        replay.poison()
        with torch.no_grad():
            assert_same(replay.run(), mhc_function(kind, eager)())
        assert_same(captured, eager)


def copy_step(target: Any, source: Any) -> None:
    """Copy every tensor of a step into the one the graph reads."""
    if isinstance(target, Tensor):
        target.copy_(source)
    elif isinstance(target, dict):
        assert target.keys() == source.keys()
        for key in target:
            copy_step(target[key], source[key])
    elif is_dataclass(target):
        for field in fields(target):
            copy_step(getattr(target, field.name), getattr(source, field.name))


@pytest.mark.parametrize(("toggles", "n", "phase"), [("", 4, 1), (MEMORY_TOGGLES, 4, 31), (MEMORY_TOGGLES, 20, 2)])
def test_the_target_replays_bit_for_bit(toggles, n, phase):
    """Decode rows: none completes a compressed entry, each completes one of every ratio, more than the small path."""
    runner = boot_runner(toggles=toggles)
    rng = random.Random(n)
    for table in runner.tables.tables.values():
        table.copy_(torch.tensor([rng.randrange(1, runner.n_blocks) for _ in range(table.numel())]).view_as(table))

    def step_of(seed: int) -> Step:
        rng = random.Random(seed)
        ids = [rng.randrange(95) for _ in range(n)]
        positions = [32 * rng.randrange(1, 40) + phase for _ in range(n)]
        rows = [i % runner.dims.max_num_seqs for i in range(n)]
        step = build_step(ids, positions, rows, n, runner.tables.tables, runner.page_shape, runner.device)
        step.max_position = None  # a Python number: the graph must reach as far as any replay
        return step

    gen = torch.Generator().manual_seed(0)
    before = {
        bucket: torch.randint(0, 120, pages.shape, generator=gen).to(torch.uint8)
        for bucket, pages in runner.pool.items()
    }
    for bucket, pages in runner.pool.items():
        pages.copy_(before[bucket])
    static = step_of(0)
    cache = GraphCache("cpu", runner.markers)
    counts = dict(runner.markers.taken)
    replay = cache.get_or_capture(n, lambda: runner.target.forward(static, runner.pages))
    assert runner.markers.taken == counts
    assert_same(runner.pool.values(), before.values())
    for seed in (1, 2):
        step = step_of(seed)
        eager = runner.target.forward(step, runner.pages)
        written = {bucket: pages.clone() for bucket, pages in runner.pool.items()}
        taken = {name: count - counts.get(name, 0) for name, count in runner.markers.taken.items()}
        for bucket, pages in runner.pool.items():
            pages.copy_(before[bucket])
        copy_step(static, step)
        assert replay.poison is not None
        replay.poison()
        counts = dict(runner.markers.taken)
        out = replay.run()
        assert_same([out.hidden, *out.aux], [eager.hidden, *eager.aux])
        assert_same(runner.pool.values(), written.values())
        assert {name: count - counts.get(name, 0) for name, count in runner.markers.taken.items()} == taken
        counts = dict(runner.markers.taken)
        for bucket, pages in runner.pool.items():
            pages.copy_(before[bucket])
    if toggles:
        assert taken["mhc_final_fused"] > 0
        assert (taken.get("mhc_residual_reuse", 0) > 0) == (n > 16)


def test_integer_and_empty_results_replay():
    x = torch.randn(5, 4)

    def fn() -> tuple[Tensor, Tensor, Tensor]:
        empty = x[:0] @ x.t()
        return torch.cat([empty, x @ x.t()]), x[:, :0] @ x[:, :0].t(), torch.argsort(x, dim=1)

    replay = capture(fn, "cpu")
    x.normal_()
    assert_same(replay.run(), fn())


def test_operations_without_an_out_overload_replay():
    x = torch.randn(8, 8)

    def fn() -> list[Tensor]:
        attended = F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])
        experts = torch._grouped_mm(
            x.bfloat16(), x.bfloat16().expand(2, 8, 8).contiguous(), torch.tensor([3, 8], dtype=torch.int32)
        )
        return [attended, experts, *torch._foreach_add([x, x.t()], 1.0)]

    replay = capture(fn, "cpu")
    x.normal_()
    assert replay.poison is not None
    replay.poison()
    assert_same(replay.run(), fn())


def test_an_out_overload_with_other_bits_is_not_used():
    library = torch.library.Library("dsbench_test", "FRAGMENT")
    library.define("twice(Tensor x) -> Tensor")
    library.define("twice.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
    library.impl("twice", lambda x: x * 2, "CPU")
    library.impl("twice.out", lambda x, out: out.copy_(x * 2.0000005), "CPU")
    x = torch.randn(64)
    replay = capture(lambda: torch.ops.dsbench_test.twice(x), "cpu")
    assert_same([replay.run()], [x * 2])


def test_lazy_conjugates_replay():
    x = torch.randn(4, 4, dtype=torch.complex64)

    def fn() -> Tensor:
        z = x * 2
        return z.conj().t() @ z

    replay = capture(fn, "cpu")
    x.mul_(1j)
    x[0] += 1
    assert_same([replay.run()], [fn()])


def test_views_and_allocations_are_not_replayed():
    x = torch.randn(4, 4)
    tape = record(lambda: torch.empty(4, 4).copy_(x.t()[1:].reshape(-1)[:4].expand(4, 4)), Arena())
    assert [str(step.op) for step in tape.steps] == ["aten.copy_.default", "aten.copy_.default"]


def test_workspace_memory_is_used_where_it_is():
    workspace, x = Workspace(), torch.randn(4, 8)

    def fn() -> Tensor:
        with workspace.scope():
            squares = torch.mul(x, x, out=workspace.empty((4, 8), torch.float32))
            return squares.sum(1)

    fn()
    workspace.lock()
    replay = capture(fn, "cpu")
    assert replay.memory.temporaries_bytes == 16
    x.normal_()
    assert_same([replay.run()], [fn()])


# --- memory ------------------------------------------------------------------------------------


def test_temporaries_share_an_arena_of_the_planned_size():
    x = torch.randn(64, 16)
    replay = capture(lambda: chain(x), "cpu", pool=(pool := GraphPool("cpu")))
    one = x.nbytes
    assert replay.memory.temporaries_bytes == 8 * one
    assert replay.memory.eager_peak_bytes == 2 * one
    assert pool.nbytes == replay.memory.replay_bytes == replay.memory.pool_added_bytes == 2 * one


def test_outputs_stay_distinct():
    x = torch.randn(16, 16)
    replay = capture(lambda: [chain(x, 1), chain(x, 2), chain(x, 3)], "cpu")
    assert len({out.data_ptr() for out in replay.outputs}) == 3
    assert replay.memory.replay_bytes == 4 * x.nbytes
    assert_same(replay.run(), [chain(x, 1), chain(x, 2), chain(x, 3)])


def test_a_view_keeps_its_base_alive():
    x = torch.randn(16, 16)

    def fn() -> Tensor:
        tail = (x * 2.0)[8:]
        other = chain(x)
        return tail + other[8:]

    replay = capture(fn, "cpu")
    assert replay.poison is not None
    replay.poison()
    assert_same([replay.run()], [fn()])


def test_replay_allocates_nothing_that_lasts():
    x = torch.randn(16, 16)
    replay = capture(lambda: chain(x), "cpu")
    first = replay.run()
    assert replay.run() is first
    assert first.data_ptr() == replay.outputs.data_ptr()


def test_a_seam_sees_its_tensors_as_private_storage():
    """Reuse asks for private dense storage and for reference counts: they must read as in eager."""
    weights, markers = seam_weights(HIDDEN), Markers()
    seam = Seam(weights, ToggleSet.parse("mhc_residual_reuse,mhc_input_reuse"), markers, Workspace())
    inputs = pending(40, HIDDEN)

    def fn() -> list[Tensor]:
        streams = Streams(inputs[0].clone(), inputs[2].clone(), inputs[3].clone(), inputs[1].clone())
        (layer_input,) = seam(streams)
        streams.y = layer_input * 2
        del layer_input
        (layer_input,) = seam(streams)
        return [streams.residual, layer_input]

    replay = capture(fn, "cpu", markers=markers)
    assert markers.to_json() == {}
    expected = [tensor.clone() for tensor in replay.run()]
    both = {name: {"taken": 2, "refused": {}, "skipped": {}} for name in ("mhc_input_reuse", "mhc_residual_reuse")}
    assert markers.to_json() == both
    assert_same(fn(), expected)


# --- refusals ----------------------------------------------------------------------------------

X = torch.arange(6.0)
REFUSED = {
    "item": (lambda: X[0].item(), "aten._local_scalar_dense.default reads values on the host"),
    "branch": (lambda: X * 2 if X.sum() > 0 else X, "aten._local_scalar_dense.default reads values on the host"),
    "equal": (lambda: torch.equal(X, X), "aten.equal.default reads values on the host"),
    "tolist": (lambda: (X + 1).tolist(), "Tensor.tolist reads values on the host"),
    "numpy": (lambda: (X + 1).numpy(), "Tensor.numpy reads values on the host"),
    "nonzero": (lambda: X.nonzero(), "aten.nonzero.default has a shape that depends on data"),
    "masked_select": (lambda: X.masked_select(X > 1), "aten.masked_select.default has a shape"),
    "mask": (lambda: X[X > 1], "aten.index.Tensor indexes by a mask"),
    "mask store": (lambda: X.clone().index_put_((X > -1,), X), "aten.index_put_.default indexes by a mask"),
    "unique": (lambda: torch.unique(X), "aten._unique2.default has a shape that depends on data"),
    "repeat": (lambda: X.repeat_interleave(X.long()), "aten.repeat_interleave.Tensor has a shape"),
    "rand": (lambda: X + torch.rand(6), "aten.rand.default draws random numbers"),
    "normal_": (lambda: X.clone().normal_(), "aten.normal_.default draws random numbers"),
    "dropout": (lambda: F.dropout(X, 0.5), "draws random numbers"),
    "multinomial": (lambda: torch.multinomial(X, 1), "aten.multinomial.default draws random numbers"),
    "resize_": (lambda: X.clone().resize_(3), "aten.resize_.default moves or resizes a storage"),
    "empty out": (lambda: torch.add(X, 1, out=torch.empty(0)), "aten.add.out resizes its out= tensor"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_replay_is_refused_by_name_and_line(name):
    fn, message = REFUSED[name]
    with pytest.raises(CaptureError) as error:
        capture(fn, "cpu")
    assert message in str(error.value)
    line = next(i for i, text in enumerate(Path(__file__).read_text().splitlines(), 1) if f'    "{name}": (' in text)
    assert f"{Path(__file__).name}:{line} <lambda>" in str(error.value)


def test_a_scalar_stored_through_a_mask_is_allowed():
    x = torch.randn(6)

    def fn() -> Tensor:
        y = x.clone()
        y[x > 0] = -1.0
        return y

    replay = capture(fn, "cpu")
    x.normal_()
    assert_same([replay.run()], [fn()])


def test_a_python_number_that_changes_is_refused():
    x, steps = torch.randn(4), []

    def fn() -> Tensor:
        steps.append(1)
        return x + len(steps)

    with pytest.raises(CaptureError, match="with the same Python numbers"):
        capture(fn, "cpu")


@pytest.mark.parametrize(
    ("turn", "message"), [(2, "replay differs from eager in result 0"), (4, "was not what the run before did here")]
)
def test_a_function_that_takes_turns_is_refused(turn, message):
    x, steps = torch.randn(4), []

    def fn() -> Tensor:
        steps.append(1)
        return x + 1 if len(steps) % turn else x * 2

    with pytest.raises(CaptureError, match=message):
        capture(fn, "cpu")


def test_reading_memory_that_was_never_written_is_refused_and_leaves_no_trace():
    x, buffer = torch.randn(4096), torch.zeros(4)

    def fn() -> Tensor:
        buffer.add_(1)
        y = torch.empty(4096)
        y[:100] = x[:100]
        return y

    with pytest.raises(CaptureError, match=r"replay differs from eager in result 0 \(float32 \[4096\]\)"):
        capture(fn, "cpu")
    assert not buffer.any()


def test_an_error_of_the_function_leaves_buffers_and_markers_as_they_were():
    buffer, markers = torch.zeros(4), Markers()

    def fn() -> Tensor:
        buffer.add_(1)
        markers.take("mhc_final_fused")
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(fn, "cpu", markers=markers)
    assert not buffer.any()
    assert markers.taken["mhc_final_fused"] == 0
