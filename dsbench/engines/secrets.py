"""Secrets stay in the environment: texts with their values taken out, and texts refused that hold one."""

from __future__ import annotations

import json
import mmap
import os
import re
import stat
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

from dsbench.engines.secret_shapes import PLAIN, flag_with_secret, harmless, is_secret, literal_in, secrets_within
from dsbench.errors import InputError

REDACTED = "[redacted]"

FIXED = (
    "record", "time", "status", "phase", "moment", "metric", "unit", "probe", "arm", "log", "log_sha256", "plan_sha256",
)  # fmt: skip
"""Keys of our records whose values come from the plan or from fixed lists."""

LEAST_IN_PROSE = 8
MEND = "it would be stored with the plan; keys come from the environment"


def redact(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """`text` without the secrets of any variable, plain or as JSON, URLs and Python have them."""
    # The longest first: one may be the beginning of another.
    for form in sorted({form for value in secrets_of(environment) for form in _spelt(value)}, key=len, reverse=True):
        text = text.replace(form, REDACTED)
    return text


def redacted_end(path: Path, size: int, environment: Mapping[str, str] = os.environ) -> str:
    """The last `size` bytes of a file, redacted; less, where they would begin inside a secret. OSError."""
    forms = {form for value in secrets_of(environment) for form in _forms(value)}
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
    if not any(form in content for value in secrets_of(environment) for form in _forms(value)):
        return content
    clean = {key: value if key in FIXED else _clean(value, environment) for key, value in json.loads(content).items()}
    return json.dumps(clean, separators=(",", ":"), ensure_ascii=False).encode()


def redact_files(folder: Path, environment: Mapping[str, str] = os.environ) -> None:
    """Take secrets out of the files under a folder that hold one, as bytes; links are left alone.

    Every file is tried; then the first OSError is raised, if there was one.
    """
    if folder.is_symlink():
        return
    forms = {form for value in secrets_of(environment) for form in _forms(value)}
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


def secrets_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Every secret that the variables hold, and the name of one that holds it."""
    return {part: name for name, value in environment.items() for part in secrets_within(name, value)}


def _forms(value: str) -> set[bytes]:
    """A value as bytes, plain and as it stands inside JSON and URLs."""
    return {form.encode("utf-8", "surrogateescape") for form in _spelt(value)}


@lru_cache(maxsize=1024)
def _spelt(value: str) -> frozenset[str]:
    json_text = {json.dumps(value, ensure_ascii=ascii_only)[1:-1] for ascii_only in (False, True)}
    json_text |= {text.replace("/", "\\/") for text in json_text}
    json_text |= {json.dumps(text, ensure_ascii=False)[1:-1] for text in json_text}  # JSON that is quoted in a record
    raw = value.encode("utf-8", "surrogateescape")
    # By Python, by browsers, in forms; a path keeps its slashes.
    percent = {quote(raw, safe=safe) for safe in ("", "/", "!'()*", "/!'()*")} | {quote_plus(raw)}
    lower = {re.sub(r"%[0-9A-F]{2}", lambda code: code[0].lower(), text) for text in percent}
    python = {show(value)[1:-1] for show in (repr, ascii)}
    shown = raw.decode("utf-8", "replace")  # of bytes that are no text
    return frozenset({value, shown} | json_text | percent | lower | python)


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
    refuse_in_line("--serve-args", args)
    for name, value in environment.items():
        refuse_variable("--env", name, value)


def refuse_variable(place: str, name: str, value: str) -> None:
    """InputError for a variable that may hold a secret and has a value, or whose value holds one."""
    if is_secret(name) and value and not harmless(name, value):
        raise InputError(f"{place} {name}=... would be stored with the plan: export it, and give --env {name}")
    refuse_secret(f"{place} {name}=...", value)


def refuse_secret(place: str, text: str, *, prose: bool = False) -> None:
    """InputError, without the value, for a text of `place` with a secret of the environment, or with a literal one.

    Prose, such as a prompt, may have what looks like a literal, and short values and plain words by chance.
    """
    texts = (text, unquote(text))
    for value, name in secrets_of(os.environ).items():
        if prose and (len(value) < LEAST_IN_PROSE or PLAIN.fullmatch(value)):
            continue
        if any(form in told for told in texts for form in _spelt(value)):
            raise InputError(f"{place} holds the value of {name}: {MEND}, VLLM_API_KEY for endpoints")
    if prose or not (told := literal_in(text)):
        return
    raise InputError(f"{place}{told}{_mend(told)}")


def refuse_in_line(place: str, parts: Sequence[str]) -> None:
    """InputError for a secret in an argument list, also for one that is the argument behind its flag."""
    for part in parts:
        refuse_secret(place, part)
    for flag, value in pairwise(parts):
        if flag.startswith("-") and "=" not in flag and (found := flag_with_secret(f"{flag} {value}")):
            raise InputError(f"{place}: {found[1]}{_mend(':')}")


def _mend(told: str) -> str:
    if told.startswith(":"):
        return " would be stored with the plan: set VLLM_API_KEY or HF_TOKEN in the environment"
    if told.startswith(" gives") and (name := told.split()[1]).isidentifier():
        return f": {MEND}, --env {name} for engines"
    return f": {MEND}, VLLM_API_KEY for endpoints"


def authorization() -> dict[str, str]:
    """The header for a server that wants a key; the key is in the environment and nowhere else."""
    key = os.environ.get("VLLM_API_KEY")
    return {"Authorization": f"Bearer {key}"} if key else {}
