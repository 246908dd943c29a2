"""Rows of tests paired by id, from stored readings alone."""

import pytest

from dsbench import records as r
from dsbench.judge import judge
from dsbench.suite import parse_suite

SUITE = """
name = "tested"
summary = "kernel tests beside the KV bytes"
blocks = 2
guards = ["kernels.passed"]
[probes.kv]
[probes.kernels]
[probes.kernels.inherits]
"test_other[1]" = "test_seam[*-128]"
"""
GOOD = {"k.py::test_seam[1-64]": None, "k.py::test_seam[1-128]": "failed: assert 0", "k.py::test_map": None}


@pytest.fixture
def judged(make_plan, make_records):
    """The verdict of an experiment whose tests read so: statuses by id, or a function of the boot, by arm."""
    plan = make_plan(suite=parse_suite(SUITE, "s.toml"))

    def go(before, after):
        lines = [line for line in make_records(plan) if getattr(line, "metric", "") != "kernels.passed"]
        for boot in plan.boots:
            told = before if boot.arm == plan.baseline.name else after
            for item, text in (told(boot) if callable(told) else told).items():
                value = None if text and text.startswith(("skipped", "xfailed")) else int(text is None)
                known = {"boot": boot.number, "metric": "kernels.passed", "unit": "tests", "phase": boot.phase}
                lines.append(r.Observation(**known, item=item, value=value, text=text))
        return judge(plan, lines)

    return go


def row(verdict):
    (found,) = [row for row in verdict.rows if row.metric == "kernels.passed"]
    return found


@pytest.mark.parametrize(
    ("change", "word", "experiment", "said"),
    [
        ({}, "equivalent", "improved", "inherited 1: k.py::test_seam[1-128] (assert 0)"),
        ({"k.py::test_map": "failed: assert 1"}, "regressed", "regressed", "1 new failure"),
        ({"k.py::test_map": "error: ValueError: 3"}, "regressed", "regressed", "1 new failure"),
        ({"b.py": "not collected: ImportError: x"}, "regressed", "regressed", "the candidate cannot collect b.py"),
        ({"k.py::test_seam[1-128]": None}, "improved", "improved", "1 test fixed"),
        (
            {"k.py::test_seam_reuses[128]": "failed: assert 0"},
            "equivalent",
            "improved",
            "inherits from test_seam[*-128]",
        ),
        ({"k.py::test_other[1]": "failed: assert 0"}, "equivalent", "improved", "test_seam[*-128] (by the map)"),
        ({"k.py::test_new": None}, "equivalent", "improved", "added 1: k.py::test_new"),
        ({"k.py::test_new": "failed: assert 0"}, "regressed", "regressed", "1 new failure"),
        ({"k.py::test_map": "skipped: later"}, "inconclusive", "improved", "newly skipped 1: k.py::test_map"),
        (
            {"k.py::test_map": "failed: RuntimeError: No CUDA GPUs are available"},
            "void",
            "void",
            "red because of the machine",
        ),
    ],
)
def test_words(judged, change, word, experiment, said):
    """The primary is the KV saving, and the tests are a guard."""
    verdict = judged(GOOD, {**GOOD, **change})
    assert verdict.word == experiment
    assert said in "; ".join(row(verdict).notes)
    assert row(verdict).word == (word if word != "void" else "not-run")
    assert (verdict.arms[0].unresolved_guards == ["kernels.passed"]) == (word == "inconclusive" or word == "void")


def test_what_neither_arm_collects_voids(judged):
    bad = {**GOOD, "b.py": "not collected: ImportError: x"}
    verdict = judged(bad, bad)
    assert (verdict.word, verdict.void[0].code, row(verdict).word) == ("void", "not-run", "not-run")
    assert "neither arm can collect b.py" in row(verdict).notes[0]


def test_a_red_environment_is_no_failure_of_tests(judged):
    broken = dict.fromkeys(GOOD, "failed: ModuleNotFoundError: No module named 'vllm._C'")
    verdict = judged(GOOD, broken)
    assert verdict.word == "regressed"
    assert "by its environment and no test: import error" in row(verdict).notes[0]
    assert judged(broken, broken).word == "void"


def test_the_worst_boot_counts_and_unsteady_tests_are_named(judged):
    def once(boot):
        return {**GOOD, "k.py::test_map": "failed: assert 0"} if boot.block == 1 else GOOD

    lost = row(judged(GOOD, once))
    assert lost.word == "regressed"
    assert "the candidate's own boots differ on k.py::test_map" in lost.notes
    assert row(judged(once, once)).word == "equivalent"
    assert row(judged(once, GOOD)).word == "improved", "the worst of the baseline counts, too"


def test_boots_of_one_arm_must_run_the_same_tests(judged):
    def fewer(boot):
        return {**GOOD, "k.py::test_more": None} if boot.block == 1 else GOOD

    verdict = judged(GOOD, fewer)
    assert (verdict.word, verdict.void[0].code) == ("void", "check-missing")
    assert "k.py::test_more" in verdict.void[0].text
