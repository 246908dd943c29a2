"""A short soak of the real engine, and soaks that must not pass."""

import json

import pytest
from click.testing import CliRunner

from dsbench.cli.selftest import selftest
from dsbench.selftest import soak as soaking
from dsbench.selftest.soak_asks import bad_asks, good_asks
from dsbench.selftest.soak_memory import Sample, rss_slope

KINDS = ("right", "greedy", "sampled", "growing", "long", "several", "chat", "tools")


def samples(megabytes_a_minute, jump=0.0, minutes=20):
    """One in 5 s, with the saw of an allocator and a warm-up that ends after two minutes."""
    for at in range(minutes * 12):
        grown = megabytes_a_minute * at / 12 + min(at, 24) + (at % 7) * 0.1 + (jump if at > 120 else 0)
        yield Sample(at * 5.0, int((280 + grown) * 1e6), 2, 8, 9, 1, 0, 0)


@pytest.mark.parametrize(("rate", "word"), [(0, "flat"), (0.5, "flat"), (1.5, "grows"), (30, "grows")])
def test_memory_is_flat_or_grows(rate, word):
    slope = rss_slope(list(samples(rate)))
    assert slope.word == word
    assert slope.low - 0.02 <= rate <= slope.high + 0.02


def test_memory_that_jumps_is_not_called_flat_and_few_samples_say_nothing():
    assert rss_slope(list(samples(0, jump=40))).word != "flat"
    assert rss_slope(list(samples(0))[:12]) is None


def test_requests_are_of_every_kind_and_the_same_for_a_seed():
    asks = good_asks(3)
    assert asks == good_asks(3) != good_asks(4)
    assert {ask.kind for ask in asks} == set(KINDS)
    assert {ask.status for ask in bad_asks(2048)} == {400, 404, 413}


@pytest.mark.slow
def test_a_short_soak_passes_and_keeps_its_samples(tmp_path, monkeypatch):
    few = [ask for kind in KINDS for ask in [ask for ask in good_asks(0) if ask.kind == kind][:2]]
    monkeypatch.setattr(soaking, "good_asks", lambda seed: few)
    result = CliRunner().invoke(selftest, ["--soak", "0.25", "-o", str(tmp_path / "out"), "--json"],
                                standalone_mode=False)  # fmt: skip
    assert result.exception is None, result.exception
    told = json.loads(result.stdout)
    assert (result.return_value, told["problems"], told["wrong"]) == (0, [], 0)
    assert told["preemptions"] > 0
    rows = [json.loads(line) for line in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()]
    assert rows == told["samples"]
    assert rows[-1]["free_blocks"] == told["blocks"]


@pytest.mark.slow
def test_an_engine_that_leaks_and_answers_that_differ_are_found(tmp_path, monkeypatch):
    """`leak` keeps memory at every step; and one request's answer alone is said to be another one."""
    monkeypatch.setattr(soaking, "LONG_ENOUGH_MINUTES", 0.0)
    asks = [ask for ask in good_asks(0) if ask.kind in ("growing", "right")][:8]
    told = soaking._told
    monkeypatch.setattr(soaking, "good_asks", lambda seed: asks)
    monkeypatch.setattr(soaking, "_told", lambda events: told(events[:5]) if len(events) > 1 else told(events))
    result = soaking.soak(0.3, tmp_path / "boot", sample_s=0.5, toggles="leak:400000")
    assert result.wrong > 0
    assert any(problem.startswith("memory: grows") for problem in result.problems), (result.problems, result.slope)
    assert result.slope.low > 50


def test_it_stands_alone():
    for more in (["--faults"], ["--kills", "1"], ["--only", "x"]):
        result = CliRunner().invoke(selftest, ["--soak", "1", *more])
        assert result.exit_code == 2
        assert "not given together" in result.output
