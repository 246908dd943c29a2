"""The coherence probe against servers that answer well, lose needles, leak, are cut off, or do not answer."""

import asyncio
import re
from collections import Counter

import httpx
import pytest

from dsbench.errors import InputError
from dsbench.probes import coherence
from dsbench.probes.boot import ProbeFailed
from tests.dsbench.probes.serving import plan_of, run

TABLE = """
[probes.coherence]
style = "{style}"
lines = 40
needles = 3
distractors = 2
concurrencies = [1, 3]
seeds = 2
max_tokens = 50
"""
LEAK = "<\uff5cend\u2581of\u2581sentence\uff5c>"
COUNTED = plan_of(TABLE.format(style="pairs") + "ballots = 30\n")
REPORT, PAIRS = plan_of(TABLE.format(style="report")), plan_of(TABLE.format(style="pairs"))
REQUESTS = 2 * 2 * (1 + 3)


def reading_well(body):
    """Finds everything that is asked for."""
    if "messages" in body:
        tags = re.findall(r"release tag (\S+) is announced", body["messages"][0]["content"])
        text = f"The log announces {', '.join(tags)}."
        return httpx.Response(200, json={"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})
    *lines, query = body["prompt"].split("\n")
    values = dict(line.split("=") for line in lines if "=" in line) | {"*": counted(lines)}
    text = ",".join(values[key] for key in query[1:-1].split(","))
    return httpx.Response(200, json={"choices": [{"text": text, "finish_reason": "stop"}]})


def counted(lines):
    """The letter that stands in most ballots, place by place."""
    ballots = [line for line in lines if "=" not in line]
    return "".join(Counter(letters).most_common(1)[0][0] for letters in zip(*ballots, strict=True))


def reading_the_beginning(body):
    """Finds keys, and counts the first ballots only."""
    lines = body["prompt"].split("\n")
    few = [line for line in lines if "=" not in line][:6]
    return reading_well(body | {"prompt": "\n".join([*few, *(line for line in lines if "=" in line)])})


def saying(text, reason="stop"):
    return lambda body: httpx.Response(
        200, json={"choices": [{"message": {"content": text}, "text": text, "finish_reason": reason}]}
    )


def values(readings, metric):
    return [reading.value for reading in readings if reading.metric == metric]


def test_tallies_are_needles_of_their_own_and_lost_by_what_reads_the_beginning():
    readings, bodies = run(coherence, COUNTED, reading_well)
    assert values(readings, "coherence.recall") == [1] * 4 * REQUESTS
    assert len({reading.item for reading in readings}) == COUNTED.probes.coherence.n_items()
    assert COUNTED.probes.coherence.longest() >= 1 + max(len(body["prompt"]) for body in bodies) + 50
    assert len({len(body["prompt"]) for body in bodies}) > 3
    readings, _ = run(coherence, COUNTED, reading_the_beginning)
    lost = {reading.item for reading in readings if reading.metric == "coherence.recall" and not reading.value}
    assert len(lost) == REQUESTS
    assert all(item.endswith(" tally") for item in lost)


def test_ballots_are_many_and_of_pairs():
    with pytest.raises(InputError, match="ballots: only pairs has them"):
        plan_of(TABLE.format(style="report") + "ballots = 30\n")
    with pytest.raises(InputError, match="ballots: a tally needs 20, 0 is none, got 5"):
        plan_of(TABLE.format(style="pairs") + "ballots = 5\n")


@pytest.mark.parametrize("plan", [REPORT, PAIRS])
def test_a_server_that_reads_well_gets_everything(plan):
    readings, _ = run(coherence, plan, reading_well)
    assert values(readings, "coherence.recall") == [1] * 3 * REQUESTS
    assert values(readings, "coherence.clean") == values(readings, "coherence.finished") == [1] * REQUESTS
    assert len({reading.item for reading in readings}) == plan.probes.coherence.n_items()
    assert {reading.metric for reading in readings} == set(plan.probes.metrics("coherence"))


def test_requests_are_greedy_chats_or_lines():
    _, chats = run(coherence, REPORT, reading_well)
    assert {(b["path"], b["temperature"], b["max_tokens"]) for b in chats} == {("/v1/chat/completions", 0.0, 50)}
    assert not any("chat_template_kwargs" in body for body in chats)
    _, lines = run(coherence, PAIRS, reading_well)
    assert {(body["path"], body["stop"]) for body in lines} == {("/v1/completions", "\n")}
    silent = plan_of(TABLE.format(style="report") + "chat_template_kwargs = { thinking = false }\n")
    assert all(body["chat_template_kwargs"] == {"thinking": False} for body in run(coherence, silent, reading_well)[1])


def test_unique_payloads_differ_and_identical_ones_do_not():
    readings, bodies = run(coherence, PAIRS, reading_well)
    sent = Counter(body["prompt"] for body in bodies)
    assert sorted(sent.values()) == [1] * 8 + [4, 4]  # each seed's payload goes alone and three at a time
    clean = [reading for reading in readings if reading.metric == "coherence.clean"]
    assert len({reading.cluster for reading in clean}) == 8 + 2
    assert {r.cluster for r in clean if "identical" in r.item} == {"identical s1", "identical s2"}


def test_every_boot_asks_the_same_and_another_seed_something_else():
    def asked(plan, number):
        return sorted(body["prompt"] for body in run(coherence, plan, reading_well, number=number)[1])

    assert asked(PAIRS, 3) == asked(PAIRS, 5)
    assert asked(PAIRS, 3) != asked(plan_of(TABLE.format(style="pairs"), seed=1), 3)


def test_as_many_requests_run_at_a_time_as_asked():
    running, seen = 0, []

    async def answer(body):
        nonlocal running
        running += 1
        seen.append(running)
        await asyncio.sleep(0.005)
        running -= 1
        return reading_well(body)

    run(coherence, PAIRS, answer)
    assert Counter(seen) == {1: 4 + 4, 2: 4, 3: 4}


def test_a_lost_needle_is_no_fault_of_the_text():
    readings, _ = run(coherence, REPORT, saying("The log announces nothing of note."))
    assert set(values(readings, "coherence.recall")) == {0}
    assert set(values(readings, "coherence.clean")) == {1}
    told = next(reading.text for reading in readings if reading.metric == "coherence.recall")
    assert re.fullmatch(r"\w+-\w+-\d\d is missing: The log announces nothing of note\.", told)


def test_a_leak_is_no_lost_needle():
    def answer(body):
        return saying(reading_well(body).json()["choices"][0]["message"]["content"] + LEAK)(body)

    readings, _ = run(coherence, REPORT, answer)
    assert set(values(readings, "coherence.recall")) == {1}
    assert set(values(readings, "coherence.clean")) == {0}
    told = next(reading.text for reading in readings if reading.metric == "coherence.clean")
    assert told.startswith("leaked control token: The log announces")


def hiding(body):
    """A server whose answers have a leak, which is shown where special tokens are not to be skipped, as vLLM does."""
    text = reading_well(body).json()["choices"][0]
    text = text["message"]["content"] if "messages" in body else text["text"]
    return saying(text if body.get("skip_special_tokens", True) else text.replace(",", f"{LEAK},", 1))(body)


def refusing(body):
    """One that does not know the field."""
    if "skip_special_tokens" in body:
        return httpx.Response(400, json={"error": {"message": "unknown parameter skip_special_tokens"}})
    return hiding(body)


@pytest.mark.parametrize("plan", [REPORT, PAIRS])
def test_leaks_that_a_server_hides_by_default_are_seen(plan):
    readings, bodies = run(coherence, plan, hiding)
    assert set(values(readings, "coherence.clean")) == {0}
    assert all(body["skip_special_tokens"] is False for body in bodies)
    assert len(bodies) == REQUESTS


@pytest.mark.parametrize("plan", [REPORT, PAIRS])
def test_a_server_that_refuses_to_show_them_is_asked_without_and_the_readings_say_so(plan):
    readings, bodies = run(coherence, plan, refusing)
    assert values(readings, "coherence.recall") == [1] * 3 * REQUESTS
    assert set(values(readings, "coherence.clean")) == {1}
    texts = [reading.text for reading in readings if reading.metric == "coherence.clean"]
    assert all(text.startswith(f"{coherence.UNSEEN}: ") for text in texts)
    assert len(bodies) == 2 * REQUESTS


def test_only_a_refusal_of_the_request_is_asked_again():
    def answer(body):
        sent.append(body)
        return httpx.Response(503 if len(sent) == 1 else 400, text="planted")

    sent = []
    with pytest.raises(ProbeFailed, match=r"16 requests had no answer, the first is c1 unique s1 #1: Refused .* 503"):
        run(coherence, PAIRS, answer)
    assert len(sent) == 1 + 2 * (REQUESTS - 1)


def test_a_reply_that_was_cut_off_says_so_beside_its_scores():
    readings, _ = run(coherence, REPORT, saying("The log announces", "length"))
    assert set(values(readings, "coherence.finished")) == {0}
    assert set(values(readings, "coherence.clean")) == {1}


def test_a_request_without_an_answer_is_neither_and_fails_the_probe():
    def answer(body):
        sent.append(body)
        if len(sent) == 2:
            raise httpx.ReadError("connection reset")
        return reading_well(body) if len(sent) != 5 else httpx.Response(500, text="planted")

    sent = []
    with pytest.raises(
        ProbeFailed, match=r"2 requests had no answer, the first is c1 unique s2 #1: ReadError"
    ) as error:
        run(coherence, PAIRS, answer)
    readings = error.value.readings
    assert set(values(readings, "coherence.recall")) == set(values(readings, "coherence.clean")) == {1}
    assert len(values(readings, "coherence.clean")) == REQUESTS - 2


def test_reuse_of_the_prefix_cache_is_the_difference_around_each_part():
    counts = {"queries": 1000, "hits": 500}

    def answer(body):
        counts["queries"] += 100
        counts["hits"] += 80
        return reading_well(body)

    def page():
        return "".join(f"vllm:prefix_cache_{name}_total {value}\n" for name, value in counts.items())

    reuse = [r for r in run(coherence, PAIRS, answer, page=page)[0] if r.metric == "coherence.prefix_reuse"]
    assert [reading.item for reading in reuse] == ["c1 unique", "c1 identical", "c3 unique", "c3 identical"]
    assert [reading.raw for reading in reuse] == [[160, 200], [160, 200], [480, 600], [480, 600]]
    unknown = [r for r in run(coherence, PAIRS, reading_well)[0] if r.metric == "coherence.prefix_reuse"]
    assert {(reading.value, reading.raw) for reading in unknown} == {(None, None)}


def test_prompts_must_fit():
    needs = PAIRS.probes.coherence.longest()
    assert needs == 1 + max(len(b["prompt"]) for b in run(coherence, PAIRS, reading_well)[1]) + 50
    with pytest.raises(ProbeFailed, match=f"needs {needs} tokens with its output, the engine's max_model_len is 256"):
        run(coherence, PAIRS, reading_well, conditions={"max_model_len": 256})
    with pytest.raises(InputError, match=r"the coherence probe needs \d+ tokens, max_model_len is 2048"):
        plan_of(TABLE.format(style="pairs").replace("lines = 40", "lines = 400"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("lines = 40", "lines = 19", "3 needles and 2 distractors need 20 lines"),
        ("lines = 40", "lines = 675", "there are 676 keys"),
        ("lines = 40", 'lines = 40\npayloads = ["same"]', "payloads"),
    ],
)
def test_settings_that_cannot_be(old, new, said):
    with pytest.raises(InputError, match=said):
        plan_of(TABLE.format(style="pairs").replace(old, new))
