"""From the options that `ab`, `aa` and `plan` share to a suite and a plan."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsbench.errors import InputError
from impl.dims import SHAPES, Dims

if TYPE_CHECKING:
    from dsbench.builds import ArmSpec
    from dsbench.matrices import Kind
    from dsbench.records import EngineName, Plan
    from dsbench.suite import Suite, Until


EMBEDDED_ONLY = ("shape", "max_num_batched_tokens", "max_model_len", "hidden_size", "load_format", "speculative",
                 "eager", "capture", "device", "draft_load_format", "synthetic_acceptance_rates",
                 "synthetic_acceptance_length")  # fmt: skip
UNSET = ("micro", "auto")
"""Defaults of options that have one."""
OPTIONS = {"shape": "dims", "endpoints": "endpoint"}
"""Options whose name is another."""


@dataclass(frozen=True)
class Asked:
    """The shared options as click gives them; a command without arms leaves theirs out."""

    suite_name: str
    until: Until | None
    timeout: float | None
    seed: int
    shape: str
    max_num_batched_tokens: int | None
    max_model_len: int | None
    hidden_size: int | None
    load_format: str
    speculative: str | None
    eager: bool
    draft_load_format: str | None
    synthetic_acceptance_rates: str | None
    synthetic_acceptance_length: float | None
    capture: str | None = None
    toggles: tuple[str, ...] = ()
    matrix: Kind | None = None
    arms: tuple[str, ...] = ()
    a_python: str | None = None
    b_python: str | None = None
    controls: bool = False
    device: str | None = None
    engine: EngineName | None = None
    vllm_python: str | None = None
    serve_args: str | None = None
    env: tuple[str, ...] = ()
    rig: Path | None = None
    endpoints: tuple[str, ...] = ()
    declare: tuple[str, ...] = ()
    a: str | None = None
    b: str | None = None

    def __post_init__(self) -> None:
        """`--a URL --b URL` stands for the endpoint engine with two arms of these names; a recipe has its engine."""
        if self.a is None and self.b is None:
            self._take_engine()
            return
        if self.a is None or self.b is None:
            raise InputError(f"--{'b' if self.a is None else 'a'} URL compares with nothing: give --a and --b")
        if self.endpoints or self.engine not in (None, "endpoint"):
            more = f"--endpoint {self.endpoints[0]}" if self.endpoints else f"--engine {self.engine}"
            raise InputError(f"--a and --b are two running servers: leave out {more}")
        object.__setattr__(self, "engine", "endpoint")
        object.__setattr__(self, "endpoints", (f"a={self.a}", f"b={self.b}"))

    def _take_engine(self) -> None:
        """The engine asked for, else the recipe's with its flags and variables, else ours."""
        from dsbench.recipe import environment, overlaid
        from dsbench.suite import load_suite

        build = load_suite(self.suite_name).build
        if build is None or self.engine not in (None, build.engine):
            object.__setattr__(self, "engine", self.engine or "embedded")
            return
        from dsbench.engines.vllm import split_args

        object.__setattr__(self, "engine", build.engine)
        object.__setattr__(self, "serve_args", shlex.join(overlaid(build, split_args(self.serve_args or ""))))
        object.__setattr__(self, "env", environment(build, self.env))

    def suite(self) -> Suite:
        """The suite, stopped earlier or with other deadlines where that was asked for."""
        from dsbench.suite import Timeouts, load_suite

        suite = load_suite(self.suite_name)
        if self.until:
            suite = suite.with_until(self.until)
        if self.timeout is not None:
            deadlines = Timeouts(boot=self.timeout, probe=self.timeout, stop=suite.timeouts.stop)
            suite = suite.model_copy(update={"timeouts": deadlines})
        return suite

    def plan(self, suite: Suite | None = None, *, specs: Sequence[ArmSpec] = (), **options: Any) -> Plan:
        """The plan of what was asked; `options` are further ones of `plan_experiment`; without any secret."""
        from dsbench.engines.engine import refuse_missing
        from dsbench.storable import refuse_secrets_in

        plan = self._plan(suite, specs, options)
        refuse_secrets_in(plan)
        refuse_missing(plan)  # behind that: it names a program, which is one of the plan's texts
        return plan

    def _plan(self, suite: Suite | None, specs: Sequence[ArmSpec], options: dict[str, Any]) -> Plan:
        from dsbench.plan import plan_experiment

        if self.engine != "embedded":
            return self._served_plan(suite or self.suite(), specs or self._specs(), options)
        self._refuse(("vllm_python", "serve_args", "env", "rig", "endpoints", "declare"), "is for another --engine")
        dims, engine_args = self._engine()
        return plan_experiment(
            self.toggles,
            suite or self.suite(),
            dims,
            arms=specs or self._specs(),
            matrix=self.matrix,
            speculative=self.speculative,
            engine_args=engine_args,
            seed=self.seed,
            controls=self.controls,
            **options,
        )

    def _served_plan(self, suite: Suite, specs: Sequence[ArmSpec], options: dict[str, Any]) -> Plan:
        """The plan for an engine that is not ours."""
        from dsbench.engines.devices import ELSEWHERE
        from dsbench.fit import for_vllm
        from dsbench.plan import plan_experiment
        from dsbench.recipe import recipe_notes
        from dsbench.served import read_served

        assert self.engine is not None
        self._refuse(EMBEDDED_ONLY, f"is for the embedded engine; give {self.engine} its own flags in --serve-args")
        named = [*self.toggles, *(toggle for spec in specs for toggle in spec.toggles)]
        served = read_served(
            self.engine, python=self.vllm_python, serve_args=self.serve_args, env=self.env, rig=self.rig,
            endpoints=self.endpoints, declare=self.declare, toggles=named,
        )  # fmt: skip
        answered, unanswered = served.suite(suite, self.timeout), list[str]()
        if self.engine == "vllm":
            answered, unanswered = for_vllm(answered)
        plan = plan_experiment(
            self.toggles,
            answered,
            served.dims(),
            arms=served.specs(specs),
            matrix=self.matrix,
            speculative=served.speculative,
            engine=self.engine,
            engine_args=served.args,
            seed=self.seed,
            controls=self.controls,
            **{"alike": self.engine == "endpoint", **options},
        )
        plan = served.finish(plan)
        untested = [f"{name}: not-run, {why}" for name, why in served.untestable(suite).items()]
        elsewhere = [ELSEWHERE[self.engine]] if self.engine in ELSEWHERE else []
        raised = served.raised(suite, self.timeout)
        notes = [*plan.notes, *untested, *unanswered, *elsewhere, *raised, *recipe_notes(suite, self.engine)]
        return plan.model_copy(update={"notes": notes})

    def _refuse(self, names: Sequence[str], why: str) -> None:
        """InputError for the first of these options that was given."""
        for name in names:
            default = type(self).__dataclass_fields__[name].default
            if getattr(self, name) not in (default, None, (), False, *UNSET):
                raise InputError(f"--{OPTIONS.get(name, name).replace('_', '-')} {why}")

    def _specs(self) -> list[ArmSpec]:
        from dsbench.builds import parse_arm, two_environments

        if self.a_python is not None or self.b_python is not None:
            if self.arms or self.toggles:
                more = f"--arm {self.arms[0]}" if self.arms else f"--toggle {self.toggles[0]}"
                raise InputError(f"--a-python or --b-python beside {more}: write each arm as --arm NAME='python=VENV'")
            return two_environments(self.a_python, self.b_python)
        return [parse_arm(text) for text in self.arms]

    def _engine(self) -> tuple[Dims, list[str]]:
        """The shape, and the engine's arguments in every arm."""
        if self.hidden_size is not None and self.load_format != "dummy":
            raise InputError(
                f"--hidden-size {self.hidden_size} does not fit the shipped weights: add --load-format dummy"
            )
        changes = {
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_model_len": self.max_model_len,
            "hidden_size": self.hidden_size,
        }
        changed = {name: value for name, value in changes.items() if value is not None}
        dims = SHAPES[self.shape].with_changes(**changed)
        flags = {
            "dims": self.shape,
            "seed": self.seed,
            "device": self.device,
            "load_format": self.load_format,
            **changed,
            "capture": self.capture,
            "draft_load_format": self.draft_load_format,
            **_synthetic(dims, self.synthetic_acceptance_rates, self.synthetic_acceptance_length),
        }
        given = ((f"--{name.replace('_', '-')}", str(value)) for name, value in flags.items() if value is not None)
        return dims, [part for pair in given for part in pair] + (["--eager"] if self.eager else [])


def _synthetic(dims: Dims, rates: str | None, length: float | None) -> dict[str, str | float | None]:
    """Engine flags of synthetic acceptance; InputError for rates that cannot be."""
    if rates is None and length is None:
        return {}
    from impl.engine.acceptance import synthetic_conditional_rates

    try:
        given = None if rates is None else [float(rate) for rate in rates.split(",")]
        synthetic_conditional_rates(dims.draft_tokens, given, length)
    except ValueError as error:
        told = f"--synthetic-acceptance-rates '{rates}': " if rates is not None and length is None else ""
        raise InputError(f"{told}{error}") from None
    return {
        "rejection_sample_method": "synthetic",
        "synthetic_acceptance_rates": rates,
        "synthetic_acceptance_length": length,
    }
