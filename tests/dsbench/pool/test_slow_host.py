"""A/A over two hosts of which one is planted slow: real units and records. Blocks keep the host out of the answer."""

from dataclasses import replace
from datetime import UTC, datetime
from statistics import fmean

import pytest

from dsbench import store
from dsbench.builds import parse_arm
from dsbench.compare import compare
from dsbench.evidence import gather
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.pool.spread import spread
from dsbench.report.table import host_lines
from dsbench.suite import parse_suite
from impl.dims import PICO
from tests.dsbench.conftest import ROOT
from tests.dsbench.pool.local_pool import LocalPool

TPS = "decode.tps.c1"
SLOWER = 3
SUITE = """
name = "paced"
summary = "decode speed alone"
blocks = 10
warmup_boots = 0
guards = ["decode.tps.*"]
[timeouts]
boot = 60
probe = 60
stop = 3
[probes.decode]
streams = [1]
tokens = 24
repeats = 3
"""
ALPHA = 0.002
"""2 / 2**10: a loss is called only if all ten blocks say it, which equal arms do in one of a thousand runs."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Plan and records of the A/A; node `b` takes SLOWER times as long for every token."""
    arms = [parse_arm("one=speculative=none"), parse_arm("other=speculative=none")]
    plan = plan_experiment(
        (), parse_suite(SUITE, "paced.toml"), PICO, engine_args=["--dims", "pico"], arms=arms, alike=True,
        now=datetime(2025, 5, 1, tzinfo=UTC),
    )  # fmt: skip
    plan = plan.model_copy(update={"pool": "ray", "alpha": ALPHA})
    folder = store.create(plan, tmp_path_factory.mktemp("paced"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("FAKE_FAULT", "slow@-b/boots")
        patch.setenv("FAKE_TOKEN_S", "0.004")
        spread(plan, folder, LocalPool(), quiet=True)
    return plan, store.load_records(folder)[0]


def tps(boots):
    """By host and arm."""
    found = {}
    for boot in boots:
        (reading,) = boot.readings[TPS]
        found.setdefault((boot.host, boot.planned.arm), []).append(reading.value)
    return found


def pooled(plan, boots):
    """The row that the same readings give when blocks and hosts are forgotten."""
    alone = [replace(boot, planned=boot.planned.model_copy(update={"block": None}), host=None) for boot in boots]
    return compare(plan, alone, plan.arms[1], plan.metric(TPS), None, "guard")


def width(row):
    return row.interval[1] - row.interval[0]


def test_the_host_is_slow_and_the_aa_is_no_regression(ran):
    plan, records = ran
    verdict = judge(plan, records)
    assert verdict.void == []
    assert verdict.word in ("equivalent", "inconclusive")
    (row,) = [row for row in verdict.rows if row.metric == TPS]
    assert row.smallest_p <= plan.alpha, "the test could have called a loss"
    assert row.word != "regressed"
    assert min(row.by_host.blocks.values()) >= 2
    seen = tps(gather(plan, records))
    for arm in ("one", "other"):
        fast, slow = fmean(seen["host1", arm]), fmean(seen["host2", arm])
        assert max(fast, slow) / min(fast, slow) > SLOWER / 2, "the fault is planted in both arms of one host"


def test_the_difference_between_the_hosts_is_shown(ran):
    plan, records = ran
    verdict = judge(plan, records)
    (row,) = [row for row in verdict.rows if row.metric == TPS]
    fast, slow = sorted(row.by_host.levels.values(), reverse=True)
    assert fast / slow > SLOWER / 2
    (line,) = host_lines([row])
    for host, level in row.by_host.levels.items():
        assert f"{host} {row.by_host.effects[host] * 100:+.1f} % of {level:,.4g} tok/s" in line


def test_without_blocks_the_same_readings_say_next_to_nothing(ran):
    plan, records = ran
    boots = gather(plan, records)
    (blocked,) = [row for row in judge(plan, records).rows if row.metric == TPS]
    forgotten = pooled(plan, boots)
    assert width(forgotten) > 3 * width(blocked)
    assert forgotten.interval[0] < -0.2 < 0.2 < forgotten.interval[1]


def test_arms_that_keep_to_their_own_hosts_would_be_called_a_regression(ran):
    """What blocks are for: one arm's readings of the fast host against the other's of the slow one."""
    plan, records = ran
    boots = gather(plan, records)
    slow = min(("host1", "host2"), key=lambda host: fmean(tps(boots)[host, "one"]))
    split = [boot for boot in boots if (boot.host == slow) == (boot.planned.arm == "other")]
    confounded = pooled(plan.model_copy(update={"alpha": 0.05}), split)
    assert confounded.word == "regressed"
    assert confounded.relative < -0.5
