"""Plans for engines that are not ours: what their options say, checked before the first boot, and put into the plan."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from dsbench.builds import DECLARABLE, ENDPOINTS_DIFFER, ArmSpec, declare_it, interpreter
from dsbench.engines.endpoint import alive
from dsbench.engines.read_back import ask
from dsbench.engines.secret_shapes import is_secret
from dsbench.engines.secrets import refuse_secret, refuse_secrets
from dsbench.engines.vllm import limits, look_into, model_config, model_of, speculative_method, split_args
from dsbench.errors import InputError
from dsbench.pytest_settings import PytestProbe
from dsbench.records import Arm, EngineName, Plan
from dsbench.rig import Rig, load_rig
from dsbench.suite import Suite, Timeouts
from impl.dims import FLASH, PICO, SHAPES, Dims
from impl.toggles import REGISTRY

DEEPSEEK_V4 = "DeepseekV4ForCausalLM"
BOOT_S, STOP_S = 900.0, 30.0
"""Deadlines of an engine that compiles while it starts; --timeout overrides the first."""
LOG_MARGIN = 0.01
"""Margin of KV bytes that are read from a log."""
FROM_LOG = ("kv.available_bytes", "kv.blocks", "kv.tokens", "kv.max_concurrency")
UNKNOWN = "unknown"
"""Speculative method of a running server that counts drafts."""
LAW_BROKEN_TO, LAW_KEPT_FROM = (0, 26), (0, 32)
"""Versions of vLLM: with one noise key for a sampled draft and for what replaces it, and with two."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL = re.compile(r"([A-Za-z0-9][A-Za-z0-9_.+-]{0,59})=(https?://\S+)")


@dataclass(frozen=True)
class Served:
    """An engine as it was asked for."""

    engine: EngineName
    args: list[str] = field(default_factory=list)
    python: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    rig: Rig | None = None
    urls: dict[str, str] = field(default_factory=dict)
    """Running servers by arm."""
    declare: tuple[str, ...] = ()
    """Conditions in which they may differ."""
    plugin: bool = True
    """Whether the engine can take toggles."""
    vllm: str | None = None
    """Version that is installed where the arms run, unless they name interpreters of their own."""

    @property
    def speculative(self) -> str | None:
        """Method of arms that do not say; a rig or an endpoint need not tell."""
        method = speculative_method(self.args)
        return method or ("none" if self.engine == "vllm" else None)

    @cached_property
    def told(self) -> dict[str, dict[str, Any]]:
        """What the running servers say of themselves, by arm. InputError for one that does not answer."""
        for name, url in self.urls.items():
            if not alive(url):
                raise InputError(f"--endpoint {name}={url}: it does not answer {url}/health; start it first")
        return {name: ask(url) for name, url in self.urls.items()}

    @property
    def speaks_our_tokens(self) -> bool:
        """Whether every server runs a model of ours, by the name it is served under."""
        return bool(self.urls) and all(told.get("model") in SHAPES for told in self.told.values())

    def dims(self) -> Dims:
        """Shape for what the plan works out: the model's own for DeepSeek V4, else limits alone."""
        fixed, config = limits(self.args), self._config()
        if lengths := [told["max_model_len"] for told in self.told.values() if "max_model_len" in told]:
            fixed["max_model_len"] = min(lengths)
        if not _is_v4(config):
            return PICO.with_changes(**{"max_model_len": 2**20, **fixed})
        keys = {"hidden_size": "hidden_size", "hc_mult": "hc_mult", "vocab_size": "vocab_size"}
        known = {ours: config[theirs] for ours, theirs in keys.items() if theirs in config}
        ratios = tuple(config.get("compress_ratios", ())[: config.get("num_hidden_layers")]) or FLASH.compress_ratios
        layers = tuple(layer for layer in range(len(ratios))[-3:])
        return FLASH.with_changes(name="v4", **known, compress_ratios=ratios, aux_layers=layers, **fixed)

    def suite(self, suite: Suite, timeout: float | None) -> Suite:
        """The suite without what only our own engine answers, and with deadlines for starts that compile."""
        boot = suite.timeouts.boot if timeout is not None else max(BOOT_S, suite.timeouts.boot)
        deadlines = Timeouts(boot=boot, probe=suite.timeouts.probe, stop=max(STOP_S, suite.timeouts.stop))
        unanswered = [*([] if self.speaks_our_tokens else ["output_law"]), *(["kv"] if self.urls else [])]
        probes = suite.probes.without(*unanswered, *self.untestable(suite))
        return suite.model_copy(update={"timeouts": deadlines, "probes": probes})

    def raised(self, suite: Suite, timeout: float | None) -> list[str]:
        """A note on deadlines that the suite sets and this engine lengthens."""
        asked, given = suite.timeouts, self.suite(suite, timeout).timeouts
        longer = [
            f"{name} {getattr(given, name):g} s in place of {getattr(asked, name):g} s"
            for name in sorted(asked.model_fields_set)
            if getattr(given, name) > getattr(asked, name)
        ]
        why = "an engine may compile while it starts, and takes its time to end; --timeout sets the first"
        return [f"timeouts of the suite: {', '.join(longer)}: {why}"] if longer else []

    def untestable(self, suite: Suite) -> dict[str, str]:
        """Reasons, by probe, why tests of a checkout cannot be run for this engine."""
        tables = {name: suite.probes.table(name) for name in suite.probes.names()}
        tests = {name: table for name, table in tables.items() if isinstance(table, PytestProbe)}
        if self.engine != "vllm":
            return dict.fromkeys(tests, f"nothing tells which interpreter runs a {self.engine} engine")
        return {name: "the suite selects no tests of vLLM" for name, table in tests.items() if not table.selection}

    def specs(self, specs: Sequence[ArmSpec]) -> list[ArmSpec]:
        """Arms by the URLs, where those are the arms."""
        if self.engine == "vllm":
            return [replace(spec, speculative=speculative_method(spec.args) or spec.speculative) for spec in specs]
        if self.engine != "endpoint":
            return list(specs)
        if specs:
            raise InputError(f"--arm {specs[0].name}: with --engine endpoint the arms are --endpoint NAME=URL")
        # The method is not told; that drafts are counted is.
        return [ArmSpec(name, speculative=UNKNOWN if self.told[name].get("drafts") else None) for name in self.urls]

    def finish(self, plan: Plan) -> Plan:
        """The plan of this engine; toggles, expectations and kinds that it cannot have are taken out, and noted."""
        notes, config = list(plan.notes), self._config()
        exact = _is_v4(config) and "max_num_batched_tokens" in limits(self.args)
        arms = [self._arm(arm, exact) for arm in plan.arms]
        told: dict[str, Any] = {"name": model_of(self.args)} if self.engine == "vllm" else {}
        told |= limits(self.args)
        if "vocab_size" in config:
            told["vocab_size"] = int(config["vocab_size"])
        metrics = plan.metrics
        if not self.plugin:
            kv = "" if self.urls else ", and KV bytes are read from its log"
            notes.append(f"no plugin of ours in this engine: no toggles{kv}")
            metrics = [
                m.model_copy(update={"kind": "sample", "margin": LOG_MARGIN}) if m.key in FROM_LOG else m
                for m in metrics
            ]
        for toggle in (REGISTRY[name] for name in dict.fromkeys(name for arm in arms for name in arm.takes)):
            if toggle.in_vllm:
                notes.append(f"{toggle.name}: in vLLM {toggle.in_vllm}, so a token that barely leads may change")
            if toggle.unverified_on:
                notes.append(f"{toggle.name}: unverified on {toggle.unverified_on}; check it: {toggle.verified_by}")
        if self.engine == "endpoint":
            notes += self._unlike()
            notes.append("each server was started once: boots are visits to it, and their spread is not that of starts")
        if not self.speaks_our_tokens:
            notes.append(f"output_law: not-run, it asks in the tokens of our own model and this is {self.engine}")
            notes += self._law_notes(arms)
        return plan.model_copy(
            update={
                "engine": self.engine,
                "arms": arms,
                "rig": self.rig,
                "dims": told,
                "metrics": metrics,
                "notes": notes,
            }
        )

    def _unlike(self) -> list[str]:
        """What the servers tell now that would void the experiment."""
        notes = []
        for name, key in (("served_model", "model"), ("max_model_len", "max_model_len")):
            seen = {arm: told.get(key, "unknown") for arm, told in self.told.items()}
            if name not in self.declare and len({*seen.values()}) > 1:
                each = ", ".join(f"{value} in {arm}" for arm, value in seen.items())
                notes.append(f"{name} differs ({each}), which voids the result: {declare_it(name)}")
        return notes

    def _law_notes(self, arms: Sequence[Arm]) -> list[str]:
        """Whose fault a wrong output law would be: that of vLLM up to 0.26 is wrong in every arm."""
        if self.engine != "command" and not any(arm.speculates for arm in arms):
            return []
        told = {self.vllm} if self.engine == "vllm" else {of.get("version") for of in self.told.values()} or {None}
        told |= {None for arm in arms if arm.python != self.python}
        if all(version is not None and _version(version) >= LAW_KEPT_FROM for version in told):
            return []
        known = all(version is not None and (0,) < _version(version) <= LAW_BROKEN_TO for version in told)
        which = f"vLLM {' and '.join(sorted(filter(None, told)))}" if known else "vLLM up to 0.26"
        here = "in every arm" if known else "in every arm that runs one"
        return [
            f"output law: {which} draws a sampled draft, and the token in its place once it is rejected, from one "
            f"noise key, so sampled output is off the target's law {here}: that is upstream's, not a toggle's"
        ]

    def _arm(self, arm: Arm, exact: bool) -> Arm:
        changes: dict[str, Any] = {
            "env": {**self.env, **arm.env},
            "url": self.urls.get(arm.name),
            "expected": arm.expected if exact else {},
        }
        if self.engine == "vllm":
            changes["python"] = arm.python or self.python
            changes["speculative"] = speculative_method(arm.args) or self.speculative
        else:
            told = self.speculative is not None or arm.speculative == UNKNOWN
            changes["speculative"] = arm.speculative if told else None
        if not self.plugin:
            changes |= {"on": [], "takes": [], "environment": ""}
        if self.engine == "endpoint":
            changes["declared"] = [*arm.declared, *ENDPOINTS_DIFFER, *self.declare]
        return arm.model_copy(update=changes)

    def _config(self) -> dict[str, Any]:
        return model_config(model_of(self.args)) if self.engine == "vllm" else {}


def read_served(
    engine: EngineName,
    *,
    python: str | None,
    serve_args: str | None,
    env: Sequence[str],
    rig: Path | None,
    endpoints: Sequence[str],
    declare: Sequence[str] = (),
    toggles: Sequence[str],
) -> Served:
    """Check the options of an engine that is not ours. InputError names the option that is wrong or missing."""
    variables = _variables(env)
    args = split_args(serve_args or "")
    refuse_secrets(args, variables)
    if engine == "endpoint":
        urls = _urls(endpoints)
        _no_toggles(toggles, "--engine endpoint: a server that runs already")
        return Served(engine, env=variables, urls=urls, declare=_declarable(declare), plugin=False)
    if declare:
        raise InputError(f"--declare {declare[0]} is for running servers: --arm says what {engine} arms do differently")
    if engine == "command":
        if rig is None:
            raise InputError("--engine command needs --rig FILE, with its start, stop and health commands")
        read = load_rig(rig)
        plugin = any(rank.conditions for rank in read.ranks)
        if not plugin:
            _no_toggles(toggles, f"--rig {rig}: no rank names a `conditions` file, so an engine that")
        return Served(engine, args=args, env=variables, rig=read, plugin=plugin)
    model_of(args)
    where = sys.executable if python is None else interpreter("--vllm-python", python)
    installed = look_into(where, variables)
    if not installed.plugin:
        _no_toggles(toggles, f"--vllm-python {python or where}: without `dsbench-dspark` installed there, vLLM "
                             f"{installed.vllm}")  # fmt: skip
    return Served(engine, args=args, python=where, env=variables, plugin=installed.plugin, vllm=installed.vllm)


def _no_toggles(toggles: Sequence[str], why: str) -> None:
    if toggles:
        raise InputError(f"{why} takes no toggles, and '{toggles[0]}' is one: leave it out to measure builds")


def _declarable(given: Sequence[str]) -> tuple[str, ...]:
    for name in given:
        if name not in DECLARABLE:
            raise InputError(f"--declare {name}: running servers tell {', '.join(DECLARABLE)}; name one of these")
    return tuple(dict.fromkeys(given))


def _variables(given: Sequence[str]) -> dict[str, str]:
    """`NAME=value` as it is; a bare `NAME` must be set here, reaches the engine by inheritance, and is not stored."""
    found: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not _NAME.fullmatch(name):
            raise InputError(f"--env '{text}': write NAME=value, or NAME for a variable that is set here")
        if name.startswith("DSBENCH_") and name != "DSBENCH_VLLM_FAST_START":
            raise InputError(f"--env {name}: it is set by dsbench; leave it out")
        if equals:
            found[name] = value
        elif name not in os.environ:
            kind = "a secret" if is_secret(name) else "a value"
            raise InputError(f"--env {name}: not set here; export it to pass {kind} that is not stored")
    return found


def _urls(given: Sequence[str]) -> dict[str, str]:
    urls: dict[str, str] = {}
    for text in given:
        name = text.partition("=")[0]
        refuse_secret(f"the URL of arm {name} (--{name} or --endpoint)", text.partition("=")[2] or text)
        found = _URL.fullmatch(text)
        if not found:
            shown = f"{name}=..." if "@" in text else text  # it may be a password
            raise InputError(f"--endpoint '{shown}': write NAME=http://host:port")
        if found[1] in urls:
            raise InputError(f"--endpoint {found[1]} is there twice: give every arm its own name")
        # Other clients take the address with /v1, to which this one adds the path itself.
        urls[found[1]] = found[2].rstrip("/").removesuffix("/v1").rstrip("/")
    if len(urls) < 2:
        raise InputError(
            "--engine endpoint needs two arms: --a http://... --b http://..., or --endpoint NAME=URL twice"
        )
    return urls


def _version(text: str) -> tuple[int, ...]:
    """Major and minor number; (0,) for a text that has none."""
    found = re.match(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0,)


def _is_v4(config: dict[str, Any]) -> bool:
    return DEEPSEEK_V4 in (config.get("architectures") or [])
