"""Rigs: TOML files with a user's own start, stop and health commands, URL, and paths of logs and profiles by rank."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dsbench.errors import InputError
from dsbench.toml_text import read_toml, text_of

Argument = Annotated[str, Field(min_length=1)]
PLACES = ("{boot_dir}", "{arm}", "{toggles}", "{args}")
"""What a command or path may name: the boot's folder, the arm, its toggles, and its arguments (one by one)."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RankPaths(_Table):
    """Where one rank leaves what it says, on a file system that this machine can read."""

    log: str
    profile: str | None = None
    """Bytes by component, as `kv_profile.rankN.json`."""
    conditions: str | None = None
    markers: str | None = None


class Rig(_Table):
    """Engines that somebody else's commands start: two hosts, containers, forks, other engines."""

    start: list[Argument] = Field(min_length=1)
    """Argument list, run without a shell. It stays in the foreground while the engine runs, or see `detached`."""
    detached: bool = False
    """Whether `start` returns with code 0 and leaves the engine running."""
    stop: list[Argument] = []
    """Run at the end of every boot; needed where `detached`."""
    health: list[Argument] = []
    """Code 0 says healthy; without it the URL's /health is asked."""
    url: str = Field(pattern=r"^https?://\S+$")
    """Where the OpenAI-compatible server answers."""
    ranks: list[RankPaths] = []

    @model_validator(mode="after")
    def _stoppable(self) -> Rig:
        if self.detached and not self.stop:
            raise ValueError("detached: an engine that outlives its start command needs a stop command")
        return self


def load_rig(path: Path) -> Rig:
    """Read a rig's file. InputError names the file, the key and what is wrong."""
    try:
        return Rig.model_validate(read_toml(text_of(path)))
    except OSError as error:
        raise InputError(f"--rig {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--rig {path}: not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(part) for part in first["loc"])
        told = "unknown key" if first["type"] == "extra_forbidden" else str(first["msg"]).removeprefix("Value error, ")
        raise InputError(f"--rig {path}: {key}{': ' if key else ''}{told[0].lower()}{told[1:]}") from None
