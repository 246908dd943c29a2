"""The places in vLLM that a toggle relies on, and whether its sources still look that way (torch-free).

A site is checked on the source text: a plugin must not import model code to look at it, and the same check runs in the
tests over the sources of every supported version.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Symbol:
    """A function, method, class or assigned name of a module, such as `DeepseekV4Model.__init__`."""

    module: str
    name: str
    parameters: tuple[str, ...] | None = None
    """Names in order, `*` before keyword-only ones; None: not looked at."""

    def fault(self, root: Path) -> str | None:
        """Why the sources below `root`, the folder that holds the package `vllm`, do not have it; None if they do."""
        tree = _tree(root, self.module)
        if tree is None:
            return f"there is no module {self.module}"
        node = _find(tree, self.name)
        if node is None:
            return f"{self.module} has no {self.name}"
        if self.parameters is None:
            return None
        if not isinstance(node, Function):
            return f"{self.module}.{self.name} is no function"
        found = _parameters(node)
        if found != self.parameters:
            return f"{self.module}.{self.name} takes ({', '.join(found)}), not ({', '.join(self.parameters)})"
        return None


@dataclass(frozen=True)
class Calls:
    """How often a function calls a name: what a patch of that name reaches."""

    module: str
    caller: str
    callee: str
    """As written at the call, such as `mhc_post_tilelang` or `self._mtp_hidden_buffer`'s `copy_`."""
    times: int
    positional: int | None = None
    """Positional arguments of each call; None: not looked at."""

    def fault(self, root: Path) -> str | None:
        tree = _tree(root, self.module)
        if tree is None:
            return f"there is no module {self.module}"
        node = _find(tree, self.caller)
        if node is None:
            return f"{self.module} has no {self.caller}"
        calls = [call for call in ast.walk(node) if isinstance(call, ast.Call) and _dotted(call.func) == self.callee]
        if len(calls) != self.times:
            return f"{self.module}.{self.caller} calls {self.callee} {len(calls)} times, not {self.times}"
        counts = {len(call.args) for call in calls}
        if self.positional is not None and counts - {self.positional}:
            return f"{self.module}.{self.caller} calls {self.callee} with {counts} positional, not {self.positional}"
        return None


@dataclass(frozen=True)
class Text:
    """A statement that a function must hold, compared without regard to layout."""

    module: str
    function: str
    statement: str

    def fault(self, root: Path) -> str | None:
        tree = _tree(root, self.module)
        node = _find(tree, self.function) if tree is not None else None
        if node is None:
            return f"{self.module} has no {self.function}"
        wanted = ast.dump(ast.parse(self.statement).body[0])
        if any(ast.dump(statement) == wanted for statement in _statements(node)):
            return None
        return f"{self.module}.{self.function} no longer says `{self.statement}`"


Site = Symbol | Calls | Text


@lru_cache(maxsize=64)
def _tree(root: Path, module: str) -> ast.Module | None:
    base = root.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return ast.parse(path.read_text(encoding="utf-8"))
    return None


def _find(tree: ast.AST, dotted: str) -> ast.AST | None:
    """The node of a dotted name: class and function bodies are searched, and bodies of `if` and `try`."""
    head, _, rest = dotted.partition(".")
    for node in _scope(tree):
        if isinstance(node, Function | ast.ClassDef) and node.name == head:
            return _find(node, rest) if rest else node
        if not rest and isinstance(node, ast.Assign | ast.AnnAssign) and head in _targets(node):
            return node
        if not rest and isinstance(node, ast.ImportFrom) and head in {a.asname or a.name for a in node.names}:
            return node
    return None


def _scope(tree: ast.AST) -> Iterator[ast.AST]:
    for node in getattr(tree, "body", []):
        yield node
        if isinstance(node, ast.If | ast.Try):
            yield from _scope(node)
            yield from _scope(ast.Module(body=node.orelse, type_ignores=[]))


def _targets(node: ast.Assign | ast.AnnAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _parameters(node: Function) -> tuple[str, ...]:
    given = node.args
    names = [argument.arg for argument in (*given.posonlyargs, *given.args)]
    if given.vararg:
        names.append(f"*{given.vararg.arg}")
    elif given.kwonlyargs:
        names.append("*")
    names += [argument.arg for argument in given.kwonlyargs]
    if given.kwarg:
        names.append(f"**{given.kwarg.arg}")
    return tuple(names)


def _dotted(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    return (child for child in ast.walk(node) if isinstance(child, ast.stmt))


__all__ = ["Calls", "Site", "Symbol", "Text"]
