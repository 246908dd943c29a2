"""Scripts that drive engines: what was not run is not a pass, and what is not mentioned is unknown."""

import pytest

from dsbench.parse.driver_log import read_driver
from dsbench.parse.lines import read_lines


def driver(text):
    return read_driver(read_lines(text))


def arm(name, code=0, dirty=False):
    older = "  WARNING: vLLM still running on node-a after 120s\n" if dirty else ""
    return f"##### arm={name} #####\n{older}  serve rc={code}\n    rep0: 512 tok in 13.78s -> 37.16 tok/s\n"


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (arm("a") + arm("b"), "inconclusive"),
        (arm("a") + arm("b", code=1), "void"),
        (arm("a", dirty=True) + arm("b"), "void"),
        (arm("a") + "##### arm=b #####\n", "void"),
    ],
)
def test_arms_of_one_boot_each_are_never_a_verdict(text, verdict):
    assert driver(text)["verdict"] == verdict


def cell(name, share):
    return f'##### CELL: {name} #####\n  --- GSM8K ---\n    rc=0  "exact_match_flexible": {share}\n'


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((0.95, 0.95), "inconclusive"),
        ((1239 / 1319, 1253 / 1319), "inconclusive"),
        ((1239 / 1319, 1100 / 1319), "regressed"),
        ((1100 / 1319, 1239 / 1319), "improved"),
        ((19000 / 19997, 19001 / 19997), "equivalent"),
        ((0.123456789012, 0.95), "inconclusive"),
    ],
)
def test_shares_are_compared_by_the_items_that_they_are_of(shares, verdict):
    assert driver(cell("a", shares[0]) + cell("b", shares[1]))["gsm8k_verdict"] == verdict


def test_a_gate_that_ran_is_told_from_one_that_did_not():
    text = "##### CELL: a #####\n  --- draft acceptance (prose) ---\n    rate 0.41\n  --- tool-call ---\n    rc=127\n"
    found = driver(text)["cells"]["a"]
    assert (found["draft_acceptance"], found["tool_call"]) == ("rate 0.41", "not run")


def test_a_written_rule_decides_where_it_fits():
    rule = "rule: all six c12 in [20,24] => bimodality gone; any <=13 => low mode persists\n"
    serves = "".join(f"SERVE{n}  c12=passed={right}/24  (v2_markers=3)\n" for n, right in enumerate((20, 22), start=1))
    found = driver(serves + rule)
    assert (found["rule_low_mode_gone"], found["rule_low_mode_persists"]) == (True, False)
    assert not {"verdict", "arm_identity"} & found.keys()


def test_any_other_log_is_none_of_these():
    assert driver("INFO 01-01 00:00:00 [a.py:1] hello\n=== heading ===\n") == {}
