"""Speculation over the real target: the same greedy tokens, however many drafts are right; no trace of others."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from impl.dims import PICO
from impl.engine.request import Request
from impl.engine.runner import Runner
from impl.engine.step import Step, state_group
from impl.ops.packed_kv import PageRows
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

PROMPTS = random_prompts(6, 150, seed=3)
METHODS = ("dspark", "mtp")


def requests(n_out: int = 30) -> list[Request]:
    return [make_request(prompt, max_tokens=n_out - 3 * i) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    """Outputs without speculation, each request alone."""
    runner = boot_runner()
    return [generate(runner, [request])[0] for request in requests()]


@pytest.fixture(scope="module")
def runners() -> dict[str, Runner]:
    return {method: boot_runner(speculative=method) for method in METHODS}


def informed(runner: Runner, texts: dict[tuple[int, ...], list[int]], right: float, seed: int = 0) -> Runner:
    """The runner with drafts that are right with probability `right` each: its own pass runs, and is overruled.

    An untrained draft is never accepted, so what follows an acceptance would not be seen.
    """
    assert runner.rounds is not None
    rng = random.Random(seed)
    own: Callable[..., Tensor | None] = type(runner.rounds.proposer).propose.__get__(runner.rounds.proposer)

    def propose(plan: Any, step: Any, output: Any, keep: Tensor, emitted: Tensor, rows: Any, round_: Any) -> Any:
        drafts = own(plan, step, output, keep, emitted, rows, round_)
        if drafts is None:
            return None
        for place, chunk in enumerate(rows.sampled[i] for i in round_.of_chunk.tolist()):
            text = texts[tuple(chunk.request.prompt)]
            at = int(round_.first[place]) + 1 - len(chunk.request.prompt)
            for k, token in enumerate(text[at : at + drafts.shape[1]]):
                drafts[place, k] = token if rng.random() < right else (token + 1) % PICO.vocab_size
        return drafts

    runner.rounds.proposer.propose = propose  # type: ignore[method-assign]
    return runner


def known(plain: list[list[int]]) -> dict[tuple[int, ...], list[int]]:
    return {tuple(prompt): text for prompt, text in zip(PROMPTS, plain, strict=True)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("every", [0, 3])
def test_greedy_tokens_are_those_without_speculation(
    runners: dict[str, Runner], plain: list[list[int]], method: str, every: int
) -> None:
    runner = runners[method]
    assert runner.rounds is not None
    before = runner.rounds.counts
    assert generate(runner, requests(), every) == plain
    assert runner.rounds.counts.since(before).drafted > 300


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("right", "every"), [(1.0, 0), (0.7, 2), (0.4, 0)])
def test_accepted_runs_of_every_length_give_the_same_tokens(
    plain: list[list[int]], method: str, right: float, every: int
) -> None:
    runner = informed(boot_runner(speculative=method), known(plain), right)
    assert generate(runner, requests(), every) == plain
    counts = runner.rounds.counts  # type: ignore[union-attr]
    if right == 1.0:
        assert counts.accepted == counts.drafted
    else:
        assert all(n > 0 for n in counts.accepted_per_position[:3])
        assert counts.accepted < counts.drafted


def test_replay_with_every_toggle_gives_the_tokens_of_eager_and_reports_its_bytes_apart(plain: list[list[int]]) -> None:
    toggles = "mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse,dflash_staging_skip"
    runner = informed(boot_runner(speculative="dspark", toggles=toggles, eager=False), known(plain), 0.5)
    eager = boot_runner(speculative="dspark", toggles=toggles)
    assert runner.profile.to_json() == eager.profile.to_json(), "graphs are captured after the profile"
    assert generate(runner, requests(), every=1) == plain
    assert runner.rounds is not None
    replay = runner.rounds.proposer.replay  # type: ignore[union-attr]
    assert runner.rounds.proposer.graph_bytes > replay.graphs.pool.nbytes > 0
    assert {key: graph["replays"] > 0 for key, graph in replay.graphs.report()["graphs"].items()} == {
        "8": True, "4": True, "1": True,
    }  # fmt: skip
    assert all(runner.markers.taken[name] > 0 for name in toggles.split(","))


@pytest.mark.parametrize("budget", [3, 7, 20, 64])
def test_a_small_budget_verifies_fewer_drafts(plain: list[list[int]], budget: int) -> None:
    runner = informed(
        boot_runner(PICO.with_changes(max_num_batched_tokens=budget), speculative="dspark"), known(plain), 0.8
    )
    some = slice(0, 3) if budget < 20 else slice(None)
    assert generate(runner, requests()[some], every=2) == plain[some]


@pytest.mark.parametrize("method", METHODS)
def test_preemption_in_a_small_pool_changes_no_token(method: str) -> None:
    prompts = [[7 * i + 1, 5, 9 + i] for i in range(4)]

    def wanted() -> list[Request]:
        return [make_request(prompt, max_tokens=36) for prompt in prompts]

    expected = generate(boot_runner(), wanted())
    texts = {tuple(prompt): text for prompt, text in zip(prompts, expected, strict=True)}
    small = informed(boot_runner(speculative=method), texts, 0.6)
    small.n_blocks = 60
    small.allocate_pages()
    assert generate(small, wanted(), every=1) == expected
    assert small.scheduler.n_preemptions >= 2


def test_stale_pages_of_others_are_never_read(plain: list[list[int]]) -> None:
    runner = informed(boot_runner(speculative="dspark"), known(plain), 0.6)
    for tensor in runner.pool.values():
        tensor.fill_(0xFF)
    assert generate(runner, requests()) == plain


def cached_bytes(runner: Runner, request: Request) -> dict[str, bytes]:
    """Everything the target's later rows can read of a request, entry by entry, as its block tables place it."""
    dims, done, row = PICO, request.computed, request.row
    tables, shape = runner.tables.tables, runner.page_shape
    runner.tables.apply(runner.blocks.changes)
    found: dict[str, bytes] = {}

    def read(name: str, pages: Tensor, table: str, entries: range, per_page: int, rows: list[PageRows]) -> None:
        at = torch.tensor(entries)
        blocks = tables[table][row, at // per_page]
        assert blocks.all(), "an entry that is still needed has no page"
        for part, layout in enumerate(rows):
            index = layout.index(blocks * per_page + at % per_page, blocks, pages.shape[1], runner.workspace)
            found[f"{name}.{part}"] = layout.table(pages)[index].numpy().tobytes()

    with runner.workspace.scope():
        for i, (layer, pages) in enumerate(zip(runner.target.layers, runner.pages, strict=True)):
            attention, ratio = layer.attention, dims.compress_ratios[i]
            window = range(max(done - dims.window + 1, 0), done)
            packing = attention.window_packing
            read(f"{i}.swa", pages.swa, pages.swa_group, window, shape.swa_tokens, [packing.data, packing.scale])
            if not ratio:
                continue
            packing, per_page = attention.entry_packing, dims.block_tokens // ratio
            assert pages.compressed is not None
            assert pages.state is not None
            entries = range(done // ratio)
            read(f"{i}.entries", pages.compressed, "full", entries, per_page, [packing.data, packing.scale])
            tokens, width = shape.state_tokens[ratio], 4 * attention.state_columns[0]
            back = range(max(done - (7 if ratio == 4 else ratio - 1), 0), done)
            read(f"{i}.state", pages.state, state_group(ratio), back, tokens, [PageRows(tokens, width)])
            if ratio == 4:
                assert pages.index_keys is not None
                keys = attention.key_packing
                read(f"{i}.keys", pages.index_keys, "full", entries, per_page, [keys.data, keys.scale])
    return found


def run_until(runner: Runner, request: Request, enough: Callable[[], bool]) -> dict[str, bytes]:
    runner.scheduler.add(request)
    while not enough():
        runner.step()
    return cached_bytes(runner, request)


PLACES = ("none", "swa_slots", "state_slots", "emissions")


@pytest.mark.parametrize("lost", PLACES)
def test_rejected_rows_are_written_over_to_the_byte(plain: list[list[int]], lost: str) -> None:
    """And by hand: a roll-back that does not write a kind of entry again leaves other bytes."""
    runner = informed(boot_runner(speculative="dspark"), known(plain), 0.6)
    if lost != "none":
        write_once(runner, lost)
    request = make_request(PROMPTS[2], max_tokens=34)
    after = run_until(runner, request, lambda: len(request.outputs) >= 24)
    reference, same = boot_runner(), make_request(PROMPTS[2], max_tokens=34)
    expected = run_until(reference, same, lambda: same.computed == request.computed)
    differ = {name for name in expected if after[name] != expected[name]}
    assert bool(differ) == (lost != "none"), differ


def test_a_cache_that_keeps_rejected_rows_changes_the_text(plain: list[list[int]]) -> None:
    runner = informed(boot_runner(speculative="dspark"), known(plain), 0.5)
    write_once(runner, "swa_slots")
    assert generate(runner, requests()) != plain


def write_once(runner: Runner, what: str) -> None:
    """Break the roll-back: a position's first entry stays, so that a rejected row's is not written over."""
    build, written = runner._build, set[tuple[int, int]]()

    def broken(ids: list[int], positions: list[int], rows: list[int], n_decode: int) -> Step:
        step = build(ids, positions, rows, n_decode)
        seen = torch.tensor([(row, at) in written for row, at in zip(rows, positions, strict=True)])
        written.update(zip(rows, positions, strict=True))
        if what == "emissions":
            for emission in step.emissions.values():
                emission.slots[seen[emission.rows]] = 0
        else:
            for slots in getattr(step, what).values():
                slots[seen] = 0
        return step

    runner._build = broken  # type: ignore[method-assign]


def test_a_stop_token_inside_an_accepted_run_ends_the_request_there(plain: list[list[int]]) -> None:
    runner = informed(boot_runner(speculative="dspark"), known(plain), 1.0)
    for at in (7, 8, 9, 10):
        stop = plain[0][at]
        end = plain[0].index(stop) + 1
        request = make_request(PROMPTS[0], max_tokens=24, stop_ids=frozenset({stop}))
        runner.scheduler.add(request)
        events = []
        while runner.scheduler.has_work:
            events += runner.step()
        assert request.outputs == [event.token for event in events] == plain[0][:end]
        assert [event.finish_reason for event in events] == [None] * (end - 1) + ["stop"]


@pytest.mark.parametrize("n_out", [1, 2, 3, 6, 7])
def test_max_tokens_are_never_passed(plain: list[list[int]], n_out: int) -> None:
    runner = informed(boot_runner(speculative="dspark"), known(plain), 1.0)
    assert generate(runner, [make_request(PROMPTS[1], max_tokens=n_out)]) == [plain[1][:n_out]]


@pytest.mark.parametrize("method", METHODS)
def test_contexts_up_to_the_last_position(runners: dict[str, Runner], method: str) -> None:
    longest = PICO.max_model_len - 12
    fillers = random_prompts(7, 40, seed=8)

    def wanted() -> list[Request]:
        return [make_request([5, 9] * (longest // 2), max_tokens=12), *[make_request(p, max_tokens=9) for p in fillers]]

    assert generate(runners[method], wanted()) == generate(boot_runner(), wanted())


def test_logprobs_of_every_token_are_the_plain_ones(plain: list[list[int]]) -> None:
    found = []
    for runner in (boot_runner(), informed(boot_runner(speculative="dspark"), known(plain), 0.7)):
        runner.scheduler.add(make_request(PROMPTS[3], max_tokens=20, logprobs=4))
        runner.scheduler.add(make_request(PROMPTS[4], max_tokens=20))
        events = []
        while runner.scheduler.has_work:
            events += runner.step()
        assert all((event.logprobs is not None) == (len(event.request.prompt) == len(PROMPTS[3])) for event in events)
        found.append([event.logprobs for event in events if event.logprobs])
    assert found[0] == found[1]
    assert len(found[0]) == 20
