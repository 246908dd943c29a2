"""Probes that grade answers: what they send, how they grade, and what a bad server makes of them."""

import asyncio
import json
import re

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.answer_settings import SmokeItem
from dsbench.engines.client import BadAnswer
from dsbench.probes import gsm8k, instruction, smoke
from dsbench.probes.boot import ProbeFailed
from dsbench.probes.instruction import tasks
from dsbench.probes.smoke import is_right, whole_numbers
from dsbench.questions import load_questions
from tests.dsbench.probes.serving import plan_of, run

OWN = load_questions("own")
THINKING_OFF = {"thinking": False, "enable_thinking": False}


def reply(text, reason="stop"):
    return httpx.Response(
        200, json={"choices": [{"message": {"content": text}, "text": text, "finish_reason": reason}]}
    )


def knowing(body):
    """Answers the questions of the own set rightly, in any prompt that ends with one."""
    asked = body["messages"][0]["content"] if "messages" in body else body["prompt"]
    return reply(next(row.answer for row in OWN[:20] if row.question in asked.rpartition("\n\n")[2]))


def test_gsm8k_sends_bare_questions_and_grades_them():
    plan = plan_of("[probes.gsm8k]\nlimit = 12\nmax_tokens = 77\nconcurrency = 5\n")
    readings, bodies = run(gsm8k, plan, knowing)
    assert sorted(body["messages"][0]["content"] for body in bodies) == sorted(row.question for row in OWN[:12])
    assert {(body["path"], body["max_tokens"], body["temperature"]) for body in bodies} == {
        ("/v1/chat/completions", 77, 0.0)
    }
    assert all(body["chat_template_kwargs"] == THINKING_OFF and "stop" not in body for body in bodies)
    right = [(r.item, r.value, r.text) for r in readings if r.metric == "gsm8k.correct"]
    assert right == [(f"{n:04d}", 1, row.answer) for n, row in enumerate(OWN[:12], start=1)]
    assert [r.value for r in readings if r.metric == "gsm8k.truncated"] == [0] * 12
    assert {r.metric for r in readings} == set(plan.probes.metrics("gsm8k"))
    assert plan.probes.items("gsm8k") == 12


def test_gsm8k_says_what_was_wrong():
    answers = iter([reply("16 - 7 = 9.\n#### -1"), reply("16 - 7", "length"), reply("<think>5", "length")])
    plan = plan_of("[probes.gsm8k]\nlimit = 3\nconcurrency = 1\nfilters = true\n")
    readings, _ = run(gsm8k, plan, lambda body: next(answers))
    found = {(r.metric, r.item): (r.value, r.text) for r in readings}
    golds = [row.answer.split("#### ")[1] for row in OWN[:3]]
    assert found["gsm8k.correct", "0001"] == (0, f"[-1, not {golds[0]}] 16 - 7 = 9.\n#### -1")
    assert found["gsm8k.correct", "0003"] == (0, f"[open thinking, not {golds[2]}] <think>5")
    assert [found["gsm8k.truncated", f"000{n}"][0] for n in (1, 2, 3)] == [0, 1, 1]
    assert [found[f"gsm8k.{name}", "0001"][0] for name in ("strict", "flexible")] == [0, 0]
    assert set(plan.probes.metrics("gsm8k")) == {metric for metric, _ in found}


def test_gsm8k_with_examples_as_text(tmp_path):
    path = tmp_path / "official.jsonl"
    path.write_text("".join(f"{json.dumps({'question': r.question, 'answer': r.answer})}\n" for r in OWN[:4]))
    plan = plan_of(f'[probes.gsm8k]\nsource = "{path}"\nmode = "completion"\n')
    readings, bodies = run(gsm8k, plan, knowing)
    assert [r.value for r in readings if r.metric == "gsm8k.correct"] == [1] * 4
    assert {(body["path"], body["stop"]) for body in bodies} == {("/v1/completions", "Question:")}
    assert all("chat_template_kwargs" not in body for body in bodies)
    for body, row in zip(bodies, OWN, strict=False):
        blocks = body["prompt"].split("\n\n")
        assert len(blocks) == 9
        assert all(re.fullmatch(r"Question: .*\nAnswer: .*\n#### \d+", block) for block in blocks[:8])
        assert blocks[8] == f"Question: {row.question}\nAnswer:"
    chat = plan_of(f'[probes.gsm8k]\nsource = "{path}"\nshots = 1\ntemplate = "Q: {{question}} A:"\n')
    _, bodies = run(gsm8k, chat, knowing)
    assert all(body["messages"][0]["content"].count("Q: ") == 2 for body in bodies)


def test_gsm8k_refuses_other_questions_than_the_plans(tmp_path):
    path = tmp_path / "q.jsonl"
    path.write_text('{"question": "1+1?", "answer": "#### 2"}\n')
    plan = plan_of(f'[probes.gsm8k]\nsource = "{path}"\nshots = 0\n')
    assert len(run(gsm8k, plan, lambda body: reply("2"))[0]) == 2
    path.write_text('{"question": "1+2?", "answer": "#### 2"}\n')
    with pytest.raises(ProbeFailed, match="are not those of the plan"):
        run(gsm8k, plan, lambda body: reply("2"))


def test_gsm8k_asks_so_many_at_one_time_and_stops_at_the_first_failure():
    together, most = 0, 0

    async def counting(body):
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.01)
        together -= 1
        return reply("7")

    run(gsm8k, plan_of("[probes.gsm8k]\nlimit = 20\nconcurrency = 6\n"), counting)
    assert most == 6
    asked = []

    async def failing(body):
        asked.append(body)
        await asyncio.sleep(0.001)
        return reply("7") if len(asked) < 3 else httpx.Response(500, text="planted")

    with pytest.raises(BadAnswer, match="answered 500") as caught:
        run(gsm8k, plan_of("[probes.gsm8k]\nlimit = 100\nconcurrency = 1\n"), failing)
    assert len(caught.value.readings) == 4
    assert len(asked) < 6


def test_a_server_that_does_not_say_how_it_ended():
    quiet = httpx.Response(200, json={"choices": [{"message": {"content": "7"}}]})
    readings, _ = run(gsm8k, plan_of("[probes.gsm8k]\nlimit = 1\n"), lambda body: quiet)
    assert [r.value for r in readings if r.metric == "gsm8k.truncated"] == [None]


# --- instruction ----------------------------------------------------------------------------------------------------


def obeying(body):
    """Finds every fact that is asked for in the sentence."""
    keys, sentence = re.fullmatch(r"Reply with JSON only, keys (.*?): (.*)", body["messages"][0]["content"]).groups()
    told = {
        "name": next(name for name in instruction.NAMES if name in sentence.replace(",", "").rstrip(".").split()),
        "age": int(re.search(r"\d+", sentence)[0]),
        "city": next(city for city in instruction.CITIES if city in sentence),
        "job": next((job for job in instruction.JOBS if job in sentence), None),
    }
    return reply(json.dumps({key: told[key] for key in keys.split(", ")}))


def test_instruction_asks_and_checks():
    plan = plan_of("[probes.instruction]\nitems = 60\nseed = 3\n")
    readings, bodies = run(instruction, plan, obeying)
    assert [(r.item, r.value) for r in readings] == [(f"{n:03d}", 1) for n in range(1, 61)]
    assert all(body["chat_template_kwargs"] == THINKING_OFF and body["temperature"] == 0 for body in bodies)
    assert plan.probes.items("instruction") == 60


def test_instruction_says_why_it_is_a_miss():
    plan = plan_of("[probes.instruction]\nitems = 3\nchat_template_kwargs = {}\n")
    readings, bodies = run(instruction, plan, lambda body: reply("```json\n{}\n```"))
    assert [(r.value, r.text) for r in readings] == [(0, "[a code fence around the JSON] ```json\n{}\n```")] * 3
    assert all("chat_template_kwargs" not in body for body in bodies)


@given(st.integers(1, 60), st.integers(0, 2**40))
def test_tasks_are_the_same_for_a_seed_and_can_be_answered(count, seed):
    made = tasks(count, seed)
    assert made == tasks(count, seed)
    assert len({task.prompt for task in made}) == count
    for task in made:
        keys, sentence = task.prompt.removeprefix("Reply with JSON only, keys ").split(": ", 1)
        assert keys.split(", ") == list(task.facts)
        assert 2 <= len(task.facts) <= 4
        assert all(str(value) in sentence for value in task.facts.values())


# --- smoke ----------------------------------------------------------------------------------------------------------

SOURCE_QUESTIONS = """
[[probes.smoke.items]]
chat = "7*8"
answer = 56
[[probes.smoke.items]]
chat = "17x23"
answer = 391
[[probes.smoke.items]]
chat = "What is the capital of France?"
expect = "Paris"
max_tokens = 16
[[probes.smoke.items]]
chat = "What are the first three primes?"
expect = [2, 3, 5]
max_tokens = 24
"""


def test_smoke_expects_numbers_words_and_lists():
    given_answers = {
        "7*8": "56.", "17x23": "It is 391, I think.", "What is the capital of France?": "The capital is **Paris**.",
        "What are the first three primes?": "The first 3 primes are 2, 3 and 5.",
    }  # fmt: skip
    plan = plan_of(SOURCE_QUESTIONS)
    readings, _ = run(smoke, plan, lambda body: reply(given_answers[body["messages"][0]["content"]]))
    assert [(r.item, r.value) for r in readings] == [(f"chat {question}", 1) for question in given_answers]
    wrong, _ = run(smoke, plan, lambda body: reply("Parisian, 1, 2, 3, 5"))
    assert [r.value for r in wrong] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("expect", "text", "right"),
    [
        ("Paris", "PARIS", True),
        ("Paris", "It is Paris, of course", True),
        ("Paris", "comparison", False),
        ("New Delhi", "new delhi!", True),
        ("C++", "use C++.", True),
        ("a.c", "abc", False),
        ([2, 3, 5], "2, 3, 5", True),
        ([2, 3, 5], "2,3,5,7", True),
        ([2, 3, 5], "3: 2, 3, 5", True),
        ([2, 3, 5], "1, 2, 3, 5", False),
        ([2, 3, 5], "2, 5, 3", False),
        ([2, 3, 5], "2, 3", False),
        ([2, 3, 5], "2.5, 2, 3, 5", True),
        ([2, 3, 5], "2, 3, 5.0", False),
        ([-1], "-1", True),
        ([9], "9" * 5000, False),
    ],
)
def test_what_an_item_may_expect(expect, text, right):
    assert is_right(SmokeItem(chat="?", expect=expect), text) is right


@given(st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=5), st.sampled_from([", ", " and ", "\n"]))
def test_a_list_in_order_is_right(numbers, between):
    text = between.join(map(str, numbers))
    assert whole_numbers(text) == numbers
    assert is_right(SmokeItem(chat="?", expect=numbers), f"They are {text}.")


def test_an_item_needs_one_right_answer():
    for fields in ({}, {"answer": 1, "expect": "one"}):
        with pytest.raises(ValueError, match="give either answer or expect"):
            SmokeItem(chat="?", **fields)
