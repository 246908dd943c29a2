"""Effects host by host: equal ones are one answer, others are told, and a slow host is no regression."""

import random

import pytest

from dsbench import records as r
from dsbench.builds import parse_arm
from dsbench.by_host import ByHost
from dsbench.judge import judge
from dsbench.records import Verdict
from dsbench.stats.interaction import interaction_p, smallest_interaction_p
from tests.dsbench.judged import CANDIDATE, PRIMARY, row

TPS = "decode.tps.c1"


def host_of(boot):
    return "host1" if boot.block is None or boot.block % 2 else "host2"


@pytest.fixture
def judged(make_plan, make_records):
    """The verdict of boots in blocks that hosts take in turn; `values(boot, host, metric)` replaces readings."""

    def run(values, blocks=8, **options):
        plan = make_plan(blocks=blocks, **options)
        plan = plan.model_copy(update={"boots": [b for b in plan.boots if b.block is not None]})
        hosts = {boot.number: host_of(boot) for boot in plan.boots}
        records = make_records(plan, lambda boot, key: values(boot, hosts[boot.number], key))
        return judge(plan, [
            x.model_copy(update={"host": hosts[x.boot]}) if isinstance(x, r.BootStarted) else x for x in records
        ])  # fmt: skip

    return run


def tps(effects, level=(100.0, 100.0), seed=1):
    """Decode speed with 1 % noise, the level of each host and the effect of the toggle there."""
    rng = random.Random(seed)

    def values(boot, host, key):
        if key != TPS:
            return None
        at = int(host == "host2")
        return level[at] * (1 + 0.01 * rng.gauss(0, 1)) * (1 + effects[at] * (boot.arm == CANDIDATE))

    return values


def test_an_effect_that_is_the_same_everywhere_is_claimed(judged):
    found = row(judged(tps((0.2, 0.2))), TPS)
    assert found.by_host.blocks == {"host1": 4, "host2": 4}
    assert not found.by_host.differs
    assert found.p < 0.05
    assert found.word in ("improved", "inconclusive")


def test_an_effect_that_differs_by_host_is_told_and_not_claimed(judged):
    found = row(judged(tps((0.4, 0.1))), TPS)
    assert (found.by_host.differs, found.word) == (True, "inconclusive")
    (note,) = [note for note in found.notes if note.startswith("the effect differs by host")]
    assert "host1 +4" in note
    assert "host2 +1" in note
    assert f"p={found.by_host.p:.2g}" in note


def test_a_loss_that_differs_by_host_stays_a_loss(judged):
    assert row(judged(tps((-0.4, -0.2))), TPS).word == "regressed"


def test_a_slow_host_does_not_turn_an_aa_into_a_regression(judged):
    arms = [parse_arm("baseline=speculative=none"), parse_arm(f"{CANDIDATE}=speculative=none")]
    words = [
        row(judged(tps((0.0, 0.0), level=(100.0, 50.0), seed=seed), arms=arms, alike=True), TPS) for seed in range(40)
    ]
    assert sum(found.word == "regressed" for found in words) <= 4
    assert max(abs(found.relative) for found in words) < 0.03


def test_too_few_blocks_a_host_are_not_tested(judged):
    found = row(judged(tps((0.4, 0.1)), blocks=4), TPS)
    assert (found.by_host.p, found.by_host.differs) == (None, False)
    assert found.by_host.smallest_p == pytest.approx(1 / 3)


def byte_values(deltas, bases=(1_000_000, 900_000)):
    def values(boot, host, key):
        at = int(host == "host2")
        return bases[at] + deltas[at] * (boot.arm == CANDIDATE) if key == PRIMARY else None

    return values


def test_bytes_of_unequal_hosts_with_one_difference_are_one_answer(judged):
    found = row(judged(byte_values((-32768, -32768))), PRIMARY)
    assert (found.word, found.kind, found.delta) == ("improved", "exact", -32768)
    assert any("the difference is the same on each" in note for note in found.notes)


def test_bytes_that_move_differently_by_host_are_void(judged):
    verdict = judged(byte_values((-32768, -16384)))
    assert (verdict.word, [reason.code for reason in verdict.void]) == ("void", ["host-differs"])
    assert "host1 -32,768 B, host2 -16,384 B" in verdict.void[0].text


def test_one_boot_a_host_shows_no_repeat(judged):
    assert row(judged(byte_values((-32768, -32768)), blocks=2), PRIMARY).word == "inconclusive"


def test_the_test_of_interaction_keeps_its_level_with_a_noisy_host():
    rng = random.Random(3)
    groups = [[[rng.gauss(0, sd) for _ in range(4)] for sd in (1, 5)] for _ in range(300)]
    assert sum(interaction_p(group) <= 0.05 for group in groups) / 300 <= 0.09


@pytest.mark.parametrize("sizes", [(2, 2), (3, 3), (4, 4), (3, 4), (2, 2, 2)])
def test_the_smallest_p_is_attained(sizes):
    groups = [[10.0**at + at * 0.1 * k + 0.01 * k * k for k in range(n)] for at, n in enumerate(sizes)]
    assert interaction_p(groups) == pytest.approx(smallest_interaction_p(sizes))


def test_values_that_do_not_vary_differ_nowhere():
    assert interaction_p([[1.0, 1.0], [1.0, 1.0]]) == 1.0
    with pytest.raises(ValueError, match="two groups of two"):
        interaction_p([[1.0], [1.0, 2.0]])


def test_the_report_shows_each_host():
    from dsbench.report.table import host_lines

    found = ByHost(effects={"host1": 0.02, "host2": -0.03}, blocks={"host1": 4, "host2": 4}, p=0.4, differs=False)
    shown = Verdict(arm="x", metric=TPS, unit="tok/s", better="up", rank=None, role="guard", kind="sample",
                    word="inconclusive", by_host=found)  # fmt: skip
    assert host_lines([shown]) == [f"{TPS} by host: host1 +2.0 %, host2 -3.0 %; toggle by host: p=0.4"]
    untested = shown.model_copy(update={"by_host": found.model_copy(update={"p": None, "smallest_p": 1 / 3})})
    assert host_lines([untested])[0].endswith("not tested, p >= 0.33 at this n")
    assert host_lines([shown.model_copy(update={"role": "shown"}), shown.model_copy(update={"by_host": None})]) == []
