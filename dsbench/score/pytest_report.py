"""What one pytest run says: the status of every test by its id, from JUnit XML or from the console's text."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args
from xml.etree import ElementTree

from dsbench.errors import InputError

Status = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]
"""`error`: set-up or tear-down failed, or the process ended inside the test."""

STATUSES: tuple[Status, ...] = get_args(Status)
UNCOLLECTED = "not collected"
SESSION = "(session)"
"""Stands for a module where pytest could not even begin to collect."""
ENDED = "the process ended"
"""How the reason of a test begins in which the run itself ended; the tests after it have no status."""

LONGEST = 4000
"""No result is longer than this line; what a test prints may be, and is not looked at."""

_SEVERITY: tuple[Status, ...] = ("passed", "xpassed", "xfailed", "skipped", "error", "failed")
_WORDS: dict[str, Status] = {
    "PASSED": "passed", "FAILED": "failed", "ERROR": "error", "SKIPPED": "skipped", "XFAIL": "xfailed",
    "XPASS": "xpassed",
}  # fmt: skip
_ONE_WORD = "|".join(_WORDS)
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_VERBOSE = re.compile(rf"^(\S+?::.+?) ({_ONE_WORD})(?: \((.*)\))?\s*(?:\[\s*\d+%\])?$")
_XDIST = re.compile(rf"^\[gw\d+\](?: \[\s*\d+%\])? ({_ONE_WORD}) (\S+?::.+?)\s*$")
_BEGUN = re.compile(r"^([^\s:]+\.py::\S.*?)\s*(?:Fatal Python error.*)?$")
_FATAL = re.compile(r"(?:^|\s)Fatal Python error: (.+)$")
_SECTION = re.compile(r"^=+ (.+?) =+$")
_TOTALS = re.compile(r"^(?:=+ )?((?:\d+ [a-z]+(?:, )?)+) in [\d.]+s(?: \(.*\))?(?: =+)?$")
_EMPTY = re.compile(r"^(?:=+ )?no tests (?:ran|collected)\b")
_HEADING = re.compile(r"^_+ (.+?) _+$")
_COLLECTING = "ERROR collecting "


@dataclass(frozen=True)
class Case:
    """One test of one run."""

    status: Status
    reason: str = ""
    """First line of why it did not simply pass."""

    @property
    def red(self) -> bool:
        return self.status in ("failed", "error")

    @property
    def green(self) -> bool:
        return self.status in ("passed", "xpassed")


@dataclass(frozen=True)
class PytestReport:
    """One run of a selection of tests."""

    cases: dict[str, Case]
    """By id, `path/test_x.py::Class::test_y[params]`."""
    collection: dict[str, str] = field(default_factory=dict)
    """Why a module could not be collected, by its path; its tests are unknown and did not run."""
    unnamed: dict[Status, int] = field(default_factory=dict)
    """Tests that the totals of a text count and none of its lines names."""

    @property
    def ended(self) -> tuple[str, str] | None:
        """The test in which the run ended before its last one, and how; None where it came to its end."""
        return next(((name, c.reason) for name, c in self.cases.items() if c.reason.startswith(ENDED)), None)

    def count(self, *statuses: Status) -> int:
        named = sum(case.status in statuses for case in self.cases.values())
        return named + sum(self.unnamed.get(status, 0) for status in statuses)


def read_report(text: str, source: str) -> PytestReport:
    """JUnit XML or console text of pytest. InputError, naming `source`, for anything else."""
    if text.lstrip("\ufeff \r\n\t").startswith("<"):
        return read_junit(text, source)
    return _cut_short(text) or read_console(text, source)


def _cut_short(text: str) -> PytestReport | None:
    """What a text says whose run ended inside a test: no totals, and a test without a status; None for any other."""
    lines = [line for line in map(_plain, text.splitlines()) if len(line) <= LONGEST]
    if any(_TOTALS.match(line) or _EMPTY.match(line) for line in lines):
        return None
    fatal = next((found[1] for line in lines if (found := _FATAL.search(line))), "")
    try:
        report = read_console(text, "")
    except InputError:
        report = PytestReport({})
    begun = last_begun(text, report.cases)
    if begun is None or not (report.cases or fatal):
        return None
    how = f"{ENDED}: {fatal}" if fatal else f"{ENDED}, or its text was cut off"
    return PytestReport({**report.cases, begun: Case("error", how)}, report.collection)


def texts(report: PytestReport) -> dict[str, str | None]:
    """Each test and each module that could not be collected as one text, `status: reason`; None for a plain pass."""
    plain = Case("passed")
    told = {name: None if case == plain else f"{case.status}: {case.reason}" for name, case in report.cases.items()}
    return {**told, **{path: f"{UNCOLLECTED}: {reason}" for path, reason in report.collection.items()}}


def from_texts(told: Mapping[str, str | None]) -> PytestReport:
    """The report of which `texts` made these."""
    cases: dict[str, Case] = {}
    collection: dict[str, str] = {}
    for name, text in told.items():
        status, _, reason = (text or "passed").partition(": ")
        if status == UNCOLLECTED:
            collection[name] = reason
        elif status in STATUSES:
            cases[name] = Case(status, reason)
        else:
            raise InputError(f"records: '{status}' of {name} is no status of a test")
    return PytestReport(cases, collection)


def merged(reports: Iterable[PytestReport]) -> PytestReport:
    """Several runs of one selection as one: the worst status of every test counts."""
    cases: dict[str, Case] = {}
    collection: dict[str, str] = {}
    unnamed: Counter[Status] = Counter()
    for report in reports:
        for name, case in report.cases.items():
            _keep_worst(cases, name, case)
        collection |= report.collection
        unnamed |= Counter(report.unnamed)
    return PytestReport(cases, collection, dict(unnamed))


def _keep_worst(cases: dict[str, Case], name: str, case: Case) -> None:
    """A failure and the error of its tear-down are one red test."""
    known = cases.get(name)
    if known is None or _SEVERITY.index(case.status) > _SEVERITY.index(known.status):
        cases[name] = case


# --- JUnit ------------------------------------------------------------------------------------------------------------


def read_junit(text: str, source: str) -> PytestReport:
    """Pytest's JUnit XML of either family. InputError for a file that is cut off or of another kind."""
    try:
        root = ElementTree.fromstring(text.lstrip("\ufeff \r\n\t").encode("utf-8", "replace"))
    except (ElementTree.ParseError, ValueError) as error:
        raise InputError(f"{source}: no whole JUnit XML ({error}); a run that was stopped leaves none") from None
    if root.tag not in ("testsuites", "testsuite"):
        raise InputError(f"{source}: <{root.tag}> is no JUnit report; pytest writes one with --junitxml=FILE")
    cases: dict[str, Case] = {}
    collection: dict[str, str] = {}
    for element in root.iter("testcase"):
        fault = element.find("error")
        if fault is not None and fault.get("message") == "collection failure":
            collection[_module_path(element)] = _last_error(fault.text or "")
        else:
            _keep_worst(cases, _node_id(element), _case(element))
    return PytestReport(cases, collection)


def _case(element: ElementTree.Element) -> Case:
    failure, error, skipped = (element.find(tag) for tag in ("failure", "error", "skipped"))
    if failure is not None:
        return Case("failed", _reason(failure))
    if error is not None:
        return Case("error", _reason(error))
    if skipped is not None:
        xfail = skipped.get("type") == "pytest.xfail"
        return Case("xfailed" if xfail else "skipped", _first_line(skipped.get("message", "")))
    return Case("passed")


def _reason(element: ElementTree.Element) -> str:
    """`RuntimeError: ...`, also from `failed on setup with "RuntimeError: ..."`."""
    message = _first_line(element.get("message", "")) or _last_error(element.text or "")
    staged = re.match(r'failed on (?:setup|teardown) with "(.*?)"?$', message)
    return staged[1] if staged else message


def _last_error(text: str) -> str:
    """The last line that pytest marks as the error itself, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line[1:].strip() for line in lines if re.match(r"E\s", line)]
    return (marked or lines or [""])[-1]


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _node_id(element: ElementTree.Element) -> str:
    """The id as pytest prints it. Only one of JUnit's families has the path; without it the module's name gives it."""
    classname, name = element.get("classname", ""), element.get("name", "")
    path = _posix(element.get("file", ""))
    parts = [part for part in classname.split(".") if part]
    stem = path.rpartition("/")[2].removesuffix(".py")
    if path and stem in parts:
        classes = parts[len(parts) - parts[::-1].index(stem) :]
    elif path:
        classes = []
    else:
        modules = [i for i, part in enumerate(parts) if part.startswith("test_") or part.endswith("_test")]
        if not modules:
            return f"{classname}::{name}" if classname else name
        path = "/".join(parts[: modules[-1] + 1]) + ".py"
        classes = parts[modules[-1] + 1 :]
    return "::".join([path, *classes, name])


def _module_path(element: ElementTree.Element) -> str:
    path = _posix(element.get("file", ""))
    return path or ".".join(filter(None, (element.get("classname"), element.get("name")))).replace(".", "/") + ".py"


def _posix(path: str) -> str:
    return _portable(path.replace("\\", "/").removeprefix("./"))


def _portable(text: str) -> str:
    """The id of a test of an installed package, as hypothesis's stateful ones are, without where that is installed."""
    head, found, rest = text.partition("site-packages/")
    place = head.rpartition(" ")[2]
    return text[: len(head) - len(place)] + found + rest if found and place.startswith("../") else text


# --- console ----------------------------------------------------------------------------------------------------------


def read_console(text: str, source: str) -> PytestReport:
    """What `pytest -v`, `-rA` or both print. InputError for a text without any result of pytest."""
    cases: dict[str, Case] = {}
    collection: dict[str, str] = {}
    totals: Counter[Status] = Counter()
    seen: dict[str, Counter[Status]] = {"lines": Counter(), "summary": Counter()}
    in_summary = ran = False
    collecting = ""
    for line in map(_plain, text.splitlines()):
        if len(line) > LONGEST:
            continue
        if found := _TOTALS.match(line):
            totals, ran, in_summary = _totals(found[1]), True, False
        elif _EMPTY.match(line):
            ran = True
        elif section := _SECTION.match(line):
            in_summary = section[1] == "short test summary info"
            collecting = ""
        elif in_summary:
            _summary_line(line, cases, collection, seen["summary"])
        elif found := _VERBOSE.match(line):
            _keep_worst(cases, found[1], Case(_WORDS[found[2]], found[3] or ""))
            seen["lines"][_WORDS[found[2]]] += 1
        elif found := _XDIST.match(line):
            _keep_worst(cases, found[2], Case(_WORDS[found[1]]))
            seen["lines"][_WORDS[found[1]]] += 1
        elif found := _HEADING.match(line):
            collecting = _posix(found[1].removeprefix(_COLLECTING)) if found[1].startswith(_COLLECTING) else ""
            if collecting:
                collection.setdefault(collecting, "")
        elif collecting and re.match(r"E\s", line):
            collection[collecting] = line[1:].strip()
    if not (ran or cases or collection):
        raise InputError(f"{source}: neither JUnit XML nor the text of a pytest run (-rA, or --junitxml=FILE)")
    totals["error"] -= len(collection)
    unnamed = {status: totals[status] - max(seen["lines"][status], seen["summary"][status]) for status in STATUSES}
    return PytestReport(cases, collection, {status: n for status, n in unnamed.items() if n > 0})


def last_begun(text: str, cases: Mapping[str, Case]) -> str | None:
    """The test that a run was in when its process ended: `pytest -v` prints the id before it starts."""
    begun = None
    for line in map(_plain, text.splitlines()):
        found = _BEGUN.match(line) if len(line) <= LONGEST else None
        if found and found[1] not in cases and not _VERBOSE.match(line):
            begun = found[1]
    return begun


def _summary_line(line: str, cases: dict[str, Case], collection: dict[str, str], seen: Counter[Status]) -> None:
    """One line of the short summary; lines of skipped tests name a place and no test."""
    word, _, rest = line.partition(" ")
    if word not in _WORDS or not rest or word == "SKIPPED":
        return
    name, reason = (rest.strip(), "") if word == "PASSED" else _split_reason(rest)
    if word == "ERROR" and "::" not in name:
        collection[_posix(name)] = reason or collection.get(_posix(name), "")
        return
    seen[_WORDS[word]] += 1
    known = cases.get(name)
    if known and known.status == _WORDS[word]:
        cases[name] = Case(known.status, reason or known.reason)
    else:
        _keep_worst(cases, name, Case(_WORDS[word], reason))


def _split_reason(rest: str) -> tuple[str, str]:
    """Id and reason; an id may itself have ` - ` between its brackets."""
    at = rest.find(" - ")
    while at >= 0:
        name = rest[:at]
        if "[" not in name.partition("::")[2] or name.endswith("]"):
            return name.strip(), _first_line(rest[at + 3 :])
        at = rest.find(" - ", at + 1)
    return rest.strip().removesuffix(" -"), ""


def _totals(text: str) -> Counter[Status]:
    plural: dict[str, Status] = {"errors": "error"}
    found: Counter[Status] = Counter()
    for number, word in re.findall(r"(\d+) ([a-z]+)", text):
        status = plural.get(word, word)
        if status in STATUSES:
            found[status] += int(number)
    return found


def _plain(line: str) -> str:
    return _portable(_COLOUR.sub("", line).rstrip())
