"""Short simulations of every kind. What must hold for the rules must fail for tests over requests."""

import numpy as np
import pytest
from scipy.stats import binomtest

from dsbench.evidence import gather
from dsbench.records import Plan
from dsbench.simulation import noise
from dsbench.simulation.boots import simulated_records
from dsbench.simulation.catalogue import KINDS, SUITES
from dsbench.simulation.clocks import blocked, in_sequence, unblocked
from dsbench.simulation.counted import Drafts, Exact, Items, Law
from dsbench.simulation.report import LEAST_POWER, MOST_FALSE, missed, row
from dsbench.simulation.run import Result, simulate
from dsbench.simulation.suites import planned
from dsbench.simulation.tally import Tally, share, tally
from dsbench.suite import load_suite
from dsbench.void import void_reasons

SEED = 11

SHORT = {
    "exact": (Exact(2), 300),
    "blocked": (blocked("decode.tps", 6), 200),
    "unblocked": (unblocked("decode.tps", 5), 120),
    "counter-ratio": (Drafts(5), 70),
    "counter-ratio in blocks": (Drafts(8), 70),
    "clustered": (Items("toolcall", 2, noise.ItemNoise(60, 0.86, (0.12, 0.12), 12, 0.3, ""), 0.02), 60),
    "law": (Law(2), 60),
}
REQUESTS = ("blocked", "unblocked", "counter-ratio", "counter-ratio in blocks")


def rarely(hits: int, n: int) -> bool:
    """Whether a share can be one of at most 6 %: only in a thousandth of runs it would be seen so large."""
    return binomtest(hits, n, MOST_FALSE, alternative="greater").pvalue > 1e-3


@pytest.fixture(scope="module")
def alike() -> dict[str, Tally]:
    return {name: tally(case.run(np.random.default_rng(SEED), n, False)) for name, (case, n) in SHORT.items()}


@pytest.mark.parametrize("name", SHORT)
def test_equal_arms_are_rarely_called_different(name, alike):
    found = alike[name]
    assert found.experiments == SHORT[name][1]
    assert found.void == 0
    assert rarely(found.claims, found.experiments)
    assert rarely(found.rejected, found.experiments)


@pytest.mark.parametrize("name", REQUESTS)
def test_a_test_over_requests_fails_the_same_assertion(name, alike):
    found = alike[name]
    assert not rarely(found.u_rejected, found.experiments)


def test_one_arm_after_the_other_fails_the_same_assertion():
    found = tally(in_sequence("decode.tps", 6).run(np.random.default_rng(SEED), 100, False))
    assert not rarely(found.rejected, found.experiments)


@pytest.mark.parametrize("name", [name for name in SHORT if name != "law"])
def test_printed_intervals_hold_the_truth(name, alike):
    found = alike[name]
    if found.intervals:
        assert binomtest(found.covered, found.intervals, 0.88, alternative="less").pvalue > 1e-3
        assert found.attained / found.intervals >= 0.9 - 1e-3


@pytest.mark.parametrize("name", SHORT)
def test_the_claimed_effect_is_seen_as_often_as_claimed(name):
    case, n = SHORT[name]
    found = tally(case.run(np.random.default_rng(SEED + 1), n, True))
    assert binomtest(found.right, found.experiments, LEAST_POWER, alternative="less").pvalue > 1e-3


def test_half_the_claimed_effect_is_not(monkeypatch):
    """The power figures mean something: they are not met by just any effect."""
    case = blocked("decode.tps", 6)
    whole = type(case).claimed
    monkeypatch.setattr(type(case), "claimed", lambda self, sd: whole(self, sd) / 2)
    found = tally(case.run(np.random.default_rng(SEED), 150, True))
    assert binomtest(found.right, found.experiments, LEAST_POWER, alternative="less").pvalue < 1e-3


@pytest.mark.parametrize("name", SHORT)
def test_a_seed_gives_the_same_experiments_again(name):
    case, _ = SHORT[name]
    first, again, other = (case.run(np.random.default_rng(s), 12, False) for s in (3, 3, 4))
    assert first == again
    if name not in ("exact", "law", "clustered"):
        assert first != other


def test_counts_do_not_depend_on_the_number_of_processes():
    cases = [case for case in KINDS if case.kind == "exact"]
    one, two = (simulate(cases, [5, 6], lambda case: 120, processes=n) for n in (1, 2))
    assert one == two
    assert all(result.alike.experiments == 120 for result in one)


@pytest.mark.parametrize("case", SUITES, ids=lambda case: case.name)
def test_records_of_a_suite_are_what_a_sound_run_writes(case):
    plan = planned(case.experiment.suite, case.experiment.speculative, 3)
    records = simulated_records(plan, np.random.default_rng(2))
    assert isinstance(plan, Plan)
    assert void_reasons(plan, gather(plan, records)) == []
    read = {o.metric for o in records if o.record == "observation"}
    assert read == {metric.key for metric in plan.metrics}


@pytest.mark.parametrize("case", SUITES[:2], ids=lambda case: case.name)
def test_an_experiment_of_a_suite_has_no_reason_to_regress(case):
    found = tally(case.experiment.run(np.random.default_rng(SEED), 25, False))
    assert found.void == 0
    assert rarely(found.regressed, found.experiments)


def test_full_measures_and_guards_all_that_quick_does():
    quick, full = load_suite("quick"), load_suite("full")
    assert set(quick.guards) <= set(full.guards)
    assert quick.drift_controls == full.drift_controls
    assert set(quick.probes.names()) <= set(full.probes.names())
    assert full.blocks == 12


def test_shares_have_clopper_pearson_intervals():
    assert share(0, 100) == pytest.approx((0.0, 0.0, 0.0362), abs=1e-4)
    assert share(5, 100) == pytest.approx((0.05, 0.0164, 0.1128), abs=1e-4)
    assert share(0, 0) is None


def test_a_target_is_missed_only_if_its_interval_says_so():
    case = next(case for case in KINDS if case.name == "decode.tps" and case.attainable)
    bad = row(Result(case, Tally(experiments=1000, regressed=100), Tally(experiments=1000, right=700)))
    assert bad.targets == {"false claims": "missed", "power": "missed"}
    assert len(missed([bad])) == 2
    few = row(Result(case, Tally(experiments=10, regressed=1), Tally(experiments=10, right=7)))
    assert few.targets == {"false claims": "open", "power": "open"}
    assert missed([few]) == []
