"""Texts without what is local or secret: keys, paths, host and user names, each the same wherever it stood."""

from __future__ import annotations

import getpass
import os
import platform
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dsbench.engines.secret_shapes import SHAPES, SHORTEST, harmless, is_secret
from dsbench.engines.secrets import REDACTED, redact, secrets_of
from dsbench.records import Plan

_NAMED = re.compile(
    r"(?i)((?:api[_-]?key|access[_-]?key|auth[_-]?token|hf[_-]token|secret|passwd|password|bearer"
    r"|authorization[\"']?\s*[=:]\s*[\"']?basic)[\"']?"
    r"(?:\s*[=:]\s*|\s+)[\"']?)(?!\d+\b)([^\s\"',;&}\]]{6,})"
)
_SET = re.compile(
    r"\b([A-Z][A-Z0-9_]*(?:TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIALS?|AUTHORIZATION)=[\"']?)(?!\d+\b)([^\s\"',;]{6,})"
)
_FLAG = re.compile(
    r"((?<!-)--[\w-]{0,64}?(?:token|password|secret|key)(?:=|\s+)[\"']?)(?!\d+\b)([^\s\"',;-][^\s\"',;]{5,})"
)
_FLAG_ALONE = re.compile(r"--[\w-]*(?:token|password|secret|key)")
"""A flag whose value is the next argument of a list."""
_URL = re.compile(r"(?i)\b(https?|wss?|tcp|grpc|ssh)://(?:[^\s/@\"']+@)?(\[[0-9a-f:]+\]|[\w.-]+)")
_ADDRESS = re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}\b|\b[0-9a-fA-F]{1,4}(?:::?[0-9a-fA-F]{1,4}){4,7}\b")
_AT = re.compile(r"(?<![\w.+-])([.+-]*)(\w[\w.+-]*@[A-Za-z0-9][\w-]*(?:\.[\w-]+)*\b)")
_PATH = re.compile(r"(?<![\w/.\])>])(?:~\w*|)/(?:[^\s/:\"'<>|,;()\[\]{}=*?\\]+/)*[^\s/:\"'<>|,;()\[\]{}=*?\\]+/?")
_LOCAL = re.compile(r"localhost|127\.\d+\.\d+\.\d+|0\.0\.0\.0|\[?::1\]?")
_ROUTES = ("v1", "dev", "proc", "sys")
"""First parts of paths that are no place of this machine: an engine's routes and the kernel's files."""
_HOMES = ("home", "Users", "root")
_REMOTE = ("ssh", "scp", "rsync", "sftp")
LONG = 6
"""Characters of a name that no other word contains by chance."""
_OURS = re.compile(r"[a-z_]+")
"""Names of our own fields."""
STRUCTURE = frozenset(
    ("record", "key", "engine", "kind", "phase", "metric", "unit", "probe", "status", "role", "word", "better", "scope",
     "until", "interval_of", "needed_unit", "needed_for", "moment", "version", "log_sha256")
)  # fmt: skip
"""Keys of our own files whose values come from fixed lists."""


class Redaction:
    """Takes out what one machine and one plan are known to have, and everything of the shapes above.

    A path keeps its last part, as `[path1]/model`; what was the same stays the same, so that a verdict does.
    """

    def __init__(self, hosts: Iterable[str] = (), environment: Mapping[str, str] = os.environ) -> None:
        self.counts: Counter[str] = Counter()
        self._environment = environment
        self._hosts: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        self._words = _words([*hosts, *_own_hosts()])
        self._users = _words([_user()])
        self._roots = sorted(_own_folders(environment), key=len, reverse=True)

    def text(self, text: str) -> str:
        """One text; the order matters: a key may stand inside a path, a host inside a URL."""
        text = self._counted("secrets", text, redact(text, self._environment))
        text = self._sub("secrets", SHAPES, lambda match: REDACTED, text)
        for named in (_NAMED, _SET, _FLAG):
            text = self._sub("secrets", named, lambda match: match[1] + REDACTED, text)
        text = self._sub("hosts", _URL, lambda match: f"{match[1]}://{self._host(match[2])}", text)
        text = self._sub("hosts", _AT, lambda match: match[1] + self._host(match[2]), text)
        text = text.replace("file:///", "file: /")
        for root in self._roots:
            pattern = re.compile(rf"(?<![\w/.]){re.escape(root)}(?=/|\b|$)(/[^\s:\"'<>|,;()\[\]{{}}=*?\\]*)?")
            text = self._sub("paths", pattern, lambda match: self._path(match[0]), text)
        text = self._sub("paths", _PATH, lambda match: self._path(match[0]), text)
        text = self._sub("hosts", _ADDRESS, lambda match: self._host(match[0]), text)
        if self._words:
            text = self._sub("hosts", self._words, lambda match: self._host(match[0]), text)
        if self._users:
            text = self._sub("users", self._users, lambda match: "[user]", text)
        return text

    def value(self, value: Any, key: str = "") -> Any:
        """JSON, with every text in it redacted, names of its keys too."""
        if isinstance(value, str):
            if is_secret(key) and key not in STRUCTURE and len(value) >= SHORTEST and not harmless(key, value):
                return self._secret()
            return value if key in STRUCTURE else self.text(value)
        if isinstance(value, list):
            flagged = [False, *(isinstance(part, str) and bool(_FLAG_ALONE.fullmatch(part)) for part in value)]
            return [
                self._secret() if after and isinstance(part, str) else self.value(part, key)
                for after, part in zip(flagged, value, strict=False)
            ]
        if isinstance(value, dict):
            named = {name: name if _OURS.fullmatch(name) else self.text(name) for name in value}
            return {named[name]: self.value(part, name) for name, part in value.items()}
        return value

    def left_in(self, content: bytes) -> str:
        """The kind of a known secret or folder that still stands in some bytes; '' if none does."""
        if any(value.encode("utf-8", "surrogateescape") in content for value in secrets_of(self._environment)):
            return "a secret of the environment"
        home = self._environment.get("HOME", "")
        return "the home folder" if home.count("/") > 1 and home.encode("utf-8", "surrogateescape") in content else ""

    def _secret(self) -> str:
        self.counts["secrets"] += 1
        return REDACTED

    def _host(self, name: str) -> str:
        if _LOCAL.fullmatch(name):
            return name
        return self._hosts.setdefault(name.lower(), f"[host{len(self._hosts) + 1}]")

    def _path(self, path: str) -> str:
        parts = path.rstrip("/").split("/")
        if len(parts) > 1 and not parts[0] and (parts[1] in _ROUTES or (len(parts) == 2 and parts[1] not in _HOMES)):
            return path
        whole = path.rstrip("/") in self._roots or (len(parts) > 1 and parts[-2] in _HOMES) or parts[-1] in _HOMES
        folder = path.rstrip("/") if whole else "/".join(parts[:-1])
        mark = self._folders.setdefault(folder, f"[path{len(self._folders) + 1}]")
        return mark if whole else f"{mark}/{parts[-1]}"

    def _sub(self, kind: str, pattern: re.Pattern[str], put: Any, text: str) -> str:
        return self._counted(kind, text, pattern.sub(put, text))

    def _counted(self, kind: str, before: str, after: str) -> str:
        self.counts[kind] += before != after
        return after


def hosts_of(plan: Plan) -> list[str]:
    """Host names in a plan: of URLs, and what a rig's remote commands reach."""
    urls = [arm.url for arm in plan.arms if arm.url] + ([plan.rig.url] if plan.rig else [])
    found = [match[2] for url in urls if (match := _URL.match(url)) and not _LOCAL.fullmatch(match[2])]
    for command in (plan.rig.start, plan.rig.stop, plan.rig.health) if plan.rig else ():
        for at, part in enumerate(command):
            if Path(part).name in _REMOTE:
                plain = [word for word in command[at + 1 :] if not word.startswith("-")]
                found += [word.partition(":")[0].rpartition("@")[2] for word in plain[:2]]
    return found


def _own_hosts() -> list[str]:
    names = {socket.gethostname(), platform.node()}
    return [part for name in names if name for part in (name, name.partition(".")[0])]


def _user() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return "" if name == "root" else name


def _own_folders(environment: Mapping[str, str]) -> set[str]:
    known = [environment.get("HOME", ""), str(Path.cwd()), sys.prefix, tempfile.gettempdir()]
    return {folder.rstrip("/") for folder in known if folder.count("/") > 1 or folder == "/root"}


def _words(names: Iterable[str]) -> re.Pattern[str] | None:
    """Long names wherever they stand, as in `engine-gx10-b7.log`; short ones only as words of their own."""
    known = sorted({name for name in names if len(name) > 2 and not _LOCAL.fullmatch(name)}, key=len, reverse=True)
    forms = [re.escape(name) if len(name) >= LONG else rf"(?<![\w-]){re.escape(name)}(?![\w-])" for name in known]
    return re.compile(f"(?i){'|'.join(forms)}") if forms else None
