"""Two runs of a pytest selection by test id: new failures apart from inherited ones, and what was not tested at all."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dsbench.decide import worst
from dsbench.errors import InputError
from dsbench.records import Word
from dsbench.score.pytest_parents import FAULT, fits, inherits_from, plain_reason, same_failure
from dsbench.score.pytest_report import SESSION, Case, PytestReport

Kind = Literal[
    "new failure", "inherited", "fixed", "added", "removed", "newly skipped", "skipped", "machine", "no baseline",
    "not collected", "not reached", "unchanged",
]  # fmt: skip
"""
new failure    red in the candidate, and nothing of the baseline explains it
inherited      red in both; or red and in the candidate alone, and fails as its parent cases, which are red in both
fixed          red in the baseline, passes in the candidate
added          in the candidate alone, and passes
removed        in the baseline alone
newly skipped  ran in the baseline, and is set aside (skip, xfail) in the candidate
skipped        set aside wherever it is
machine        red because the process saw no device, or no compiler for its kernels: not tested
no baseline    red, and the baseline could not collect its module, or anything; or ended before its last test
not collected  in the baseline, and the candidate could not collect its module, or anything
not reached    in the baseline, and the candidate's process ended before its last test
"""

MACHINE = re.compile(
    r"No CUDA GPUs are available|Found no NVIDIA driver|not compiled with CUDA|CUDA driver version is insufficient"
    r"|no CUDA-capable device|CUDA_ERROR_NO_DEVICE|CUDA unknown error|no kernel image is available"
    r"|all CUDA-capable devices are busy|CUDA is not available|0 active drivers"
    r"|tilelang_callback_cuda_compile|nvcc\b.*not found|(?:find|locate) nvcc|CUDA_HOME\b.*not set",
    re.IGNORECASE,
)
IMPORT = re.compile(r"^(ModuleNotFoundError|ImportError)\b|cannot open shared object file|undefined symbol")
NO_MACHINE = "no device or compiler"


@dataclass(frozen=True)
class Difference:
    """One test id of two runs."""

    id: str
    kind: Kind
    baseline: Case | None
    candidate: Case | None
    note: str = ""
    """The parent cases that it inherits from, why it does not, how its failure has changed, or why it was not run."""


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
    reasons, word = _word(differences, (baseline, candidate), collection, environment)
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
    if any(case and case.red and MACHINE.search(case.reason) for case in (a, b)):
        return "machine", ""
    if b is None:
        return _lacks(name, candidate) or ("removed", "")
    if a is None and b.red:
        if unknown := _lacks(name, baseline):
            return "no baseline", f"the baseline {unknown[1]}"
        if not baseline.cases.keys() & candidate.cases.keys():
            return "no baseline", "the arms have no test id in common"
        inherited, note = inherits_from(name, baseline, candidate, inherits)
        return ("inherited" if inherited else "new failure"), note
    if a is None:
        return ("added" if b.green else "skipped"), ""
    if b.red:
        return ("inherited" if a.red else "new failure"), _changed(a, b) if a.red else ""
    if not b.green:
        return ("skipped" if not (a.red or a.green) else "newly skipped"), ""
    return ("fixed" if a.red else "unchanged"), ""


def _lacks(name: str, report: PytestReport) -> tuple[Literal["not collected", "not reached"], str] | None:
    """Why a run may lack a test that its checkout has; None where the checkout has none."""
    module = name.partition("::")[0]
    if module in report.collection:
        return "not collected", f"cannot collect {module}"
    if SESSION in report.collection:
        return "not collected", f"cannot collect anything: {report.collection[SESSION][:80]}"
    if report.ended:
        test, how = report.ended
        return "not reached", f"never got there: {how} in {test}"
    return None


def _changed(a: Case, b: Case) -> str:
    """How a failure of both arms has changed, where its type has."""
    if a.reason and b.reason and not same_failure(a, b):
        return f"fails otherwise than in the baseline: {a.reason[:80]} -> {b.reason[:80]}"
    return ""


# --- the whole run ----------------------------------------------------------------------------------------------------


def environment_red(report: PytestReport) -> str | None:
    """Why everything that ran is red, if that is one reason that is no test's own; else None.

    Assertions and faults of a device are the code's, however many tests they take down.
    """
    ran = {name: case for name, case in report.cases.items() if case.red or case.green}
    if not ran or not all(case.red for case in ran.values()):
        return None
    reasons = {plain_reason(case.reason) for case in ran.values()}
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
    reports: tuple[PytestReport, PytestReport],
    collection: Mapping[str, tuple[str | None, str | None]],
    environment: tuple[str | None, str | None],
) -> tuple[list[str], Word]:
    """A loss stands whatever else could not be compared; what could not be compared passes nothing."""

    def n(kind: Kind) -> int:
        return sum(d.kind == kind for d in differences)

    def tests(kind: Kind) -> str:
        return f"{n(kind)} test{'' if n(kind) == 1 else 's'}"

    known = SESSION not in reports[0].collection
    broken = [path for path, (a, b) in collection.items() if b is not None and a is None and known]
    lost = [path for path, (a, b) in collection.items() if b is not None and not (a is None and known)]
    ended = [report.ended for report in reports]
    baseline_ran = any(case.red or case.green for case in reports[0].cases.values())
    unknown = {
        d.note: sum(other.note == d.note for other in differences) for d in differences if d.kind == "no baseline"
    }
    no_machine = environment[1] is not None and environment[1].startswith(NO_MACHINE)
    passed_before = [d for d in differences if d.kind == "removed" and d.baseline and d.baseline.green]
    told: list[tuple[Word, bool, str]] = [
        ("regressed", bool(n("new failure")), f"{n('new failure')} new failure{'' if n('new failure') == 1 else 's'}"),
        ("regressed", bool(broken), f"the candidate cannot collect {', '.join(broken)}, which the baseline can"),
        (
            "regressed",
            bool(environment[1]) and not environment[0] and not no_machine and baseline_ran,
            f"the candidate's whole run is red, by its environment and no test: {environment[1]}",
        ),
        (
            "void",
            bool(environment[1]) and not baseline_ran,
            f"the baseline ran no test, and the candidate's are all red: {environment[1]}",
        ),
        (
            "void",
            bool(environment[1]) and baseline_ran and (bool(environment[0]) or no_machine),
            f"{'both arms were' if environment[0] else 'the candidate was'} not tested: {environment[1]}",
        ),
        (
            "void",
            bool(environment[0]) and not environment[1],
            f"the baseline was not tested: {environment[0]}",
        ),
        ("void", bool(lost), f"neither arm can collect {', '.join(lost)}: not run"),
        ("void", bool(n("machine")), f"{tests('machine')} red because of the machine, without device or compiler"),
        (
            "void",
            bool(unknown),
            "; ".join(
                f"{count} test{'' if count == 1 else 's'} red that cannot be compared: {why}"
                for why, count in unknown.items()
            ),
        ),
        (
            "void",
            bool(n("not reached")) and ended[1] is not None,
            f"{tests('not reached')} of the baseline never reached: the candidate's run {_how(ended[1])}",
        ),
        (
            "void",
            all(ended),
            f"what comes later was not run in either arm: the baseline's run {_how(ended[0])}, the candidate's "
            f"{_how(ended[1])}",
        ),
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


def _how(ended: tuple[str, str] | None) -> str:
    return f"ended in {ended[0]} ({ended[1]})" if ended else ""


def _shared(differences: list[Difference]) -> bool:
    return any(d.baseline and d.candidate and (d.candidate.red or d.candidate.green) for d in differences)


def _notes(differences: list[Difference], inherits: Mapping[str, str], names: list[str]) -> list[str]:
    changed = [d for d in differences if d.kind == "inherited" and d.note.startswith("fails otherwise")]
    notes = [f"{d.id} {d.note}" for d in changed]
    stale = [pattern for pattern in inherits if not any(fits(pattern, name) for name in names)]
    return [*notes, *(f"the map's '{pattern}' is no test of either arm" for pattern in stale)]
