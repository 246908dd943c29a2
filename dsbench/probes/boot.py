"""What a probe knows of the boot it runs in, and the shape of what it yields."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from dsbench.engines.client import Client
from dsbench.records import Plan, PlannedBoot, Value


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
    def vocab_size(self) -> int:
        dims = self.conditions.get(0, {}).get("dims") or self.plan.dims
        try:
            return int(dims["vocab_size"])
        except (KeyError, TypeError, ValueError):
            raise ProbeFailed("the engine's conditions do not say dims.vocab_size") from None


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


class ProbeFailed(Exception):
    """A probe could not measure; the message is its one-line reason."""


class Probe(Protocol):
    """The one public function of a probe module."""

    def __call__(self, boot: Boot) -> AsyncIterator[Reading]: ...
