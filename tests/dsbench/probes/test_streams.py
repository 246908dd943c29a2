"""The concurrency and long-context probes: what they send, what they count, and what they refuse."""

import json
from collections import Counter

import httpx
import pytest

from dsbench.engines.client import BadAnswer
from dsbench.errors import InputError
from dsbench.probes import concurrency, long_context
from dsbench.probes.acceptance import impossible
from dsbench.probes.boot import ProbeFailed
from impl.engine.acceptance import AcceptanceCounts
from tests.dsbench.probes.serving import plan_of, run, streamed

CONCURRENCY = """
[probes.concurrency]
prompts = ["one", "two"]
streams = [1, 3]
max_tokens = 12
repeats = 2
"""
LONG = """
[probes.long_context]
lengths = [64, 256]
tokens = 10
repeats = 2
"""


class Server:
    """Streams a token a piece; each token but the first is one round of a draft of 2, of which 1 is accepted."""

    def __init__(self, noise=0, wrong=False):
        self.generated, self.rounds, self.noise, self.wrong = 0, 0, noise, wrong

    def __call__(self, body):
        tokens = body["max_tokens"]
        self.generated += tokens + self.noise
        self.rounds += tokens - 1
        pieces = [{"choices": [{"text": "x", "token_ids": [1]}]} for _ in range(tokens)]
        events = [*pieces, {"choices": [], "usage": {"completion_tokens": tokens}}]
        return streamed(events)

    def page(self):
        rounds = {"drafts": self.rounds, "draft_tokens": 2 * self.rounds, "accepted_tokens": self.rounds}
        if self.wrong:
            rounds["accepted_tokens"] = 3 * self.rounds
        lines = [f"vllm:generation_tokens_total {self.generated}"]
        lines += [f"vllm:spec_decode_num_{name}_total {value}" for name, value in rounds.items()]
        return "\n".join(lines) + "\n"


def found(readings):
    return {reading.metric: reading for reading in readings}


def test_concurrency_shares_out_its_texts_and_counts_drafts():
    server, plan = Server(), plan_of(CONCURRENCY, speculative="dspark")
    readings, bodies = run(concurrency, plan, server, page=server.page)
    assert Counter(body["prompt"] for body in bodies) == {"one": 2 * (1 + 2), "two": 2}
    assert {(b["temperature"], b["ignore_eos"], b["max_tokens"]) for b in bodies} == {(0.0, True, 12)}
    assert list(found(readings)) == plan.probes.metrics("concurrency")
    assert found(readings)["concurrency.accept.c3"].raw == [2 * 3 * 11, 2 * 3 * 22]
    assert found(readings)["concurrency.accept.c1"].item == "text greedy"
    together, each = found(readings)["concurrency.tps.c1"], found(readings)["concurrency.request_tps.c1"]
    assert together.raw == pytest.approx(each.raw)
    # Three at a time: each takes no longer than all of them together.
    together, each = found(readings)["concurrency.tps.c3"], found(readings)["concurrency.request_tps.c3"]
    assert all(one >= all_of_them / 3 for one, all_of_them in zip(each.raw, together.raw, strict=True))


def test_without_drafts_in_every_arm_acceptance_is_not_asked_for():
    server, plan = Server(), plan_of(CONCURRENCY)
    assert plan.probes.metrics("concurrency") == [
        f"concurrency.{k}.c{n}" for n in (1, 3) for k in ("tps", "request_tps")
    ]
    assert any(note == "concurrency.accept.*: not-run, no arm has speculation" for note in plan.notes)
    readings, _ = run(concurrency, plan, server)
    assert list(found(readings)) == plan.probes.metrics("concurrency")


def test_synthetic_drafts_are_asked_for_and_their_text_is_not_read():
    coherence = '[probes.coherence]\nstyle = "report"\nlines = 24\n'
    rates = ["--synthetic-acceptance-rates", "0.5,0.4,0.3,0.2,0.1"]
    plan = plan_of(CONCURRENCY + coherence, speculative="dspark", engine_args=rates)
    assert "coherence" not in plan.probes.names()
    assert plan.metric("concurrency.accept.c3").better == "same"
    assert plan_of(CONCURRENCY + coherence, speculative="dspark").metric("concurrency.accept.c3").better == "up"


def test_concurrency_needs_counters_that_are_its_own_and_can_be_true():
    plan = plan_of(CONCURRENCY, speculative="dspark")
    noisy = Server(noise=1)
    with pytest.raises(ProbeFailed, match="someone else asked too"):
        run(concurrency, plan, noisy, page=noisy.page)
    wrong = Server(wrong=True)
    with pytest.raises(ProbeFailed, match="cannot be true: 33 accepted of 22 drafted"):
        run(concurrency, plan, wrong, page=wrong.page)


def test_long_context_samples_with_seeds_after_exact_lengths():
    plan = plan_of(LONG)
    readings, bodies = run(long_context, plan, Server())
    assert [len(body["prompt"]) for body in bodies] == [64, 64, 256, 256]
    assert {(b["temperature"], b["max_tokens"], b["stream"]) for b in bodies} == {(1.0, 10, True)}
    assert len({body["seed"] for body in bodies}) == 4
    assert [(r.metric, len(r.raw)) for r in readings] == [("long_context.tps.64", 2), ("long_context.tps.256", 2)]
    assert bodies == run(long_context, plan, Server(), number=4)[1]  # the other boot of the block
    assert bodies != run(long_context, plan, Server(), number=5)[1]


def test_what_came_in_one_read_gives_no_speed_of_long_contexts_but_one_of_whole_requests():
    def at_once(body):
        pieces = [{"choices": [{"text": "x", "token_ids": [1]}]} for _ in range(body["max_tokens"])]
        events = [*pieces, {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}]
        return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events))

    with pytest.raises(BadAnswer, match="all 10 tokens came in one piece; a decode time cannot be read"):
        run(long_context, plan_of(LONG), at_once)
    readings, _ = run(concurrency, plan_of(CONCURRENCY), at_once)
    assert all(reading.value > 0 for reading in readings)


def test_long_prompts_must_fit():
    with pytest.raises(ProbeFailed, match="needs 266 tokens with its output, the engine's max_model_len is 265"):
        run(long_context, plan_of(LONG), Server(), conditions={"max_model_len": 265, "dims": {"vocab_size": 9}})
    with pytest.raises(InputError, match="long_context probe needs 2058 tokens, max_model_len is 2048"):
        plan_of(LONG.replace("256", "2048"))


@pytest.mark.parametrize("depth", range(1, 9))
def test_counters_of_every_depth_are_held_to_it(depth):
    every = AcceptanceCounts(10, 10 * depth, 10 * depth, (10,) * depth)
    assert every.acceptance_length == depth + 1
    assert impossible(every, depth) is None
    assert impossible(every, None) is None
    more = AcceptanceCounts(10, 10 * depth + 10, 10 * depth + 10, (10,) * (depth + 1))
    assert f"tokens a round with {depth} drafts, at most {depth + 1}" in impossible(more, depth)
    assert f"drafted in 10 rounds of at most {depth}" in impossible(AcceptanceCounts(10, 10 * depth + 1, 0, ()), depth)
    for place in range(1, depth):
        rising = tuple(4 + (k == place) for k in range(depth))
        assert f"position {place} was accepted 5 times, the one before it 4" in impossible(
            AcceptanceCounts(10, 10 * depth, sum(rising), rising), depth
        )
    for counted in range(1, depth):
        short = AcceptanceCounts(10, 10 * depth, counted, (1,) * counted)
        assert impossible(short, depth) == f"{counted} positions are counted of the {depth} that are drafted"


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        (AcceptanceCounts(10, 50, 51, ()), "51 accepted of 50 drafted"),
        (AcceptanceCounts(10, 50, 20, (11, 9, 0, 0, 0)), "position 0 was accepted 11 times in 10 rounds"),
        (AcceptanceCounts(10, 50, 20, (9, 8, 0, 0, 0)), "add up to 17 accepted, the total says 20"),
        (AcceptanceCounts(0, 0, 0, (0,) * 5), None),
        (AcceptanceCounts(10, 30, 20, (9, 8, 3, 0, 0)), None),
    ],
)
def test_counters_that_cannot_be_true(counts, said):
    assert (impossible(counts, 5) or "").endswith(said or "")
    assert (impossible(counts, 5) is None) == (said is None)
