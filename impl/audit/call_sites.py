"""Call sites of the rejection sampler: adjacent optional arguments must be given by name (torch-free).

Two optional parameters beside each other bind silently to the wrong one when a parameter is added between them and a
caller goes by position. Read from the source, so that a call on a path no test takes is seen too. Source: source_pr.md
section 7, item 1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from impl.audit.report import Finding, NotRun, Outcome
from impl.audit.source import Source, sources

MODULE = "impl/ops/rejection.py"
CONTROLS = {("impl/engine/rounds.py", "_judge"): "keyword_binding"}
"""Functions with one positional call that is a planted defect, and the attribute whose off state leads to it."""


@dataclass(frozen=True)
class Sampler:
    """A function of the sampler's module with optional parameters that stand beside each other."""

    name: str
    first_optional: int
    """How many parameters come before the optional ones."""
    optional: tuple[str, ...]
    """Those that a position can reach."""


@dataclass(frozen=True)
class Call:
    sampler: Sampler
    source: Source
    function: str
    """Innermost function it stands in."""
    node: ast.Call
    by_position: tuple[str, ...]
    """Optional parameters given by position; `*` where the call unpacks a sequence."""


def check(tree: list[Source] | None = None) -> Outcome:
    tree = sources() if tree is None else tree
    module = next((source for source in tree if source.name == MODULE), None)
    if module is None:
        raise NotRun(f"there is no {MODULE}")
    samplers = {sampler.name: sampler for sampler in _samplers(module)}
    if not samplers:
        raise NotRun(f"no function of {MODULE} has two optional parameters that a position can reach")
    calls = [call for source in tree for call in _calls(source, samplers)]
    if not calls:
        raise NotRun(f"nothing calls {', '.join(samplers)}")
    findings: list[Finding] = []
    controls = 0
    for call in calls:
        if not call.by_position:
            continue
        switch = CONTROLS.get((call.source.name, call.function))
        if switch and _behind(call, switch):
            controls += 1
            continue
        findings.append(
            Finding(
                "optional-by-position",
                f"{call.sampler.name} is given {', '.join(call.by_position)} by position, beside "
                f"{', '.join(name for name in call.sampler.optional if name not in call.by_position) or 'others'}",
                call.source.at(call.node),
                "bind the optional arguments by keyword",
            )
        )
    names = ", ".join(f"{s.name}: {' | '.join(s.optional)}" for s in samplers.values())
    return Outcome(
        tuple(findings),
        {"adjacent optional parameters": names, "call sites": len(calls), "positional, declared as control": controls},
    )


def _samplers(module: Source) -> Iterator[Sampler]:
    for node in module.tree.body:
        if isinstance(node, ast.FunctionDef):
            names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
            required = len(names) - len(node.args.defaults)
            if len(names) - required > 1:
                yield Sampler(node.name, required, tuple(names[required:]))


def _calls(source: Source, samplers: dict[str, Sampler]) -> Iterator[Call]:
    """Calls by the function's name, an alias, a module's attribute, or through functools.partial."""
    aliases = {name: name for name in samplers} | {
        alias.asname: alias.name
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and alias.name in samplers
    }
    for function, node in _calls_by_function(source.tree):
        target, args = node.func, node.args
        if _name(target) == "partial" and args:
            target, args = args[0], args[1:]
        name = aliases.get(_name(target))
        if name is None:
            continue
        sampler = samplers[name]
        if any(isinstance(argument, ast.Starred) for argument in args):
            by_position: tuple[str, ...] = ("*",)
        else:
            by_position = sampler.optional[: max(len(args) - sampler.first_optional, 0)]
        yield Call(sampler, source, function, node, by_position)


def _calls_by_function(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield function, node
        inner = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else function
        yield from _calls_by_function(node, inner)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _behind(call: Call, switch: str) -> bool:
    """Whether a call is reached only where `switch` is off: after an `if` on it that returns."""
    for node in ast.walk(call.source.tree):
        if not isinstance(node, ast.FunctionDef) or node.name != call.function:
            continue
        for statement in node.body:
            if statement.end_lineno is not None and call.node.lineno <= statement.end_lineno:
                break
            if isinstance(statement, ast.If) and _name(statement.test) == switch and not statement.orelse:
                return isinstance(statement.body[-1], ast.Return)
    return False
