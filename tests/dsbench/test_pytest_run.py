"""Real pytest runs in small checkouts."""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest

from dsbench.errors import InputError
from dsbench.pytest_run import NotRun, PytestRun, present, run_pytest
from dsbench.score.pytest_report import SESSION

PASSES = "def test_a(): pass\n"


@pytest.fixture
def run(tmp_path):
    def go(selection=("tests",), timeout=30.0, environment=None, python=sys.executable):
        asked = PytestRun(
            python, tmp_path, selection, timeout, {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(environment or {})}
        )
        return asyncio.run(run_pytest(asked, tmp_path / "out.xml", tmp_path / "out.log"))

    (tmp_path / "tests").mkdir()
    return go


def write(tmp_path, **files):
    for name, text in files.items():
        (tmp_path / "tests" / f"{name}.py").write_text(text)


def test_statuses_variables_and_a_clean_checkout(run, tmp_path):
    write(
        tmp_path,
        test_a=f"import os\n{PASSES}\ndef test_b(): assert os.environ['FEATURE'] == '1'\n",
        test_bad="import nope_x\n",
    )
    report = run(environment={"FEATURE": "0"})
    assert {name: case.status for name, case in report.cases.items()} == {
        "tests/test_a.py::test_a": "passed", "tests/test_a.py::test_b": "failed"
    }  # fmt: skip
    assert list(report.collection) == ["tests/test_bad.py"]
    assert run(environment={"FEATURE": "1"}).count("passed") == 2
    assert not (tmp_path / ".pytest_cache").exists()


def test_quiet_options_of_the_checkout_hide_nothing(run, tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -q --no-header\n")
    write(tmp_path, test_a=f"import os, signal\n{PASSES}\ndef test_b(): os.kill(os.getpid(), signal.SIGSEGV)\n")
    report = run()
    assert report.cases["tests/test_a.py::test_a"].green
    case = report.cases["tests/test_a.py::test_b"]
    assert (case.status, case.reason) == ("error", "the process ended with signal SIGSEGV")


def test_a_process_that_leaves_is_an_error_of_its_test(run, tmp_path):
    write(tmp_path, test_a="import os\ndef test_x(): os._exit(7)\n")
    assert run().cases["tests/test_a.py::test_x"].reason == "the process ended with code 7"


def test_a_conftest_that_cannot_be_imported_is_a_collection_error(run, tmp_path):
    write(tmp_path, test_a=PASSES, conftest="import no_such_thing\n")
    assert run().collection == {SESSION: "ModuleNotFoundError: No module named 'no_such_thing'"}


def test_ids_are_the_checkouts_whatever_stands_around_it(run, tmp_path, monkeypatch):
    """Seen: two checkouts in a folder with an ini file, whose ids began with their own names and never paired."""
    inner = tmp_path / "B"
    (inner / "tests").mkdir(parents=True)
    (inner / "tests" / "test_a.py").write_text(PASSES)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "link").symlink_to(inner)
    for checkout in (inner, tmp_path / "link"):
        asked = PytestRun(sys.executable, checkout, ("tests",), 30.0)
        report = asyncio.run(run_pytest(asked, tmp_path / "out.xml", tmp_path / "out.log"))
        assert list(report.cases) == ["tests/test_a.py::test_a"]


def test_ids_of_an_installed_package_do_not_say_where_it_is(run, tmp_path):
    package = tmp_path / "venv" / "site-packages" / "kernels_x"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "test_a.py").write_text(PASSES)
    (tmp_path / "checkout" / "tests").mkdir(parents=True)
    (tmp_path / "checkout" / "tests" / "test_b.py").write_text("def test_b(): pass\n")
    asked = PytestRun(
        sys.executable, tmp_path / "checkout", ("tests", "--pyargs", "kernels_x"), 30.0,
        {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(package.parent)},
    )  # fmt: skip
    (tmp_path / "checkout" / "kernels_x").mkdir()  # a selection names what a checkout has
    report = asyncio.run(run_pytest(asked, tmp_path / "out.xml", tmp_path / "out.log"))
    assert sorted(report.cases) == ["site-packages/kernels_x/test_a.py::test_a", "tests/test_b.py::test_b"]


def test_nothing_collected_is_a_run_without_cases(run, tmp_path):
    write(tmp_path, test_a="x = 1\n")
    assert run().cases == {}


def test_selection_by_id_and_by_keyword(run, tmp_path):
    write(tmp_path, test_a=PASSES + "def test_b(): pass\n")
    assert list(run(("tests/test_a.py::test_b",)).cases) == ["tests/test_a.py::test_b"]
    assert list(run(("tests", "-k", "test_a and not test_b")).cases)[:1] == ["tests/test_a.py::test_a"]


def test_what_cannot_run_says_why(run, tmp_path):
    write(tmp_path, test_a=PASSES)
    with pytest.raises(NotRun, match=r"pytest ended with code 4: not found: .*test_a.py::test_z"):
        run(("tests/test_a.py::test_z",))
    with pytest.raises(NotRun, match=r"code 4: unrecognized arguments: -n 4 --no-such"):
        run(("tests", "-n", "4", "--no-such"))
    with pytest.raises(NotRun, match=r"no tests/other\.py in"):
        run(("tests/other.py",))
    with pytest.raises(NotRun, match="cannot start"):
        run(python=str(tmp_path / "python"))
    with pytest.raises(InputError, match="names no file or folder"):
        run(("-k", "x"))


def test_a_deadline_ends_the_whole_group(run, tmp_path):
    write(
        tmp_path,
        test_a=f"""
import os, subprocess, time
def test_slow():
    child = subprocess.Popen(["sleep", "60"])
    open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))
    time.sleep(60)
""",
    )
    with pytest.raises(NotRun, match=r"not done within 3 s, in tests/test_a\.py::test_slow"):
        run(timeout=3.0)
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.02)
    os.kill(pid, 9)
    pytest.fail("the child outlived the deadline")


def test_files_that_one_checkout_lacks_are_left_out(tmp_path):
    (tmp_path / "tests").mkdir()
    assert present(["tests", "new/test_x.py::test_a", "-k", "new/x"], tmp_path) == (
        ["tests", "-k", "new/x"],
        ["new/test_x.py"],
    )
