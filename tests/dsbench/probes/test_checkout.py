"""The probes that run pytest: real runs beside the fake engine, and the rows that come of them."""

import asyncio

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.errors import InputError
from dsbench.execute import execute
from dsbench.judge import judge
from dsbench.probes import kernels, unit
from dsbench.probes.boot import Boot, ProbeFailed
from dsbench.suite import parse_suite
from tests.dsbench.conftest import ROOT

SUITE = """
name = "tested"
summary = "kernel tests beside the KV bytes"
blocks = 2
warmup_boots = 0
guards = ["kernels.passed"]

[probes.kv]

[probes.kernels]
selection = ["tests"]
checkout = "{folder}/{{arm}}"
"""
KERNEL = """
import os, pytest

@pytest.mark.parametrize("h", [64, 128])
@pytest.mark.parametrize("n", [1, 2])
def test_seam(n, h): assert h == 64
def test_map(): pass
"""
REUSES = """
@pytest.mark.parametrize("h", [64, 128])
def test_seam_reuses_dead_buffers(h): assert h == 64
"""


@pytest.fixture
def ab(tmp_path, make_plan, fake, monkeypatch):
    """Run kernel tests of two checkouts in one experiment; gives its verdict, plan and records."""

    def go(before, after, blocks=2):
        monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        for arm, files in (("baseline", before), ("mhc_input_reuse", after)):
            (tmp_path / arm / "tests").mkdir(parents=True)
            for name, text in files.items():
                (tmp_path / arm / "tests" / f"{name}.py").write_text(text)
        plan = make_plan(suite=parse_suite(SUITE.format(folder=tmp_path), "s.toml"), blocks=blocks)
        folder = store.create(plan, tmp_path / "results")
        execute(plan, folder, command=fake, quiet=True)
        found = store.load_records(folder)[0]
        return judge(plan, found), plan, found

    return go


def row(verdict):
    (found,) = [row for row in verdict.rows if row.metric == "kernels.passed"]
    return found


def test_a_variant_inherits_and_the_arms_may_have_different_tests(ab):
    verdict, plan, found = ab({"test_k": KERNEL}, {"test_k": KERNEL + REUSES})
    assert verdict.void == []
    assert row(verdict).word == "equivalent"
    assert (row(verdict).n_baseline, row(verdict).n_candidate, row(verdict).test) == (5, 7, "test ids")
    assert any("inherited 3: " in note for note in row(verdict).notes)
    inherited = "tests/test_k.py::test_seam_reuses_dead_buffers[128] (inherits from test_seam[*-128]"
    assert any(inherited in note for note in row(verdict).notes)
    seen = [o for o in found if isinstance(o, r.Observation) and o.metric == "kernels.passed"]
    assert {o.value for o in seen} == {0, 1}
    assert next(o.text for o in seen if o.value == 0).startswith("failed: assert 128 == 64")
    assert not plan.probes.table("kernels").in_warmup


def test_the_engine_has_stopped_when_the_tests_run(ab, tmp_path):
    """A server that holds a card's memory leaves kernel tests no room."""
    text = f"""
import json, os, pathlib, pytest

def test_alone():
    written = [json.loads(p.read_text()) for p in pathlib.Path({str(tmp_path)!r}).glob("results/*/boots/*/ready.json")]
    assert written
    for ready in written:
        with pytest.raises(ProcessLookupError):
            os.kill(ready["pid"], 0)
"""
    verdict, _, _ = ab({"test_k": text}, {"test_k": text}, blocks=1)
    assert (row(verdict).baseline, row(verdict).candidate) == (1.0, 1.0)


def test_one_arm_without_its_tests_is_a_check_that_did_not_run(ab):
    verdict, _, _ = ab({"test_k": KERNEL}, {"other": "x = 1"}, blocks=1)
    assert verdict.word == "void"
    assert "no tests were collected from tests" in verdict.void[0].text


def test_our_own_tests_by_default(make_plan, tmp_path, monkeypatch):
    """Without a checkout in the suite, the tests are those beside the package that the interpreter imports."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    head = SUITE.format(folder=tmp_path).partition("selection")[0]
    text = f"{head}[probes.unit]\nselection = ['tests/impl/test_handshake.py']\n"
    plan = make_plan(suite=parse_suite(text, "s.toml"))
    boot = Boot(plan, plan.boots[-1], None, {}, {}, tmp_path)

    async def items(run):
        return [reading async for reading in run(boot)]

    found = asyncio.run(items(unit.run))
    assert {reading.value for reading in found} == {1}
    assert found[0].item.startswith("tests/impl/test_handshake.py::")
    assert plan.probes.kernels.chosen("embedded")[0] == "tests/impl/ops"
    own = [place for name in ("kernels", "unit") for place in plan.probes.table(name).own]
    assert all((ROOT / place.removeprefix("--ignore=")).exists() for place in own)
    assert plan.probes.kernels.chosen("vllm") == ()


@pytest.mark.parametrize(
    ("arm", "engine", "settings", "said"),
    [
        ({}, "vllm", {}, "probes.kernels.selection names no tests, and only our own engine has usual ones"),
        ({}, "endpoint", {}, "nothing tells which interpreter runs endpoint baseline: use dsbench tests"),
        ({}, "embedded", {"selection": ["tests/none.py"]}, "no tests/none.py in"),
        ({}, "vllm", {"selection": ["tests/x.py"]}, "has no vllm: give the probe a checkout"),
        ({"python": "/no/python"}, "embedded", {}, "does not tell where its impl is"),
    ],
)
def test_what_cannot_run_says_why(make_plan, tmp_path, arm, engine, settings, said):
    plan = make_plan(suite=parse_suite(SUITE.format(folder=tmp_path).replace("checkout", "# "), "s.toml"))
    table = plan.probes.kernels.model_copy(update={"selection": [], **settings})
    changed = plan.arms[0].model_copy(update=arm)
    plan = plan.model_copy(
        update={
            "engine": engine,
            "arms": [changed, *plan.arms[1:]],
            "probes": plan.probes.model_copy(update={"kernels": table}),
        }
    )
    number = next(boot.number for boot in plan.boots if boot.arm == changed.name)
    boot = Boot(plan, plan.boots[number - 1], None, {}, {}, tmp_path)

    async def first():
        async for reading in kernels.run(boot):
            return reading

    with pytest.raises(ProbeFailed) as caught:
        asyncio.run(first())
    assert said in str(caught.value)


def test_a_plan_keeps_the_map_and_not_its_path_alone(tmp_path):
    (tmp_path / "map.toml").write_text('"test_new[128]" = "test_seam[*-128]"\n')
    extra = f"map_file = '{tmp_path / 'map.toml'}'\ninherits = {{ test_other = 'test_map' }}\n"
    suite = parse_suite(SUITE.format(folder=tmp_path) + extra, "s.toml")
    pinned = suite.probes.pinned().kernels
    assert pinned.inherits == {"test_new[128]": "test_seam[*-128]", "test_other": "test_map"}
    (tmp_path / "map.toml").unlink()
    with pytest.raises(InputError, match=r"kernels: map_file .*map\.toml"):
        suite.probes.pinned()


def test_a_selection_without_a_place_is_refused():
    text = SUITE.format(folder="x").replace('["tests"]', '["-k", "seam"]')
    with pytest.raises(InputError, match=r"s\.toml:11: probes\.kernels\.selection names no file or folder of tests"):
        parse_suite(text, "s.toml")
