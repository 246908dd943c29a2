"""What a check says, and how its input is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from dsbench.errors import InputError


class Input(BaseModel):
    """Base of a check's input; answers come in the order of the input's lists."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True)
class Answer:
    """A check's answer."""

    figures: dict[str, Any]
    found: list[str]
    """One line for each thing that is wrong; empty if nothing is."""


M = TypeVar("M", bound=BaseModel)


def read(model: type[M], content: Any) -> M:
    """The input of a check. InputError is one line with the place and the value."""
    try:
        return model.model_validate(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        got = "" if isinstance(first["input"], dict | list) else f", got {first['input']!r}"
        message = "is missing" if first["type"] == "missing" else f"{first['msg'][0].lower()}{first['msg'][1:]}{got}"
        raise InputError(f"{where or 'input'}: {message}") from None
