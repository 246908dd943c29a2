"""Transcripts of conversations with tools: what was said, called and given back, turn by turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from dsbench.errors import InputError
from dsbench.score.jsonl import check_once, lines_of
from dsbench.tool_scenarios import battery


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Called(_Part):
    """One call of a tool."""

    name: str
    arguments: str
    """JSON text, as the engine gave it."""
    result: str = ""

    @property
    def values(self) -> dict[str, Any] | None:
        """The arguments by name; None where the text is not a JSON object."""
        try:
            found = json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None


class Turn(_Part):
    """One reply of the model, with the results of its calls."""

    content: str = ""
    reasoning: str = ""
    calls: list[Called] = []
    finish_reason: str | None = None


class Transcript(_Part):
    """One conversation."""

    scenario: Annotated[str, AfterValidator(lambda name: battery().scenario(name).id)]
    mode: str
    """off, high or max: how the model was asked to think."""
    round: int
    turns: list[Turn] = Field(min_length=1)

    @property
    def item(self) -> str:
        return f"{self.scenario} {self.mode} r{self.round}"

    @property
    def final(self) -> Turn | None:
        """The turn that answers: the last one, if it calls nothing."""
        return None if self.turns[-1].calls else self.turns[-1]

    @property
    def calls(self) -> list[tuple[int, Called]]:
        """All calls with the number of their turn."""
        return [(number, call) for number, turn in enumerate(self.turns) for call in turn.calls]


def load_transcripts(file: Path) -> list[Transcript]:
    """Transcripts of a JSONL file, one a line. InputError names the line and what is wrong with it."""
    lines = lines_of(file)
    transcripts = [_transcript(line, where) for line, where in lines]
    check_once((one.item, where) for one, (_, where) in zip(transcripts, lines, strict=True))
    return transcripts


def _transcript(line: str, where: str) -> Transcript:
    try:
        return Transcript.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(str(part) for part in first["loc"])
        raise InputError(
            f"{where}: {f'{name}: ' if name else ''}{first['msg'].removeprefix('Value error, ')}"
        ) from None
