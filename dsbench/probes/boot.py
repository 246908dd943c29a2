"""What a probe knows of the boot it runs in, and the shape of what it yields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsbench.engines.client import Client
from dsbench.engines.secrets import redact
from dsbench.records import Plan, PlannedBoot, Value

LEAST_VOCABULARY = 95
"""Token ids that every vocabulary has: what a running server, which does not tell its own, is sent."""
MOST_VOCABULARY = 1 << 24
"""No model has as many."""


@dataclass(frozen=True)
class Boot:
    """One running engine."""

    plan: Plan
    planned: PlannedBoot
    client: Client | None
    """None where the engine stopped after the profile."""
    conditions: dict[int, dict[str, Any]]
    kv_profiles: dict[int, dict[str, Any]]
    """What each rank wrote, by rank."""
    folder: Path = Path()
    """Where the engine of this boot writes its files."""

    @property
    def server(self) -> Client:
        """The client of a probe that needs a server."""
        if self.client is None:
            raise ProbeFailed("this boot stopped after the profile; there is no server to ask")
        return self.client

    @property
    def dims(self) -> dict[str, Any]:
        """The shape that the engine tells, or else the plan's; a rank may write anything."""
        told = self.conditions.get(0, {}).get("dims")
        return told if told and isinstance(told, dict) else self.plan.dims

    @property
    def vocab_size(self) -> int:
        told = self.dims.get("vocab_size")
        if type(told) is int and 0 < told <= MOST_VOCABULARY:
            return told
        if self.plan.engine == "endpoint":
            return LEAST_VOCABULARY
        raise ProbeFailed("the engine's conditions do not say dims.vocab_size")

    @property
    def max_model_len(self) -> int | None:
        """Most tokens of prompt and output together; None if neither engine nor plan tells."""
        told = (self.conditions.get(0, {}).get("max_model_len"), self.dims.get("max_model_len"))
        return next((int(tokens) for tokens in told if isinstance(tokens, int)), None)

    def check_length(self, tokens: int) -> None:
        """ProbeFailed if a request of so many tokens, output included, cannot fit."""
        limit = self.max_model_len
        if limit is not None and tokens > limit:
            raise ProbeFailed(f"a request needs {tokens} tokens with its output, the engine's max_model_len is {limit}")


@dataclass(frozen=True)
class Reading:
    """One observation before it is recorded."""

    metric: str
    value: Value | None
    rank: int | None = None
    item: str | None = None
    cluster: str | None = None
    """Scenario that several items share."""
    raw: list[float] | None = None
    text: str | None = None


MOST_OF_A_REPLY = 1 << 16
"""Characters of a reply that are stored; the longest that our suites allow are a tenth of it."""


def kept(reply: str) -> str:
    """What is stored of a reply, once it was scored: all of it, or of one that is too long its beginning and its end.

    Redacted first: half a secret is not known to be one.
    """
    text = redact(reply)
    if len(text) <= MOST_OF_A_REPLY:
        return text
    head, tail = MOST_OF_A_REPLY * 3 // 4, MOST_OF_A_REPLY // 4
    left_out = len(text) - head - tail
    return f"{text[:head]}\n[... {left_out:,} of {len(text):,} characters left out ...]\n{text[-tail:]}"


class ProbeFailed(Exception):
    """A probe could not measure; the message is its one-line reason, redacted."""

    def __init__(self, message: str) -> None:
        super().__init__(redact(message))


class Probe(Protocol):
    """The one public function of a probe module."""

    def __call__(self, boot: Boot) -> AsyncIterator[Reading]: ...
