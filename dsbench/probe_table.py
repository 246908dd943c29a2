"""What the settings of all probes have in common: tables of a suite's TOML, each with its metrics and items."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MOST = 10_000
MOST_TOKENS = 1 << 24
Count = Annotated[int, Field(ge=1, le=MOST)]
"""Of repeats, of blocks: more is a slip of the pen, and would keep a machine busy for days."""
MOST_AT_ONCE = 1024
AtOnce = Annotated[int, Field(ge=1, le=MOST_AT_ONCE)]
"""Requests at one time; with ten times as many a deadline is not kept any more, as all have to be ended, too."""
Tokens = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
Seed = Annotated[int, Field(ge=-(2**62), le=2**62)]
"""What fits the 64 bits of a server, some rounds added."""
Text = Annotated[str, Field(min_length=1)]


def _each_once(values: list[Any]) -> list[Any]:
    if twice := [value for value, times in Counter(values).items() if times > 1]:
        raise ValueError(f"names {twice[0]} more than once: name each value once")
    return values


Once = AfterValidator(_each_once)
"""Of a list whose values each give a metric, or items, of their own: one that stands twice would be read twice."""


class Table(BaseModel):
    """One table of a suite's TOML."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class ProbeTable(Table, ABC):
    """Settings of one probe."""

    timed: ClassVar[bool] = False
    """Whether a compiler at work would spoil it."""
    in_warmup: ClassVar[bool] = True
    """Whether a discarded boot runs it too; not what is counted and not timed, which a cold cache cannot change."""

    needs_engine: ClassVar[bool] = True
    """Whether it asks the engine; what does not runs after the engine has stopped, with the whole machine to itself."""

    blocks: Count | None = None
    """It runs in this many blocks, the first ones; in all without it. For long probes that need few boots."""

    @abstractmethod
    def metrics(self) -> list[str]:
        """Metric keys it reports when it has run."""

    def n_items(self) -> int:
        """Number of items it asks; 0 for a probe without items."""
        return 0

    def n_items_of(self, metric: str) -> int:
        """Number of items of one of its metrics."""
        return self.n_items()

    def longest(self) -> int:
        """Tokens of its longest request at least, output included; a text is one where only the engine's tokenizer can
        say how many it is. 0 for a probe that asks for none."""
        return 0

    def deadline(self) -> float | None:
        """Its own deadline in seconds; None for the suite's."""
        return None

    def pinned(self) -> Self:
        """The settings as a plan keeps them: what they point to is read, counted and digested."""
        return self
