"""Golden output: an experiment's print is compared as a whole with the file beside this test.

After a wanted change run `UPDATE_GOLDEN=1 pytest tests/dsbench/report` and read the difference.
"""

import io
import math
import os
import random
from pathlib import Path

import pytest
from rich.console import Console

from dsbench.effects import Effect, MetricEffects
from dsbench.judge import judge
from dsbench.records import Markers
from dsbench.report.effects import effect_lines
from dsbench.report.table import print_report
from dsbench.suite import load_suite

GOLDEN = Path(__file__).parent / "golden"


def printed(plan, records, width=1000):
    out = io.StringIO()
    print_report(plan, judge(plan, records), Console(file=out, width=width, highlight=False))
    # The end of the id is a hash of all that is run: it changes with every field of a plan.
    text = out.getvalue().replace(plan.id, f"{plan.id[:-6]}123abc")
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def same_as(name, text):
    path = GOLDEN / name
    if os.environ.get("UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


def noisy(boot, metric):
    """Speeds with boot-to-boot noise of 0.3 % (prefill) and 6 % (decode), unknown non-torch bytes."""
    rng = random.Random(f"{boot.number} {metric}")
    if metric == "kv.non_torch_bytes":
        return "unknown"
    if "tps" in metric:
        return 300 * math.exp(rng.gauss(0, 0.003 if "prefill" in metric else 0.06))
    return None


def test_improved(make_plan, make_records):
    plan = make_plan(suite=load_suite("quick"))
    same_as("improved.txt", printed(plan, make_records(plan, noisy)))


def test_additive(make_plan, make_records):
    plan = make_plan("mhc_residual_reuse", "mhc_input_reuse", suite=load_suite("kv"))
    same_as("additive.txt", printed(plan, make_records(plan)))


def test_void(make_plan, make_records):
    plan = make_plan("mhc_final_fused", suite=load_suite("kv"))
    reasons = {"mhc_final_fused": {"pipeline parallel": 4}}
    records = [
        record.model_copy(update={"taken": record.taken | {"mhc_final_fused": 0}, "refused": reasons})
        if isinstance(record, Markers) and "mhc_final_fused" in record.taken
        else record
        for record in make_records(plan)
    ]
    same_as("void.txt", printed(plan, records))


def test_regressed(make_plan, make_records):
    def values(boot, metric):
        if boot.arm == "baseline":
            return None
        if metric == "identity.tokens":
            return {item: [1, 2 + (item == "c")] for item in "abcd"}
        if metric == "kv.workspace_bytes":
            return 1_000_000 + boot.number
        return 80.0 + boot.number / 100 if metric == "decode.tps.c1" else None

    plan = make_plan(blocks=8)
    same_as("regressed.txt", printed(plan, make_records(plan, values)))


@pytest.mark.parametrize("width", [60, 80, 100, 130])
def test_a_narrow_terminal_cuts_nothing_and_breaks_no_word(make_plan, make_records, width):
    plan = make_plan(suite=load_suite("quick"))
    records = make_records(plan, noisy)
    text = printed(plan, records, width)
    assert max(map(len, text.splitlines())) <= width
    whole = printed(plan, records)
    lost = set(whole.split()) - set(text.split()) - {"metric", "baseline", "candidate", "judged", "verdict", "-"}
    assert [word for word in lost if not word.startswith("───")] == []


def test_a_narrow_table_is_told_row_by_row(make_plan, make_records):
    plan = make_plan(suite=load_suite("quick"))
    same_as("narrow.txt", printed(plan, make_records(plan, noisy), 80))


def test_no_colour_codes_when_piped(make_plan, make_records):
    plan = make_plan()
    assert "\x1b" not in printed(plan, make_records(plan))


def test_effects_on_samples_are_written_as_the_rows_are():
    effect = Effect(kind="main", toggles=["a"], estimate=-0.0284, interval=(-0.031, 0.002), p=0.25, blocks=8)
    found = MetricEffects(metric="decode.tps.c1", unit="tok/s", rank=None, exact=False, effects=[effect])
    lines = list(effect_lines([found]))
    assert lines[1] == "decode.tps.c1 a: -2.8 % [-3.1 %, +0.2 %], p=0.25"
