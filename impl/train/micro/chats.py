"""Chats without tools: word problems alone or several in a row, and short talks of mixed questions."""

from __future__ import annotations

import random

from impl.train.micro import arithmetic, facts, structured
from impl.train.micro.problems import Problem, training_problem
from impl.train.micro.reserved import reserved_question
from impl.train.micro.tool_wordings import SMALL_TALK
from impl.train.micro.transcript import Reply, Transcript, some_thinking
from impl.train.packing import Segments

SYSTEM = ("You are a helpful assistant.", "Answer briefly.", "Be kind.", "Reply with the answer only.")

LONGEST = 700
"""Characters of a chat's turns; with the last reply it fits a row."""


def solved(problem: Problem, thinks: bool) -> Reply:
    """The solution of a problem: the steps are the answer, or the thought where there is one."""
    if not thinks:
        return Reply(problem.solution)
    return Reply(f"#### {problem.answer}", thought=problem.work, check=f"So it is {problem.answer}.")


def problem_text(rng: random.Random) -> Segments:
    """One problem, or up to six in one chat, as with worked examples before it."""
    chat = Transcript()
    thinking = some_thinking(rng, 0.8)
    size = 0
    for _ in range(rng.choice((0, 0, 0, 1, 2, 5))):
        problem = training_problem(rng)
        size += len(problem.question) + len(problem.solution)
        if size < LONGEST:
            chat.user(problem.question)
            chat.say(solved(problem, thinks=False))
    problem = training_problem(rng)
    chat.user(problem.question)
    chat.say(solved(problem, thinks=thinking != "off"))
    return chat.segments(thinking)


def small_chat(rng: random.Random) -> Segments:
    """Two to five turns on different things."""
    chat = Transcript()
    if rng.random() < 0.4:
        chat.system(rng.choice(SYSTEM))
    size = 0
    for _ in range(rng.randint(2, 5)):
        question, reply = turn(rng)
        size += len(question) + len(reply.text)
        if size < LONGEST:
            chat.user(question)
            chat.say(reply)
    thinks = chat.reply is not None and chat.reply.thought
    return chat.segments(some_thinking(rng, 0.7) if thinks else "off")


def turn(rng: random.Random) -> tuple[str, Reply]:
    kind = rng.random()
    if kind < 0.25:
        question, answer = facts.training_fact(rng)
        return question, Reply(answer, thought="This is a fact.", check="I am sure.")
    if kind < 0.6:
        asked = arithmetic.asked_in_training(rng)
        assert asked.reply is not None
        return str(asked.messages[-1]["content"]), asked.reply
    if kind < 0.75:
        problem = training_problem(rng)
        return problem.question, solved(problem, thinks=False)
    if kind < 0.9:
        while True:
            wanted, told = structured.request(rng, structured.SENTENCES)
            if not reserved_question(wanted):
                return wanted, structured.reply_of(told)
    said, reply = rng.choice(SMALL_TALK)
    return said, Reply(reply, thought="A greeting.", check="I answer it.")
