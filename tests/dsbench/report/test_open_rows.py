"""Golden output of rows that stay open: what this n could see, what it takes, and claims that Holm does not grant.

After a wanted change run `UPDATE_GOLDEN=1 pytest tests/dsbench/report` and read the difference.
"""

import io
import math
import os
import random
from pathlib import Path

from rich.console import Console

from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.records import Verdict
from dsbench.report.table import power_lines, print_report
from dsbench.suite import parse_suite
from impl.dims import PICO

GOLDEN = Path(__file__).parent / "golden"
SUITE = parse_suite(
    """
name = "open"
summary = "s"
blocks = 6
warmup_boots = 0
guards = ["decode.tps.*", "accept.rate", "smoke.correct"]
[probes.kv]
[[probes.smoke.items]]
prompt = "7*8="
answer = 56
[probes.acceptance]
prose = ["a"]
structured = ["b"]
[probes.decode]
streams = [1, 4, 8]
tokens = 10
""",
    "open.toml",
)


def readings(boot, metric):
    """A claim of 10 % at one number of streams, noise at the others; the baseline's own items and bytes vary."""
    rng = random.Random(f"{boot.number} {metric}")
    gain = 1.10 if boot.arm != "baseline" else 1.0
    if metric == "decode.tps.c1":
        return 300 * gain * math.exp(rng.gauss(0, 0.002))
    if metric.startswith("decode"):
        return 300 * math.exp(rng.gauss(0, 0.06))
    if metric == "smoke.correct":
        return {f"q{n}": int(rng.random() < 0.6) for n in range(12)}
    if metric == "accept.rate":
        return {"prose t=1": (round(500 + 40 * rng.gauss(0, 1)), 1000)}
    if metric == "kv.peak_activation_bytes":
        return round(1_000_000 + 40_000 * rng.gauss(0, 1))
    return None


def test_open_rows(make_records):
    plan = plan_experiment(["mhc_input_reuse"], SUITE, PICO, speculative="dspark")
    plan = plan.model_copy(update={"id": "open"})
    out = io.StringIO()
    print_report(plan, judge(plan, make_records(plan, readings)), Console(file=out, width=1000, highlight=False))
    text = "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
    path = GOLDEN / "open.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_each_need_says_what_it_is_for():
    """Blocks that call equal arms equivalent are others than those that see a change, or that can make a claim."""
    known = {"unit": "tok/s", "better": "up", "rank": None, "role": "guard", "kind": "sample", "word": "inconclusive"}
    rows = [
        Verdict(arm="b", metric=name, blocks_needed=n, **fields, **known)
        for name, n, fields in (
            ("x", 9, {"needed_for": "equivalence", "needed_effect": 0.02}),
            ("y", 8, {"needed_for": "claim"}),
            ("z", 7, {"needed_effect": 0.02}),
        )
    ]
    assert power_lines(rows) == [
        "blocks to call equivalent within 2 % with 80 % power: x 9",
        "blocks at which a claim can stand among so many: y 8",
        "blocks to see 2 % with 80 % power: z 7",
    ]
