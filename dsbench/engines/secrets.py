"""Secrets stay in the environment: names that may hold one, and texts with their values taken out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from dsbench.errors import InputError

REDACTED = "[redacted]"
SHORTEST = 6
"""A shorter value is no secret, and taking it out would garble the text."""

_NAME = re.compile(r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|credentials?)$")
_FLAG = re.compile(r"(?i)^--(?:api-?key|hf-token|password|token)(?:=|$)")


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return bool(_NAME.search(name))


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` without the value of any variable that may hold a secret."""
    for name, value in environment.items():
        if is_secret(name) and len(value) >= SHORTEST:
            text = text.replace(value, REDACTED)
    return text


def refuse_secrets(args: list[str], environment: Mapping[str, str]) -> None:
    """InputError for a secret that would be stored with the plan: on a command line, or as a given value."""
    for part in args:
        if _FLAG.match(part):
            flag = part.partition("=")[0]
            raise InputError(f"{flag} would be stored with the plan: set VLLM_API_KEY or HF_TOKEN in the environment")
    for name, value in environment.items():
        if is_secret(name) and value:
            raise InputError(f"--env {name}=... would be stored with the plan: export it, and give --env {name}")


def authorization() -> dict[str, str]:
    """The header for a server that wants a key; the key is in the environment and nowhere else."""
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
