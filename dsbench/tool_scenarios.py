"""Scenarios of the toolcall probe: the tools, the questions, and the rules that give points, from one data file."""

from __future__ import annotations

import re
import tomllib
from functools import cache
from math import isclose
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

DATA = Path(__file__).parent / "data" / "toolcall.toml"

Category = Literal["selection", "parameters", "chain", "restraint", "recovery"]
CATEGORIES: tuple[Category, ...] = get_args(Category)

_PLAIN = str.maketrans({"\u2019": "'", "\xa0": " ", "\u202f": " ", "\u2011": "-"})


def _compiles(pattern: str) -> str:
    re.compile(pattern)
    return pattern


Regex = Annotated[str, AfterValidator(_compiles)]
Wanted = int | float | Regex
"""What an argument must be: a number, or a pattern for the whole text."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Parameter(_Data):
    type: Literal["string", "number"]
    description: str


class Result(_Data):
    """What a mocked tool gives to the calls that it fits."""

    when: dict[str, Wanted] = {}
    first: int | None = None
    """Only the first so many of them."""
    gives: dict[str, Any]


class Tool(_Data):
    description: str
    parameters: dict[str, Parameter]
    acts: bool = False
    """Whether a call changes something."""
    results: list[Result] = []
    otherwise: dict[str, Any]

    def as_openai(self, name: str) -> dict[str, Any]:
        """The tool as a request offers it; every argument is required."""
        parameters = {
            "type": "object",
            "properties": {key: parameter.model_dump() for key, parameter in self.parameters.items()},
            "required": list(self.parameters),
            "additionalProperties": False,
        }
        return {
            "type": "function",
            "function": {"name": name, "description": self.description, "parameters": parameters},
        }


class ExpectedCall(_Data):
    tool: str
    arguments: dict[str, Wanted]
    after: bool = False
    """Whether it must come in a later turn than the calls named before it."""


class Rule(_Data):
    """Conditions that all must hold for its points."""

    points: Literal[1, 2]
    calls: list[ExpectedCall] = []
    others: Literal["none", "reading", "any"] = "none"
    """Calls that may be there besides."""
    answer: list[Regex] = []
    states: list[Regex] = []
    """As `answer`, and denied nowhere."""
    never: list[Regex] = []


class Scenario(_Data):
    id: str
    category: Category
    title: str
    question: str
    results: dict[str, list[Result]] = {}
    """By tool, what comes before the tool's own results."""
    rules: list[Rule] = Field(min_length=1)

    @model_validator(mode="after")
    def _full_points_first(self) -> Scenario:
        if [rule.points for rule in self.rules] != [2, *(1 for _ in self.rules[1:])]:
            raise ValueError(f"{self.id}: the first rule gives 2 points and every other one 1")
        return self


class Battery(_Data):
    """All of the probe's data."""

    today: str
    system: str
    tools: dict[str, Tool]
    scenarios: list[Scenario]

    @model_validator(mode="after")
    def _names_are_known(self) -> Battery:
        for scenario in self.scenarios:
            called = [call for rule in scenario.rules for call in rule.calls]
            if strangers := ({call.tool for call in called} | {*scenario.results}) - {*self.tools}:
                raise ValueError(f"{scenario.id} names unknown tools: {', '.join(sorted(strangers))}")
            for call in called:
                if {*call.arguments} != {*self.tools[call.tool].parameters}:
                    raise ValueError(f"{scenario.id}: a call of {call.tool} must name each of its arguments")
        if len(self.ids) != len({*self.ids}):
            raise ValueError("two scenarios have one id")
        return self

    @property
    def ids(self) -> list[str]:
        return [scenario.id for scenario in self.scenarios]

    def scenario(self, name: str) -> Scenario:
        """Raises ValueError, naming the known ones, for an unknown id."""
        found = next((scenario for scenario in self.scenarios if scenario.id == name), None)
        if found is None:
            raise ValueError(f"unknown scenario '{name}': known are {', '.join(self.ids)}")
        return found

    def offered(self) -> list[dict[str, Any]]:
        """The tools as a request offers them."""
        return [tool.as_openai(name) for name, tool in self.tools.items()]


@cache
def battery() -> Battery:
    """The shipped tools and scenarios."""
    return Battery.model_validate(tomllib.loads(DATA.read_text(encoding="utf-8")))


def plain(text: str) -> str:
    """A text with typographic signs turned into plain ones, so that patterns need not know them."""
    return text.translate(_PLAIN)


def fits(wanted: Wanted, value: Any) -> bool:
    """Whether an argument is what a rule or a mocked tool asks for; a number may come as text."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return False
    if isinstance(wanted, str):
        return re.fullmatch(wanted, plain(str(value)).strip(), re.IGNORECASE | re.DOTALL) is not None
    try:
        return isclose(float(value), wanted, abs_tol=1e-9)
    except (ValueError, OverflowError):
        return False


def holds(pattern: str, text: str) -> bool:
    """Whether a text holds a pattern somewhere."""
    return re.search(pattern, plain(text), re.IGNORECASE) is not None
