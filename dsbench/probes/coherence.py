"""Coherence: needles in long prompts, asked alone and many at a time; recall and sound text scored apart.

Prompts: `report` is a log of a night's maintenance, sent as one chat message, whose reply should name the announced
release tags in one paragraph; `pairs` is `kx=42` lines and a query for several keys, completed to the end of the
line, for our small model; with `ballots` there are ballots among the lines, and a tally of them is asked for behind
the keys. Needles, fillers' order and distractors come from the plan's seed, so every boot asks the same. Settings:
lines, needles, distractors, ballots, concurrencies, seeds, payloads (`unique`: a prompt for each request; `identical`:
one prompt for all requests of a seed, as in the source document), max_tokens. Greedy.

Scorer: dsbench/score/coherence.py. Items: `c12 unique s1 #3 needle 2` and `c12 unique s1 #3 tally` (right when all its
letters are) of `coherence.recall`, and `c12 unique s1 #3` of `coherence.clean` (text without leaked control tokens,
U+FFFD, other scripts or repetition) and of `coherence.finished` (not cut off at max_tokens). Requests of one prompt are
one cluster: they stand or fall together. `coherence.prefix_reuse` holds the counters of the prefix cache around each
part, hits and queries.

Requests say `skip_special_tokens: false`, since by vLLM's default a control token that leaked would be left out of the
text; the one that ends an answer is not in it either way. A server that refuses this is asked without it: what it
writes then is marked UNSEEN, and a note says so. One that takes no notice of it looks like one that leaks nothing.

Failure looks like needles lost at some depth of the prompt (a wrong index row, a dropped page), more of them at a
high concurrency than alone (rows of one request in another's batch), or fluent text with a token in it that no
text has. Lost tallies beside needles that came back say that what covers the whole context coarsely is wrong (a C128A
index row), while what finds a place in it is right; every letter of the answer is read at a position of its own, so a
fault of one position in fifty loses a tally now and then. A request without an answer is neither: it fails the probe.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from dsbench.checks.text import incoherence
from dsbench.engines.client import BadAnswer, Refused, Reply
from dsbench.engines.secrets import redact
from dsbench.parse.prometheus import COUNTERS, Page, increase
from dsbench.probe_settings import CoherenceProbe
from dsbench.probes.boot import Boot, ProbeFailed, Reading, kept
from dsbench.probes.needles import Prompt, pairs, report, with_ballots
from dsbench.score.coherence import CUT, recalled, recalled_in_order

SHOW_SPECIALS: dict[str, Any] = {"skip_special_tokens": False}
NOT_TAKEN = (400, 422)
"""Statuses of servers that refuse a field."""
UNSEEN = "control tokens unseen"
"""What the text beside `coherence.clean` begins with where a leak could not have been seen."""
SHOWN = 300
"""Characters of a reply kept beside a lost needle; the whole stands beside `coherence.clean`."""


@dataclass(frozen=True)
class _Request:
    item: str
    cluster: str
    prompt: Prompt


async def run(boot: Boot) -> AsyncIterator[Reading]:
    """Scores by needle and by request, in parts of one concurrency and payload."""
    config = boot.plan.probes.coherence
    assert config is not None
    boot.check_length(config.longest())
    failed: list[str] = []
    for streams, payload in config.parts():
        before = await boot.server.page()
        for seed in range(1, config.seeds + 1):
            requests = _requests(config, boot.plan.seed, streams, payload, seed)
            replies = await asyncio.gather(*(_ask(boot, config, request.prompt) for request in requests))
            for request, reply in zip(requests, replies, strict=True):
                if isinstance(reply, str):
                    failed.append(f"{request.item}: {reply}")
                else:
                    for reading in _scores(config, request, *reply):
                        yield reading
        yield _reuse(f"c{streams} {payload}", before, await boot.server.page())
    if failed:
        raise ProbeFailed(f"{len(failed)} requests had no answer, the first is {failed[0]}")


def _requests(config: CoherenceProbe, plan_seed: int, streams: int, payload: str, seed: int) -> list[_Request]:
    make = report if config.style == "report" else pairs
    found = []
    for number in range(1, streams + 1):
        item = f"c{streams} {payload} s{seed} #{number}"
        # An identical payload is the same at every concurrency, too.
        cluster = item if payload == "unique" else f"identical s{seed}"
        rng = random.Random(f"coherence {plan_seed} {cluster}")
        prompt = make(rng, config.lines, config.needles, config.distractors)
        found.append(_Request(item, cluster, with_ballots(rng, prompt, config.ballots) if config.ballots else prompt))
    return found


async def _ask(boot: Boot, config: CoherenceProbe, prompt: Prompt) -> tuple[Reply, bool] | str:
    """The reply and whether a leaked control token would be in it, or why there is none."""
    how: dict[str, Any] = {"stop": "\n"} if config.style == "pairs" else {"chat": True}
    if config.style == "report" and config.chat_template_kwargs:
        how["chat_template_kwargs"] = config.chat_template_kwargs
    try:
        try:
            return await boot.server.write(prompt.text, config.max_tokens, **how, **SHOW_SPECIALS), True
        except Refused as error:
            if error.status not in NOT_TAKEN:
                raise
            return await boot.server.write(prompt.text, config.max_tokens, **how), False
    except (httpx.HTTPError, BadAnswer) as error:
        return f"{type(error).__name__} {error}".strip()


def _scores(config: CoherenceProbe, request: _Request, reply: Reply, seen: bool) -> Iterator[Reading]:
    score = recalled if config.style == "report" else recalled_in_order
    found = score(reply.text, request.prompt.needles)
    for number, (needle, right) in enumerate(zip(request.prompt.needles, found, strict=True), start=1):
        told = needle if right else f"{needle} is missing: {redact(reply.text)[:SHOWN]}"
        kind = "tally" if request.prompt.tally and number == len(found) else f"needle {number}"
        yield Reading("coherence.recall", int(right), item=f"{request.item} {kind}", cluster=request.cluster, text=told)
    reason = incoherence(reply.text)
    told = ": ".join([*([] if seen else [UNSEEN]), *([reason] if reason else []), reply.text])
    yield Reading("coherence.clean", int(reason is None), item=request.item, cluster=request.cluster, text=kept(told))
    cut = reply.finish_reason == CUT
    ended = None if reply.finish_reason is None else kept(str(reply.finish_reason))
    yield Reading("coherence.finished", int(not cut), item=request.item, cluster=request.cluster, text=ended)


def _reuse(part: str, before: Page, after: Page) -> Reading:
    """Share of the prompt tokens that came from the prefix cache; None where the server does not count."""
    hits, queries = (increase(before, after, COUNTERS[f"prefix_cache_{what}"]) for what in ("hits", "queries"))
    if hits is None or queries is None:
        return Reading("coherence.prefix_reuse", None, item=part)
    return Reading("coherence.prefix_reuse", hits / queries if queries else None, item=part, raw=[hits, queries])
