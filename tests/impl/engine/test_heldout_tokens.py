"""Greedy tokens of the shipped model on held-out prompts: the same without drafts, with DSpark and with serial MTP.

10 prompts by default; `HELDOUT_PROMPTS=200 pytest tests/impl/engine/test_heldout_tokens.py` runs 200.
"""

from __future__ import annotations

import os
from functools import cache
from itertools import chain, zip_longest

import pytest

from impl import tokenizer
from impl.dims import PICO
from impl.engine.config import EngineConfig, LoadFormat, Method
from impl.engine.request import Request
from impl.engine.runner import Runner
from impl.handshake import Handshake
from impl.toggles import ToggleSet
from impl.train import heldout
from tests.impl.engine.engines import generate, make_request

pytestmark = pytest.mark.slow

PROMPTS = int(os.environ.get("HELDOUT_PROMPTS", "10"))
TOKENS = 24


def prompts(n: int) -> list[list[int]]:
    """Held-out sums, products, word problems and lookups by turns: short and long ones share a batch."""
    kinds = (
        heldout.sums(),
        heldout.sums("chat"),
        heldout.products("chat"),
        heldout.problems(n, new_wording=True),
        heldout.lookups(n, characters=300),
    )
    items = filter(None, chain.from_iterable(zip_longest(*(kind[:: max(1, len(kind) // n)] for kind in kinds))))
    return [[tokenizer.BOS, *tokenizer.encode(item.prompt)] for item, _ in zip(items, range(n), strict=False)]


def boot(method: Method) -> Runner:
    """The shipped target as it is served; no MTP weights are shipped, so that method's drafts are random."""
    drafts: LoadFormat = "dummy" if method == "mtp" else "auto"
    config = EngineConfig(
        PICO, ToggleSet(), 64 << 20, speculative=method, draft_load_format=drafts, eager=method == "none"
    )
    runner = Runner(config, Handshake(None))
    runner.allocate_pages()
    return runner


@cache
def plain() -> list[list[int]]:
    """Tokens without speculation, each prompt alone."""
    runner = boot("none")
    return [generate(runner, [request(prompt)])[0] for prompt in prompts(PROMPTS)]


def request(prompt: list[int]) -> Request:
    return make_request(prompt, max_tokens=TOKENS)


@pytest.mark.parametrize("method", ["dspark", "mtp"])
def test_each_prompt_alone_gets_the_tokens_it_gets_without_drafts(method: Method) -> None:
    runner = boot(method)
    assert [generate(runner, [request(prompt)])[0] for prompt in prompts(PROMPTS)] == plain()


@pytest.mark.parametrize("method", ["none", "dspark", "mtp"])
def test_mixed_batches_get_the_tokens_of_each_prompt_alone(method: Method) -> None:
    runner = boot(method)
    # A new prompt each second step: prefill rows share steps with rounds of the requests before them.
    assert generate(runner, [request(prompt) for prompt in prompts(PROMPTS)], every=2) == plain()


def test_the_prompts_are_of_every_kind() -> None:
    texts = [tokenizer.decode(prompt) for prompt in prompts(24)]
    assert len(texts) == 24 == len(set(texts))
    assert max(map(len, texts)) > 250 > 20 > min(map(len, texts))
