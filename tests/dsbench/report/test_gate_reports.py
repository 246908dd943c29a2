"""A gate's outcome as JUnit XML and for GitHub: names, intervals, and texts that would break the format."""

import re
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.gate import Check, Outcome, gate, judged_under, without_baseline
from dsbench.policy import Policy
from dsbench.report.github import annotation_lines, step_summary
from dsbench.report.junit import junit_xml
from dsbench.store import load_plan, load_records
from tests.dsbench.conftest import ROOT

SPEED = next((ROOT / "results/selftest/speed").iterdir())


@pytest.fixture(scope="module")
def slow():
    """A committed run with a planted slow step, under a policy that also asks for a metric it lacks."""
    policy = Policy.model_validate({"inconclusive": "rerun", "rule": [{"metric": "gsm8k.correct"}]})
    return gate(judged_under(load_plan(SPEED), load_records(SPEED)[0], policy), policy)


def test_a_failure_names_metric_difference_interval_and_what_to_do(slow):
    suite = ET.fromstring(junit_xml("name", slow)).find("testsuite")
    (case,) = [c for c in suite.iter("testcase") if c.get("classname") == "slow-step"]
    failure = case.find("failure")
    assert case.get("name") == "decode.tps.c1"
    assert re.match(r"decode\.tps\.c1 -\d+\.\d % \[-\d+\.\d %, -\d+\.\d %\], \d+ % interval", failure.get("message"))
    assert "must not regress" in failure.get("message")
    assert "What to do: " in failure.text
    assert re.search(r"[\d.]+ -> [\d.]+ tok/s", failure.text)


def test_counts_are_those_of_the_cases(slow):
    suite = ET.fromstring(junit_xml("name", slow)).find("testsuite")
    assert int(suite.get("tests")) == len(suite.findall("testcase")) == len(slow.checks)
    assert int(suite.get("failures")) == len(suite.findall("testcase/failure")) == 3
    types = {case.get("classname"): case.find("failure").get("type") for case in suite}
    assert types == {"clean": "rerun", "slow-step": "failed", "*": "missing"}


def test_void_reasons_are_errors():
    outcome = without_baseline("main", {("a", "*"): "another machine"})
    suite = ET.fromstring(junit_xml("name", outcome)).find("testsuite")
    assert (suite.get("errors"), suite.get("failures")) == ("1", "0")
    assert "no result in main compares" in suite.find("testcase/error").get("message")
    nothing = Outcome("nothing-checked", 4, "nothing", [], [])
    assert ET.fromstring(junit_xml("name", nothing)).get("errors") == "1"


@given(st.text(), st.text())
def test_any_text_is_xml_and_one_line_of_a_command(why, mend):
    outcome = Outcome("failed", 1, why, [Check(mend, "kv.blocks", "improve", "failed", why, mend)], [])
    failure = ET.fromstring(junit_xml(why, outcome)).find("testsuite/testcase/failure")
    assert failure is not None
    for line in annotation_lines(outcome):
        assert re.fullmatch(r"::error title=[^:,\r\n]*::[^\r\n]*", line)
    table = [line for line in step_summary("id", outcome).split("\n") if line.startswith("| FAIL")]
    assert len(table) == 1
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", table[0])) == 9


def test_nothing_acts_on_the_log_or_on_the_page():
    evil = "\x00\x1b[31m\u202e\ud800 $x$ &lt;"
    outcome = Outcome("failed", 1, evil, [Check("a", "kv.blocks", "improve", "failed", evil, evil)], [])
    summary = step_summary("id", outcome)
    for text in (*annotation_lines(outcome), summary, junit_xml("name", outcome)):
        assert not re.search("[\x00\x1b\u202e\ud800]", text)
        text.encode()
    assert "\\$x\\$ \\&lt;" in summary


def test_annotations_say_what_failed_and_what_is_open(slow):
    lines = list(annotation_lines(slow))
    assert [line.split(" ")[0] for line in lines] == ["::error", "::warning", "::error", "::error"]
    assert lines[0] == f"::error title=dsbench gate::{slow.sentence}"
    assert lines[2].startswith("::error title=dsbench%3A slow-step decode.tps.c1::decode.tps.c1 -")
    assert "%25 interval" in lines[2]


def test_the_summary_is_a_table_of_all_checks(slow):
    text = step_summary("some-id", slow)
    assert text.startswith("### dsbench gate: failed\n")
    assert len(re.findall(r"^\| (?:pass|FAIL|RERUN|MISSING) \|", text, re.MULTILINE)) == len(slow.checks)
    assert "`some-id`" in text
