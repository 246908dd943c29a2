"""The table of a simulation: shares with their intervals, beside the targets, as rows, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from dsbench.simulation import noise
from dsbench.simulation.comparing import CONFIDENCE
from dsbench.simulation.run import Result
from dsbench.simulation.tally import share

MOST_FALSE = 0.06
LEAST_POWER = 0.78
LEAST_COVERAGE = CONFIDENCE - 0.02

Judged = Literal["met", "missed", "open"]
"""open: beyond the target, but with so few experiments its interval still reaches it."""


@dataclass(frozen=True)
class Share:
    """A share of the experiments, with its Clopper-Pearson interval."""

    value: float
    low: float
    high: float

    def at_most(self, target: float) -> Judged:
        return "met" if self.value <= target else "missed" if self.low > target else "open"

    def at_least(self, target: float) -> Judged:
        return "met" if self.value >= target else "missed" if self.high < target else "open"

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True)
class Row:
    """One case; None is not applicable."""

    kind: str
    name: str
    design: str
    experiments: int
    false_claims: Share | None
    """Of a metric: improved or regressed without an effect. Of a suite: regressed."""
    rejections: Share | None
    """p at or below 5 % without an effect, margin or not."""
    attainable: float | None
    coverage: Share | None
    attained: float | None
    """Mean confidence that the printed intervals say they have."""
    claimed: float | None
    power: Share | None
    t_over_requests: Share | None
    u_over_requests: Share | None
    words: dict[str, int]
    blamed: dict[str, int]
    targets: dict[str, Judged]
    """Empty where they do not hold."""
    remark: str


def row(result: Result) -> Row:
    """The figures of one case, and whether they meet the targets."""
    case, alike, planted = result.case, result.alike, result.planted
    whole = case.kind == "suite"
    both = alike + planted
    false = _share(alike.regressed if whole else alike.claims, alike.experiments)
    power = _share(planted.right, planted.experiments)
    coverage = _share(both.covered, both.intervals)
    targets: dict[str, Judged] = {}
    if case.held:
        targets |= {"false claims": false.at_most(MOST_FALSE)} if false else {}
        targets |= {"power": power.at_least(LEAST_POWER)} if power else {}
        targets |= {"coverage": coverage.at_least(LEAST_COVERAGE)} if coverage else {}
    return Row(
        kind=case.kind,
        name=case.name,
        design=case.design,
        experiments=alike.experiments,
        false_claims=false,
        rejections=_share(alike.rejected, alike.experiments) if case.attainable is not None else None,
        attainable=case.attainable,
        coverage=coverage,
        attained=both.attained / both.intervals if both.intervals else None,
        claimed=case.experiment.claim(),
        power=power,
        t_over_requests=_share(alike.t_rejected, alike.of_t),
        u_over_requests=_share(alike.u_rejected, alike.of_u),
        words={word: getattr(alike, word) for word in ("improved", "regressed", "equivalent", "inconclusive", "void")},
        blamed=dict(alike.blamed.most_common()),
        targets=targets,
        remark=case.remark,
    )


def missed(rows: Sequence[Row]) -> list[str]:
    """Targets that are missed for sure, one line each."""
    return [
        f"{row.name} ({row.kind}, {row.design}): {target}"
        for row in rows
        for target, judged in row.targets.items()
        if judged == "missed"
    ]


def _share(hits: int, n: int) -> Share | None:
    found = share(hits, n)
    return Share(*found) if found else None


KIND_COLUMNS = (
    "kind", "metric", "design", "n", "false claims", "test at 5 %", "coverage of 90 %", "smallest visible effect",
    "power at it", "t over requests", "U over requests", "targets",
)  # fmt: skip
SUITE_COLUMNS = ("suite", "design", "n", "regressed", "improved", "inconclusive", "void", "by", "targets")


def kind_cells(rows: Sequence[Row]) -> list[list[str]]:
    return [
        [
            row.kind, row.name, row.design, f"{row.experiments:,}", _text(row.false_claims), _test(row), _coverage(row),
            _claim(row), _text(row.power), _text(row.t_over_requests), _text(row.u_over_requests), _targets(row),
        ]
        for row in rows
        if row.kind != "suite"
    ]  # fmt: skip


def suite_cells(rows: Sequence[Row]) -> list[list[str]]:
    return [
        [
            row.name, row.design, f"{row.experiments:,}", _text(row.false_claims), str(row.words["improved"]),
            str(row.words["inconclusive"]), str(row.words["void"]),
            ", ".join(f"{what} {count}" for what, count in list(row.blamed.items())[:5]) or "-", _targets(row),
        ]
        for row in rows
        if row.kind == "suite"
    ]  # fmt: skip


def markdown(rows: Sequence[Row], seeds: Sequence[int], command: str) -> str:
    """The whole table as a page."""
    lines = [
        "# Simulated experiments",
        "",
        f"Made by `{command}`, seeds {', '.join(map(str, seeds))}. Every experiment has known noise and no effect, or "
        "the claimed one; its readings are judged by the real rules. Shares have Clopper-Pearson 95 % intervals.",
        "",
        f"Targets: false claims at most {MOST_FALSE}, power at least {LEAST_POWER}, coverage at least "
        f"{LEAST_COVERAGE:.2f} (nominal less two points).",
        "",
        "## By kind",
        "",
        *_table(KIND_COLUMNS, kind_cells(rows)),
        "",
        "- false claims: improved or regressed without an effect.",
        "- test at 5 %: how often p is at most 0.05 without an effect, and what the test can attain at this n.",
        "- coverage: intervals that hold the truth, with and without an effect; in brackets the confidence they "
        "print on average, which is above 90 % where few boots leave only some levels.",
        "- t and U over requests: how often a test that takes requests for replicates finds a difference where there "
        "is none. U is Mann-Whitney; for drafts a test of two shares, for items McNemar over all answers.",
        *[f"- {row.name}, {row.design}: {row.remark}." for row in rows if row.remark],
        "",
        "## By suite",
        "",
        *_table(SUITE_COLUMNS, suite_cells(rows)),
        "",
        "Two equal builds, planned and judged as `dsbench ab` does. `by` names the rows that said regressed.",
        "",
        "## Noise",
        "",
        *_table(("what", "values", "source"), noise_cells()),
        "",
    ]
    return "\n".join(lines)


def noise_cells() -> list[list[str]]:
    """Every parameter with its source."""
    cells = [
        ["drift of the machine", f"{noise.DRIFT_SHARE:.0%} of the variance between boots, correlation "
         f"{noise.DRIFT_CORRELATION} from one boot to the next",
         "assumed; section 8: order effects, identical binaries 3.7 % apart"],
        ["runs of one boot", f"{noise.OWN_ERROR:.0%} of the spread between boots",
         "section 2: a benchmark's own +- is 5-30 times smaller than the spread between boots"],
    ]  # fmt: skip
    for name, spread in noise.SPREADS.items():
        low, high = spread.boot
        boot = f"sd {low:g} {spread.unit} of {spread.mean:g}" if spread.absolute else f"{low:.1%} to {high:.1%}"
        inside = f", {spread.runs} runs of {spread.requests} requests, {spread.request:.0%} between them"
        cells.append([name, f"between boots {boot}{inside if spread.requests > 1 else ''}", spread.source])
    of_boots = ((f"coherence, boots with luck of {luck}", recall) for luck, recall in noise.RECALL.items())
    for name, questions in (("gsm8k", noise.GSM8K), ("toolcall", noise.TOOLCALL), *of_boots):
        values = f"{questions.items:,} items, {questions.share:.0%} right, {questions.flips[0]:.0%} to "
        values += (
            f"{questions.flips[1]:.0%} flip, {questions.clusters:,} clusters, correlation {questions.correlation:g}"
        )
        cells.append([name, values, questions.source])
    drafts, law = noise.DRAFTS, noise.LAW
    cells.append(["accept.*", f"{drafts.drafts} rounds, {drafts.conditional} falling by {drafts.fade} a position, "
                  f"{drafts.between[0]} to {drafts.between[1]} logits between boots, {drafts.blocks} between blocks",
                  drafts.source])  # fmt: skip
    cells.append(["output_law", f"{law.prompts} prompts, {law.requests} requests, {law.positions} positions",
                  law.source])  # fmt: skip
    return cells


def as_json(rows: Sequence[Row], seeds: Sequence[int]) -> dict[str, Any]:
    return {
        "seeds": list(seeds),
        "targets": {"false claims": MOST_FALSE, "power": LEAST_POWER, "coverage": LEAST_COVERAGE},
        "rows": [asdict(row) for row in rows],
        "missed": missed(rows),
    }


def _table(columns: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    rule = ["---"] * len(columns)
    return [f"| {' | '.join(line)} |" for line in (columns, rule, *cells)] if cells else ["Nothing was run."]


def _text(value: Share | None) -> str:
    return "-" if value is None else str(value)


def _test(row: Row) -> str:
    if row.attainable is None:
        return "-"
    attains = f"attains {row.attainable:.3f}" if row.attainable else "cannot fire"
    return f"{row.rejections.value:.3f} ({attains})" if row.rejections else attains


def _coverage(row: Row) -> str:
    return "-" if row.coverage is None else f"{row.coverage} ({row.attained:.3f})"


def _claim(row: Row) -> str:
    if row.claimed is None:
        return "none"
    return f"{row.claimed:.2%}" if row.claimed else "any"


def _targets(row: Row) -> str:
    if not row.targets:
        return "not held"
    bad = [f"{target} {judged}" for target, judged in row.targets.items() if judged != "met"]
    return ", ".join(bad) or "met"
