"""The verdict row of tests that each arm ran in its own checkout: paired by id, new failures apart from inherited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsbench.comparison import Comparison
from dsbench.pytest_settings import PytestProbe
from dsbench.records import Observation, Verdict
from dsbench.score.pytest_ids import Compared, Difference, Kind, compare_reports
from dsbench.score.pytest_report import PytestReport, from_texts, merged

TOLD: tuple[Kind, ...] = (
    "new failure", "machine", "no baseline", "not collected", "not reached", "inherited", "newly skipped", "removed",
    "fixed", "added",
)  # fmt: skip
MOST = 3
"""Ids that a note names."""


def compare_tests(
    this: Comparison, baseline: Mapping[int, Sequence[Observation]], candidate: Mapping[int, Sequence[Observation]]
) -> Verdict:
    """The worst of an arm's boots counts for each id. What was not tested is `not-run`, and voids the experiment."""
    a, b = _report(baseline), _report(candidate)
    answer = compare_reports(a, b, _inherits(this))
    shares = [report.count("passed", "xpassed") / max(len(report.cases), 1) for report in (a, b)]
    return this.row(
        "not-run" if answer.word == "void" else answer.word,
        n_baseline=len(a.cases),
        n_candidate=len(b.cases),
        baseline=shares[0],
        candidate=shares[1],
        delta=shares[1] - shares[0],
        test="test ids",
        notes=[*answer.reasons, *_classes(answer), *_flaky("baseline", baseline), *_flaky("candidate", candidate)],
    )


def _inherits(this: Comparison) -> Mapping[str, str]:
    table = this.plan.probes.table(this.metric.key.partition(".")[0])
    return table.inherits if isinstance(table, PytestProbe) else {}


def _report(observed: Mapping[int, Sequence[Observation]]) -> PytestReport:
    return merged(from_texts({o.item or "": o.text for o in seen}) for seen in observed.values())


def _classes(answer: Compared) -> list[str]:
    notes = []
    for kind in TOLD:
        if found := answer.of(kind):
            more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
            notes.append(f"{kind} {len(found)}: {', '.join(map(_named, found[:MOST]))}{more}")
    return [*notes, *answer.notes]


def _named(difference: Difference) -> str:
    reason = difference.note or (
        difference.candidate.reason if difference.candidate and difference.candidate.red else ""
    )
    return f"{difference.id} ({reason[:120]})" if reason else difference.id


def _flaky(arm: str, observed: Mapping[int, Sequence[Observation]]) -> list[str]:
    """Tests that one boot of an arm passes and another does not."""
    values: dict[str, set[object]] = {}
    for seen in observed.values():
        for o in seen:
            values.setdefault(o.item or "", set()).add(o.value)
    unsteady = sorted(item for item, found in values.items() if len(found) > 1)
    more = f" and {len(unsteady) - MOST} more" if len(unsteady) > MOST else ""
    return [f"the {arm}'s own boots differ on {', '.join(unsteady[:MOST])}{more}"] if unsteady else []
