"""Policies of gates: TOML that says what a metric must do, at which margin, and what an open answer means."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from dsbench.errors import InputError
from dsbench.metrics import check_pattern
from dsbench.probe_table import Table
from dsbench.toml_text import read_toml, text_of

Must = Literal["not-regress", "improve", "nothing"]
Open = Literal["pass", "fail", "rerun"]

_AMOUNT = re.compile(r"\s*(\d[\d,_]*(?:\.\d+)?|\.\d+)\s*(\S*)\s*")
_BYTES = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


LARGEST = 1e18
"""Of any size; a plan with a larger margin could not be read again."""


LONGEST = 400
"""Characters of a size: float's largest number has 309."""


class Amount(Table):
    """A size of a change: `"2 %"` of the baseline, `"1 point"` of a share, or a number in the metric's own unit."""

    value: float = Field(ge=0, le=LARGEST)
    of: Literal["baseline", "share", "unit"]
    unit: str = ""
    """The unit that the text named; '' for a bare number."""

    def __str__(self) -> str:
        if self.of == "baseline":
            return f"{self.value * 100:g} %"
        if self.of == "share":
            return f"{self.value * 100:g} point{'' if self.value == 0.01 else 's'}"
        return f"{self.value:,g} {self.unit}".strip() if self.value < 1e6 else f"{self.value:,.0f} {self.unit}".strip()


def _amount(given: Any) -> Any:
    """From what a policy says to an amount; what a stored plan says is one already."""
    if isinstance(given, bool):
        raise ValueError(f"{str(given).lower()} is no size")
    if isinstance(given, int | float) and 0 <= given < math.inf:
        return {"value": given, "of": "unit"}
    if not isinstance(given, int | float | str):
        return given
    match = _AMOUNT.fullmatch(str(given)) if len(str(given)) <= LONGEST else None
    if match is None:
        raise ValueError(f'\'{given}\' is no size: write "2 %", "1 point", "64 KiB" or a number in the metric\'s unit')
    value, unit = float(re.sub("[,_]", "", match[1])), match[2]
    if unit == "%":
        return {"value": value / 100, "of": "baseline"}
    if unit in ("point", "points"):
        return {"value": value / 100, "of": "share"}
    if unit in _BYTES:
        return {"value": value * _BYTES[unit], "of": "unit", "unit": "B"}
    return {"value": value, "of": "unit", "unit": unit}


Size = Annotated[Amount, BeforeValidator(_amount)]


class Rule(Table):
    """What one metric, or a family of them, must do. The first rule that names a row's metric and arm holds."""

    metric: str
    """A key, or a pattern such as `decode.tps.*`."""
    arm: str = "*"
    """Arms that it is for, as a pattern."""
    must: Must = "not-regress"
    by: Size | None = None
    """Smallest improvement that is enough, with `must = "improve"`; without it any that is beyond the margin."""
    margin: Size | None = None
    """Smallest change that matters, in place of the registered one."""
    inconclusive: Open | None = None
    """In place of the policy's."""

    @field_validator("metric")
    @classmethod
    def _known(cls, pattern: str) -> str:
        check_pattern(pattern)
        return pattern

    @model_validator(mode="after")
    def _makes_sense(self) -> Rule:
        if self.by is not None and self.must != "improve":
            raise ValueError('by: how much it must improve; add must = "improve"')
        if self.margin is not None and self.arm != "*":
            raise ValueError("margin: it holds for all arms; leave out arm, or give the margin a rule of its own")
        if self.must == "nothing" and self.inconclusive is not None:
            raise ValueError('inconclusive: a rule with must = "nothing" asks for no answer')
        return self

    def names(self, arm: str, metric: str) -> bool:
        return fnmatchcase(metric, self.metric) and fnmatchcase(arm, self.arm)


class Policy(Table):
    """Primaries and guards must not regress, whatever the rules say of other metrics."""

    inconclusive: Open = "fail"
    """What an answer means that the boots do not give: of a primary, and of a metric that a rule names."""
    guards_resolved: bool = False
    """Whether that holds for the other guards, too; else they pass as long as they are not regressed."""
    rule: list[Rule] = Field(default=[])

    def rule_for(self, arm: str, metric: str) -> Rule | None:
        return next((rule for rule in self.rule if rule.names(arm, metric)), None)

    def margin_of(self, metric: str) -> Amount | None:
        rules = (rule for rule in self.rule if rule.arm == "*" and fnmatchcase(metric, rule.metric))
        return next((rule.margin for rule in rules if rule.margin is not None), None)


def load_policy(path: Path) -> Policy:
    """Read a policy's file. InputError: `file:line: key problem`, one line."""
    try:
        text = text_of(path)
        policy = Policy.model_validate(read_toml(text))
    except OSError as error:
        raise InputError(f"policy {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"policy {path}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise InputError(_explain(error, text, path)) from None
    _check_order(policy, text, path)
    return policy


def _check_order(policy: Policy, text: str, path: Path) -> None:
    """InputError for a rule that can never hold: what it asks would pass unseen."""
    from dsbench.suite import line_of

    for number, rule in enumerate(policy.rule):
        for before in policy.rule[:number]:
            if _covers(before.metric, rule.metric) and _covers(before.arm, rule.arm):
                place = f"{path}:{line_of(text, ['rule', number, 'metric'])}: rule.{number}"
                raise InputError(
                    f"{place}: never holds: the rule for {before.metric} (arm {before.arm}) before it names all that "
                    "it names; put the narrower rule first, or leave one out"
                )


def _covers(pattern: str, other: str) -> bool:
    """Whether `pattern` names everything that `other` names, as far as their texts tell."""
    if set(pattern) & set("?[]") and set(other) & set("*?["):
        return pattern == other
    return fnmatchcase(other, pattern)


def _explain(error: ValidationError, text: str, path: Path) -> str:
    from dsbench.suite import line_of

    first = error.errors(include_url=False)[0]
    where = list(first["loc"])
    message = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = list((Rule if len(where) > 1 else Policy).model_fields)
        near = difflib.get_close_matches(str(where[-1]), known, n=2, cutoff=0.5)
        message = f"unknown key; {'did you mean ' + ' or '.join(near) + '?' if near else 'known: ' + ', '.join(known)}"
    key = ".".join(str(part) for part in where)
    return f"{path}:{line_of(text, where)}: {key}{': ' if key else ''}{message[0].lower()}{message[1:]}"
