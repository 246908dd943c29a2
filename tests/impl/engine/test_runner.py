"""The engine over the real target: a request's tokens are its own, however it is scheduled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from impl.dims import PICO
from impl.engine.request import Request
from impl.engine.runner import EngineConfig, Runner, TokenEvent, check_weights
from impl.handshake import Handshake
from impl.model.weights import random_weights, save_weights
from impl.toggles import ToggleSet
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

PARAMS = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 11},
    {"temperature": 0.7, "top_k": 7, "seed": 12},
    {"temperature": 1.3, "top_p": 0.8, "seed": 2**63 + 5},
    {"temperature": 0.0, "max_tokens": 30},
    {"temperature": 1.0, "top_k": 20, "top_p": 0.9, "seed": 0, "max_tokens": 25},
]
PROMPTS = random_prompts(len(PARAMS), 150, seed=3)


def requests() -> list[Request]:
    return [make_request(prompt, **params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]


@pytest.fixture(scope="module")
def runner() -> Runner:
    return boot_runner()


@pytest.fixture(scope="module")
def alone(runner: Runner) -> list[list[int]]:
    """Each request by itself, in the largest chunks: what all other schedules must repeat."""
    return [generate(runner, [request])[0] for request in requests()]


def test_requests_differ_and_are_not_trivial(alone: list[list[int]]) -> None:
    assert [len(tokens) for tokens in alone] == [12, 12, 12, 12, 30, 25]
    assert len({tuple(tokens[:12]) for tokens in alone}) == len(alone)
    assert len(set(alone[5])) > 5


@pytest.mark.parametrize("every", [0, 1, 3])
def test_a_batch_gives_each_request_the_tokens_it_gets_alone(
    runner: Runner, alone: list[list[int]], every: int
) -> None:
    assert generate(runner, requests(), every) == alone
    order = [3, 0, 5, 1, 4, 2]
    shuffled = [requests()[i] for i in order]
    assert generate(runner, shuffled, every) == [alone[i] for i in order]


@pytest.mark.parametrize("budget", [1, 7, 17, 64])
def test_chunks_of_any_budget_give_the_same_tokens(alone: list[list[int]], budget: int) -> None:
    runner = boot_runner(PICO.with_changes(max_num_batched_tokens=budget))
    some = slice(2, 3) if budget == 1 else slice(None)
    assert generate(runner, requests()[some], every=2) == alone[some]


def test_preemption_in_a_small_pool_changes_no_token(runner: Runner) -> None:
    """Short prompts start small and grow: the pool holds one of the four at its full window."""
    grown = [{"max_tokens": 36, **PARAMS[i]} for i in range(4)]

    def wanted() -> list[Request]:
        return [make_request([7 * i + 1, 5, 9 + i], **params) for i, params in enumerate(grown)]

    expected = [generate(runner, [request])[0] for request in wanted()]
    small = boot_runner()
    small.n_blocks = 50
    small.allocate_pages()
    requests = wanted()
    assert generate(small, requests, every=1) == expected
    assert small.scheduler.n_preemptions >= 3
    assert sum(request.n_preemptions for request in requests) == small.scheduler.n_preemptions


def test_stale_pages_of_others_are_never_read(alone: list[list[int]]) -> None:
    """A pool full of NaN patterns, the null block too: unwritten entries must not leak into any row."""
    runner = boot_runner()
    for tensor in runner.pool.values():
        tensor.fill_(0xFF)
    assert generate(runner, requests()) == alone


def test_toggles_change_no_token(alone: list[list[int]]) -> None:
    toggles = "mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse"
    runner = boot_runner(toggles=toggles)
    assert generate(runner, requests(), every=1) == alone
    assert all(runner.markers.taken[name] > 0 for name in toggles.split(","))


def test_contexts_up_to_the_last_position(runner: Runner) -> None:
    """The workspace is locked at the profile's size: the longest context with full batches must fit in it."""
    longest = random_prompts(1, 1, seed=1)[0] * (PICO.max_model_len - 8)
    fillers = [make_request(prompt, max_tokens=20) for prompt in random_prompts(7, 40, seed=8)]
    outputs = generate(runner, [make_request(longest, max_tokens=8), *fillers])
    assert [len(tokens) for tokens in outputs] == [8] + [20] * 7


def test_every_request_at_a_completing_position_fits_the_workspace(runner: Runner) -> None:
    prompts = [[5] * (PICO.large_ratio - 1)] * 7 + [[5] * 1000]
    assert all(len(t) == 40 for t in generate(runner, [make_request(p, max_tokens=40) for p in prompts]))


def test_logprobs_are_those_of_the_model(runner: Runner) -> None:
    request = make_request(PROMPTS[0], temperature=1.0, seed=4, logprobs=3, max_tokens=5)
    runner.scheduler.add(request)
    events = iter_steps(runner)
    assert [event.token for event in events] == request.outputs
    for event in events:
        assert event.logprobs is not None
        assert len(event.logprobs.top) == 3
        values = [logprob for _, logprob in event.logprobs.top]
        assert values == sorted(values, reverse=True)
        assert values[0] >= event.logprobs.chosen
        named = dict(event.logprobs.top)
        assert named.get(event.token, event.logprobs.chosen) == event.logprobs.chosen
    greedy = make_request(PROMPTS[0], logprobs=0, max_tokens=1)
    runner.scheduler.add(greedy)
    (event,) = [event for event in iter_steps(runner) if event.token is not None]
    assert event.logprobs is not None
    assert event.logprobs.top == ()
    assert event.token == events[0].logprobs.top[0][0]  # type: ignore[union-attr]


def iter_steps(runner: Runner) -> list[TokenEvent]:
    events = []
    while runner.scheduler.has_work:
        events += runner.step()
    return events


def test_an_error_in_a_step_ends_its_requests_and_frees_their_blocks(
    runner: Runner, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    doomed = requests()[:2]
    for request in doomed:
        runner.scheduler.add(request)
    runner.step()
    with monkeypatch.context() as patch:
        patch.setattr(runner.target, "forward", lambda *_: (_ for _ in ()).throw(RuntimeError("planted")))
        events = runner.step()
    assert {event.request for event in events} == set(doomed)
    assert all(event.finish_reason == "error" and "planted" in event.error for event in events)
    assert not runner.scheduler.has_work
    assert generate(runner, requests()) == alone


def test_boot_writes_the_files_and_the_figures_add_up(tmp_path: Path) -> None:
    budget = 16 << 20
    runner = boot_runner(budget=budget, toggles="mhc_input_reuse", handshake=Handshake(tmp_path))
    conditions, profile, markers = (
        json.loads((tmp_path / f"{name}.rank0.json").read_text()) for name in ("conditions", "kv_profile", "markers")
    )
    assert conditions["weights"] == "dummy:0"
    assert conditions["toggles"] == list(ToggleSet.parse("mhc_input_reuse").names())
    assert conditions["graph_mode"] == "eager"
    assert profile["graph_bytes"] == 0
    assert conditions["batch_invariant"] is True
    assert conditions["requested_bytes"] == budget
    parts = ("weights_bytes", "persistent_bytes", "workspace_bytes", "peak_activation_bytes", "available_bytes")
    assert sum(profile[part] for part in parts) == profile["requested_bytes"] == budget
    assert profile["non_torch_bytes"] is None
    assert profile["blocks"] == profile["available_bytes"] // profile["block_bytes"] == runner.n_blocks
    assert profile["tokens"] == int(profile["blocks"] / profile["blocks_per_max_request"] * profile["max_model_len"])
    assert sum(tensor["bytes"] for tensor in profile["peak"]) == profile["peak_activation_bytes"]
    assert markers["toggles"]["mhc_input_reuse"]["taken"] > 0


def test_input_reuse_gives_back_exactly_its_bytes() -> None:
    for dims in (PICO, PICO.with_changes(max_num_batched_tokens=128, hidden_size=128)):
        bytes_free = [boot_runner(dims, toggles=name).profile.available_bytes(0) for name in ("", "mhc_input_reuse")]
        assert bytes_free[1] - bytes_free[0] == dims.max_num_batched_tokens * dims.hidden_size * 2


def test_weights_of_another_shape_are_refused_by_the_header(tmp_path: Path) -> None:
    path = tmp_path / "pico.safetensors"
    save_weights(path, random_weights(PICO), PICO)
    config = EngineConfig(PICO, ToggleSet(), 16 << 20, weights=path)
    check_weights(config)
    wider = PICO.with_changes(hidden_size=128, max_num_batched_tokens=32)
    with pytest.raises(ValueError, match=r"hidden_size is 128, but the weights pico.safetensors have 64: use --load"):
        check_weights(EngineConfig(wider, ToggleSet(), 16 << 20, weights=path))
    with pytest.raises(ValueError, match="does not hold the weights alone"):
        check_weights(EngineConfig(PICO, ToggleSet(), 1000, weights=path))
    with pytest.raises(ValueError, match="no weights at"):
        check_weights(EngineConfig(PICO, ToggleSet(), 16 << 20, weights=tmp_path / "none"))
    path.write_bytes(b"not weights")
    with pytest.raises(ValueError, match="not a readable weights file"):
        check_weights(config)


def test_file_weights_give_the_tokens_of_the_same_dummy_weights(tmp_path: Path, alone: list[list[int]]) -> None:
    path = tmp_path / "pico.safetensors"
    save_weights(path, random_weights(PICO, 0), PICO)
    runner = Runner(EngineConfig(PICO, ToggleSet(), 16 << 20, weights=path), Handshake(None))
    runner.allocate_pages()
    assert generate(runner, requests()[:2]) == alone[:2]


def test_a_budget_without_room_for_pages_is_refused_with_the_bytes_it_takes() -> None:
    with pytest.raises(ValueError, match=r"leaves -?\d+ bytes for KV pages, one token needs \d+: give at least (\d+)"):
        boot_runner(budget=3 << 20)


def test_batch_invariance_is_measured_and_not_assumed(monkeypatch: pytest.MonkeyPatch) -> None:
    from impl.engine import build as module

    weights = random_weights(PICO)
    assert module.batch_invariant(weights, PICO, torch.device("cpu"))
    monkeypatch.setattr(module, "linear", lambda x, w, workspace: x.float() @ w.T + 1e-3 * len(x))
    assert not module.batch_invariant(weights, PICO, torch.device("cpu"))


def test_a_model_length_below_one_compressed_entry_is_refused() -> None:
    with pytest.raises(ValueError, match="--max-model-len 31 is shorter than one compressed entry: give at least 32"):
        boot_runner(PICO.with_changes(max_model_len=31))
