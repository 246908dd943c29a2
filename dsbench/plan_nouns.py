"""The plan of an experiment: everything that is decided before the first boot, as plan.json holds it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import from_json

from dsbench.fingerprint import Fingerprint
from dsbench.floors import Floor
from dsbench.matrices import Matrix
from dsbench.metrics import Metric
from dsbench.nouns import Confidence, EngineName, Level, Name, Phase, Whole
from dsbench.policy import Policy
from dsbench.probe_settings import Probes
from dsbench.rig import Rig
from dsbench.suite import Timeouts, Until

ALPHA = 0.05
EQUIVALENCE_CONFIDENCE = 0.90


class _Noun(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


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
    expected: dict[str, Whole]
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
    rerun_of: str | None = None
    """Experiment that this is the second run of, for a gate that it left open: what is open now has failed."""
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


DESIGN = (
    "id", "suite", "engine", "engine_args", "rig", "dims", "seed", "until", "arms", "boots", "blocks", "probes",
    "drift_controls", "alpha", "equivalence_confidence", "looks", "reused_from", "pool",
)  # fmt: skip
"""What makes an experiment the one that it is. Not deadlines, nor what a gate may ask of it, nor what was noted."""
ASKED_OF_A_METRIC = ("margin", "summary")


def plan_digest(content: str | bytes) -> str:
    """SHA-256 of the design that the text of a plan.json tells, in hexadecimal; ValueError if it is no JSON object.

    It is that of the text and not of a `Plan`: nothing writes a stored plan anew, and so a later version, whose plans
    have more fields or other defaults, finds the same.
    """
    stored = from_json(content)
    if not isinstance(stored, dict):
        raise ValueError("a plan is a JSON object")
    told = {key: stored[key] for key in DESIGN if key in stored}
    told["metrics"] = [
        {key: value for key, value in metric.items() if key not in ASKED_OF_A_METRIC} for metric in stored["metrics"]
    ]
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
