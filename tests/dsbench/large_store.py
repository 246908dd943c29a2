"""Stored results with many observations: `python -m tests.dsbench.large_store FOLDER OBSERVATIONS`, then judge it."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path

from dsbench import records as r
from dsbench import store
from dsbench.plan import plan_experiment
from dsbench.record_lines import lines_of
from dsbench.records import Plan, PlannedBoot, Record
from dsbench.suite import parse_suite
from impl.dims import PICO
from tests.dsbench.conftest import SMALL, _boot_records

BLOCKS = 20


def write(out: Path, observations: int) -> Path:
    """A result of 20 blocks in which every boot has as many right and wrong answers and token lists as it takes."""
    suite = parse_suite(SMALL.replace("blocks = 2", f"blocks = {BLOCKS}"), "large.toml")
    now = datetime(2025, 5, 1, 10, 11, 12, tzinfo=UTC)
    plan = plan_experiment(["mhc_input_reuse"], suite, PICO, engine_args=["--dims", "pico", "--seed", "0"], now=now)
    folder = store.create(plan, out)
    items = observations // len(plan.boots) // sum(metric.kind == "item" for metric in plan.metrics)
    rng = random.Random(1)
    boots = chain.from_iterable(_told(_of_boot(plan, boot, items, rng)) for boot in plan.boots)
    records = chain([r.Run(time="t", pid=1, harness_version="0", resumed=False)], boots)
    with (folder / store.RECORDS).open("wb") as file:
        file.writelines(lines_of(map(r.RECORD.dump_json, records)))
    return folder


def _of_boot(plan: Plan, boot: PlannedBoot, items: int, rng: random.Random) -> Iterator[Record]:
    def values(boot: PlannedBoot, key: str) -> object:
        if plan.metric(key).kind != "item":
            return None
        # One answer in fifty changes from boot to boot; tokens repeat.
        return {f"{key} {n}": [n, 2] if "tokens" in key else int(rng.random() > 0.02) for n in range(items)}

    return _boot_records(plan, boot, values, rng)


def _told(records: Iterator[Record]) -> Iterator[Record]:
    """With the reply beside every score, as probes keep it."""
    for record in records:
        if isinstance(record, r.Observation) and isinstance(record.value, int) and record.item:
            yield record.model_copy(update={"text": f"reply of {record.boot}: {record.item} #### {record.value}"})
        else:
            yield record


if __name__ == "__main__":
    print(write(Path(sys.argv[1]), int(sys.argv[2])))
