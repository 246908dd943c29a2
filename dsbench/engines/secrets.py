"""Secrets stay in the environment: names that may hold one, and texts with their values taken out."""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from dsbench.errors import InputError

REDACTED = "[redacted]"
SHORTEST = 6
"""A shorter value is no secret, and taking it out would garble the text."""

FIXED = (
    "record", "time", "status", "phase", "moment", "metric", "unit", "probe", "arm", "log", "log_sha256", "plan_sha256",
)  # fmt: skip
"""Keys of our records whose values come from the plan or from fixed lists."""

_NAME = re.compile(r"(?i)(?:^|_)(?:api_?key|key|token|secret|password|passwd|credentials?|authorization)$")
_FLAG = re.compile(r"(?i)(?:^|\s)(--(?:api-?key|hf-token|password|token))(?:=|\s+|$)(?![\"']?[$`])")
"""A flag that takes a secret, unless a shell fills it in."""
_USER = re.compile(r":/+[^\s/?#:]*:(?![$`{])[^\s/?#]+@")
"""User and password in a URL."""
_SET = re.compile(r"(?:^|(?<=[\s?&;,\"'=]))([A-Za-z_]\w*)=(?=[\"']?(?!\d+(?:[\s\"'&;,]|$))[^\s\"'$`{<\[(&;,])")
"""A name with a value of its own: of no shell, no place that is filled in later, and no number."""
_SCHEME = re.compile(r"(?i)(?:^\s*|authorization[\"']?\s*[:=]\s*)[\"']?(basic|bearer)\s+[\"']?(?![$`{<\[(])[^\s\"']")
"""What an Authorization header holds: alone, or behind the header's name."""
_PLAIN = re.compile(r"[^\W\d_]+(?:[-_ ][^\W\d_]+)?|\d+")
"""Words and numbers, which a text may have by chance."""
LEAST_IN_PROSE = 8
MEND = "it would be stored with the plan; keys come from the environment"


def is_secret(name: str) -> bool:
    """Whether a variable of this name may hold a secret."""
    return bool(_NAME.search(name))


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` without the value of any variable that may hold a secret, plain or as JSON has it."""
    for value in _values(environment):
        for form in (value, *_inside_json(value)):
            text = text.replace(form, REDACTED)
    return text


def redacted_end(path: Path, size: int, environment: Mapping[str, str] = os.environ) -> str:
    """The last `size` bytes of a file, redacted; less, where they would begin inside a secret. OSError."""
    forms = {form for value in _values(environment) for form in _forms(value)}
    with path.open("rb") as file:
        start = max(0, os.fstat(file.fileno()).st_size - size)
        before = min(start, max(map(len, forms), default=0))
        file.seek(start - before)
        content = file.read()
    cut = before
    while across := [end for form in forms if (end := _end_across(content, form, cut))]:
        cut = max(across)
    return redact(content[cut:].decode("utf-8", "replace"), environment)


def _end_across(content: bytes, form: bytes, cut: int) -> int:
    """Where a form ends that begins before a cut and ends behind it; 0 if there is none."""
    at = content.find(form, max(0, cut - len(form) + 1), cut + len(form) - 1)
    return at + len(form) if at >= 0 else 0


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


def _values(environment: Mapping[str, str]) -> list[str]:
    """Longest first: one may be the beginning of another."""
    found = {value for name, value in environment.items() if is_secret(name) and len(value) >= SHORTEST}
    return sorted(found, key=len, reverse=True)


def _forms(value: str) -> set[bytes]:
    """A value as bytes, plain and as it stands inside JSON."""
    return {form.encode() for form in (value, *_inside_json(value))}


def _inside_json(value: str) -> set[str]:
    return {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)} - {value}


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
    for part in args:
        refuse_secret("--serve-args", part)
    for name, value in environment.items():
        refuse_variable("--env", name, value)


def refuse_variable(place: str, name: str, value: str) -> None:
    """InputError for a variable that may hold a secret and has a value, or whose value holds one."""
    if is_secret(name) and value:
        raise InputError(f"{place} {name}=... would be stored with the plan: export it, and give --env {name}")
    refuse_secret(f"{place} {name}=...", value)


def refuse_secret(place: str, text: str, *, prose: bool = False) -> None:
    """InputError, without the value, for a text of `place` with a secret of the environment, or with a literal one.

    Prose, such as a prompt, may have what looks like a literal, and short values and plain words by chance.
    """
    texts = (text, unquote(text))
    for name, value in os.environ.items():
        if not is_secret(name) or len(value) < (LEAST_IN_PROSE if prose else SHORTEST):
            continue
        if not (prose and _PLAIN.fullmatch(value)) and any(value in form for form in texts):
            raise InputError(f"{place} holds the value of {name}: {MEND}, VLLM_API_KEY for endpoints")
    if prose:
        return
    if scheme := _SCHEME.search(text):
        told = f"holds an Authorization of the kind {scheme[1].capitalize()}"
        raise InputError(f"{place} {told}: {MEND}, VLLM_API_KEY for endpoints")
    if _USER.search(text):
        raise InputError(f"{place} holds user:password@ in a URL: {MEND}, VLLM_API_KEY for endpoints")
    if flag := _FLAG.search(text):
        raise InputError(f"{place}: {flag[1]} would be stored with the plan: set VLLM_API_KEY or HF_TOKEN in the "
                         "environment")  # fmt: skip
    if given := next((name for name in _SET.findall(text) if is_secret(name)), None):
        raise InputError(f"{place} gives {given} a value: {MEND}, --env {given} for engines")


def authorization() -> dict[str, str]:
    """The header for a server that wants a key; the key is in the environment and nowhere else."""
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
