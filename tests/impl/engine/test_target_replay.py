"""The target's decode rounds replayed: a step built on the device, and the tokens of eager with and without drafts."""

from __future__ import annotations

import pytest
import torch

from impl.dims import PICO
from impl.engine.config import EngineConfig
from impl.engine.runner import Runner
from impl.engine.step import Emission, decode_step
from impl.toggles import ToggleSet
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts
from tests.impl.engine.test_rounds import PROMPTS, informed, known, requests

FIRST = [0, 3, 29, 31, 62, 130]
N_ROWS = [6, 1, 4, 6, 0, 6]


@pytest.fixture(scope="module")
def runner() -> Runner:
    runner = boot_runner()
    for row, first in enumerate(FIRST):
        runner.blocks.grow(row, first + 6)
    runner.tables.apply(runner.blocks.changes)
    return runner


def test_a_step_built_on_the_device_is_the_hosts(runner: Runner) -> None:
    ids = torch.arange(36).view(6, 6) % 90
    rows = torch.arange(6)
    step = decode_step(ids, torch.tensor(FIRST), torch.tensor(N_ROWS), rows, runner.tables.tables, runner.page_shape)
    real = [(r, j) for r, n in enumerate(N_ROWS) for j in range(n)]
    host = runner._build(
        [int(ids[r, j]) for r, j in real], [FIRST[r] + j for r, j in real], [r for r, _ in real], len(real)
    )
    at = torch.tensor([r * 6 + j for r, j in real])
    for name in ("token_ids", "positions", "request_rows", "window_valid"):
        assert torch.equal(getattr(step, name)[at], getattr(host, name)), name
    for name in ("swa_slots", "window_slots", "state_slots", "visible"):
        own, theirs = getattr(step, name), getattr(host, name)
        assert own.keys() == theirs.keys()
        assert all(torch.equal(own[key][at], theirs[key]) for key in own), name
    padding = torch.tensor(sorted(set(range(36)) - set(at.tolist())))
    assert not step.window_valid[padding].any()
    for slots in (*step.swa_slots.values(), *step.state_slots.values()):
        assert not slots[padding].any()
    for ratio, emission in step.emissions.items():
        assert len(emission.rows) % 4 == 0
        assert not emission.slots[~emission.valid].any()
        assert entries(emission) == entries(host.emissions[ratio])


def entries(emission: Emission) -> list[tuple[object, ...]]:
    """By position and slot: the rows are numbered otherwise."""
    keep = emission.valid
    parts = (emission.positions, emission.slots, emission.source_slots, emission.source_valid)
    return sorted(zip(*(part[keep].tolist() for part in parts), strict=True), key=repr)


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    engine = boot_runner()
    return [generate(engine, [request])[0] for request in requests()]


@pytest.mark.parametrize("method", ["none", "dspark"])
@pytest.mark.parametrize("toggles", ["", "mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse"])
def test_replayed_rounds_give_the_tokens_of_eager(plain: list[list[int]], method: str, toggles: str) -> None:
    engine = boot_runner(speculative=method, eager=False, capture="rounds", toggles=toggles)
    for tensor in engine.pool.values():
        tensor[:, 1:].fill_(0xFF)
    if method == "dspark":
        engine = informed(engine, known(plain), 0.6)
    assert generate(engine, requests(), every=2) == plain
    assert engine.target_replay is not None
    replays = {key: graph["replays"] for key, graph in engine.target_replay.graphs.report()["graphs"].items()}
    assert all(n > 0 for n in replays.values()), replays
    assert all(engine.markers.taken[name] > 0 for name in filter(None, toggles.split(",")))


def test_sampled_requests_draw_the_same_and_long_contexts_too() -> None:
    def wanted() -> list[object]:
        sampled = [make_request(p, temperature=1.0, top_k=20, seed=i, max_tokens=12) for i, p in enumerate(PROMPTS)]
        return [*sampled, make_request(random_prompts(1, 1)[0] * (PICO.max_model_len - 9), max_tokens=9, logprobs=2)]

    engines = [boot_runner(speculative="dspark", eager=eager, capture="rounds") for eager in (True, False)]
    assert [e.target_replay is None for e in engines] == [True, False]
    found = [generate(engine, wanted(), every=1) for engine in engines]  # type: ignore[arg-type]
    assert found[0] == found[1]


def test_mtp_is_refused() -> None:
    with pytest.raises(ValueError, match="--capture rounds goes with --speculative none or dspark"):
        EngineConfig(PICO, ToggleSet(), 1 << 24, speculative="mtp", capture="rounds")
