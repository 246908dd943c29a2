"""What a secret looks like: names that may hold one, values that are none, and texts in which one stands literally."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from urllib.parse import unquote

SHORTEST = 6
"""A shorter value is no secret, and taking it out would garble the text."""

LEAST_LINE = 16
"""Characters of a line of a secret that is one by itself; keys are broken at 64."""

LONGEST_NAME = 80
"""Characters of a name's end that are looked at."""

_WORDS = (
    r"(?:api|access|secret|private|auth|encryption|signing)_?keys?(?:_id)?|\w*tokens?|\w*secrets?|\w*passwords?"
    r"|\w*passwd|\w*passphrase|credentials?|authorization|auth_headers?|bearer|cookies?"
)
_BEHIND = r"_(?:pwd|pass|pat)"
"""Words that say so as the end of a longer name alone: PWD is a folder."""
_NAME = re.compile(rf"(?i)(?:(?:^|_)(?:{_WORDS}|key)|{_BEHIND})(?:_?\d+)?$")
_NAME_IN_TEXT = re.compile(rf"(?i)(?:(?:^|_)(?:{_WORDS})|{_BEHIND})(?:_?\d+)?$")
"""Without a bare `key`, which flags and JSON have for much that is none."""
_COUNTS = re.compile(
    r"(?i)(?:^tokens|(?:^|_)(?:stop|eos|bos|pad|unk|sep|cls|mask|image|audio|video|media|special|draft|think|start|end"
    r"|begin|max|min|num|batched|speculative|spec|prefill|decode|total|input|output|prompt|completion|generated|new"
    r"|step|seq|block|tool|reasoning|extra|per|by)_tokens?)(?:_?\d+)?$"
)
"""Tokens that a model reads and writes."""
_SWITCH = re.compile(r"(?i)(?:allow|enable|disable|use|require|with|without|skip|no|show|return|include|ignore)_")
_PLURAL = re.compile(r"(?i)(?:s|_pass)$")
_NUMBERS = re.compile(r"(?i)[-+\d.,:;\s_]*[kmg]?")
_SETTING = re.compile(
    r"(?i)true|false|none|null|yes|no|on|off|auto|default|enabled?|disabled?|required|optional|unset|unlimited|all|any"
)

SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:hf_[A-Za-z0-9]{16,}|sk-[\w-]{16,}|gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,})"
    r"|\bxox[abeprs]-[\w-]{10,}"
    r"|\bAKIA[0-9A-Z]{16}\b|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]+",
    re.DOTALL,
)
"""Keys that services hand out."""
_BEGINS = re.compile(r"-----BEGIN|hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox.-|AKIA|eyJ")

_SCHEMES = r"basic|bearer|token|digest|negotiate|ntlm|api-?key|hawk"
_LATER = r"[\"']?(?![$`{<\[(&;,])"
"""What is filled in later begins otherwise."""
_SCHEME = re.compile(
    rf"(?i)(?:^\s*[\"']?(?:basic|bearer)|authorization[\"']?\s*[:=\s]\s*[\"']?(?:{_SCHEMES}))\s+{_LATER}([^\s\"']+)"
)
"""What an Authorization header holds: alone, or behind the header's name."""
_KIND = re.compile(rf"(?i)({_SCHEMES})\s+[\"']?[^\s\"']+$")
_HEADED = re.compile(rf"(?i)\s*(?:[\w-]+:\s+)?(?:(?:{_SCHEMES})\s+)?(\S.*?)\s*")
"""A value that is a whole header, or a scheme with its secret."""
_ORDINARY = re.compile(r"[A-Za-z]?[a-z]+")
_USER = re.compile(r":/+([^\s/?#:]*):(?![$`{])([^\s/?#]+)@")
"""User and password in a URL."""
_TOKEN_AS_USER = re.compile(r"(?i)\b(?:https?|wss?)://(?![$`{])([^\s/?#:@\"']{6,})@")
PLAIN = re.compile(r"[^\W\d_]+(?:[-_ ][^\W\d_]+)?|\d+")
"""Words and numbers, which a text may have by chance."""
_LONG_NAME = 16
_FLAG = re.compile(r"(?i)(?:^|\s)(--(?:api[-_]?keys?|hf[-_]token|password|token))(?:=|\s+|$)(?![\"']?[$`])")
"""A flag that takes a secret, unless a shell fills it in."""
_ANY_FLAG = re.compile(rf"(?:^|(?<=\s))(--?[A-Za-z][\w-]*)(?:=|\s+){_LATER}([^\s\"'-][^\s\"']*)")
_REFERENCE = re.compile(r"(?:id|src|source|type|env)=|(?:~|\.{1,2})?/")
"""A secret that stands elsewhere: where a container's builder finds it, or a path."""
_SET = re.compile(rf"(?:^|(?<=[\s?&;,\"'=]))([A-Za-z_]\w*)={_LATER}(?!\d+(?:[\s\"'&;,]|$))([^\s\"'&;,]+)")
"""A name with a value of its own: of no shell, no place that is filled in later, and no number."""
_HEADER = re.compile(rf"(?:^|(?<=[\s,{{\"'=]))([A-Za-z][\w-]*)[\"']?\s*:\s*{_LATER}([^\s\"',}}]{{6,}})")


def is_secret(name: str) -> bool:
    """Whether a variable, header or key of this name may hold a secret."""
    name = name[-LONGEST_NAME:].replace("-", "_")
    return bool(_NAME.search(name)) and not _COUNTS.search(name)


def harmless(name: str, value: str) -> bool:
    """Whether a value is none, whatever its name: a setting's word, or numbers under a name that may count."""
    return bool(_SETTING.fullmatch(value) or (_PLURAL.search(name) and _NUMBERS.fullmatch(value)))


@lru_cache(maxsize=4096)
def secrets_within(name: str, value: str) -> tuple[str, ...]:
    """The secrets of one variable: its value, what stands there behind a scheme, and passwords within URLs."""
    found = [found for found in _in_urls(value) if not harmless(name, found)]
    if is_secret(name) and not harmless(name, value):
        headed = _HEADED.fullmatch(value)
        found += [value, *([headed[1]] if headed else []), *_lines(value)]
    elif (scheme := _SCHEME.search(value)) and not _ORDINARY.fullmatch(scheme[1]):
        found.append(scheme[1])
    return tuple(dict.fromkeys(part for part in found if len(part) >= SHORTEST))


def _lines(value: str) -> list[str]:
    """Lines of a key of several, which a log may tell one by one; not those around it, which every key has."""
    lines = [line.strip() for line in value.splitlines()]
    return [line for line in lines if len(line) >= LEAST_LINE and not line.startswith("-----")] if lines[1:] else []


def _in_urls(text: str) -> Iterator[str]:
    """Passwords within URLs, and users that are tokens, as they stand there and decoded."""
    told = [password for user, password in _USER.findall(text) if password != user]
    told += [user for user in _TOKEN_AS_USER.findall(text) if not PLAIN.fullmatch(user) or len(user) >= _LONG_NAME]
    for part in told:
        yield part
        yield unquote(part)


def literal_in(text: str) -> str:
    """What a text holds that looks like a secret, in words that do not repeat it; '' for nothing."""
    text = text.replace('\\"', '"').replace("\\/", "/")
    if scheme := _SCHEME.search(text):
        kind = _KIND.search(scheme[0])
        return f" holds an Authorization of the kind {kind[1].capitalize() if kind else 'Bearer'}"
    if _USER.search(text):
        return " holds user:password@ in a URL"
    if next(_in_urls(text), None):
        return " holds a token as the user of a URL"
    if shape := SHAPES.search(text):
        begins = _BEGINS.match(shape[0])
        return f" holds what a service hands out as a key ({begins[0] if begins else ''}...)"
    if flag := _FLAG.search(text) or flag_with_secret(text):
        return f": {flag[1]}"
    for name, value in _SET.findall(text):
        if is_secret(name) and not harmless(name, value):
            return f" gives {name} a value"
    for name, value in _HEADER.findall(text):
        bare = harmless(name, value) or _REFERENCE.match(value) or re.fullmatch(_SCHEMES, value, re.IGNORECASE)
        if _may_name(name) and not bare:
            return f" gives {name} a value"
    return ""


def flag_with_secret(text: str) -> re.Match[str] | None:
    """The first flag, its name and its value, whose name says that the value is a secret."""
    for flag in _ANY_FLAG.finditer(text):
        name, value = flag[1].lstrip("-"), flag[2]
        switch = _SWITCH.match(name.replace("-", "_"))
        if _may_name(name) and not switch and not harmless(name, value) and not _REFERENCE.match(value):
            return flag
    return None


def _may_name(name: str) -> bool:
    return is_secret(name) and bool(_NAME_IN_TEXT.search(name[-LONGEST_NAME:].replace("-", "_")))
