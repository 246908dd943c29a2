"""What of a suite is left where this package was installed without its tests."""

import pytest

from dsbench import fit
from dsbench.suite import load_suite
from impl.dims import MICRO


@pytest.fixture
def installed(monkeypatch, tmp_path):
    monkeypatch.setattr(fit, "CHECKOUT", tmp_path)


def test_own_tests_are_left_out_with_a_note_and_without_their_guards(make_plan, installed):
    plan = make_plan(suite=load_suite("full"), dims=MICRO)
    assert not {"kernels", "unit"} & {*plan.probes.names()}
    assert not {"kernels.passed", "unit.passed"} & {*plan.guards}
    assert "kernels, unit: not-run, this package is installed without its tests: run from a checkout" in plan.notes


def test_a_selection_or_a_checkout_of_ones_own_stays(make_plan, installed):
    suite = load_suite("full")
    kernels = suite.probes.kernels.model_copy(update={"selection": ["tests/kernels"]})
    unit = suite.probes.unit.model_copy(update={"checkout": "somewhere"})
    probes = suite.probes.model_copy(update={"kernels": kernels, "unit": unit})
    plan = make_plan(suite=suite.model_copy(update={"probes": probes}), dims=MICRO, here=False)
    assert {"kernels", "unit"} <= {*plan.probes.names()}


def test_from_a_checkout_they_run(make_plan):
    assert {"kernels", "unit"} <= {*make_plan(suite=load_suite("full"), dims=MICRO).probes.names()}
