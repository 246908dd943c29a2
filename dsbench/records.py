"""The lines of `records.jsonl`: what happened, and every reading. Plan and verdict can be had from here, too."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from dsbench.fingerprint import Host
from dsbench.nouns import EngineName, Figure, Phase, Value, Whole, Word
from dsbench.plan_nouns import ALPHA, EQUIVALENCE_CONFIDENCE, Arm, Look, Plan, PlannedBoot
from dsbench.verdict_nouns import EXIT_CODES, Additivity, ArmVerdict, ExperimentVerdict, Verdict, VoidReason

__all__ = [
    "ALPHA",
    "EQUIVALENCE_CONFIDENCE",
    "EXIT_CODES",
    "RECORD",
    "Additivity",
    "Arm",
    "ArmVerdict",
    "BootEnded",
    "BootStarted",
    "Check",
    "Conditions",
    "Counters",
    "Devices",
    "EngineName",
    "ExperimentVerdict",
    "Finding",
    "KvProfile",
    "Look",
    "Markers",
    "Observation",
    "Plan",
    "PlannedBoot",
    "Record",
    "Run",
    "Value",
    "Verdict",
    "VoidReason",
    "Word",
]


class _Noun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _OfBoot(_Noun):
    boot: int
    attempt: int = 1
    """From 1; a boot that was interrupted, or whose engine was killed, is repeated as the next attempt."""


class Run(_Noun):
    """The harness began to work on this folder, for the first time or again; `hosts` are those of its pool."""

    record: Literal["run"] = "run"
    time: str
    pid: int
    harness_version: str
    resumed: bool
    hosts: list[Host] = []
    plan_sha256: str = ""
    """Digest of the stored plan's design, see `plan_digest`; empty where an older version wrote it."""


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
    """Memory, power, clocks and throttling of the accelerators beside a boot, and while its engine is measured."""

    record: Literal["devices"] = "devices"
    moment: Literal["before", "after", "measured"]
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
    killed_by: Annotated[int, Field(ge=1, le=64)] | None = None
    """Signal that ended the engine's process before the harness stopped it; None if none did, or in older records."""
    log: str | None = None
    """Path of the engine's log, relative to the result."""
    log_bytes: int = 0
    log_sha256: str = ""


Record = (
    Run | BootStarted | Conditions | Markers | KvProfile | Counters | Devices | Observation | Check | Finding
    | BootEnded
)  # fmt: skip
RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="record")])
