"""Mocked tools of the toolcall probe: the same call after the same conversation gives the same result."""

from __future__ import annotations

import ast
import json
import operator
from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any

from dsbench.score.tool_transcript import Called
from dsbench.tool_scenarios import Battery, Result, Scenario, fits

PER_DOLLAR = {"USD": 1.0, "EUR": 0.92, "GBP": 0.79, "NOK": 10.5, "JPY": 150.0}

_OPERATORS: dict[type[ast.operator | ast.unaryop], Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.UAdd: operator.pos,
    ast.USub: operator.neg,
}
LONGEST = 200
"""Characters of an expression that is worked out."""


def answer_call(battery: Battery, scenario: Scenario, earlier: Sequence[Called], name: str, arguments: str) -> str:
    """JSON text of what one call gives, `earlier` being the calls before it in the conversation."""
    return json.dumps(_answer(battery, scenario, earlier, Called(name=name, arguments=arguments)), ensure_ascii=False)


def _answer(battery: Battery, scenario: Scenario, earlier: Sequence[Called], call: Called) -> dict[str, Any]:
    tool = battery.tools.get(call.name)
    if tool is None:
        return {"error": f"there is no tool {call.name}"}
    values = call.values
    if values is None:
        return {"error": "the arguments are not a JSON object"}
    for missing in (key for key in tool.parameters if key not in values):
        return {"error": f"argument {missing} is missing"}
    for stranger in (key for key in values if key not in tool.parameters):
        return {"error": f"there is no argument {stranger}"}
    alike = [other.values or {} for other in earlier if other.name == call.name]
    for result in (*scenario.results.get(call.name, []), *tool.results):
        if _fits_all(result, values) and (result.first is None or _count(result, alike) < result.first):
            return result.gives
    return (_COMPUTED[call.name](values) if call.name in _COMPUTED else None) or tool.otherwise


def _fits_all(result: Result, values: Mapping[str, Any]) -> bool:
    return all(fits(wanted, values.get(key)) for key, wanted in result.when.items())


def _count(result: Result, calls: Sequence[Mapping[str, Any]]) -> int:
    return sum(_fits_all(result, values) for values in calls)


def _convert(values: Mapping[str, Any]) -> dict[str, Any] | None:
    given, wanted = (str(values[key]).strip().upper() for key in ("from", "to"))
    try:
        amount = float(values["amount"])
    except (TypeError, ValueError, OverflowError):
        return None
    if given not in PER_DOLLAR or wanted not in PER_DOLLAR or not isfinite(amount):
        return None
    return {"result": round(amount * PER_DOLLAR[wanted] / PER_DOLLAR[given], 2)}


def _calculate(values: Mapping[str, Any]) -> dict[str, Any] | None:
    text = str(values["expression"]).replace("\u00d7", "*").replace("\u00f7", "/").strip()
    if len(text) > LONGEST:
        return None
    try:
        value = _evaluate(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError):
        return None
    return {"result": int(value) if value.is_integer() else round(value, 6)} if isfinite(value) else None


def _evaluate(node: ast.expr) -> float:
    """Numbers, + - * / and brackets; ValueError for anything else."""
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.BinOp(op=sign) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_evaluate(node.left), _evaluate(node.right))
        case ast.UnaryOp(op=sign) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](_evaluate(node.operand))
    raise ValueError(f"{type(node).__name__} is no arithmetic")


_COMPUTED: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
    "convert_currency": _convert,
    "calculate": _calculate,
}
