"""What is measured for each group of faulted arms: one baseline, one arm with nothing planted, and the plants."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from dsbench.builds import ArmSpec
from dsbench.engines import embedded
from dsbench.plan import plan_experiment
from dsbench.records import Arm, Plan
from dsbench.selftest.plants import CLEAN, PLANTS, Group, Plant
from dsbench.suite import parse_suite
from impl.dims import PICO

SUITES: dict[Group, str] = {
    "bytes": """
name = "selftest-bytes"
summary = "bytes, answers, tokens and one clock reading: 2 boots an arm"
blocks = 2
warmup_boots = 0
guards = ["kv.available_bytes", "kv.persistent_bytes", "kv.resident_bytes", "smoke.correct", "identity.tokens"]
drift_controls = ["kv.weights_bytes"]
[probes.kv]
[[probes.smoke.items]]
chat = "17+25"
answer = 42
[probes.identity]
tokens = 16
together = 2
prompts = ["7*8=", "kx=42\\nab=17\\nqr=93\\nzz=31\\nkl=58\\nmn=77\\nfg=12\\nwv=64\\n?kx="]
[probes.prefill]
lengths = [256]
repeats = 1
""",
    "drafts": """
name = "selftest-drafts"
summary = "the law of the output: 2 boots an arm"
blocks = 2
warmup_boots = 0
guards = ["output_law"]
[probes.output_law]
prompts = ["The quick brown fox", "Ben "]
requests = 400
contexts = 8
together = [3, 6]
""",
    "synthetic": """
name = "selftest-synthetic"
summary = "drafts accepted at given rates: 2 boots an arm"
blocks = 2
warmup_boots = 0
guards = ["accept.*"]
[probes.acceptance]
prose = ["The small ", "A quiet river "]
structured = ["kx=42\\nab=17\\nqr=93\\n?kx="]
tokens = 40
samples = 4
together = 4
""",
    "text": """
name = "selftest-text"
summary = "whether the text of answers is sound: 2 boots an arm"
blocks = 2
warmup_boots = 0
guards = ["coherence.clean"]
[probes.identity]
tokens = 2
together = 0
prompts = ["7*8="]
[probes.coherence]
style = "pairs"
lines = 20
needles = 2
distractors = 2
concurrencies = [1, 4]
payloads = ["unique"]
seeds = 2
max_tokens = 16
""",
    "speed": """
name = "selftest-speed"
summary = "decode speed: 6 blocks"
blocks = 6
warmup_boots = 0
guards = ["decode.tps.*"]
[probes.decode]
streams = [1]
tokens = 32
repeats = 2
""",
}

SPECULATIVE: dict[Group, str] = {"drafts": "dspark", "synthetic": "dspark"}
RATES = ("--rejection-sample-method", "synthetic", "--synthetic-acceptance-rates", "0.9,0.7,0.5,0.3,0.2")


def plan_group(group: Group, plants: Sequence[Plant]) -> Plan:
    """One experiment with all plants of a group as arms."""
    arms = [ArmSpec("baseline"), ArmSpec(CLEAN), *(ArmSpec(p.name, toggles=p.toggles) for p in plants)]
    return plan_experiment(
        (),
        parse_suite(SUITES[group], f"selftest {group}"),
        PICO,
        arms=arms,
        alike=True,
        speculative=SPECULATIVE.get(group),
        engine_args=["--dims", "pico", "--seed", "0", *(RATES if group == "synthetic" else ())],
        controls=True,
    )


def planted_command(plan: Plan, arm: Arm) -> list[str]:
    """The embedded engine with the arm's fault, which the plan knows nothing of."""
    plant = next((plant for plant in PLANTS if plant.name == arm.name), None)
    fault, args = (plant.fault or "nothing", plant.args) if plant else ("nothing", ())
    engine = [sys.executable, "-P", "-m", "dsbench.selftest.faults", fault]
    return [*engine, "--host", "127.0.0.1", "--port", "0", *embedded.flags(plan, arm), *args]
