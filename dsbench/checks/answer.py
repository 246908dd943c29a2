"""What a check says, and how its input is read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dsbench.errors import InputError


class Input(BaseModel):
    """Base of a check's input; answers come in the order of the input's lists."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False, strict=True)


T = TypeVar("T")
Some = Annotated[list[T], Field(min_length=1)]
"""A list with something in it: of an empty one nothing is checked, and that is not the same as nothing found."""
Share = Annotated[tuple[int, int], Field(strict=False)]
"""Part and whole; JSON has lists only, so this one may come as a list."""


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
        text = str(first["msg"]).removeprefix("Value error, ")
        got = "" if isinstance(first["input"], dict | list) else f", got {first['input']!r}"
        message = "is missing" if first["type"] == "missing" else f"{text[0].lower()}{text[1:]}{got}"
        if first["type"] == "too_short" and not first["input"]:
            message = "is empty, so nothing was checked"
        raise InputError(f"{where or 'input'}: {message}") from None
