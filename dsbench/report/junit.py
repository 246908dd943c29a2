"""JUnit XML of a gate's outcome: a test case a check; a failure names metric, difference, interval and what to do."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from dsbench.gate import Check, Outcome
from dsbench.report.gate import place, told
from dsbench.report.table import change
from dsbench.report.visible import REPLACEMENT, visible

_ILLEGAL = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped."""


def junit_xml(name: str, outcome: Outcome) -> str:
    """The document. Void reasons are errors, checks that did not pass are failures."""
    failed = [check for check in outcome.checks if check.status in ("failed", "missing", "rerun")]
    skipped = [check for check in outcome.checks if check.status == "not-checked"]
    nothing = outcome.word == "nothing-checked"
    counts = {
        "tests": len(outcome.checks) + len(outcome.void) + nothing,
        "failures": len(failed),
        "errors": len(outcome.void) + nothing,
        "skipped": len(skipped),
    }
    attributes = {"name": _text(name), **{key: str(value) for key, value in counts.items()}}
    top = ET.Element("testsuites", attributes)
    suite = ET.SubElement(top, "testsuite", attributes)
    for check in outcome.checks:
        _case(suite, check)
    for reason in outcome.void:
        case = ET.SubElement(suite, "testcase", classname="void", name=_text(reason.code))
        error = ET.SubElement(case, "error", type=_text(reason.code), message=_text(reason.text))
        error.text = _text(f"{reason.text}\nWhat to do: {reason.mend}")
    if nothing:
        case = ET.SubElement(suite, "testcase", classname="void", name="nothing-checked")
        ET.SubElement(case, "error", type="nothing-checked", message=_text(outcome.sentence))
    ET.indent(top)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(top, encoding="unicode") + "\n"


def _case(suite: ET.Element, check: Check) -> None:
    case = ET.SubElement(suite, "testcase", classname=_text(check.arm), name=_text(place(check)))
    line = _text(told(check))
    if check.status == "passed":
        ET.SubElement(case, "system-out").text = line
    elif check.status == "not-checked":
        ET.SubElement(case, "skipped", message=line)
    else:
        failure = ET.SubElement(case, "failure", type=check.status, message=line)
        notes = "".join(f"\n{note}" for note in (check.row.notes if check.row else ()))
        values = f"\n{change(check.row)}" if check.row else ""
        failure.text = _text(f"{told(check)}{values}\nWhat to do: {check.mend}{notes}")


def _text(text: str) -> str:
    return _ILLEGAL.sub(REPLACEMENT, visible(text))
