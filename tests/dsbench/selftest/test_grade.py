"""The committed run of the selftest: every plant is caught, and none would be if its detector were gone."""

import functools
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from dsbench import by_host, judge, void, void_ranks
from dsbench.cli import main
from dsbench.metrics import Kind
from dsbench.records import Observation
from dsbench.selftest import grade
from dsbench.selftest.groups import SUITES
from dsbench.selftest.plants import PLANTS

STORED = Path(__file__).resolve().parents[3] / "results" / "selftest"

pytestmark = pytest.mark.skipif(not STORED.parent.exists(), reason="this tree was shipped without results/")

UNPLANTED = {
    "block-split": "takes a pool of several hosts",
    "host-differs": "takes a pool of several hosts",
    "rank-silent": "takes an engine of several ranks",
    "ranks-disagree": "takes an engine of several ranks",
    "drift-unresolved": "takes a drift control whose baseline varies, which the engine's bytes never do",
    "boot-missing": "an experiment that was stopped: it is resumed, and no selftest is graded before its end",
    "foreign-process": "takes a GPU and another process on it",
    "not-run": "a second net: readings are missing only where a check or a boot is, which is said first",
}
"""Codes that no plant can give here, and why; test_void.py, test_exact_rows.py and test_by_host.py show that they
come."""


def nothing(*_: object) -> Iterator[None]:
    return iter(())


# --- what there is to disable ---------------------------------------------------------------------------------------


def _codes_of(function):
    source = inspect.getsource(function)
    codes = set(re.findall(r'code="([a-z-]+)"', source))
    return codes | {code for code, _, _ in void.FINDINGS.values()} if "FINDINGS" in source else codes


RULES = {
    name: (module, function)
    for module in (void, void_ranks, by_host, judge)
    for name, function in vars(module).items()
    if inspect.isfunction(function)
    and function.__module__ == module.__name__
    and "VoidReason]" in str(function.__annotations__.get("return"))
    and name != "void_reasons"
}
"""Every function that gives reasons for void."""
CODES = set().union(*(_codes_of(function) for _, function in RULES.values()))
PLANTED = {name: rule for name, rule in RULES.items() if _codes_of(rule[1]) - set(UNPLANTED)}


def test_the_rules_are_found():
    assert {rule.__name__ for rule in void.RULES} < set(RULES)
    assert {"boots_ended", "checks_ran", "_drift", "_nothing_checked"} < set(RULES)
    assert set(RULES) - set(PLANTED) == {
        "_nothing_checked", "blocks_whole", "differs_reasons", "ranks_agree", "ranks_speak",
    }  # fmt: skip


def test_every_code_has_a_plant_or_a_reason_for_having_none():
    assert CODES - {plant.sign for plant in PLANTS} == set(UNPLANTED)


def test_every_kind_of_metric_has_a_plant():
    assert {plant.group for plant in PLANTS} == set(SUITES)


# --- the committed run ----------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def read_once(monkeypatch):
    monkeypatch.setattr(grade, "load_plan", _plan)
    monkeypatch.setattr(grade, "load_records", _records)


_plan = functools.cache(grade.load_plan)
_records = functools.cache(grade.load_records)


def graded():
    """Exit code of `dsbench selftest --from`, and the plants that it calls missed."""
    result = CliRunner().invoke(main, ["selftest", "--from", str(STORED), "--json"], catch_exceptions=False)
    rows = json.loads(result.stdout)
    return result.exit_code, {row["planted"] for row in rows if not row["caught"]}, {row["planted"] for row in rows}


def test_the_committed_run_has_every_plant_and_catches_all():
    code, missed, planted = graded()
    assert planted == {plant.name for plant in PLANTS} | {f"nothing ({group})" for group in SUITES}
    assert (code, missed) == (0, set())


@pytest.mark.parametrize("name", PLANTED)
def test_without_a_rule_a_plant_is_missed(monkeypatch, name):
    module, function = PLANTED[name]
    monkeypatch.setattr(module, name, nothing)
    monkeypatch.setattr(void, "RULES", tuple(rule for rule in void.RULES if rule is not function))
    code, missed, _ = graded()
    signs = {plant.sign for plant in PLANTS if plant.name in missed}
    assert code == 1
    assert signs
    assert signs <= _codes_of(function)


@pytest.mark.parametrize("code", sorted(CODES - set(UNPLANTED)))
def test_without_a_code_exactly_its_plants_are_missed(monkeypatch, code):
    def silent(rule):
        return lambda *given: [reason for reason in rule(*given) if reason.code != code]

    monkeypatch.setattr(judge, "void_reasons", silent(judge.void_reasons))
    monkeypatch.setattr(judge, "_drift", silent(judge._drift))
    assert graded()[:2] == (1, {plant.name for plant in PLANTS if plant.sign == code})


@pytest.mark.parametrize("kind", get_args(Kind))
def test_without_the_comparison_of_a_kind_a_plant_is_missed(monkeypatch, kind):
    """Losses of this kind of metric are taken for equal values."""
    compare = judge.compare

    def blind(*given):
        row = compare(*given)
        return row.model_copy(update={"word": "equivalent"}) if (row.kind, row.word) == (kind, "regressed") else row

    monkeypatch.setattr(judge, "compare", blind)
    code, missed, _ = graded()
    assert code == 1
    assert missed & {plant.name for plant in PLANTS if plant.word == "regressed"}


def test_without_the_law_of_the_output_its_plants_are_missed(monkeypatch):
    """The law is tested where tokens are read, so its answers are stored: each one becomes a pass."""

    def passed(record):
        law = isinstance(record, Observation) and record.metric == "output_law"
        return record.model_copy(update={"value": 1}) if law else record

    def lawful(folder):
        records, *rest = _records(folder)
        return ([passed(record) for record in records], *rest)

    monkeypatch.setattr(grade, "load_records", lawful)
    assert graded()[:2] == (1, {plant.name for plant in PLANTS if plant.sign == "output_law"})


def test_a_plant_that_was_never_run_is_not_called_caught(monkeypatch):
    """Readings without the fault, under the plant's name: the judge finds nothing, and the grade says so."""
    monkeypatch.setattr(grade, "_only", lambda plan, records, arm: _as_clean(plan, records, arm))
    code, missed, _ = graded()
    in_engine = {plant.name for plant in PLANTS if not plant.in_records and not plant.toggles}
    assert code == 1
    assert in_engine <= missed


_alone = grade._only


def _as_clean(plan, records, arm):
    """The experiment of the clean arm, in which it has the name of another."""
    alone, kept = _alone(plan, records, "clean")
    if arm == "clean":
        return alone, kept
    arms = [alone.arms[0], alone.arms[1].model_copy(update={"name": arm})]
    boots = [b.model_copy(update={"arm": arm}) if b.arm == "clean" else b for b in alone.boots]
    return alone.model_copy(update={"arms": arms, "boots": boots}), kept
