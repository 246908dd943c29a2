"""Reports of the committed results in headless Chromium; and that the check finds what is planted.

`python -m tests.browser.check_report FILE` is the same check of any report.
"""

from pathlib import Path

import pytest

import dsbench
from dsbench.judge import judge
from dsbench.report.html import html
from dsbench.report.page import page
from tests.browser.browser import Browser, missing
from tests.browser.check_report import problems

RESULTS = Path(__file__).resolve().parents[2] / "results"
COMMITTED = sorted(path.parent for name in ("h200", "selftest") for path in (RESULTS / name).rglob("plan.json"))

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "installed")

BAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>bad</title></head>
<body style="background:#fff;color:#000">
<p style="color:#999">pale</p><div style="width:2000px">wide</div><details><summary>more</summary>
<p style="background:#333;color:#555">hidden pale</p></details>
<svg viewBox="0 0 100 40" style="width:200px" aria-label="plot"><rect x="0" y="0" width="100" height="20" fill="#222"/>
<text x="5" y="14" font-size="10">on dark</text><text x="10" y="16" font-size="10">over</text>
<text x="90" y="34" font-size="10">leaves it</text></svg>
<img src="https://example.invalid/x.png" alt=""><script>console.error("told")</script></body></html>"""


@pytest.fixture(scope="module")
def browser():
    with Browser() as opened:
        yield opened


def test_there_are_committed_results():
    assert len(COMMITTED) >= 5


@pytest.mark.parametrize("folder", COMMITTED, ids=lambda folder: str(folder.relative_to(RESULTS))[:40])
def test_committed_result(folder, browser, tmp_path):
    result = dsbench.load(folder)
    verdict = result.verdict or judge(result.plan, result.records)
    path = tmp_path / "report.html"
    path.write_text(html(page(result.plan, result.records, verdict)), encoding="utf-8")
    assert list(problems(browser, path)) == []


def test_the_check_finds_what_is_planted(browser, tmp_path):
    path = tmp_path / "bad.html"
    path.write_text(BAD, encoding="utf-8")
    told = "\n".join(problems(browser, path))
    for fault in ('of "pale"', "overflow", 'of "hidden pale"', '"on dark" on a mark', "touches", "leaves plot",
                  "console: ", "asked for https://example.invalid/x.png"):  # fmt: skip
        assert fault in told, fault
