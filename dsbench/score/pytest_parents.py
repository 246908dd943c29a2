"""Which red test of one run alone inherits its failure: its parent cases, and whether it fails as they do."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from dsbench.score.pytest_report import ENDED, Case, PytestReport

Rule = Literal["map", "parameters", "name"]
"""
map         a line of the map file names the parents
parameters  the same function, which has gained a parameter: the cases without it
name        the name of another function and more, and the last parameters of its cases
"""

_TOLD: dict[Rule, str] = {
    "map": "by the map", "parameters": "by its parameters", "name": "by name, parameters and reason"
}  # fmt: skip

FAULT = re.compile(
    r"illegal memory access|device-side assert|misaligned address|unspecified launch|illegal instruction|"
    rf"{ENDED}|CUBLAS_STATUS|CUDNN_STATUS",
    re.IGNORECASE,
)
"""A fault poisons its process: every test after it fails for the one reason, and it is still the code's."""
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")
_TYPE = re.compile(r"(?:[A-Za-z_]\w*\.)*([A-Za-z_]\w*)(?::|$)")


@dataclass(frozen=True)
class Parents:
    """Cases that a test stands or falls with."""

    cases: list[str]
    shown: str
    """As one pattern."""
    rule: Rule


def inherits_from(
    name: str, baseline: PytestReport, candidate: PytestReport, inherits: Mapping[str, str]
) -> tuple[bool, str]:
    """Whether a test that is red in the candidate alone inherits that from its parents, and why or why not.

    Every parent must be red in both arms, and the test must fail as one of them does in the baseline: by the same type
    of error, and where nothing but a longer name tells that they are its parents, with the same reason.
    """
    parents = parent_cases(name, baseline.cases, inherits)
    if parents is None:
        return False, ""
    told = f"{parents.shown} ({_TOLD[parents.rule]})"
    n = len(parents.cases)
    red = [parent for parent in parents.cases if baseline.cases[parent].red]
    if len(red) < n:
        return False, f"does not inherit from {told}: only {len(red)} of {_cases(n)} red"
    if gone := sum(parent not in candidate.cases for parent in parents.cases):
        return False, f"does not inherit from {told}: {gone} of {_cases(n)} not in the candidate"
    if mended := sum(not candidate.cases[parent].red for parent in parents.cases):
        return False, f"does not inherit from {told}: {mended} of them mended"
    own, of_parents = candidate.cases[name], [baseline.cases[parent] for parent in parents.cases]
    alike = _same_reason if parents.rule == "name" else same_failure
    if not any(alike(parent, own) for parent in of_parents):
        return False, f"fails otherwise than its parent {told}: {_shown(of_parents[0])} -> {_shown(own)}"
    return True, f"inherits from {told}: {_cases(n)} red in both arms"


def parent_cases(name: str, known: Iterable[str], inherits: Mapping[str, str]) -> Parents | None:
    """Ids among `known` that a test stands or falls with, and how they were found; None where there are none.

    First by `inherits`. Then by parametrization: a function that has gained a parameter has its own cases without it,
    before or after the others, as parents. Last by name: `test_x_reuses_y[128]` is a variant of `test_x`, and its
    parents are the cases `test_x[*-128]` of the same module and class, those of the longest name where several fit. A
    longer name alone, without parameters that agree, shows nothing.
    """
    for pattern, parent in inherits.items():
        if fits(pattern, name):
            cases = [other for other in known if fits(parent, other)]
            return Parents(cases, parent, "map") if cases else None
    where, function, params = _split(name)
    variants: dict[str, list[str]] = {}
    for other in known:
        other_where, other_function, other_params = _split(other)
        if other_where != where or not params:
            continue
        if other_function == function:
            found = _with_parameter(params, other_params)
        else:
            found = function.startswith(f"{other_function}_") and _ends(other_params, params)
        if found:
            variants.setdefault(other_function, []).append(other)
    if not variants:
        return None
    longest = max(variants, key=len)
    # A function whose parameters have changed stands or falls with what fits it exactly.
    exact = [other for other in variants[longest] if _split(other)[2] == params]
    rule: Rule = "parameters" if longest == function else "name"
    if rule == "parameters":
        shown = f"{longest}[{_split(variants[longest][0])[2]}]"
    else:
        shown = f"{longest}[{params}]" if exact else f"{longest}[*-{params}]"
    return Parents(exact or variants[longest], shown, rule)


def _ends(longer: str, shorter: str) -> bool:
    return longer == shorter or longer.endswith(f"-{shorter}")


def _with_parameter(params: str, without: str) -> bool:
    """Whether `params` are those of `without` and one or more further ones at an end."""
    return bool(without) and params != without and (params.endswith(f"-{without}") or params.startswith(f"{without}-"))


def _split(name: str) -> tuple[str, str, str]:
    """Module and class, function, and parameters of an id."""
    plain, bracket, params = name.partition("[")
    where, _, function = plain.rpartition("::")
    return where, function, params.removesuffix("]") if bracket else ""


def fits(pattern: str, name: str) -> bool:
    """Whether an id is one of a map's pattern. Without `::` that is the last part of an id, whatever its module."""
    text = name if "::" in pattern else _split(name)[1] + name[len(name.partition("[")[0]) :]
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text, re.DOTALL) is not None


# --- alike failures ---------------------------------------------------------------------------------------------------


def same_failure(a: Case, b: Case) -> bool:
    """Whether two failures are of one type, faults of the device or the process apart."""
    return _class(a.reason) == _class(b.reason)


def _same_reason(a: Case, b: Case) -> bool:
    """Whether two failures give one reason, but for the numbers in it. Without a reason that is not known."""
    return bool(a.reason) and plain_reason(a.reason) == plain_reason(b.reason)


def plain_reason(reason: str) -> str:
    """A reason without its numbers: shapes, addresses and values differ by case."""
    return _NUMBERS.sub("N", reason)


def _class(reason: str) -> tuple[str, bool]:
    """Type of error, and whether it is a fault. A bare `assert` is an AssertionError; what names no type is its own."""
    if re.match(r"assert\b", reason):
        return "AssertionError", FAULT.search(reason) is not None
    found = _TYPE.match(reason)
    return (found[1] if found else plain_reason(reason)), FAULT.search(reason) is not None


def _shown(case: Case) -> str:
    return case.reason[:80] or "no reason told"


def _cases(n: int) -> str:
    return f"{n} case{'' if n == 1 else 's'}"
