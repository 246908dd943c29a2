"""The verdict of an experiment: its rows, its arms, and why it is void, as verdicts.json holds it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

from dsbench.by_host import ByHost
from dsbench.effects import MetricEffects
from dsbench.fingerprint import Host
from dsbench.metrics import Kind
from dsbench.nouns import Word

EXIT_CODES: dict[str, int] = {"improved": 0, "equivalent": 0, "regressed": 1, "inconclusive": 3, "void": 4}


class _Noun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Verdict(_Noun):
    """One row: one metric of one candidate arm against the baseline."""

    arm: str
    metric: str
    unit: str
    better: Literal["up", "down", "same"]
    rank: int | None
    """None at the server, or where all ranks read the same."""
    role: Literal["primary", "guard", "drift control", "shown"]
    kind: Kind
    """As judged: an exact metric that varies in the baseline is judged as a sample, unless the arms lie far apart."""
    word: Word
    baseline: float | None = None
    candidate: float | None = None
    delta: float | None = None
    """Candidate minus baseline, in the unit; for items the change of the share that is right."""
    relative: float | None = None
    """Change as a fraction of the baseline."""
    expected: int | None = None
    """Change the registry expects."""
    n_baseline: int = 0
    n_candidate: int = 0
    """Boots; for items, items."""
    blocks: int = 0
    """Blocks with a reading in both arms."""
    test: str = ""
    """Named test; empty where values are compared for equality."""
    p: float | None = None
    """Two-sided; none where no test was made or it could not have fired at this n."""
    smallest_p: float | None = None
    """Smallest two-sided p that the test could give at this n."""
    interval: tuple[float, float] | None = None
    """Of the relative change, or of the difference where `interval_of` says so."""
    interval_of: Literal["relative", "difference"] = "relative"
    confidence: float | None = None
    """Confidence the interval attains."""
    margin: float = 0.0
    margin_absolute: bool = False
    """Whether the margin is in the unit, not a fraction of the baseline."""
    smallest_effect: float | None = None
    """Smallest relative change that this n would see with 80 % power, from the spread seen."""
    blocks_needed: int | None = None
    """How many of `needed_unit` would answer `needed_for` with 80 % power, from the spread seen."""
    needed_for: Literal["change", "equivalence", "claim"] = "change"
    """change: to see `needed_effect`. equivalence: to call arms equivalent within it that are equal. claim: fewest at
    which a claim can stand among the others of its family."""
    needed_effect: float | None = None
    """The claimed change, the margin, or where that is 0 the change seen, in the terms of `smallest_effect`."""
    needed_unit: Literal["blocks", "boots an arm", "items", "clusters"] = "blocks"
    by_host: ByHost | None = None
    p_holm: float | None = None
    """p of a claim after Holm: of improvement among all claims, of loss among the arm's tested primaries or guards."""
    notes: list[str] = []


class VoidReason(_Noun):
    """Why the comparison is not one."""

    code: str
    text: str
    mend: str
    arm: str | None = None
    boots: list[int] = []


class Additivity(_Noun):
    """Whether all toggles together change a metric by the sum of what each changes alone."""

    metric: str
    unit: str
    together: float
    alone: dict[str, float]
    difference: float
    """`together` minus the sum; 0 is additive to the unit."""


class ArmVerdict(_Noun):
    """One candidate arm against the baseline."""

    arm: str
    toggles: list[str]
    word: Word
    unresolved_guards: list[str]


class ExperimentVerdict(_Noun):
    """The answer of one experiment."""

    id: str
    suite: str
    word: Word
    exit_code: int
    sentence: str
    arms: list[ArmVerdict]
    rows: list[Verdict]
    void: list[VoidReason]
    additivity: list[Additivity]
    effects: list[MetricEffects] = []
    """Of matrices that tell more than each arm against the baseline."""
    hosts: list[Host] = []
    """Machines of the pool on which the measured boots ran."""
    notes: list[str]
