"""Whole decode steps replayed: the tokens of eager in every mix of requests; beside the graph only copies."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from impl.dims import PICO
from impl.engine.config import EngineConfig
from impl.engine.graphs import Replay
from impl.engine.request import Request
from impl.engine.runner import Runner
from impl.engine.step_replay import CHANGES, StepReplay
from impl.toggles import ToggleSet
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

SMALL = PICO.with_changes(max_num_seqs=4)
TOGGLES = "mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse,dflash_staging_skip,q_in_place"
PROMPTS = random_prompts(6, 150, seed=3)
MOVES = {"copy_", "slice", "view", "select", "clone", "lift_fresh", "_to_copy", "alias", "detach", "empty", "unbind"}


def requests(**params: Any) -> list[Request]:
    return [make_request(prompt, max_tokens=30 - 3 * i, **params) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    engine = boot_runner(SMALL)
    return [generate(engine, [request])[0] for request in requests()]


@pytest.fixture(scope="module")
def none() -> Runner:
    return boot_runner(SMALL, eager=False, capture="steps")


@pytest.fixture(scope="module")
def dspark() -> Runner:
    return boot_runner(SMALL, eager=False, capture="steps", speculative="dspark", toggles=TOGGLES)


@pytest.fixture
def engine(request: pytest.FixtureRequest) -> Runner:
    runner: Runner = request.getfixturevalue(request.param)
    return runner


both = pytest.mark.parametrize("engine", ["none", "dspark"], indirect=True)


def replay_of(runner: Runner) -> StepReplay:
    assert runner.step_replay is not None
    return runner.step_replay


def replays(runner: Runner) -> dict[str, int]:
    return {key: graph["replays"] for key, graph in replay_of(runner).graphs.report()["graphs"].items()}


def informed(runner: Runner, waiting: Sequence[Request], right: float, every: int) -> list[list[int]]:
    """Outputs of greedy requests whose drafts are put right with probability `right` each.

    An untrained draft is never accepted, so what follows an acceptance would not be seen. One arrives every `every`
    steps.
    """
    texts = [generate(boot_runner(SMALL), [make_request(r.prompt, max_tokens=r.sampling.max_tokens)])[0]
             for r in waiting]  # fmt: skip
    rng, pending, step = random.Random(0), list(waiting), 0
    while pending or runner.scheduler.has_work:
        while pending and step >= every * (len(waiting) - len(pending)):
            runner.scheduler.add(pending.pop(0))
        runner.step()
        step += 1
        for request, text in zip(waiting, texts, strict=True):
            true = text[len(request.outputs) : len(request.outputs) + len(request.drafts)]
            request.drafts[: len(true)] = [t if rng.random() < right else (t + 1) % PICO.vocab_size for t in true]
    return [request.outputs for request in waiting]


@pytest.mark.parametrize(("right", "every"), [(1.0, 0), (0.7, 2), (0.3, 1)])
def test_greedy_tokens_are_those_of_eager_whatever_is_accepted(
    dspark: Runner, plain: list[list[int]], right: float, every: int
) -> None:
    assert dspark.rounds is not None
    before = dspark.rounds.counts
    assert informed(dspark, requests(), right, every) == plain
    counts = dspark.rounds.counts.since(before)
    assert (counts.accepted == counts.drafted) == (right == 1.0)
    assert counts.accepted > 0


def test_without_drafts_the_tokens_are_those_of_eager_too(none: Runner, plain: list[list[int]]) -> None:
    assert generate(none, requests(), every=2) == plain
    assert replays(none)["(1, True)"] > 0
    assert replays(none)["(4, True)"] > 0


@both
def test_sampled_and_cut_requests_draw_the_tokens_of_eager_beside_greedy_ones(engine: Runner) -> None:
    def wanted() -> list[Request]:
        ways = [{"temperature": 1.0}, {}, {"temperature": 0.7, "top_k": 5}, {"temperature": 1.3, "top_p": 0.6}]
        found = [
            make_request(p, seed=(1 << 64) - 1 - i, max_tokens=9 + i, **ways[i % 4]) for i, p in enumerate(PROMPTS)
        ]
        return [*found, make_request(PROMPTS[0], max_tokens=5, top_k=3)]

    before = replays(engine)
    eager = boot_runner(SMALL, speculative=engine.config.speculative, toggles=",".join(engine.config.toggles.names()))
    assert generate(engine, wanted(), every=1) == generate(eager, wanted(), every=1)
    assert sum(replays(engine).values()) - sum(before.values()) > 10


@both
def test_logprobs_are_those_of_eager(engine: Runner) -> None:
    found = []
    eager = boot_runner(SMALL, speculative=engine.config.speculative)
    for runner in (engine, eager):
        for i, n_top in enumerate((3, None, 0)):
            runner.scheduler.add(make_request(PROMPTS[i], max_tokens=8, logprobs=n_top))
        events = []
        while runner.scheduler.has_work:
            events += runner.step()
        found.append([(event.token, event.logprobs) for event in events])
    assert found[0] == found[1]
    assert sum(logs is not None for _, logs in found[0]) == 16


@both
def test_contexts_up_to_the_last_position(engine: Runner) -> None:
    def wanted() -> list[Request]:
        return [
            make_request([5, 9] * (PICO.max_model_len // 2 - 5), max_tokens=10),
            make_request([3] * 40, max_tokens=30),
        ]

    assert generate(engine, wanted()) == generate(boot_runner(SMALL), wanted())


def test_toggles_are_marked_at_each_replay(dspark: Runner) -> None:
    eager = boot_runner(SMALL, speculative="dspark", toggles=TOGGLES)
    counts = []
    for runner in (dspark, eager):
        before = runner.markers.taken.copy()
        generate(runner, [make_request(PROMPTS[1], max_tokens=12)])
        counts.append(runner.markers.taken - before)
    # An eager step leaves its draft out where nothing is to follow, so of the draft there may be fewer.
    of_target = ("mtp_hidden_skip", "mhc_final_fused")
    assert [counts[0][name] for name in of_target] == [counts[1][name] for name in of_target]
    assert counts[0].keys() == counts[1].keys()
    assert not counts[1] - counts[0]


class Operations(TorchDispatchMode):
    """Names of the operations that run while no graph is replayed."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()
        self.replaying = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self.replaying:
            self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Operations]:
    seen, run = Operations(), Replay.run

    def quiet(self: Replay) -> Any:
        seen.replaying = True
        try:
            return run(self)
        finally:
            seen.replaying = False

    monkeypatch.setattr(Replay, "run", quiet)
    with seen:
        yield seen


@both
def test_beside_a_graph_there_are_two_transfers_and_no_work(engine: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.scheduler.add(make_request(PROMPTS[0], max_tokens=20))
    engine.step()
    with watched(monkeypatch) as seen:
        engine.step()
    assert seen.counts.keys() <= MOVES, seen.counts
    # Of the lists into host memory: two blocks of integers and one of floats. Of the device: the input and the results.
    assert seen.counts["copy_"] == 5
    while engine.scheduler.has_work:
        engine.step()


def test_replays_read_nothing_that_they_have_not_written(dspark: Runner, plain: list[list[int]]) -> None:
    for key in replay_of(dspark).graphs.keys():  # noqa: SIM118
        replay = replay_of(dspark).graphs.get_or_capture(key, lambda: None)
        launch, poison = replay._launch, replay.poison
        assert poison is not None
        replay._launch = lambda launch=launch, poison=poison: (poison(), launch())  # type: ignore[misc]
    assert informed(dspark, requests(), 0.6, 1) == plain


def test_other_pages_and_padding_are_never_read(plain: list[list[int]]) -> None:
    runner = boot_runner(SMALL.with_changes(max_num_seqs=3), eager=False, capture="steps", speculative="dspark")
    for tensor in runner.pool.values():
        tensor[:, 1:].fill_(0xFF)
    assert informed(runner, requests()[:3], 0.6, 3) == plain[:3]


def test_draft_logits_in_an_attribute_are_stale_in_a_whole_step_and_hide_when_greedy(plain: list[list[int]]) -> None:
    off = "draft_logits_persistent=off"
    stale = boot_runner(SMALL, eager=False, capture="steps", speculative="dspark", toggles=off)
    assert informed(stale, requests()[:2], 0.6, 2) == plain[:2]
    assert "draft_logits_persistent" not in stale.markers.taken
    assert stale.rounds is not None

    def sampled() -> list[Request]:
        return [make_request(PROMPTS[0], temperature=1.0, seed=i, max_tokens=20) for i in range(4)]

    assert generate(stale, sampled()) != generate(boot_runner(SMALL, speculative="dspark", toggles=off), sampled())
    stale.scheduler.add(make_request(PROMPTS[1], temperature=1.0, max_tokens=30))
    stale.step()
    assigned = stale.rounds.draft_logits.values
    while stale.scheduler.has_work:
        stale.step()
    assert stale.rounds.draft_logits.values is assigned, "a replay runs no Python"


def test_a_step_with_a_prompts_chunk_is_not_replayed(none: Runner) -> None:
    before = sum(replays(none).values())
    generate(none, [make_request(PROMPTS[2], max_tokens=1)])
    assert sum(replays(none).values()) == before


def test_bytes_of_the_graphs_are_told(none: Runner) -> None:
    assert replay_of(none).nbytes > replay_of(none).graphs.pool.nbytes > 0


groups = st.integers(0, 4)
changed = st.dictionaries(st.tuples(groups, st.integers(0, 3), st.integers(0, 1)), st.integers(0, 50), max_size=40)


@settings(max_examples=60)
@given(st.lists(changed, min_size=1, max_size=4))
def test_changes_of_the_block_tables_enter_as_they_do_eagerly(none: Runner, batches: list[dict[Any, int]]) -> None:
    replay = replay_of(none)
    n_groups = len(none.geometry.groups)
    with torch.no_grad():
        before = none.tables.flat.clone()
        for batch in batches:
            batch = {key: block for key, block in batch.items() if key[0] < n_groups}
            expected = none.tables.flat.clone()
            for key, block in batch.items():
                expected[none.tables.places({key: block})[0]] = block
            replay._write_changes(batch)
            assert not batch
            replay._inputs.copy_(replay._host)
            replay._enter_blocks()
            assert torch.equal(none.tables.flat, expected)
        none.tables.flat.copy_(before)


def test_more_changes_than_a_step_takes_along_enter_before_it(none: Runner) -> None:
    width = next(len(table[0]) for name, table in none.tables.tables.items() if name == none.geometry.groups[-1].name)
    last = len(none.geometry.groups) - 1
    many = {(last, row, page): 7 for row in range(4) for page in range(width)}
    assert len(many) > CHANGES, "the shape is too small for this test"
    before = none.tables.flat.clone()
    places = none.tables.places(many)
    replay_of(none)._write_changes(many)
    assert not many
    assert (none.tables.flat[places] == 7).all()
    none.tables.flat.copy_(before)


def test_mtp_is_refused() -> None:
    with pytest.raises(ValueError, match="--capture steps goes with --speculative none or dspark"):
        EngineConfig(PICO, ToggleSet(), 1 << 24, speculative="mtp", capture="steps")
