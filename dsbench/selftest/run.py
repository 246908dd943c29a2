"""Boot every faulted engine and store what was read; grading comes after, from the records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dsbench import store
from dsbench.execute import execute
from dsbench.selftest.groups import SUITES, plan_group, planted_command
from dsbench.selftest.plants import PLANTS, Group, Plant


def run(out: Path, plants: Sequence[Plant] = PLANTS, *, quiet: bool = False) -> dict[Group, Path]:
    """Folders of results by group, under `out`. Faulted boots end as they may: their records say how."""
    folders: dict[Group, Path] = {}
    for group in SUITES:
        planted = [plant for plant in plants if plant.group == group]
        if planted:
            plan = plan_group(group, planted)
            folders[group] = store.create(plan, out / group)
            execute(plan, folders[group], command=planted_command, quiet=quiet)
    return folders


def stored(out: Path) -> dict[Group, Path]:
    """The latest results of each group under `out`, of an earlier run."""
    found = {group: sorted(path.parent for path in (out / group).glob("*/plan.json")) for group in SUITES}
    return {group: folders[-1] for group, folders in found.items() if folders}
