"""`dsbench tests`, from reports and from runs."""

import json
from dataclasses import dataclass

import pytest

from dsbench.cli import main
from tests.dsbench.score.pytest_files import junit

FAILED = "failed: AssertionError: x"


@dataclass
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def dsbench(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    def go(*args):
        with pytest.raises(SystemExit) as ended:
            main(["tests", *map(str, args)])
        return Done(ended.value.code, *capsys.readouterr())

    return go


@pytest.fixture
def reports(tmp_path):
    def write(before, after, **collection):
        for name, cases in (("a.xml", before), ("b.xml", after)):
            (tmp_path / name).write_text(junit(cases, collection.get(name[0])))
        return tmp_path / "a.xml", tmp_path / "b.xml"

    return write


def test_a_variant_inherits_and_a_new_failure_does_not(dsbench, reports):
    before = {"t/test_k.py::test_x[bf16-128]": FAILED, "t/test_k.py::test_y": "passed"}
    after = before | {"t/test_k.py::test_x_reuses_y[128]": FAILED}
    done = dsbench(*reports(before, after))
    assert done.returncode == 0
    assert "test_x[bf16-128]" in done.stdout, "brackets are no markup"
    assert "inherits from test_x[*-128] (by name, parameters and reason): 1 case red in both arms" in done.stdout
    assert done.stdout.splitlines()[-1] == "equivalent"
    done = dsbench(*reports(before, after | {"t/test_k.py::test_y": FAILED}), "--json")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert told["word"] == "regressed"
    assert [d["id"] for d in told["differences"] if d["kind"] == "new failure"] == ["t/test_k.py::test_y"]
    assert told["b"] == {"failed": 3, "not collected": 0}


def test_exit_codes_of_collection_errors(dsbench, reports):
    good, bad = {"t/test_k.py::test_y": "passed"}, {"t/test_bad.py": "SyntaxError: invalid syntax"}
    assert dsbench(*reports(good, good, b=bad)).returncode == 1
    both = dsbench(*reports(good, good, a=bad, b=bad))
    assert both.returncode == 4
    assert "A cannot collect t/test_bad.py: SyntaxError: invalid syntax" in both.stdout


def test_the_map_file(dsbench, reports, tmp_path):
    before = {"t/test_k.py::test_old[1]": FAILED}
    pair = reports(before, before | {"t/test_k.py::test_new": FAILED})
    (tmp_path / "map.toml").write_text('"test_new" = "test_old[*]"\n')
    assert dsbench(*pair).returncode == 1
    assert dsbench(*pair, "--map", tmp_path / "map.toml").returncode == 0


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("a.xml", "nowhere.xml"), "nowhere.xml is not there: name a report, or a checkout to run tests in"),
        (("a.xml", "."), "a.xml and .: give two reports, or two checkouts"),
        ((".", "."), ". is a checkout: say what to run in it"),
        (("a.xml", "b.xml", "--", "tests"), "a.xml is a report: leave out 'tests'"),
        (("a.xml", "b.xml", "--map", "bad.toml"), "bad.toml: 'test_a' must be one id, in quotes, got '3'"),
        (("short.txt", "b.xml"), "short.txt: 3 passed tests without a name"),
        ((".", ".", "--", "nothing/here.py"), "nothing/here.py is in neither checkout"),
        ((".", ".", "--env", "X", "--", "a.xml"), "--a-env 'X': write NAME=VALUE"),
        ((".", ".", "--python", "no/venv", "--", "a.xml"), "--python no/venv: no interpreter at"),
    ],
)
def test_what_cannot_be_compared_is_one_line(dsbench, reports, tmp_path, args, said):
    reports({"t/test_k.py::test_y": "passed"}, {"t/test_k.py::test_y": "passed"})
    (tmp_path / "bad.toml").write_text("test_a = 3\n")
    (tmp_path / "short.txt").write_text("=== 3 passed in 0.10s ===\n")
    done = dsbench(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_two_checkouts_are_run_with_their_own_variables(dsbench, tmp_path):
    for arm, more in (("a", ""), ("b", "def test_more(): pass\n")):
        (tmp_path / arm / "tests").mkdir(parents=True)
        text = f"import os\ndef test_env(): assert os.environ['FEATURE'] == 'off'\ndef test_same(): pass\n{more}"
        (tmp_path / arm / "tests" / "test_k.py").write_text(text)
    (tmp_path / "b" / "tests" / "test_new.py").write_text("def test_new(): pass\n")
    options = ["--a-env", "FEATURE=off", "--b-env", "FEATURE=on", "--repeats", "2", "-o", tmp_path / "kept", "--json"]
    done = dsbench("a", "b", *options, "--", "tests/test_k.py", "tests/test_new.py")
    assert done.returncode == 1
    assert "note: A has no tests/test_new.py" in done.stderr
    kinds = {d["id"].rpartition("::")[2]: d["kind"] for d in json.loads(done.stdout)["differences"]}
    assert kinds == {"test_env": "new failure", "test_more": "added", "test_new": "added"}
    assert sorted(p.name for p in (tmp_path / "kept").glob("*.xml")) == ["a1.xml", "a2.xml", "b1.xml", "b2.xml"]
