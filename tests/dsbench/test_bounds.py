"""The harness's bounds, scaled: a judge of 1,000,000 observations takes less than 10 s and 400 MB."""

import json
import subprocess
import sys

import pytest

from tests.dsbench import large_store
from tests.dsbench.conftest import ROOT

OBSERVATIONS = 50_000
MICROSECONDS = 30.0
"""Of processor time for one observation, loaded and judged: three times the bound, for a machine that does other work.
A reader that took a line at a time needed 100."""
BYTES = (400e6 - 170e6) / 1e6
"""Of memory for one, beside the 170 MB that a process has before it reads any."""

MEASURE = """
import json, sys, time
from pathlib import Path
from dsbench import record_lines
from dsbench.judge import judge
from dsbench.store import load_plan, load_records

def judged(folder):
    with record_lines.without_collection():
        records = load_records(folder)[0]
        judge(load_plan(folder), records)
    return len(records)

def peak():  # of this program alone: what getrusage gives begins with the peak of the process that started it
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])

small, large, spoilt = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
kept = []
if spoilt:
    record_lines._share = lambda records, *known: kept.append([record.model_dump() for record in records])
judged(small)  # imports, and what else is there once
before, start = peak(), time.process_time()
number = judged(large)
print(json.dumps([number, before, 1e6 * (time.process_time() - start) / number, (peak() - before) / number]))
"""


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    out = tmp_path_factory.mktemp("large")
    return [str(large_store.write(out / name, n)) for name, n in (("small", 2000), ("large", OBSERVATIONS))]


def measured(stores, *spoilt):
    line = [sys.executable, "-c", MEASURE, *stores, *spoilt]
    return json.loads(subprocess.run(line, capture_output=True, check=True, cwd=ROOT, text=True).stdout)


@pytest.mark.slow
def test_a_judge_of_many_observations_is_within_its_share_of_time_and_memory(stores):
    number, before, microseconds, size = measured(stores)
    assert number > OBSERVATIONS
    assert before < 170e6
    assert microseconds < MICROSECONDS
    assert size < BYTES


@pytest.mark.slow
def test_a_reader_that_keeps_what_it_parsed_is_not(stores):
    _, _, _, size = measured(stores, "spoilt")
    assert size > BYTES
