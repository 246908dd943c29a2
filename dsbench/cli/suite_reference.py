"""`python -m dsbench.cli.suite_reference`: docs/suites.md, made of the settings' own types, defaults and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from dsbench.answer_settings import SmokeItem
from dsbench.probe_settings import Probes
from dsbench.suite import Build, Suite, Timeouts

HEAD = """\
# Suites

<!-- made by `python -m dsbench.cli.suite_reference > docs/suites.md`; a test holds it current -->

A suite is a TOML file: `dsbench ab -s FILE.toml`. `dsbench suites` lists those that ship, `dsbench suites FILE.toml`
tells what one asks and what it can show. Unknown keys, values of another type (`"3"` or `true` for 3) and values that
are out of range are refused, with their line; a whole number may stand where a number is due. A probe runs if its
table is there, if only as `[probes.kv]`; the tables below stand in the order in which the probes run.

```toml
name = "mine"
summary = "short answers and tokens"
blocks = 5
guards = ["smoke.correct", "identity.tokens"]

[[probes.smoke.items]]
prompt = "7*8="
answer = 56

[probes.identity]
prompts = ["The quick brown fox"]
```
"""
NAMES = {str: "text", int: "whole number", float: "number", bool: "true or false"}
BOUNDS = {"ge": "from {}", "gt": "above {}", "le": "to {}", "lt": "below {}"}


def reference() -> str:
    """The page, in Markdown."""
    parts = [HEAD, *_section("The suite", Suite), *_section("[timeouts]", Timeouts), *_section("[build]", Build)]
    for name, field in Probes.model_fields.items():
        table = next(part for part in get_args(field.annotation) if part is not type(None))
        parts += _section(f"[probes.{name}]", table)
        if name == "smoke":
            parts += _section("[[probes.smoke.items]]", SmokeItem)
    return "\n".join(parts)


def _section(title: str, table: type[BaseModel]) -> Iterator[str]:
    yield f"## {title if title[0] != '[' else f'`{title}`'}\n"
    yield f"{inspect.cleandoc(table.__doc__ or '')}\n"
    told = described(table)
    yield "| setting | type | default | what it does |\n|---|---|---|---|"
    own_last = sorted(table.model_fields, key=lambda name: name == "blocks" and table is not Suite)
    for name in own_last:
        field = table.model_fields[name]
        yield f"| `{name}` | {_type_of(field)} | {_default_of(field)} | {' '.join(told.get(name, '').split())} |"
    yield ""


def described(table: type[BaseModel]) -> dict[str, str]:
    """Docstrings of a table's settings, those that it inherits included."""
    found: dict[str, str] = {}
    for kind in reversed(table.__mro__):
        if not issubclass(kind, BaseModel) or kind is BaseModel:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for line, after in zip(tree.body, tree.body[1:], strict=False):
            match line, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = inspect.cleandoc(text)
    return found


def _type_of(field: FieldInfo) -> str:
    return _named(field.annotation, field.metadata).replace("|", "\\|")


def _named(kind: Any, limits: Any = ()) -> str:
    origin, inner = get_origin(kind), get_args(kind)
    if hasattr(kind, "__metadata__"):
        return _named(kind.__origin__, [*kind.__metadata__, *limits])
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(part, limits) for part in inner if part is not type(None))
    if origin is list:
        return "list of " + re.sub(r"^(whole number|text|table)", r"\1s", _named(inner[0]))
    if origin is dict or (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return "table"
    return " ".join([NAMES[kind], *_bounds(limits)]) if kind is not str else NAMES[kind]


def _bounds(limits: Any) -> Iterator[str]:
    flat = [part for limit in limits for part in (getattr(limit, "metadata", None) or [limit])]
    for name, told in BOUNDS.items():
        for part in flat:
            if (bound := getattr(part, name, None)) is not None:
                yield told.format(f"{bound:,.10g}")


def _default_of(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ("", [], {}):
        return ""
    if isinstance(value, BaseModel):
        return "see below"
    return f"`{_toml(value)}`"


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml(part)}" for key, part in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    print(reference(), end="")
