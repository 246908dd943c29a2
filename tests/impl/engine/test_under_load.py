"""64 requests in a pool too small for them: blocks are taken back, and every request gets the tokens it gets alone."""

from __future__ import annotations

import random

import pytest

from impl.dims import PICO
from impl.engine.request import Request
from impl.engine.runner import Runner
from tests.impl.engine.engines import boot_runner, generate, make_request
from tests.impl.engine.test_rounds import informed

DIMS = PICO.with_changes(max_num_seqs=64, max_num_batched_tokens=96)
BUDGET = 48 << 20
ALL_TOGGLES = (
    "mtp_hidden_skip,mhc_final_fused,mhc_residual_reuse,mhc_input_reuse,"
    "c128a_topk_shared,q_in_place,c128_indices_in_place"
)
DIFFERENT, COPIES, N_OUT = 8, 8, 24
PROMPTS = [[7 * i + 1, 5, 9 + i] for i in range(DIFFERENT)]
"""Short: they start small and outgrow the pool."""


def requests(drawn: bool) -> list[Request]:
    """Eight different ones; with `drawn` every second one is sampled with its seed."""
    sampled = {"temperature": 0.9, "top_k": 30, "top_p": 0.95}
    return [
        make_request(prompt, max_tokens=N_OUT - i, **({**sampled, "seed": 100 + i} if drawn and i % 2 else {}))
        for i, prompt in enumerate(PROMPTS)
    ]


def crowd(drawn: bool) -> list[Request]:
    return [request for _ in range(COPIES) for request in requests(drawn)]


@pytest.fixture(scope="module")
def alone() -> dict[bool, list[list[int]]]:
    """Greedy only, and with sampled ones: each request by itself, without toggles and without drafts."""
    runner = boot_runner(DIMS, budget=BUDGET)
    return {drawn: [generate(runner, [request])[0] for request in requests(drawn)] for drawn in (False, True)}


def squeezed(runner: Runner, blocks: int = 200) -> Runner:
    runner.n_blocks = blocks
    runner.allocate_pages()
    return runner


@pytest.mark.parametrize("toggles", ["", ALL_TOGGLES], ids=["plain", "toggles"])
def test_greedy_and_seeded_tokens_are_those_of_the_request_alone(
    alone: dict[bool, list[list[int]]], toggles: str
) -> None:
    runner = squeezed(boot_runner(DIMS, budget=BUDGET, toggles=toggles))
    assert generate(runner, crowd(True), every=0) == alone[True] * COPIES
    assert runner.scheduler.n_preemptions > 20
    assert len({tuple(tokens[:10]) for tokens in alone[True]}) == DIFFERENT
    assert alone[True][1] != alone[False][1], "a sampled request that draws the greedy tokens shows nothing"
    for name in filter(None, toggles.split(",")):
        assert runner.markers.taken[name] > 0, name


@pytest.mark.parametrize(
    ("method", "toggles"),
    [
        pytest.param("dspark", "", marks=pytest.mark.slow),
        pytest.param("mtp", "", marks=pytest.mark.slow),
        ("dspark", f"{ALL_TOGGLES},dflash_staging_skip"),
    ],
    ids=["dspark", "mtp", "dspark-toggles"],
)
def test_greedy_tokens_with_drafts_are_those_of_the_request_alone(
    alone: dict[bool, list[list[int]]], method: str, toggles: str
) -> None:
    texts = {tuple(prompt): text for prompt, text in zip(PROMPTS, alone[False], strict=True)}
    runner = boot_runner(DIMS, budget=BUDGET, speculative=method, toggles=toggles)
    runner = squeezed(informed(runner, texts, 0.7), 260)
    assert generate(runner, crowd(False), every=0) == alone[False] * COPIES
    assert runner.scheduler.n_preemptions > 10
    assert runner.rounds is not None
    assert 0.2 < (runner.rounds.counts.acceptance_rate or 0) < 0.95


def test_a_thousand_aborts_at_any_moment_leave_no_block_and_no_row(alone: dict[bool, list[list[int]]]) -> None:
    """Of waiting, computing, generating and preempted requests; those that stay get their own tokens."""
    runner, rng = squeezed(boot_runner(DIMS, budget=BUDGET)), random.Random(5)
    scheduler, blocks = runner.scheduler, runner.blocks
    live: list[Request] = []
    moments: set[tuple[bool, bool, bool]] = set()
    for aborted in range(1000):
        while len(live) < 40:
            live.append(make_request(rng.choice([*PROMPTS, [3] * 80]), max_tokens=60))
            scheduler.add(live[-1])
        if aborted % 8 == 0:
            runner.step()
        victim = live.pop(rng.randrange(len(live)))
        if victim.finish_reason:
            continue
        moments.add((victim.row is not None, bool(victim.outputs), victim.n_preemptions > 0))
        held, free = victim.row, blocks.n_free
        scheduler.finish(victim, "abort")
        assert victim.row is None
        assert held is None or blocks.n_free > free, "its blocks are not free at once"
    assert {(True, True, False), (False, False, False), (False, True, True)} <= moments
    stay = [live.pop() for _ in range(len(live))]
    for request in stay:
        scheduler.finish(request, "abort")
    assert (blocks.n_free, len(scheduler.running), len(scheduler.waiting)) == (blocks.n_usable, 0, 0)
    assert sorted(scheduler._free_rows) == list(range(DIMS.max_num_seqs))
    assert generate(runner, requests(False)) == alone[False]
