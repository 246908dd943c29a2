"""Effects host by host: equal ones are one answer, others are told, and a slow host is no regression."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench import records as r
from dsbench.builds import parse_arm
from dsbench.by_host import OF_A_MACHINE, ByHost, among_hosts
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

    def run(values, blocks=8, facts=lambda boot, host: {}, **options):
        plan = make_plan(blocks=blocks, **options)
        plan = plan.model_copy(update={"boots": [b for b in plan.boots if b.block is not None]})
        hosts = {boot.number: host_of(boot) for boot in plan.boots}
        planned = {boot.number: boot for boot in plan.boots}
        records = []
        for x in make_records(plan, lambda boot, key: values(boot, hosts[boot.number], key)):
            if isinstance(x, r.BootStarted):
                x = x.model_copy(update={"host": hosts[x.boot]})
            if isinstance(x, r.Conditions):
                x = x.model_copy(update={"values": {**x.values, **facts(planned[x.boot], hosts[x.boot])}})
            records.append(x)
        return judge(plan, records)

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
    assert found.by_host.effects == pytest.approx({"host1": 0.4, "host2": 0.1}, abs=0.02)
    for host, effect in found.by_host.effects.items():
        assert f"{host} +{100 * effect:.1f} %" in note
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


# --- hosts that are not alike ----------------------------------------------------------------------------------------

CARDS = {"host1": "NVIDIA H200", "host2": "NVIDIA L4"}


def test_cards_of_two_models_are_told_and_each_block_is_its_own_comparison(judged):
    facts = {name: lambda boot, host, name=name: {name: CARDS[host]} for name in sorted(OF_A_MACHINE)}
    for name, of_host in facts.items():
        verdict = judged(byte_values((-32768, -32768)), facts=of_host)
        assert verdict.void == []
        found = row(verdict, PRIMARY)
        assert (found.word, found.by_host.effects) == ("improved", {"host1": -32768, "host2": -32768})
        assert found.by_host.levels == {"host1": 1_000_000, "host2": 900_000}
        told = [note for note in verdict.notes if note.startswith(f"hosts read back different {name}: ")]
        if name not in ("python", "torch"):  # those are told of the machine's fingerprint
            assert [note.partition(": ")[2] for note in told] == [
                "host1 NVIDIA H200, host2 NVIDIA L4; effects are those inside blocks, each on one host"
            ]


@pytest.mark.parametrize(
    "facts",
    [
        lambda boot, host: {"device": "NVIDIA L4" if boot.arm == CANDIDATE else "NVIDIA H200"},
        lambda boot, host: {"device": "NVIDIA L4" if (host, boot.arm) == ("host2", CANDIDATE) else "NVIDIA H200"},
        lambda boot, host: {"device": "NVIDIA L4" if boot.block == 4 else "NVIDIA H200"},
        lambda boot, host: {"device": "NVIDIA L4"} if boot.number == 3 else {"device": CARDS[host]},
        lambda boot, host: {"max_model_len": 2048 if host == "host1" else 4096},
        lambda boot, host: {"impl_sources": host},
    ],
    ids=["arms", "arms of one host", "blocks of one host", "one boot", "the build", "the sources"],
)
def test_a_difference_that_is_not_the_hosts_own_is_void(judged, facts):
    verdict = judged(byte_values((-32768, -32768)), facts=facts)
    assert (verdict.word, {reason.code for reason in verdict.void}) == ("void", {"condition-differs"})


def test_without_a_pool_there_is_one_machine(make_plan, make_records):
    plan = make_plan(blocks=4)
    cards = {boot.number: CARDS[host_of(boot)] for boot in plan.boots}
    records = [
        x.model_copy(update={"values": {**x.values, "device": cards[x.boot]}}) if isinstance(x, r.Conditions) else x
        for x in make_records(plan)
    ]
    assert {reason.code for reason in judge(plan, records).void} == {"condition-differs"}


@given(st.lists(st.sampled_from([None, "host1", "host2", "host3"])), st.sampled_from([*sorted(OF_A_MACHINE), "seed"]))
def test_every_boot_is_among_exactly_one_machines(hosts, key):
    boots = [SimpleNamespace(host=host) for host in hosts]
    groups = among_hosts(key, boots)
    assert sorted(map(id, boots)) == sorted(id(boot) for group in groups for boot in group)
    assert all(len({boot.host for boot in group}) == 1 for group in groups if key in OF_A_MACHINE)
    assert len(groups) == (len(set(hosts)) if key in OF_A_MACHINE else 1)


def test_the_levels_of_hosts_are_told_beside_the_effects(judged):
    found = row(judged(tps((0.2, 0.2), level=(100.0, 50.0))), TPS)
    assert found.by_host.levels == pytest.approx({"host1": 100, "host2": 50}, rel=0.05)
    from dsbench.by_host import told

    first, second = told(found).split(", ")
    assert first.startswith(f"host1 +{100 * found.by_host.effects['host1']:.1f} %")
    assert first.endswith(f" of {found.by_host.levels['host1']:,.4g} tok/s")
    assert second.endswith(f" of {found.by_host.levels['host2']:,.4g} tok/s")


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
