"""Two runs of a pytest selection by test id: new failures apart from inherited ones, and what was not tested at all."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dsbench.decide import worst
from dsbench.errors import InputError
from dsbench.records import Word
from dsbench.score.pytest_report import Case, PytestReport

Kind = Literal[
    "new failure", "inherited", "fixed", "added", "removed", "newly skipped", "skipped", "machine", "no baseline",
    "not collected", "unchanged",
]  # fmt: skip
"""
new failure    red in the candidate, and nothing of the baseline explains it
inherited      red in both; or red and in the candidate alone, with a parent case that is red, too
fixed          red in the baseline, passes in the candidate
added          in the candidate alone, and passes
removed        in the baseline alone
newly skipped  ran in the baseline, and is set aside (skip, xfail) in the candidate
skipped        set aside wherever it is
machine        red because the process saw no device, or no compiler for its kernels: not tested
no baseline    red, and the baseline could not collect its module
not collected  in the baseline, and the candidate could not collect its module
"""

MACHINE = re.compile(
    r"No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA|CUDA driver version is insufficient"
    r"|no CUDA-capable device|CUDA_ERROR_NO_DEVICE|CUDA unknown error|no kernel image is available"
    r"|all CUDA-capable devices are busy|CUDA is not available|0 active drivers"
    r"|tilelang_callback_cuda_compile|nvcc\b.*not found|(?:find|locate) nvcc|CUDA_HOME\b.*not set",
    re.IGNORECASE,
)
IMPORT = re.compile(r"^(ModuleNotFoundError|ImportError)\b|cannot open shared object file|undefined symbol")
FAULT = re.compile(
    r"illegal memory access|device-side assert|misaligned address|unspecified launch|illegal instruction|"
    r"the process ended|CUBLAS_STATUS|CUDNN_STATUS",
    re.IGNORECASE,
)
"""A fault poisons its process: every test after it fails for the one reason, and it is still the code's."""
NO_MACHINE = "no device or compiler"
_NUMBERS = re.compile(r"0x[0-9a-fA-F]+|\d+")


@dataclass(frozen=True)
class Difference:
    """One test id of two runs."""

    id: str
    kind: Kind
    baseline: Case | None
    candidate: Case | None
    note: str = ""
    """The parent cases that it inherits from, why it does not, or how its failure has changed."""


@dataclass(frozen=True)
class Compared:
    """The answer for two runs."""

    word: Word
    reasons: list[str]
    """Why the word is what it is, the weightiest first."""
    differences: list[Difference]
    """Every id of either run, in order."""
    collection: dict[str, tuple[str | None, str | None]]
    """Modules that could not be collected, with the reason in each arm; None where it could."""
    environment: tuple[str | None, str | None]
    """Why a whole run is red for a reason that is no test's, by arm."""
    notes: list[str] = field(default_factory=list)

    def of(self, kind: Kind) -> list[Difference]:
        return [difference for difference in self.differences if difference.kind == kind]

    def to_json(self) -> dict[str, Any]:
        return {
            "word": self.word,
            "reasons": self.reasons,
            "environment": dict(zip(("baseline", "candidate"), self.environment, strict=True)),
            "collection_errors": {
                path: dict(zip(("baseline", "candidate"), why, strict=True)) for path, why in self.collection.items()
            },
            "differences": [asdict(d) for d in self.differences if d.kind not in ("unchanged", "skipped")],
            "notes": self.notes,
        }


def check_named(report: PytestReport, source: str) -> None:
    """InputError if results were counted of tests that are not named: such a run cannot be compared by id."""
    for status in ("failed", "error", "passed", "xpassed"):
        if missing := report.unnamed.get(status, 0):
            raise InputError(
                f"{source}: {missing} {status} test{'' if missing == 1 else 's'} without a name: "
                "run pytest with -rA, or --junitxml=FILE"
            )


def compare_reports(
    baseline: PytestReport, candidate: PytestReport, inherits: Mapping[str, str] | None = None
) -> Compared:
    """Pair two runs by test id. `inherits` maps ids of one arm alone to their parents; `*` stands for anything."""
    environment = (environment_red(baseline), environment_red(candidate))
    collection = {
        path: (baseline.collection.get(path), candidate.collection.get(path))
        for path in sorted({*baseline.collection, *candidate.collection})
    }
    names = sorted({*baseline.cases, *candidate.cases})
    differences = [] if any(environment) else [_difference(n, baseline, candidate, inherits or {}) for n in names]
    reasons, word = _word(differences, collection, environment)
    notes = _notes(differences, inherits or {}, names)
    return Compared(word, reasons, differences, collection, environment, notes)


# --- one id -----------------------------------------------------------------------------------------------------------


def _difference(name: str, baseline: PytestReport, candidate: PytestReport, inherits: Mapping[str, str]) -> Difference:
    a, b = baseline.cases.get(name), candidate.cases.get(name)
    kind, note = _kind(name, a, b, baseline, candidate, inherits)
    return Difference(name, kind, a, b, note)


def _kind(
    name: str,
    a: Case | None,
    b: Case | None,
    baseline: PytestReport,
    candidate: PytestReport,
    inherits: Mapping[str, str],
) -> tuple[Kind, str]:
    module = name.partition("::")[0]
    if any(case and case.red and MACHINE.search(case.reason) for case in (a, b)):
        return "machine", ""
    if b is None:
        return ("not collected" if module in candidate.collection else "removed"), ""
    if a is None and b.red and module in baseline.collection:
        return "no baseline", ""
    if a is None and b.red:
        inherited, note = _inherits(name, baseline, candidate, inherits)
        return ("inherited" if inherited else "new failure"), note
    if a is None:
        return ("added" if b.green else "skipped"), ""
    if b.red:
        return ("inherited" if a.red else "new failure"), _changed(a, b) if a.red else ""
    if not b.green:
        return ("skipped" if not (a.red or a.green) else "newly skipped"), ""
    return ("fixed" if a.red else "unchanged"), ""


def _changed(a: Case, b: Case) -> str:
    """How a failure of both arms has changed, where its kind has."""
    before, now = a.reason.partition(":")[0], b.reason.partition(":")[0]
    faulted = FAULT.search(b.reason) and not FAULT.search(a.reason)
    if a.reason and b.reason and (before != now or faulted):
        return f"fails otherwise than in the baseline: {a.reason[:80]} -> {b.reason[:80]}"
    return ""


def _inherits(
    name: str, baseline: PytestReport, candidate: PytestReport, inherits: Mapping[str, str]
) -> tuple[bool, str]:
    """Whether every parent case is red in the baseline, and not mended in the candidate."""
    parents, told = parent_cases(name, baseline.cases, inherits)
    if not parents:
        return False, ""
    of_both = {parent: (baseline.cases[parent], candidate.cases.get(parent)) for parent in parents}
    red = [p for p, (a, b) in of_both.items() if a.red and (b is None or b.red)]
    if len(red) == len(parents):
        gone = all(b is None for _, b in of_both.values())
        where = "in the baseline, and left" if gone else "in both arms"
        return True, f"inherits from {told}: {_cases(len(red))} red {where}"
    mended = [p for p, (a, b) in of_both.items() if a.red and p not in red]
    why = f"{len(mended)} of them mended" if mended else f"only {len(red)} of {_cases(len(parents))} red"
    return False, f"does not inherit from {told}: {why}"


def _cases(n: int) -> str:
    return f"{n} case{'' if n == 1 else 's'}"


def parent_cases(name: str, known: Iterable[str], inherits: Mapping[str, str]) -> tuple[list[str], str]:
    """Ids among `known` that a test stands or falls with, and how they were found.

    First by `inherits`. Then by parametrization: `test_x_reuses_y[128]` is a variant of `test_x`, so its parents are
    the cases `test_x[*-128]` of the same module and class, those of the longest name where several fit. A function
    that has gained a parameter has the cases without it, before or after the others, as its parents.
    """
    for pattern, parent in inherits.items():
        if _fits(pattern, name):
            return [other for other in known if _fits(parent, other)], f"{parent} (by the map)"
    where, function, params = _split(name)
    variants: dict[str, list[str]] = {}
    for other in known:
        other_where, other_function, other_params = _split(other)
        if other_where != where:
            continue
        if function.startswith(f"{other_function}_"):
            fits = not params or _ends(other_params, params)
        else:
            fits = other_function == function and _with_parameter(params, other_params)
        if fits:
            variants.setdefault(other_function, []).append(other)
    if not variants:
        return [], ""
    longest = max(variants, key=len)
    # A function whose parameters have changed stands or falls with what fits it exactly.
    exact = [other for other in variants[longest] if _split(other)[2] == params]
    shown = f"{longest}[*-{params}]" if params and not exact else f"{longest}[{params}]" if params else longest
    return exact or variants[longest], shown


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


def _fits(pattern: str, name: str) -> bool:
    """A pattern without `::` speaks of the last part of an id, whatever its module."""
    text = name if "::" in pattern else _split(name)[1] + name[len(name.partition("[")[0]) :]
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), text, re.DOTALL) is not None


# --- the whole run ----------------------------------------------------------------------------------------------------


def environment_red(report: PytestReport) -> str | None:
    """Why everything that ran is red, if that is one reason that is no test's own; else None.

    Assertions and faults of a device are the code's, however many tests they take down.
    """
    ran = {name: case for name, case in report.cases.items() if case.red or case.green}
    if not ran or not all(case.red for case in ran.values()):
        return None
    reasons = {_NUMBERS.sub("N", case.reason) for case in ran.values()}
    shown = next(iter(ran.values())).reason
    if all(MACHINE.search(case.reason) for case in ran.values()):
        return f"{NO_MACHINE}: {shown}"
    if len(reasons) != 1 or not shown or FAULT.search(shown) or re.match(r"assert\b|AssertionError", shown):
        return None
    if IMPORT.search(shown):
        return f"import error: {shown}"
    functions = {name.partition("[")[0] for name in ran}
    return f"every test fails for one reason: {shown}" if len(functions) > 1 else None


def _word(
    differences: list[Difference],
    collection: Mapping[str, tuple[str | None, str | None]],
    environment: tuple[str | None, str | None],
) -> tuple[list[str], Word]:
    """A loss stands whatever else could not be compared; what could not be compared passes nothing."""

    def n(kind: Kind) -> int:
        return sum(d.kind == kind for d in differences)

    def tests(kind: Kind) -> str:
        return f"{n(kind)} test{'' if n(kind) == 1 else 's'}"

    broken = [path for path, (a, b) in collection.items() if b is not None and a is None]
    lost = [path for path, (a, b) in collection.items() if b is not None and a is not None]
    no_machine = environment[1] is not None and environment[1].startswith(NO_MACHINE)
    passed_before = [d for d in differences if d.kind == "removed" and d.baseline and d.baseline.green]
    told: list[tuple[Word, bool, str]] = [
        ("regressed", bool(n("new failure")), f"{n('new failure')} new failure{'' if n('new failure') == 1 else 's'}"),
        ("regressed", bool(broken), f"the candidate cannot collect {', '.join(broken)}, which the baseline can"),
        (
            "regressed",
            bool(environment[1]) and not environment[0] and not no_machine,
            f"the candidate's whole run is red, by its environment and no test: {environment[1]}",
        ),
        (
            "void",
            bool(environment[1]) and (bool(environment[0]) or no_machine),
            f"{'both arms were' if environment[0] else 'the candidate was'} not tested: {environment[1]}",
        ),
        (
            "void",
            bool(environment[0]) and not environment[1],
            f"the baseline was not tested: {environment[0]}",
        ),
        ("void", bool(lost), f"neither arm can collect {', '.join(lost)}: not run"),
        ("void", bool(n("machine")), f"{tests('machine')} red because of the machine, without device or compiler"),
        ("void", bool(n("no baseline")), f"{tests('no baseline')} red where the baseline could not be collected"),
        ("void", not _shared(differences) and not any(environment), "no test ran in both arms"),
        (
            "inconclusive",
            bool(n("newly skipped")),
            f"{tests('newly skipped')} of the baseline now skipped or expected to fail: they show nothing",
        ),
        (
            "inconclusive",
            bool(passed_before),
            f"{len(passed_before)} test{'' if len(passed_before) == 1 else 's'} that passed in the baseline "
            "removed: they show nothing",
        ),
        ("improved", bool(n("fixed")), f"{tests('fixed')} fixed"),
    ]
    held = [(word, text) for word, holds, text in told if holds]
    losses = [text for word, text in held if word == "regressed"]
    if losses:
        return losses + [text for word, text in held if word != "regressed"], "regressed"
    return [text for _, text in held], worst([word for word, _ in held] or ["equivalent"])


def _shared(differences: list[Difference]) -> bool:
    return any(d.baseline and d.candidate and (d.candidate.red or d.candidate.green) for d in differences)


def _notes(differences: list[Difference], inherits: Mapping[str, str], names: list[str]) -> list[str]:
    changed = [d for d in differences if d.kind == "inherited" and d.note.startswith("fails otherwise")]
    notes = [f"{d.id} {d.note}" for d in changed]
    stale = [pattern for pattern in inherits if not any(_fits(pattern, name) for name in names)]
    return [*notes, *(f"the map's '{pattern}' is no test of either arm" for pattern in stale)]
