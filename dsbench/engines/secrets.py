"""Secrets stay in the environment: names that may hold one, and texts with their values taken out."""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from dsbench.errors import InputError

REDACTED = "[redacted]"
SHORTEST = 6
"""A shorter value is no secret, and taking it out would garble the text."""

FIXED = ("record", "time", "status", "phase", "moment", "metric", "unit", "probe", "arm", "log", "log_sha256")
"""Keys of our records whose values come from the plan or from fixed lists."""

_NAME = re.compile(r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|credentials?)$")
_FLAG = re.compile(r"(?i)^--(?:api-?key|hf-token|password|token)(?:=|$)")


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return bool(_NAME.search(name))


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` without the value of any variable that may hold a secret."""
    for value in _values(environment):
        text = text.replace(value, REDACTED)
    return text


def redact_object(content: bytes, environment: Mapping[str, str] = os.environ) -> bytes:
    """The JSON text of an object whose texts are redacted; the object's own words stay, as `"record":"check"`."""
    if not any(form in content for value in _values(environment) for form in _forms(value)):
        return content
    clean = {key: value if key in FIXED else _clean(value, environment) for key, value in json.loads(content).items()}
    return json.dumps(clean, separators=(",", ":"), ensure_ascii=False).encode()


def redact_files(folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Take secrets out of the files under a folder that hold one, as bytes; links are left alone.

    Every file is tried; then the first OSError is raised, if there was one.
    """
    if folder.is_symlink():
        return
    forms = {form for value in _values(environment) for form in _forms(value)}
    failed: list[OSError] = []
    for path in sorted(folder.rglob("*")) if forms else ():
        try:
            if not path.is_symlink() and path.is_file() and path.stat().st_size:
                _redact_file(path, forms)
        except FileNotFoundError:  # an engine's temporary file that is gone
            continue
        except OSError as error:
            failed.append(error)
    if failed:
        raise failed[0]


def _redact_file(path: Path, forms: Collection[bytes]) -> None:
    """In its place, so that a full disk cannot take the file away."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        found = [form for form in forms if content.find(form) >= 0]
    if not found:
        return
    clean = path.read_bytes()
    for form in sorted(found, key=len, reverse=True):
        clean = clean.replace(form, REDACTED.encode())
    path.chmod(path.stat().st_mode | stat.S_IWUSR)
    with path.open("r+b") as place:
        place.write(clean)
        place.truncate()


def _values(environment: Mapping[str, str]) -> Iterator[str]:
    return (value for name, value in environment.items() if is_secret(name) and len(value) >= SHORTEST)


def _forms(value: str) -> set[bytes]:
    """A value as bytes, plain and as it stands inside JSON."""
    inside = (json.dumps(value, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (False, True))
    return {value.encode(), *inside}


def _clean(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return redact(value, environment)
    if isinstance(value, list):
        return [_clean(part, environment) for part in value]
    if isinstance(value, dict):
        return {redact(key, environment): _clean(part, environment) for key, part in value.items()}
    return value


def refuse_secrets(args: list[str], environment: Mapping[str, str]) -> None:
    """InputError for a secret that would be stored with the plan: on a command line, or as a given value."""
    known = tuple(_values(os.environ))
    for part in args:
        if any(value in part for value in known):
            raise InputError("an argument holds a secret of the environment: it would be stored with the plan")
        if _FLAG.match(part):
            flag = part.partition("=")[0]
            raise InputError(f"{flag} would be stored with the plan: set VLLM_API_KEY or HF_TOKEN in the environment")
    for name, value in environment.items():
        if (is_secret(name) and value) or any(secret in value for secret in known):
            raise InputError(f"--env {name}=... would be stored with the plan: export it, and give --env {name}")


def authorization() -> dict[str, str]:
    """The header for a server that wants a key; the key is in the environment and nowhere else."""
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
