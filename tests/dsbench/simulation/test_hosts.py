"""Simulated pools: what must hold whatever the figures are."""

import json

import pytest
from click.testing import CliRunner

from dsbench.cli import main
from dsbench.simulation.hosts import ALPHA, BLOCKS, EFFECT, markdown, sentence, simulate_hosts

COUNTS = (1, 4, 16, 64)


@pytest.fixture(scope="module")
def points():
    return {(point.design, point.hosts): point for point in simulate_hosts(COUNTS, 1500, 1)}


def test_the_same_seed_gives_the_same_figures(points):
    assert simulate_hosts(COUNTS, 1500, 1) == list(points.values())
    assert simulate_hosts((1,), 1500, 2)[0] != points["fixed blocks", 1]


def test_hosts_are_not_taken_for_the_change_where_blocks_are_whole(points):
    """Three standard errors above alpha at 1,500 experiments; with an arm a host nearly every experiment is wrong."""
    assert max(point.false_claims for point in points.values()) <= ALPHA + 3 * (ALPHA * (1 - ALPHA) / 1500) ** 0.5
    assert points["fixed blocks", 1].false_unpaired > 10 * ALPHA


def test_fixed_blocks_take_less_time_and_more_boots(points):
    of_design = [points["fixed blocks", hosts] for hosts in COUNTS]
    assert [point.hours for point in of_design] == sorted((p.hours for p in of_design), reverse=True)
    assert [point.boots for point in of_design] == sorted(point.boots for point in of_design)
    assert {point.blocks for point in of_design} == {BLOCKS}
    assert of_design[-1].boots == 4 * BLOCKS


def test_fixed_time_gains_blocks_and_power(points):
    of_design = [points["fixed time", hosts] for hosts in COUNTS]
    assert len({point.hours for point in of_design}) == 1
    assert [point.blocks for point in of_design] == [of_design[0].blocks * hosts for hosts in COUNTS]
    assert of_design[0].power + 0.2 < of_design[1].power


def test_an_interaction_keeps_more_blocks_on_one_host_from_seeing_more(monkeypatch):
    """Many blocks on one host say what the toggle does there, which is another thing than what it does."""
    monkeypatch.setattr("dsbench.simulation.hosts.INTERACTION", 2 * EFFECT)
    monkeypatch.setattr("dsbench.simulation.hosts.BLOCKS", 400)
    one, many = simulate_hosts((1, 64), 300, 1)[:2]
    assert one.power < 0.8
    assert many.power > 0.9


def test_the_sentence_says_where_returns_stop(points):
    told = sentence(list(points.values()))
    assert f"fixed blocks: returns stop at {BLOCKS} hosts, one a block: others stand idle" in told
    assert "fixed time: there is little more power to win beyond 16 hosts" in told
    few = [point for point in points.values() if point.hosts <= 4]
    assert "fixed blocks: returns do not stop up to 4 hosts" in sentence(few)
    assert "fixed time: returns do not stop up to 4 hosts" in sentence(few)


def test_the_command(tmp_path):
    line = ["simulate", "--hosts", "4,1", "--experiments", "50", "--seed", "3", "--json", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, line, catch_exceptions=False)
    told = json.loads(done.stdout)
    assert [point["hosts"] for point in told["points"]] == [1, 4, 1, 4]
    again = markdown(simulate_hosts((1, 4), 50, 3), "dsbench simulate --hosts 4,1 --experiments 50 --seed 3")
    assert (tmp_path / "hosts.md").read_text() == again
    for bad in ("0", "a", "1,,2", "2000"):
        assert CliRunner().invoke(main, ["simulate", "--hosts", bad]).exit_code == 2
    assert CliRunner().invoke(main, ["simulate", "--hosts", "1", "--quick"]).exit_code == 2
