"""Fixtures of the harness's tests: small suites, plans, and the fake engine of `fake_engine.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from dsbench.plan import plan_experiment
from dsbench.records import Plan
from dsbench.suite import Suite, parse_suite
from impl.dims import PICO

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
    """A plan of the small suite (or `suite=`) at pico, with engine arguments as `dsbench ab` gives them."""

    def build(*toggles: str, suite: Suite = small, **options: object) -> Plan:
        now = datetime(2025, 5, 1, 10, 11, 12, tzinfo=UTC)
        settings = {"engine_args": ["--dims", "pico", "--seed", "0"], "now": now, **options}
        return plan_experiment(toggles or ("mhc_input_reuse",), suite, PICO, **settings)  # type: ignore[arg-type]

    return build


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Callable[[Plan], list[str]]:
    """The command of the fake engine, in place of the embedded one's."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("FAKE_FAULT", raising=False)

    def command(plan: Plan) -> list[str]:
        until = ["--until", "profile"] if plan.until == "profile" else []
        return [sys.executable, str(ROOT / "tests/dsbench/fake_engine.py"), *plan.engine_args, *until]

    return command
