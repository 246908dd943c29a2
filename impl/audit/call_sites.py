"""Call sites of the rejection sampler: adjacent optional arguments must be given by name (torch-free).

Two optional parameters beside each other bind silently to the wrong one when a parameter is added between them and a
caller goes by position. Read from the source, so that a call on a path no test takes is seen too. A sampler is followed
through imports, assignments and partial; handed anywhere else it is a finding. Source: source_pr.md section 7, item 1.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from impl.audit.report import Finding, NotRun, Outcome
from impl.audit.source import Source, assignments, origins, sources

MODULE = "impl/ops/rejection.py"
CONTROLS = {("impl/engine/rounds.py", "judge"): "keyword_binding"}
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


Known = dict[str, tuple[Sampler, int]]
"""By name: a sampler, and how many of its arguments are bound by position already."""


def check(tree: list[Source] | None = None) -> Outcome:
    tree = sources() if tree is None else tree
    module = next((source for source in tree if source.name == MODULE), None)
    if module is None:
        raise NotRun(f"there is no {MODULE}")
    samplers = {sampler.name: sampler for sampler in _samplers(module)}
    if not samplers:
        raise NotRun(f"no function of {MODULE} has two optional parameters that a position can reach")
    known = _follow(tree, samplers)
    calls = [call for source in tree for call in _calls(source, known[source.name])]
    if not calls:
        raise NotRun(f"nothing calls {', '.join(samplers)}")
    findings = [finding for source in tree for finding in _escapes(source, known[source.name])]
    controls = 0
    for call in calls:
        if not call.by_position:
            continue
        switch = CONTROLS.get((call.source.name, call.function))
        if switch and not controls and _behind(call, switch):
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


def _follow(tree: list[Source], samplers: dict[str, Sampler]) -> dict[str, Known]:
    """Per module, the names that stand for a sampler: its own, imported, or assigned; attributes go by their name."""
    known: dict[str, Known] = {source.name: {name: (s, 0) for name, s in samplers.items()} for source in tree}
    attributes: Known = {}
    paths = {source.name: origins(source.tree) for source in tree}
    modules = {source.name.removesuffix(".py").replace("/", "."): source.name for source in tree}
    before = -1
    while before != (before := sum(map(len, known.values()))):
        for source in tree:
            names = known[source.name]
            for name, path in paths[source.name].items():
                module, _, original = path.rpartition(".")
                of_module = known[modules[module]] if module in modules else {}
                entry = of_module.get(original) or names.get(original if original in samplers else "")
                if entry:
                    names.setdefault(name, entry)
            for target, value in assignments(source.tree):
                entry = _entry(value, names)
                if entry and _name(target):
                    held = names.get(_name(target))
                    if held is None or held[1] < entry[1]:
                        names[_name(target)] = entry
                    if isinstance(target, ast.Attribute):
                        attributes[target.attr] = names[target.attr]
            known[source.name] = attributes | names
    return known


def _entry(value: ast.expr, known: Known) -> tuple[Sampler, int] | None:
    """What an assigned expression stands for: a sampler, or one with its first arguments bound."""
    if isinstance(value, ast.Call) and _is_partial(value):
        entry = known.get(_name(value.args[0]))
        return (entry[0], entry[1] + len(value.args) - 1) if entry else None
    branches = [value.body, value.orelse] if isinstance(value, ast.IfExp) else [value]
    return next((known[_name(branch)] for branch in branches if _name(branch) in known), None)


def _is_partial(node: ast.Call) -> bool:
    return bool(node.args) and _name(node.func) in ("partial", "partialmethod")


def _calls(source: Source, known: Known) -> Iterator[Call]:
    """Calls by any name of a sampler, a module's attribute, or through functools.partial."""
    for function, node in _calls_by_function(source.tree):
        target, args = node.func, node.args
        if _is_partial(node):
            target, args = args[0], args[1:]
        if isinstance(target, ast.Call) and (entry := _entry(target, known)):
            pass  # partial(...)(...)
        elif not (entry := known.get(_name(target))):
            continue
        sampler, bound = entry
        if any(isinstance(argument, ast.Starred) for argument in args):
            by_position: tuple[str, ...] = ("*",)
        else:
            first = max(bound - sampler.first_optional, 0)
            by_position = sampler.optional[first : max(bound + len(args) - sampler.first_optional, 0)]
        yield Call(sampler, source, function, node, by_position)


def _escapes(source: Source, known: Known) -> Iterator[Finding]:
    """Samplers kept in a container, handed to a function or returned: their calls cannot be read from the source."""
    followed = {id(branch) for _, value in assignments(source.tree) for branch in ast.walk(value)
                if isinstance(value, ast.Name | ast.Attribute | ast.IfExp)}  # fmt: skip
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            followed |= {id(node.func)} | ({id(node.args[0])} if _is_partial(node) else set())
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Name | ast.Attribute) or id(node) in followed:
            continue
        if isinstance(node.ctx, ast.Load) and _name(node) in known:
            what = f"{_name(node)} is handed on where its calls cannot be read from the source"
            yield Finding("sampler-escapes", what, source.at(node), "call it, or assign it to a name or attribute")


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
