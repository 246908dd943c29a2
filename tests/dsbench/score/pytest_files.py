"""JUnit XML and console text of made-up pytest runs."""

from __future__ import annotations

from collections.abc import Mapping
from xml.sax.saxutils import escape, quoteattr


def junit(cases: Mapping[str, str], collection: Mapping[str, str] | None = None, paths: bool = True) -> str:
    """JUnit XML as pytest writes it; `cases`: `passed`, `skipped: why`, `failed: why` or `error: why` by test id."""
    rows = []
    for path, why in (collection or {}).items():
        module = path.removesuffix(".py").replace("/", ".")
        rows.append(
            f'<testcase classname="" name="{module}" time="0.000"><error message="collection failure">'
            f"ImportError while importing test module\nE   {escape(why)}</error></testcase>"
        )
    for name, told in cases.items():
        path, *classes, test = name.split("::")
        module = ".".join([path.removesuffix(".py").replace("/", "."), *classes])
        status, _, why = told.partition(": ")
        tag = {"failed": "failure", "xfailed": "skipped"}.get(status, status)
        kind = {"skipped": ' type="pytest.skip"', "xfailed": ' type="pytest.xfail"'}.get(status, "")
        inside = "" if status == "passed" else f"<{tag}{kind} message={quoteattr(why)}>{escape(why)}</{tag}>"
        file = f' file="{path}" line="1"' if paths else ""
        rows.append(f'<testcase classname="{module}" name={quoteattr(test)}{file} time="0.001">{inside}</testcase>')
    head = f'<testsuite name="pytest" errors="0" failures="0" skipped="0" tests="{len(cases)}" time="0.1">'
    return f'<?xml version="1.0" encoding="utf-8"?><testsuites>{head}{"".join(rows)}</testsuite></testsuites>'
