"""This package's source as syntax trees (torch-free), and places in it as file:line."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Source:
    """One module."""

    name: str
    """Path from the package's parent: impl/engine/rounds.py"""
    text: str
    tree: ast.Module

    def at(self, node: ast.AST) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)}"


def sources(package: Path = PACKAGE, *, without: tuple[str, ...] = ("audit",)) -> list[Source]:
    """Every module of the package but the folders `without`."""
    found = []
    for path in sorted(package.rglob("*.py")):
        inside = path.relative_to(package)
        if inside.parts[0] not in without:
            text = path.read_text(encoding="utf-8")
            found.append(Source((Path(package.name) / inside).as_posix(), text, ast.parse(text)))
    return found


def assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """(target, value) of every plain assignment, and of every default of a parameter."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.arguments):
            positional = [*node.posonlyargs, *node.args]
            given = positional[len(positional) - len(node.defaults) :]
            for argument, default in [*zip(given, node.defaults, strict=True),
                                      *zip(node.kwonlyargs, node.kw_defaults, strict=True)]:  # fmt: skip
                if default is not None:
                    yield ast.copy_location(ast.Name(argument.arg, ast.Store()), default), default


def origins(tree: ast.Module) -> dict[str, str]:
    """Dotted origin of each name that a module imports, or assigns from what it imports."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
    size = -1
    while size != len(found):
        size = len(found)
        for target, value in assignments(tree):
            if isinstance(target, ast.Name) and target.id not in found and "." in (path := dotted(value, found)):
                found[target.id] = path
    return found


def dotted(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted path that an expression of names and attributes stands for; empty for any other."""
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value, names)
        return f"{owner}.{node.attr}" if owner else ""
    return ""


def place(fn: Callable[..., Any]) -> str:
    """Where a function is defined, as file:line from the package's parent."""
    plain = inspect.unwrap(fn)
    path = Path(inspect.getsourcefile(plain) or "")
    inside = path.relative_to(PACKAGE.parent) if path.is_relative_to(PACKAGE.parent) else Path(path.name)
    return f"{inside.as_posix()}:{plain.__code__.co_firstlineno}"
