"""Fixtures of the harness's tests: small suites, plans, and the fake engine of `fake_engine.py`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.engines.embedded import flags
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.plan_nouns import plan_digest
from dsbench.records import Arm, Plan, PlannedBoot, Record
from dsbench.suite import Suite, parse_suite
from impl.dims import PICO, Dims

ROOT = Path(__file__).resolve().parents[2]

SMALL = """
name = "small"
summary = "one reading of everything"
blocks = 2
guards = ["kv.available_bytes", "decode.tps.*", "prefill.tps.*", "smoke.correct", "identity.tokens"]
drift_controls = ["kv.weights_bytes"]

[timeouts]
boot = 30
probe = 10
stop = 3

[probes.kv]

[[probes.smoke.items]]
prompt = "7*8="
answer = 56

[[probes.smoke.items]]
chat = "17+25"
answer = 42

[probes.identity]
prompts = ["a b c", "7*8="]
tokens = 6
together = 4

[probes.prefill]
lengths = [64, 256]
repeats = 2

[probes.decode]
streams = [1, 4]
tokens = 10
repeats = 2
"""


@pytest.fixture
def small() -> Suite:
    return parse_suite(SMALL, "small.toml")


@pytest.fixture
def make_plan(small: Suite) -> Callable[..., Plan]:
    """A plan of the small suite at pico, or of `suite` and `dims`, with engine arguments as `dsbench ab` gives them."""

    def build(*toggles: str, suite: Suite = small, dims: Dims = PICO, **options: object) -> Plan:
        now = datetime(2025, 5, 1, 10, 11, 12, tzinfo=UTC)
        settings = {"engine_args": ["--dims", dims.name, "--seed", "0"], "now": now, **options}
        usual = () if "arms" in options else ("mhc_input_reuse",)
        return plan_experiment(toggles or usual, suite, dims, **settings)  # type: ignore[arg-type]

    return build


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan, Arm], list[str]]:
    """The command of the fake engine, in place of the embedded one's."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("FAKE_FAULT", raising=False)

    def command(plan: Plan, arm: Arm) -> list[str]:
        until = ["--until", "profile"] if plan.until == "profile" else []
        return [sys.executable, str(ROOT / "tests/dsbench/fake_engine.py"), *flags(plan, arm), *until]

    return command


@pytest.fixture
def make_records() -> Callable[..., list[Record]]:
    """Records of a run where nothing went wrong; `values(boot, metric)` replaces single readings."""

    def build(plan: Plan, values: Callable[[PlannedBoot, str], object] = lambda boot, metric: None) -> list[Record]:
        rng = random.Random(7)
        digest = plan_digest(plan.model_dump_json())
        lines: list[Record] = [r.Run(time="t", pid=1, harness_version="0", resumed=False, plan_sha256=digest)]
        for boot in plan.boots:
            lines += _boot_records(plan, boot, values, rng)
        return lines

    return build


def _boot_records(
    plan: Plan, boot: PlannedBoot, values: Callable[[PlannedBoot, str], object], rng: random.Random
) -> Iterator[Record]:
    n, arm, pid = boot.number, plan.arm(boot.arm), 1000 + boot.number
    taken = {name: 3 for name in arm.takes}
    facts = {"schema": 1, "rank": 0, "pid": pid, "toggles": arm.on, "dims": plan.dims, "seed": 0, "cache_state": "cold"}
    facts |= {"speculative": arm.speculative or "none", "graph_mode": "eager" if "--eager" in arm.args else "replay"}
    yield r.BootStarted(boot=n, time="t", arm=boot.arm, block=boot.block, phase=boot.phase)
    yield r.Conditions(boot=n, rank=0, values=facts)
    yield r.KvProfile(boot=n, rank=0, values={"source": "live-bytes"})
    yield r.Markers(boot=n, rank=0, moment="ready", pid=pid, taken=taken, refused={})
    for step, probe in enumerate(plan.probes.due(boot.block), start=1):
        for key in plan.probes.metrics(probe):
            known = {"boot": n, "metric": key, "unit": plan.metric(key).unit, "phase": boot.phase}
            given = values(boot, key)
            if plan.metric(key).kind == "item":
                usual = [1, 2] if "tokens" in key else 1
                items = dict(given) if isinstance(given, dict) else dict.fromkeys("abcd", usual)
                items |= {f"z{i}": usual for i in range(plan.probes.items(probe) - len(items))}
                for item, value in items.items():
                    yield r.Observation(**known, item=item, value=value)
            elif plan.metric(key).kind == "counter-ratio":
                for item, (above, below) in (given or {"prose greedy": (50, 100), "prose t=1": (45, 100)}).items():
                    yield r.Observation(**known, item=item, value=above / below if below else None, raw=[above, below])
            elif plan.metric(key).clock:
                value = given if given is not None else 100 * (1 + 0.001 * rng.gauss(0, 1))
                yield r.Observation(**known, value=value, raw=[value, value * 1.01])
            else:
                value = given if given is not None else 1_000_000 + arm.expected.get(key, 0)
                yield r.Observation(**known, rank=0, value=None if given == "unknown" else value)
        yield r.Check(boot=n, probe=probe, status="done", seconds=0.1)
        if plan.until == "ready":
            yield r.Counters(boot=n, moment=probe, pid=pid, values={"vllm:prompt_tokens_total": 10.0 * step})
    yield r.Markers(boot=n, rank=0, moment="end", pid=pid, taken={name: 9 for name in arm.takes}, refused={})
    yield r.BootEnded(
        boot=n, time="t", status="ok", seconds=1, log=f"boots/{n}/engine.log", log_bytes=9, log_sha256=f"{n:064x}"
    )


@pytest.fixture
def verdict_of(make_plan, make_records):
    """The verdict of a run whose readings `values(boot, metric)` replaces, on a plan with `options`."""

    def run(values=lambda boot, metric: None, *, toggles=("mhc_input_reuse",), **options):
        plan = make_plan(*toggles, **options)
        return judge(plan, make_records(plan, values))

    return run


@pytest.fixture
def folder(tmp_path, make_plan, make_records):
    """A stored experiment, run and not judged."""
    plan = make_plan()
    folder = store.create(plan, tmp_path)
    with store.RecordWriter(folder) as writer:
        writer.write(*make_records(plan))
    return folder
