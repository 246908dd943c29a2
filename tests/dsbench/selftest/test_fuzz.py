"""A short run of `dsbench selftest --fuzz`, with crashes and hangs planted, and inputs that it once found."""

import json
import math
import random

import pytest
from click.testing import CliRunner

from dsbench.cli.selftest import selftest
from dsbench.parse import boot_log
from dsbench.selftest import fuzz as module
from dsbench.selftest.fuzz import NoLine, TooSlow, fuzz
from dsbench.selftest.fuzz_targets import TARGETS
from dsbench.selftest.mutations import CHANGES, changed_json, changed_text

BY_NAME = {target.name: target for target in TARGETS}


def command(*args):
    result = CliRunner().invoke(selftest, ["--fuzz", *map(str, args)], standalone_mode=False)
    if result.exception:
        raise result.exception
    return result.return_value, result.stdout


@pytest.mark.parametrize("name", BY_NAME)
def test_changed_inputs_are_read_or_refused_in_one_line(name, tmp_path):
    found = fuzz(BY_NAME[name], 700, 11, tmp_path, long_lines=False)
    assert (found.cases, found.crashed, found.too_slow) == (700, 0, 0), found.problems
    assert found.refused or name == "log"  # any text at all is a log
    assert not list(tmp_path.iterdir())


def _raises(line, boot):
    raise KeyError(line.text)


def test_a_planted_crash_is_found_saved_and_tried_again(tmp_path, monkeypatch):
    with monkeypatch.context() as planted:
        planted.setattr(boot_log, "TAKES", (*boot_log.TAKES, ("Graph capturing", _raises)))
        code, told = command("--only", "log", "--cases", 60, "--seed", 2, "--out", tmp_path)
        assert code == 1
        assert "KeyError at test_fuzz.py" in told or "KeyError at boot_log.py" in told
        (saved,) = {path.parent for path in tmp_path.rglob("problem.txt")}
        assert f"--from {saved}" in told
        assert "KeyError" in (saved / "problem.txt").read_text()
        assert b"Graph capturing" in (saved / "engine.log").read_bytes()
        assert command("--from", saved)[0] == 1
    assert command("--from", saved)[0] == 0


def _never_ends(line, boot):
    while True:
        pass


def test_a_planted_hang_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(boot_log, "TAKES", (("Directly load the", _never_ends),))
    monkeypatch.setattr(module, "LIMIT_S", 0.05)
    monkeypatch.setattr(module, "LOADING_S", 0.05)
    found = fuzz(BY_NAME["log"], 5, 0, tmp_path, long_lines=False)
    assert found.failed
    assert list(found.problems) == ["more than 0.05 s"]
    assert not issubclass(TooSlow, Exception)


def test_a_refusal_must_be_a_line_that_can_be_printed():
    for line in ("a\nb", "x" * 2000):
        with pytest.raises(NoLine):
            module._check_line(line)
    with pytest.raises(UnicodeEncodeError):
        module._check_line("\ud800")


def test_the_same_seed_gives_the_same_cases():
    for target in TARGETS:
        for shape in target.shapes()[:3]:
            assert target.vary(random.Random("x"), shape) == target.vary(random.Random("x"), shape)


def test_changes_change_something():
    rng, text = random.Random(3), b"INFO 12 blocks: 7\nline two\nline 3\n" * 3
    assert len({changed_text(rng, text, [text]) for _ in range(200)}) > 150
    for change in CHANGES:
        assert any(change(rng, text, [text]) != text for _ in range(20)), change
    values = {changed_json(rng, {"a": [1, {"b": "c"}], "d": 2.5}) for _ in range(200)}
    assert len(values) > 100
    assert {type(value) for value in values} == {bytes}
    for odd in (10**400, -(10**400), math.inf, math.nan, 1e308):
        for _ in range(200):
            changed_json(rng, {"a": odd})


def test_no_input_and_no_reader(tmp_path):
    for args, said in (
        (["--only", "nothing"], "no such reader; there are log, metrics, results, records, toml"),
        (["--from", tmp_path], "no saved case of --fuzz is there"),
        (["--faults"], "are not given together"),
    ):
        with pytest.raises(Exception, match=said):
            command(*args)


def test_json_is_json(tmp_path):
    code, told = command("--only", "metrics", "--cases", 3, "--json", "--out", tmp_path)
    (found,) = json.loads(told)
    assert code == 0
    assert (found["target"], found["cases"]) == ("metrics", 3)
    assert found["long_lines"] > 10
