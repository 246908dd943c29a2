"""Run single functions of vLLM's sources on the CPU: cut out by name, without imports, decorators and base classes."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


def module_of(root: Path, name: str, wanted: Iterable[str], **namespace: Any) -> ModuleType:
    """A module of vLLM's name that holds the wanted functions and `Class.method`s, and `namespace` for the rest."""
    path = root.joinpath(*name.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    kept = [node for dotted in _grouped(wanted).items() for node in _cut(tree, *dotted)]
    module = ModuleType(name)
    vars(module).update({"torch": torch, "Any": Any, **namespace})
    code = ast.Module(body=[_annotations(), *kept], type_ignores=[])
    exec(compile(ast.fix_missing_locations(code), str(path), "exec"), vars(module))
    return module


def call_in(root: Path, name: str, caller: str, callee: str) -> ast.Call:
    """The one call of `callee` inside `caller`."""
    path = root.joinpath(*name.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (node,) = _cut(tree, caller, set())
    calls = [n for n in ast.walk(node) if isinstance(n, ast.Call) and ast.unparse(n.func) == callee]
    (call,) = calls
    return call


def _grouped(wanted: Iterable[str]) -> dict[str, set[str]]:
    groups: dict[str, set[str]] = {}
    for dotted in wanted:
        head, _, method = dotted.partition(".")
        groups.setdefault(head, set()).update({method} if method else ())
    return groups


def _cut(tree: ast.Module, name: str, methods: set[str]) -> list[ast.stmt]:
    for node in tree.body:
        if getattr(node, "name", None) != name:
            continue
        if isinstance(node, ast.ClassDef):
            node.bases, node.keywords, node.decorator_list = [], [], []
            if methods:
                node.body = [child for child in node.body if getattr(child, "name", None) in methods]
                assert {child.name for child in node.body} == methods
        for child in ast.walk(node):
            if isinstance(child, ast.FunctionDef):
                child.decorator_list = [d for d in child.decorator_list if ast.unparse(d) == "property"]
        return [node]
    raise LookupError(f"no {name}")


def _annotations() -> ast.stmt:
    return ast.parse("from __future__ import annotations").body[0]
