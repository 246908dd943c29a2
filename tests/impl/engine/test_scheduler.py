"""Scheduler properties: budget, order, progress, preemption and resume, over pools of every size."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.dims import PICO
from impl.engine.blocks import BlockAllocator, least_blocks
from impl.engine.request import Request, SamplingParams
from impl.engine.scheduler import Plan, Scheduler
from impl.kv_geometry import KvGeometry

GROUPS = KvGeometry.of(PICO).groups


def request(name: str, n_prompt: int, n_out: int) -> Request:
    return Request(name, list(range(n_prompt)), SamplingParams(max_tokens=n_out))


def scheduler(n_blocks: int = 2000, budget: int = 64, seqs: int = 4, k: int = 0) -> Scheduler:
    return Scheduler(BlockAllocator(GROUPS, n_blocks + 1, seqs), budget, seqs, k)


def run(plan: Plan, scheduler: Scheduler, accepts: random.Random | None = None) -> None:
    """Stand in for the model: every row that samples yields its own position as token, and so do accepted drafts."""
    for chunk in plan.chunks:
        if not chunk.samples:
            continue
        accepted = accepts.randint(0, chunk.n_drafted) if accepts else 0
        first = chunk.end - chunk.n_drafted
        for position in range(first, first + accepted + 1):
            if not chunk.request.finish_reason:
                chunk.request.append(position, "")
        room = max(chunk.draft_limit - (first + accepted), 0)
        chunk.request.drafts = [0] * min(scheduler.draft_tokens, room)
    scheduler.complete(plan)


@dataclass
class Arrival:
    step: int
    n_prompt: int
    n_out: int


LONG_PROMPTS = st.builds(Arrival, step=st.integers(0, 30), n_prompt=st.integers(1, 120), n_out=st.integers(1, 12))
# They start small and grow together, until the pool is too small for all.
LONG_OUTPUTS = st.builds(Arrival, step=st.integers(0, 5), n_prompt=st.integers(1, 4), n_out=st.integers(20, 60))
ARRIVALS = st.one_of(
    st.lists(LONG_PROMPTS | LONG_OUTPUTS, min_size=1, max_size=9), st.lists(LONG_OUTPUTS, min_size=4, max_size=9)
)


@settings(max_examples=120, deadline=None)
@given(
    arrivals=ARRIVALS,
    budget=st.integers(1, 80),
    seqs=st.integers(1, 5),
    spare=st.integers(0, 150),
    k=st.sampled_from([0, 0, 1, 5]),
    aborts=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8)), max_size=3),
)
def test_everything_runs_to_its_end_within_the_budget(
    arrivals: list[Arrival], budget: int, seqs: int, spare: int, k: int, aborts: list[tuple[int, int]]
) -> None:
    arrivals = sorted(arrivals, key=lambda a: a.step)
    requests = [request(str(i), a.n_prompt, a.n_out) for i, a in enumerate(arrivals)]
    least = max(least_blocks(GROUPS, r.most_tokens) for r in requests)
    engine = scheduler(least + spare, budget, seqs, k)
    accepts = random.Random(budget + spare)
    blocks = engine.blocks
    pending, step, aborted = list(zip(arrivals, requests, strict=True)), 0, set()
    first_run: list[str] = []
    while pending or engine.has_work:
        while pending and pending[0][0].step <= step:
            engine.add(pending.pop(0)[1])
        for at, index in aborts:
            if at == step and index < len(requests) and not requests[index].finish_reason:
                engine.finish(requests[index], "abort")
                pending = [(a, r) for a, r in pending if r is not requests[index]]
                aborted.add(index)
        plan = engine.plan()
        assert bool(plan.chunks) == engine.has_work, "work there is, but nothing is planned"
        check_plan(plan, engine, budget, seqs)
        oldest = engine.running[0] if engine.running else None
        before = oldest.computed if oldest else 0
        first_run += [c.request.id for c in plan.chunks if c.request.id not in first_run]
        decode_budget_gone = plan.n_decode == budget
        run(plan, engine, accepts)
        if oldest and not oldest.finish_reason and not decode_budget_gone:
            assert oldest.computed > before, "the oldest request made no progress"
        step += 1
        assert step < 3000
    for index, r in enumerate(requests):
        if index not in aborted:
            assert r.finish_reason == "length"
            n_prompt = len(r.prompt)
            assert r.outputs == list(range(n_prompt, n_prompt + r.sampling.max_tokens))
    assert blocks.n_free == blocks.n_usable
    assert first_run == sorted(first_run, key=int), "requests start in arrival order"


def check_plan(plan: Plan, engine: Scheduler, budget: int, seqs: int) -> None:
    assert plan.n_tokens <= budget
    assert len(engine.running) <= seqs
    assert [c.is_decode for c in plan.chunks] == [True] * plan.n_decode + [False] * (len(plan.chunks) - plan.n_decode)
    for part in (plan.chunks[: plan.n_decode], plan.chunks[plan.n_decode :]):
        ids = [int(c.request.id) for c in part]
        assert ids == sorted(ids)
    assert len({c.request.row for c in plan.chunks}) == len(plan.chunks)
    order = [int(r.id) for r in (*engine.running, *engine.waiting)]
    assert order == sorted(order), "waiting requests are younger than running ones"
    for chunk in plan.chunks:
        assert chunk.request.row is not None
        assert chunk.start == chunk.request.computed < chunk.end <= chunk.request.n_tokens + chunk.n_drafted
        assert chunk.n_drafted <= engine.draft_tokens * chunk.is_decode
        assert chunk.end <= chunk.request.most_tokens, "a draft beyond what the request may emit"
        assert engine.blocks.missing(chunk.request.row, max(chunk.end, chunk.draft_limit)) == 0
        assert chunk.draft_limit <= chunk.request.most_tokens


def test_decodes_come_before_the_prefill_of_an_older_request() -> None:
    engine = scheduler(budget=10)
    engine.add(request("0", 35, 2))
    long = engine.plan()
    run(long, engine)
    engine.add(request("1", 1, 5))
    for _ in range(2):
        run(engine.plan(), engine)
    plan = engine.plan()
    assert [(c.request.id, c.end - c.start) for c in plan.chunks] == [("0", 5), ("1", 1)]
    run(plan, engine)
    plan = engine.plan()
    assert [(c.request.id, c.is_decode) for c in plan.chunks] == [("0", True), ("1", True)]


def test_a_prefill_is_cut_at_the_budget_that_decodes_leave() -> None:
    engine = scheduler(budget=16)
    engine.add(request("0", 3, 9))
    run(engine.plan(), engine)
    engine.add(request("1", 40, 1))
    lengths = []
    for _ in range(3):
        plan = engine.plan()
        lengths.append([c.end - c.start for c in plan.chunks])
        run(plan, engine)
    assert lengths == [[1, 15], [1, 15], [1, 10]]


def test_the_youngest_is_preempted_and_resumes_with_its_outputs() -> None:
    old, young = request("0", 30, 60), request("1", 30, 60)
    engine = scheduler(least_blocks(GROUPS, old.most_tokens) + 30, budget=8)
    engine.add(old)
    engine.add(young)
    kept: list[int] = []
    while not young.n_preemptions:
        kept = list(young.outputs)
        run(engine.plan(), engine)
    assert kept, "the preemption should come in the middle of the output"
    assert engine.waiting[0] is young
    assert (young.computed, young.row, young.outputs) == (0, None, kept)
    while engine.has_work:
        run(engine.plan(), engine)
    assert young.outputs == list(range(30, 90))
    assert old.n_preemptions == 0
    assert engine.n_preemptions == young.n_preemptions


def test_a_request_that_can_never_fit_is_refused_with_the_numbers() -> None:
    engine = scheduler(n_blocks=40)
    with pytest.raises(ValueError, match=r"a request of 1019 tokens needs \d+ KV blocks, the pool has 40: shorten"):
        engine.add(request("0", 1000, 20))
    assert not engine.has_work


def test_a_long_prompt_runs_in_shorter_chunks_when_the_pool_is_small() -> None:
    r = request("0", 200, 1)
    engine = scheduler(least_blocks(GROUPS, r.most_tokens), budget=200)
    engine.add(r)
    lengths = []
    while engine.has_work:
        plan = engine.plan()
        lengths.append(plan.n_tokens)
        run(plan, engine)
    assert sum(lengths) == 200
    assert max(lengths) < 200
    assert engine.n_preemptions == 0


def test_the_head_of_the_line_waits_for_its_whole_chunk_and_is_not_passed() -> None:
    first = request("0", 50, 30)
    engine = scheduler(least_blocks(GROUPS, first.most_tokens) + 90, budget=100)
    engine.add(first)
    run(engine.plan(), engine)
    engine.add(request("1", 99, 1))
    engine.add(request("2", 1, 1))
    plan = engine.plan()
    assert [c.request.id for c in plan.chunks] == ["0"]
    assert [r.id for r in engine.waiting] == ["1", "2"]


def test_abort_of_a_waiting_and_of_a_running_request_frees_everything() -> None:
    engine = scheduler(seqs=1)
    running, waiting = request("0", 9, 9), request("1", 9, 9)
    engine.add(running)
    engine.add(waiting)
    run(engine.plan(), engine)
    for r in (waiting, running, running):
        engine.finish(r, "abort")
    assert not engine.has_work
    assert engine.blocks.n_free == engine.blocks.n_usable
    assert (running.finish_reason, waiting.finish_reason) == ("abort", "abort")


def test_drafts_take_half_of_the_budget_while_a_prompt_is_computed() -> None:
    engine = scheduler(budget=10, k=5)
    engine.add(request("0", 1, 40))
    engine.add(request("1", 1, 40))
    run(engine.plan(), engine)
    engine.add(request("2", 60, 1))
    lengths = []
    for _ in range(2):
        plan = engine.plan()
        lengths.append([(c.request.id, c.end - c.start) for c in plan.chunks])
        run(plan, engine)
    assert lengths == [[("0", 5), ("1", 1), ("2", 4)]] * 2


def test_a_draft_gets_shorter_where_its_pages_would_take_anothers() -> None:
    r = request("0", 40, 60)
    engine = scheduler(least_blocks(GROUPS, r.most_tokens), k=5)
    engine.add(r)
    limits = []
    while engine.has_work:
        plan = engine.plan()
        limits.append(plan.chunks[0].draft_limit - plan.chunks[0].end)
        run(plan, engine)
    assert r.outputs == list(range(40, 100))
    assert engine.n_preemptions == 0
    assert min(limits[:20]) <= 0
