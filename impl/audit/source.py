"""This package's source as syntax trees (torch-free), and places in it as file:line."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
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


def place(fn: Callable[..., Any]) -> str:
    """Where a function is defined, as file:line from the package's parent."""
    plain = inspect.unwrap(fn)
    path = Path(inspect.getsourcefile(plain) or "")
    inside = path.relative_to(PACKAGE.parent) if path.is_relative_to(PACKAGE.parent) else Path(path.name)
    return f"{inside.as_posix()}:{plain.__code__.co_firstlineno}"
