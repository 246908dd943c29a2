"""Matrices: which combinations of toggles are the arms of an experiment, and which of them cannot be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Literal

from pydantic import BaseModel, ConfigDict

from dsbench.errors import InputError
from impl.toggles import REGISTRY, find

Kind = Literal["alone-and-together", "single", "one-at-a-time", "ladder", "leave-one-out", "full", "half"]

BASELINE = "baseline"
ALL = "all"
MOST_FACTORS = 6
ROMAN = {3: "III", 4: "IV", 5: "V", 6: "VI"}

LADDER = (
    "mtp_hidden_skip",
    "c128a_topk_shared",
    "dflash_staging_skip",
    "q_in_place",
    "c128_indices_in_place",
    "mhc_final_fused",
    "mhc_residual_reuse",
    "mhc_input_reuse",
)
"""Order of the cumulative memory table (source_pr.md, section 3); changes without a row of their own stand where
section 2 lists them."""


class Matrix(BaseModel):
    """How the arms of a plan were chosen."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Kind
    factors: list[str]
    """Toggles as declared, `name`, `name=off` or `name:VALUE`, in the order of the matrix."""
    resolution: str = ""
    """Of a half factorial, a Roman numeral: effects of m toggles are mixed with effects of (resolution - m)."""
    left_out: list[str] = []
    """Arms that cannot be run, each with the reason."""


@dataclass(frozen=True)
class Cell:
    """One candidate arm: its name, and the factors that are on in it."""

    name: str
    factors: list[str]


@dataclass
class Design:
    """Candidate arms in order; the baseline, with no factor on, is not among them."""

    matrix: Matrix
    cells: list[Cell]
    common: list[str]
    """Toggles that factors require and that are no factors: on in every arm."""
    notes: list[str] = field(default_factory=list)


def design(factors: Sequence[str], kind: Kind = "alone-and-together") -> Design:
    """The arms of a matrix over toggles that the registry knows. InputError for one that cannot be run at all."""
    names = [name_of(factor) for factor in factors]
    common = list(dict.fromkeys(need for name in names for need in needs(name) if need not in names))
    needed = [(name, need) for name in names for need in needs(name) if need in common]
    notes = [f"{need} is on in every arm: {name} requires it" for name, need in needed]
    made = {
        "alone-and-together": _alone_and_together,
        "single": _single,
        "one-at-a-time": _one_at_a_time,
        "ladder": _ladder,
        "leave-one-out": _leave_one_out,
        "full": _full,
        "half": _half,
    }[kind](list(factors))
    made.common = common
    made.notes = [*notes, *made.notes]
    return made


def name_of(factor: str) -> str:
    """`name` of `name`, `name=off` or `name:VALUE`."""
    return factor.partition("=")[0].partition(":")[0]


def needs(name: str) -> list[str]:
    """What a toggle requires, and what that requires in turn."""
    found: list[str] = []
    queue = list(find(name).requires)
    while queue:
        need = queue.pop(0)
        if need not in found:
            found.append(need)
            queue += find(need).requires
    return found


def ladder_order(factors: Iterable[str]) -> list[str]:
    """Factors in the order of the ladder, others after them in registry order; what one requires stands before it."""
    known = [*LADDER, *(name for name in REGISTRY if name not in LADDER)]
    waiting = sorted(factors, key=lambda factor: known.index(name_of(factor)))
    ordered: list[str] = []
    while waiting:
        left = {name_of(factor) for factor in waiting}
        step = next(factor for factor in waiting if not left & set(needs(name_of(factor))))
        waiting.remove(step)
        ordered.append(step)
    return ordered


# --- one function a matrix ------------------------------------------------------------------------------------------


def _alone_and_together(factors: list[str]) -> Design:
    made = _one_at_a_time(factors)
    _refuse_conflicts(factors)
    if len(factors) > 1:
        alone = [cell for cell in made.cells if len(cell.factors) < len(factors)]
        notes = [note for note in made.notes if any(note.startswith(cell.factors[-1]) for cell in alone)]
        return Design(Matrix(kind="alone-and-together", factors=factors), [*alone, Cell(ALL, factors)], [], notes)
    return Design(Matrix(kind="alone-and-together", factors=factors), made.cells, [], made.notes)


def _single(factors: list[str]) -> Design:
    _refuse_conflicts(factors)
    return Design(Matrix(kind="single", factors=factors), [_cell(factors)], [])


def _one_at_a_time(factors: list[str]) -> Design:
    cells, notes = [], []
    for factor in factors:
        needed = [other for other in factors if name_of(other) in needs(name_of(factor))]
        if needed:
            notes.append(f"{name_of(factor)} runs together with {', '.join(needed)}, which it requires")
        cells.append(_cell([*needed, factor]))
    return Design(Matrix(kind="one-at-a-time", factors=factors), cells, [], notes)


def _ladder(factors: list[str]) -> Design:
    _refuse_conflicts(factors)
    ordered = ladder_order(factors)
    cells = [Cell("+".join(_plain(ordered[: n + 1])), ordered[: n + 1]) for n in range(len(ordered))]
    return Design(Matrix(kind="ladder", factors=ordered), cells, [], [f"ladder: {' -> '.join(ordered)}"])


def _leave_one_out(factors: list[str]) -> Design:
    _refuse_conflicts(factors)
    if len(factors) < 2:
        raise InputError(f"--matrix leave-one-out of one toggle, {factors[0]}, leaves nothing: name two or more")
    cells, notes = {ALL: factors}, []
    for factor in factors:
        out = [other for other in factors if other == factor or name_of(factor) in needs(name_of(other))]
        if len(out) > 1:
            dependent = ", ".join(other for other in out if other != factor)
            notes.append(f"without {factor}, {dependent} is left out too, which requires it")
        kept = [other for other in factors if other not in out]
        if kept:
            cells["without-" + "+".join(_plain(out))] = kept
    made = [Cell(name, members) for name, members in cells.items()]
    return Design(Matrix(kind="leave-one-out", factors=factors), made, [], notes)


def _full(factors: list[str]) -> Design:
    if not 2 <= len(factors) <= MOST_FACTORS:
        mend = "name fewer, or take ladder" if len(factors) > 2 else "name a second one"
        raise InputError(f"--matrix full takes 2 to {MOST_FACTORS} toggles, got {len(factors)}: {mend}")
    cells, left_out = [], []
    for members in _subsets(factors):
        if why := _impossible(members, factors):
            left_out.append(f"{'+'.join(members)}: {why}")
        else:
            cells.append(_cell(members))
    notes = [f"full factorial of {len(factors)} toggles: {len(cells) + 1} arms"]
    if left_out:
        notes.append(f"arms left out, since they cannot be run: {'; '.join(left_out)}")
    return Design(Matrix(kind="full", factors=factors, left_out=left_out), cells, [], notes)


def _half(factors: list[str]) -> Design:
    """The half in which an even number of toggles is on: the baseline is in it, and the resolution is k."""
    k = len(factors)
    if not 3 <= k <= MOST_FACTORS:
        mend = "take full" if k < 3 else "name fewer, or take ladder"
        raise InputError(f"--matrix half takes 3 to {MOST_FACTORS} toggles, got {k}: {mend}")
    cells = []
    for members in _subsets(factors):
        if len(members) % 2 == 0:
            if why := _impossible(members, factors):
                raise InputError(
                    f"--matrix half: the arm {'+'.join(members)} cannot be run ({why}), and half a factorial needs "
                    "every one of its arms: take full, ladder, or fewer toggles"
                )
            cells.append(_cell(members))
    mixed = {
        3: "each toggle's effect and the interaction of the two others",
        4: "the two-way interactions of a pair and of the other two",
        5: "two-way interactions and three-way ones",
        6: "two-way interactions and four-way ones",
    }[k]
    note = f"half factorial of {k} toggles: {len(cells) + 1} arms, resolution {ROMAN[k]}; it cannot tell apart {mixed}"
    return Design(Matrix(kind="half", factors=factors, resolution=ROMAN[k]), cells, [], [note])


def _subsets(factors: list[str]) -> list[list[str]]:
    """All non-empty subsets, in standard order: a, b, ab, c, ac, bc, abc."""
    patterns = product((False, True), repeat=len(factors))
    found = ([factor for factor, on in zip(factors, reversed(pattern), strict=True) if on] for pattern in patterns)
    return [members for members in found if members]


def _cell(members: list[str]) -> Cell:
    return Cell("+".join(_plain(members)), members)


def _plain(members: Sequence[str]) -> list[str]:
    """Names fit for a folder."""
    return [member.replace("=", "-").replace(":", "-") for member in members]


def _impossible(members: Sequence[str], factors: Sequence[str]) -> str:
    """Why these factors cannot be on while the other ones are off; '' if they can."""
    on, names = [name_of(member) for member in members], [name_of(factor) for factor in factors]
    for name in on:
        if lacking := [need for need in needs(name) if need in names and need not in on]:
            return f"{name} requires {', '.join(lacking)}"
    for name, other in combinations(on, 2):
        if _conflict(name, other):
            return f"{name} and {other} cannot be on together"
    return ""


def _refuse_conflicts(factors: Sequence[str]) -> None:
    for name, other in combinations(map(name_of, factors), 2):
        if _conflict(name, other):
            raise InputError(
                f"toggles '{name}' and '{other}' cannot be on together: run them apart, or --matrix one-at-a-time"
            )


def _conflict(name: str, other: str) -> bool:
    return other in find(name).conflicts or name in find(other).conflicts
