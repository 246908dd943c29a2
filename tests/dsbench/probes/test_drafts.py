"""What the acceptance and output-law probes send, and what they refuse to measure."""

import asyncio
import json
import math
import random

import httpx
import pytest

from dsbench.engines.client import Client
from dsbench.errors import InputError
from dsbench.plan import plan_experiment
from dsbench.probes import acceptance, output_law
from dsbench.probes.boot import Boot, ProbeFailed
from dsbench.suite import parse_suite
from impl.dims import PICO

SUITE = parse_suite(
    """
name = "drafts"
summary = "s"
blocks = 2
warmup_boots = 0
[probes.acceptance]
prose = ["a", "b"]
structured = ["c"]
tokens = 11
samples = 3
together = 2
[probes.output_law]
prompts = ["a", "bc"]
requests = 300
tokens = 3
together = [2, 5]
contexts = 4
""",
    "drafts.toml",
)
LAW = {3: 0.5, 4: 0.3, 5: 0.2}


class Engine:
    """A server that emits from LAW whatever stands before, counts a draft of 2 a token, and can be made wrong."""

    def __init__(self, *, law=LAW, later=LAW, silent=False, noise=0, late=0, bare=False):
        self.law, self.later, self.silent, self.noise, self.late, self.bare = law, later, silent, noise, late, bare
        self.generated = self.drafts = self.running = self.pages = 0
        self.bodies, self.at_once = [], []

    async def __call__(self, request):
        if request.url.path == "/metrics":
            return httpx.Response(200, text=self.page())
        body = json.loads(request.content)
        self.bodies.append(body)
        self.running += 1
        await asyncio.sleep(0)
        self.at_once.append((self.running, body["max_tokens"]))
        await asyncio.sleep(0)
        self.running -= 1
        number = body["max_tokens"]
        rng = random.Random(str(body))
        ids = rng.choices(list(self.law), list(self.law.values()))
        ids += rng.choices(list(self.later), list(self.later.values()), k=number - 1)
        self.generated += number + self.noise
        self.drafts += number - 1
        top = {f"t{token}": math.log(chance) for token, chance in LAW.items()}
        named = {"tokens": [f"t{token}" for token in ids], "top_logprobs": [top] * number}
        choice = {"text": "x", "token_ids": ids} | ({} if self.bare else {"logprobs": named})
        usage = {"prompt_tokens": 1, "completion_tokens": number}
        return httpx.Response(200, json={"choices": [choice], "usage": usage})

    def page(self):
        self.pages += 1
        seen = self.generated if self.pages > self.late else 0
        lines = [f"vllm:generation_tokens_total {seen}"]
        if not self.silent:
            names = ("num_drafts", "num_draft_tokens", "num_accepted_tokens")
            values = (self.drafts, 2 * self.drafts, self.drafts)
            lines += [f"vllm:spec_decode_{n}_total {v}" for n, v in zip(names, values, strict=True)]
            per_position = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines += [f'{per_position}{{position="{k}"}} {n}' for k, n in enumerate((self.drafts, 0))]
        return "\n".join(lines) + "\n"


def run(module, engine, number=1, suite=SUITE, seed=0):
    plan = plan_experiment(["draft_logits_persistent=off"], suite, PICO, controls=True, seed=seed)
    client = Client("http://engine", "pico", 5)
    client._http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(engine))
    boot = Boot(plan, plan.boots[number - 1], client, {}, {})

    async def collect():
        return [reading async for reading in module.run(boot)]

    return asyncio.run(collect())


def test_acceptance_counts_each_kind_and_temperature_apart():
    engine = Engine()
    readings = {(r.metric, r.item): r for r in run(acceptance, engine)}
    assert [(b["prompt"], b["temperature"], "seed" in b) for b in engine.bodies] == [
        *[("a", 0, False), ("b", 0, False)],
        *[("a", 1, True)] * 3,
        *[("b", 1, True)] * 3,
        ("c", 0, False),
        *[("c", 1, True)] * 3,
    ]
    assert readings["accept.rate", "prose greedy"].raw == [20, 40]
    assert readings["accept.length", "prose t=1"].raw == [120, 60]
    assert readings["accept.per_position", "structured t=1 k0"].value == 1.0
    assert readings["accept.per_position", "structured t=1 k1"].raw == [0, 30]
    assert readings["accept.conditional", "structured t=1 k1"].raw == [0, 30]
    assert {b["ignore_eos"] for b in engine.bodies} == {False}
    assert max(running for running, _ in engine.at_once) == 2


def of_ids(texts="", lengths="lengths = [5, 9]", seed=0):
    """Bodies and readings of a suite that asks in random token ids."""
    asked = f"""
name = "ids"
summary = "s"
blocks = 2
warmup_boots = 0
[probes.acceptance]
{texts}
{lengths}
tokens = 11
samples = 3
together = 1
[probes.output_law]
prompts = ["a"]
"""
    engine = Engine()
    readings = run(acceptance, engine, suite=parse_suite(asked, "ids.toml"), seed=seed)
    return engine.bodies, {(r.metric, r.item): r for r in readings}


def test_acceptance_asks_in_token_ids_where_there_is_no_tokenizer():
    bodies, readings = of_ids()
    first, second = bodies[0]["prompt"], bodies[1]["prompt"]
    assert (len(first), len(second)) == (5, 9)
    assert all(0 <= token < PICO.vocab_size for token in first + second)
    assert [(b["prompt"], b["temperature"]) for b in bodies] == [
        (first, 0), (second, 0), *[(first, 1)] * 3, *[(second, 1)] * 3
    ]  # fmt: skip
    assert {item.split(" k")[0] for _, item in readings} == {"random greedy", "random t=1"}
    assert readings["accept.rate", "random t=1"].raw == [60, 120]
    assert [b["prompt"] for b in of_ids()[0]] == [b["prompt"] for b in bodies]
    assert [b["prompt"] for b in of_ids(seed=1)[0]] != [b["prompt"] for b in bodies]


def test_texts_are_asked_as_they_were_with_ids_beside_them():
    texts = 'prose = ["a", "b"]\nstructured = ["c"]'
    alone, beside = of_ids(texts, lengths="")[0], of_ids(texts)[0]
    assert alone == beside[: len(alone)]
    assert [type(b["prompt"]) for b in beside[len(alone) :]] == [list] * 8


@pytest.mark.parametrize(("texts", "lengths"), [("", ""), ('prose = ["a"]', ""), ('prose = ["a"]', "lengths = [5]")])
def test_acceptance_without_prompts_is_refused(texts, lengths):
    with pytest.raises(InputError, match="give prose and structured, or lengths"):
        of_ids(texts, lengths)


def test_acceptance_waits_for_counters_that_come_late():
    assert run(acceptance, Engine(late=3))[0].raw == [20, 40]


def test_acceptance_needs_draft_counters_and_a_server_of_its_own(monkeypatch):
    monkeypatch.setattr(acceptance, "SETTLE_S", 0.01)
    with pytest.raises(ProbeFailed, match="count no drafts"):
        run(acceptance, Engine(silent=True))
    with pytest.raises(ProbeFailed, match=r"got 22 tokens, the server counted 24\.0: someone else"):
        run(acceptance, Engine(noise=1))


def seeds(engine):
    return [b["seed"] for b in engine.bodies if b["max_tokens"] > 1]


def test_output_law_mixes_prompts_in_two_sizes_with_seeds_of_their_own():
    engine = Engine()
    readings = run(output_law, engine)
    assert [(r.item, r.value) for r in readings] == [("prompt 1", 1), ("prompt 2", 1), ("all prompts", 1)]
    sampled = [b for b in engine.bodies if b["max_tokens"] == 3]
    assert len(sampled) == 300
    assert len(set(seeds(engine))) == 300
    assert {len(b["prompt"]) for b in sampled} == {2, 3}
    assert {b["temperature"] for b in engine.bodies} == {1.0}
    running = [n for n, tokens in engine.at_once if tokens == 3]
    assert max(running[:140]) == 2
    assert max(running[160:]) == 5
    laws = [b["prompt"] for b in engine.bodies if b["max_tokens"] == 1]
    assert len(laws) == 2 * (1 + 3 + 4)  # each prompt; what follows it; the most frequent pairs
    assert {len(prompt) for prompt in laws} == {2, 3, 4, 5}


def test_boots_of_one_block_get_the_same_seeds_and_other_blocks_others():
    first, second, third = Engine(), Engine(), Engine()
    for number, engine in ((1, first), (2, second), (3, third)):
        run(output_law, engine, number)
    assert sorted(seeds(first)) == sorted(seeds(second)) != sorted(seeds(third))


def test_tokens_after_the_first_that_follow_another_law_fail():
    readings = run(output_law, Engine(later={3: 0.3, 4: 0.3, 5: 0.4}))
    assert [r.value for r in readings] == [0, 0, 0]
    p, variation = readings[-1].raw
    assert p < 1e-6
    assert 0.05 < variation < 0.25
    assert "(Holm), total variation" in readings[-1].text


def test_a_token_the_law_does_not_know_fails():
    readings = run(output_law, Engine(later={**LAW, 9: 0.05}))
    assert [r.value for r in readings][-1] == 0


def test_output_law_needs_logprobs():
    with pytest.raises(ProbeFailed, match="no token_ids or no logprobs"):
        run(output_law, Engine(bare=True))
