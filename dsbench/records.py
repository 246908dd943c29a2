"""The nouns of an experiment: the plan, the lines of `records.jsonl`, and the verdicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from dsbench.by_host import ByHost
from dsbench.effects import MetricEffects
from dsbench.fingerprint import Fingerprint, Host
from dsbench.floors import Floor
from dsbench.matrices import Matrix
from dsbench.metrics import Kind, Metric
from dsbench.policy import Policy
from dsbench.probe_settings import Probes
from dsbench.rig import Rig
from dsbench.suite import Timeouts, Until

EngineName = Literal["embedded", "vllm", "command", "endpoint"]
Phase = Literal["warm-up", "measured"]
Word = Literal["improved", "regressed", "equivalent", "inconclusive", "void", "not-run"]
Value = int | float | str | list[int]
Name = Annotated[str, Field(pattern=r"^[^\s/\\.\x00-\x1f][^/\\\x00-\x1f]*$")]
"""A name that is part of a path: it leads nowhere else."""
Figure = Annotated[float, Field(ge=-1e18, le=1e18, allow_inf_nan=False)]
Whole = Annotated[int, Field(ge=-(10**18), le=10**18)]
"""Bounded, so that sums, squares and quotients of figures are numbers, too."""

Level = Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)]
Confidence = Annotated[float, Field(ge=0.5, lt=1, allow_inf_nan=False)]
ALPHA = 0.05
EQUIVALENCE_CONFIDENCE = 0.90

EXIT_CODES: dict[str, int] = {"improved": 0, "equivalent": 0, "regressed": 1, "inconclusive": 3, "void": 4}


class _Noun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


# --- plan -----------------------------------------------------------------------------------------------------------


class Arm(_Noun):
    """A build plus toggle states. The first arm of a plan is the baseline."""

    name: Name
    toggles: list[str]
    """Factors of this arm as declared, `name` or `name=off`; empty for the baseline."""
    environment: str
    """Value of DSBENCH_TOGGLES for its boots: factors and what they require."""
    on: list[str]
    """Every toggle that must read back as on."""
    takes: list[str]
    """Toggles whose marker must be taken in every boot; any other marker must not be."""
    primary: list[str]
    """Primary metrics of its factors; empty for the baseline."""
    expected: dict[str, int]
    """Change against the baseline that the registry expects, in bytes, by metric."""
    declared: list[str]
    """Conditions that may differ from the baseline's; within an arm none may."""
    speculative: str | None = None
    """Speculative method its boots are told to run and must read back; None says nothing of it."""
    args: list[str] = []
    """Engine arguments of this arm, after those of the plan."""
    env: dict[str, str] = {}
    """Environment variables of this arm."""
    python: str | None = None
    """Interpreter of this arm's engine; None is the one that runs the harness."""
    url: str | None = None
    """Running server of an `endpoint` arm."""

    @property
    def build(self) -> tuple[Any, ...]:
        """What the engine is made of, toggles apart."""
        return (self.speculative, self.args, self.env, self.python, self.url)

    @property
    def speculates(self) -> bool:
        return self.speculative not in (None, "none")


class PlannedBoot(_Noun):
    """One engine start to come."""

    number: int
    """From 1, in order of time; also the number of its folder."""
    arm: Name
    block: int | None
    """From 1; none for a warm-up."""
    phase: Phase
    reused: int | None = None
    """Number of this boot in the earlier experiment that it was taken from; None for one that runs."""

    @property
    def folder(self) -> str:
        return f"{self.number:02d}-{self.arm}"


class Look(_Noun):
    """One moment at which an experiment may stop early."""

    blocks: int
    alpha: Level
    """Level of the two-sided test at this look."""
    equivalence_confidence: Confidence


class Plan(_Noun):
    """Everything decided before the first boot; the verdict is a function of this and the records."""

    version: Literal[1] = 1
    id: Name
    created: str
    """Local time with its offset, ISO 8601."""
    harness_version: str
    suite: str
    engine: EngineName
    engine_args: list[str]
    """Build arguments, the same for every arm; for vLLM the model and the flags of `vllm serve`."""
    rig: Rig | None = None
    """Commands, URL and paths of a `command` engine, their places not filled in."""
    dims: dict[str, Any]
    """Shape the engine is told to run, which it must report back."""
    seed: int
    """One seed for the order of the arms, the prompts and the engine."""
    until: Until
    arms: list[Arm]
    matrix: Matrix | None = None
    """How the arms were chosen from the toggles; None where they were given one by one."""
    boots: list[PlannedBoot]
    blocks: int
    probes: Probes
    metrics: list[Metric]
    """Definitions and margins as they were when the plan was made."""
    guards: list[str]
    drift_controls: list[str]
    timeouts: Timeouts
    alpha: Level = ALPHA
    """Level of the two-sided test for improved and regressed."""
    equivalence_confidence: Confidence = EQUIVALENCE_CONFIDENCE
    """Confidence of the interval that must lie inside the margin for equivalent."""
    fingerprint: Fingerprint | None = None
    """The machine that the plan was made on."""
    floors: list[Floor] = []
    """Floors of the baseline's build on that machine, as they were when the plan was made."""
    looks: list[Look] = []
    """When the experiment may stop before its last block; empty where the number of blocks is fixed."""
    reused_from: str | None = None
    """Earlier experiment whose baseline boots stand in for this one's."""
    pool: str | None = None
    """What spreads the blocks over hosts, `ray`; None where all boots run on the machine of the harness."""
    policy: Policy | None = None
    """Of the gate that the verdict is held against; None without one."""
    notes: list[str]
    """What the plan decided on its own, such as toggles that it turned on in both arms."""

    @model_validator(mode="after")
    def _whole(self) -> Plan:
        """Arms that are named are there, and every name and number is there once."""
        names, numbers = [arm.name for arm in self.arms], [boot.number for boot in self.boots]
        if not names or len({*names}) < len(names):
            raise ValueError("arms: there should be one or more, of different names")
        if len({*numbers}) < len(numbers):
            raise ValueError("boots: two have one number")
        if strange := [boot.arm for boot in self.boots if boot.arm not in names]:
            raise ValueError(f"boots: no arm is called {strange[0]!r}")
        return self

    @property
    def baseline(self) -> Arm:
        return self.arms[0]

    def arm(self, name: str) -> Arm:
        return next(arm for arm in self.arms if arm.name == name)

    def metric(self, key: str) -> Metric:
        return next(metric for metric in self.metrics if metric.key == key)


# --- records --------------------------------------------------------------------------------------------------------


class _OfBoot(_Noun):
    boot: int
    attempt: int = 1
    """From 1; a boot that was interrupted is repeated as the next attempt."""


class Run(_Noun):
    """The harness began to work on this folder, for the first time or again; `hosts` are those of its pool."""

    record: Literal["run"] = "run"
    time: str
    pid: int
    harness_version: str
    resumed: bool
    hosts: list[Host] = []


class BootStarted(_OfBoot):
    """An engine process is about to start; `host` is None on the machine of the harness."""

    record: Literal["boot_started"] = "boot_started"
    time: str
    arm: str
    block: int | None
    phase: Phase
    host: str | None = None


class Conditions(_OfBoot):
    """Facts that one rank read back."""

    record: Literal["conditions"] = "conditions"
    rank: int
    values: dict[str, Any]


class Markers(_OfBoot):
    """What one rank's toggles did so far."""

    record: Literal["markers"] = "markers"
    rank: int
    moment: Literal["ready", "end"]
    pid: int | None
    taken: dict[str, int]
    refused: dict[str, dict[str, int]]
    """Reasons and counts, by toggle."""


class KvProfile(_OfBoot):
    """One rank's memory profile, as written."""

    record: Literal["kv_profile"] = "kv_profile"
    rank: int
    values: dict[str, Any]


class Counters(_OfBoot):
    """The server's counters and process id at one moment."""

    record: Literal["counters"] = "counters"
    moment: str
    """`ready`, or the name of the probe that has just ended."""
    pid: int | None
    values: dict[str, Figure]


class Devices(_OfBoot):
    """Memory, power, clocks and throttling of the accelerators beside a boot."""

    record: Literal["devices"] = "devices"
    moment: Literal["before", "after"]
    values: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Observation:
    """One reading. There may be a million: slots take a tenth of the memory of a model."""

    boot: int
    attempt: int = 1
    record: Literal["observation"] = "observation"
    metric: str
    value: Whole | Figure | str | list[Whole] | None
    """None where the platform does not know."""
    unit: str
    rank: int | None = None
    """None for what is measured at the server."""
    item: str | None = None
    cluster: str | None = None
    """Items that share one are not independent of each other."""
    phase: Phase
    raw: list[Figure] | None = None
    """What `value` was made of: readings whose median it is, both counts of a ratio, or p and total variation."""
    text: str | None = None
    """What the engine answered, where a person would want to see it."""

    @classmethod
    def model_validate(cls, values: Mapping[str, object]) -> Observation:
        """As of the other records. ValidationError if a field is not what it should be."""
        return _OBSERVATION.validate_python(values)

    def model_copy(self, *, update: Mapping[str, Any]) -> Observation:
        """As of the other records."""
        return replace(self, **update)

    def model_dump(self, *, exclude: Collection[str] = ()) -> dict[str, Any]:
        """As of the other records."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in exclude}


_OBSERVATION = TypeAdapter(Observation)


class Check(_OfBoot):
    """Whether a planned probe ran. A check that did not run makes its experiment void."""

    record: Literal["check"] = "check"
    probe: str
    status: Literal["done", "failed", "not-run"]
    reason: str = ""
    seconds: float = 0.0


class Finding(_OfBoot):
    """Something worth a line that is no measurement."""

    record: Literal["finding"] = "finding"
    code: str
    text: str


class BootEnded(_OfBoot):
    """The engine's whole process group is gone."""

    record: Literal["boot_ended"] = "boot_ended"
    time: str
    status: Literal["ok", "failed", "interrupted"]
    reason: str = ""
    seconds: float
    """From start to the end of the group."""
    ready_seconds: float | None = None
    log: str | None = None
    """Path of the engine's log, relative to the result."""
    log_bytes: int = 0
    log_sha256: str = ""


Record = (
    Run | BootStarted | Conditions | Markers | KvProfile | Counters | Devices | Observation | Check | Finding
    | BootEnded
)  # fmt: skip
RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="record")])


# --- verdicts -------------------------------------------------------------------------------------------------------


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
    """As judged: an exact metric that varies in the baseline is judged as a sample."""
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
    """How many of `needed_unit` would see `needed_effect` with 80 % power, from the spread seen."""
    needed_effect: float | None = None
    """The claimed change, else the margin, in the terms of `smallest_effect`."""
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
