"""Statuses by id, from what pytest itself writes and from files that were made up."""

import contextlib
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.errors import InputError
from dsbench.score.pytest_report import Case, PytestReport, last_begun, merged, read_console, read_junit, read_report
from tests.dsbench.score.pytest_files import junit

TESTS = """
import pytest

@pytest.mark.parametrize("a", ["x - y", "b]c", "128"])
@pytest.mark.parametrize("b", [1, 2])
def test_params(a, b):
    assert a != "128" or b == 1, "one\\ntwo"

class TestClass:
    def test_method(self):
        print("FAILED tests/test_a.py::test_said - by a test itself")

@pytest.mark.skip(reason="no")
def test_skipped(): pass

@pytest.mark.xfail(reason="bug")
def test_xfailed(): assert 0

@pytest.mark.xfail
def test_xpassed(): pass

@pytest.fixture
def torn():
    yield
    raise RuntimeError("torn down")

def test_torn(torn): pass
def test_failed_and_torn(torn): assert 0

@pytest.fixture
def unset(): raise ValueError("not set up")
def test_unset(unset): pass
"""
HERE = "tests/test_a.py"
EXPECTED = {
    f"{HERE}::test_params[1-x - y]": "passed",
    f"{HERE}::test_params[1-b]c]": "passed",
    f"{HERE}::test_params[1-128]": "passed",
    f"{HERE}::test_params[2-x - y]": "passed",
    f"{HERE}::test_params[2-b]c]": "passed",
    f"{HERE}::test_params[2-128]": "failed",
    f"{HERE}::TestClass::test_method": "passed",
    f"{HERE}::test_skipped": "skipped",
    f"{HERE}::test_xfailed": "xfailed",
    f"{HERE}::test_xpassed": "xpassed",
    f"{HERE}::test_torn": "error",
    f"{HERE}::test_failed_and_torn": "failed",
    f"{HERE}::test_unset": "error",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Console text and JUnit XML of one real run."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "tests").mkdir()
    (folder / "tests" / "test_a.py").write_text(TESTS)
    (folder / "tests" / "test_bad.py").write_text("import no_such_module_here\n")

    def go(*options: str) -> tuple[str, str]:
        line = [sys.executable, "-m", "pytest", "tests", "-p", "no:cacheprovider", "--junitxml=out.xml", *options]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
        return done.stdout, (folder / "out.xml").read_text()

    return go


def statuses(report: PytestReport) -> dict[str, str]:
    return {name: case.status for name, case in report.cases.items()}


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_junit_of_both_families(run, family):
    report = read_report(run("--continue-on-collection-errors", "-o", f"junit_family={family}")[1], "out.xml")
    # Neither family marks a test that passes against its mark.
    assert statuses(report) == {**EXPECTED, f"{HERE}::test_xpassed": "passed"}
    assert report.collection == {"tests/test_bad.py": "ModuleNotFoundError: No module named 'no_such_module_here'"}
    assert report.cases[f"{HERE}::test_params[2-128]"].reason == "AssertionError: one"
    assert report.cases[f"{HERE}::test_unset"].reason == "ValueError: not set up"
    assert report.cases[f"{HERE}::test_torn"].reason == "RuntimeError: torn down"


def test_console_by_lines_and_by_summary(run):
    report = read_report(run("--continue-on-collection-errors", "-v", "--color=yes")[0], "o")
    assert statuses(report) == EXPECTED
    assert report.unnamed == {}
    short = read_report(run("--continue-on-collection-errors", "-rA")[0], "out.txt")
    assert statuses(short) == {name: status for name, status in EXPECTED.items() if status != "skipped"}
    assert short.unnamed == {"skipped": 1}
    assert short.count("skipped") == 1
    assert short.collection == {"tests/test_bad.py": "ModuleNotFoundError: No module named 'no_such_module_here'"}


def test_what_a_short_text_leaves_out_is_counted(run):
    report = read_console(run("--continue-on-collection-errors", "-q")[0], "out.txt")
    assert report.unnamed["passed"] == 7, "6 that pass, and the one whose tear-down errs"
    assert statuses(report)[f"{HERE}::test_params[2-128]"] == "failed"


def test_an_interrupted_collection_ran_nothing(run):
    report = read_console(run("-rA")[0], "out.txt")
    assert (report.cases, list(report.collection)) == ({}, ["tests/test_bad.py"])


def test_lines_of_xdist():
    text = "[gw0] [ 50%] PASSED tests/test_x.py::test_a[1 2] \n[gw1] [100%] FAILED tests/test_x.py::test_b \n"
    assert statuses(read_console(text, "t")) == {
        "tests/test_x.py::test_a[1 2]": "passed",
        "tests/test_x.py::test_b": "failed",
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<testsuites><testsuite>", "no whole JUnit XML"),
        ("<html></html>", "<html> is no JUnit report"),
        ("nothing of pytest\n", "neither JUnit XML nor the text of a pytest run"),
        ("", "neither JUnit XML"),
    ],
)
def test_other_files_are_refused_in_one_line(text, said):
    with pytest.raises(InputError) as caught:
        read_report(text, "file.xml")
    assert str(caught.value).startswith("file.xml: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_line_that_is_too_long_is_no_result():
    long = "tests/test_x.py::" + "a::" * 100_000
    text = f"{long} FAILED [ 1%]\ntests/test_x.py::test_b PASSED\n{long}"
    assert statuses(read_console(text, "t")) == {"tests/test_x.py::test_b": "passed"}
    assert last_begun(text, {}) is None


def test_no_tests_is_a_run():
    assert read_console("\n==== no tests ran in 0.01s ====\n", "t").cases == {}


def test_the_test_in_which_a_process_ended():
    text = (
        "tests/test_x.py::test_a PASSED  [ 50%]\ntests/test_x.py::test_b[1-2] Fatal Python error: Segmentation fault\n"
    )
    assert last_begun(text, read_console(text, "t").cases) == "tests/test_x.py::test_b[1-2]"
    assert last_begun("tests/test_x.py::test_b[a b] ", {}) == "tests/test_x.py::test_b[a b]"
    assert last_begun("tests/test_x.py::test_b PASSED\n", {}) is None


def test_the_worst_of_several_runs_counts():
    a, b = (
        read_junit(junit({"t/test_x.py::test_a": s, "t/test_x.py::test_b": "passed"}), s)
        for s in ("passed", "failed: x")
    )
    assert statuses(merged([b, a])) == {"t/test_x.py::test_a": "failed", "t/test_x.py::test_b": "passed"}


words = st.text("abcxyz019_ -[].", min_size=1, max_size=12).filter(lambda text: text.strip() == text)


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(["t/test_a.py", "t/u/test_b.py"]), st.sampled_from(["", "TestC"]), words),
        st.sampled_from(["passed", "failed: ValueError: 1", "skipped: why", "xfailed: why"]),
        max_size=8,
    ),
    st.booleans(),
)
def test_every_id_comes_back(cases, paths):
    """With a path or without, whatever stands between the brackets."""
    made = {"::".join(filter(None, (path, cls, f"test_x[{word}]"))): told for (path, cls, word), told in cases.items()}
    read = read_junit(junit(made, paths=paths), "made.xml")
    assert {name: case.status for name, case in read.cases.items()} == {n: t.partition(":")[0] for n, t in made.items()}


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text):
    report = PytestReport({})
    with contextlib.suppress(InputError):
        report = read_report(text, "x")
    assert all(isinstance(case, Case) for case in report.cases.values())


def test_the_place_of_an_installed_package_is_no_part_of_an_id():
    """As hypothesis's stateful tests have it; a test of the checkout keeps its path."""
    outside = "../../home/me/.venv/lib/python3.11/site-packages/hypothesis/stateful.py"
    junit = f"""<testsuites><testsuite>
    <testcase classname="site-packages.hypothesis.stateful" name="runTest" file="{outside}"/>
    <testcase classname="tests.test_a" name="test_b" file="tests/test_a.py"/></testsuite></testsuites>"""
    wanted = {"site-packages/hypothesis/stateful.py::runTest": "passed", "tests/test_a.py::test_b": "passed"}
    assert statuses(read_report(junit, "out.xml")) == wanted
    console = f"{outside}::runTest PASSED [ 50%]\ntests/test_a.py::test_b PASSED [100%]\n=== 2 passed in 0.01s ===\n"
    assert statuses(read_console(console, "out.txt")) == wanted
    assert last_begun(f"{outside}::runTest ", {}) == "site-packages/hypothesis/stateful.py::runTest"


def test_a_text_that_ends_in_a_test_says_where_its_run_ended():
    """Seen: a stored text of a run that died in its first test was no text of pytest, or lost the tests after it."""
    head = "=== test session starts ===\ncollecting ... collected 3 items\n\n"
    died = f"{HERE}::test_b[1] Fatal Python error: Segmentation fault\n\nCurrent thread 0x0 (most recent call first):\n"
    first = read_report(head + died, "a.txt")
    assert first.cases == {f"{HERE}::test_b[1]": Case("error", "the process ended: Segmentation fault")}
    assert first.ended == (f"{HERE}::test_b[1]", "the process ended: Segmentation fault")
    later = read_report(f"{head}{HERE}::test_a PASSED  [ 33%]\n{HERE}::test_b[1] ", "a.txt")
    assert [case.status for case in later.cases.values()] == ["passed", "error"]
    assert later.ended == (f"{HERE}::test_b[1]", "the process ended, or its text was cut off")
    whole = read_report(f"{head}{HERE}::test_a PASSED\n{HERE}::test_c\n=== 1 passed in 0.01s ===\n", "a.txt")
    assert (list(whole.cases), whole.ended) == ([f"{HERE}::test_a"], None)
    with pytest.raises(InputError):
        read_report(f"{HERE}::test_a\n{HERE}::test_b\n\n2 tests collected in 0.01s\n", "a.txt")
