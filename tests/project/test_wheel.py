"""The wheel works alone, from an empty folder, and asks for no torch."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling", reason="the dev extra brings hatchling")

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory) -> Path:
    """The wheel alone; its dependencies come from the environment that runs the tests."""
    target = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*command, str(wheel)], check=True, capture_output=True)
    return target


@pytest.fixture
def run(installed, tmp_path):
    def run(*command: str) -> str:
        environment = {**os.environ, "PYTHONPATH": str(installed), "PATH": f"{installed / 'bin'}:{os.environ['PATH']}"}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert list(tmp_path.iterdir()) == []
        return done.stdout

    return run


def test_what_is_in_it(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"dsbench/py.typed", "impl/py.typed", "dsbench/data/word_problems.jsonl"} <= names
    shipped = [path.relative_to(ROOT).as_posix() for path in (ROOT / "impl" / "weights").iterdir() if path.is_file()]
    assert any(name.endswith(".safetensors") for name in shipped)
    assert set(shipped) <= names
    suites = {f"dsbench/_suites/{path.name}" for path in (ROOT / "suites").glob("*.toml")}
    assert suites
    assert suites <= names
    assert not [name for name in names if name.startswith(("tests/", "results/", "suites/"))]


def test_it_asks_for_no_torch(wheel):
    with zipfile.ZipFile(wheel) as archive:
        metadata = archive.read(next(n for n in archive.namelist() if n.endswith("METADATA"))).decode()
    requirements = [line.removeprefix("Requires-Dist: ") for line in metadata.splitlines() if "Requires-Dist" in line]
    bare = [r for r in requirements if "extra ==" not in r]
    for_vllm = [r for r in requirements if "extra == 'vllm'" in r]
    assert bare
    assert for_vllm
    assert not [r for r in bare + for_vllm if r.startswith(("torch", "vllm", "triton", "dsbench-dspark"))]
    assert "Name: dsbench-dspark" in metadata


def test_help_and_version(run, installed):
    assert "published-table" in run("dsbench", "kv", "--help")
    assert run("dsbench", "--help").startswith("Usage: dsbench")
    assert run(sys.executable, "-m", "dsbench", "--version").startswith("dsbench ")
    assert run(sys.executable, "-c", "import dsbench; print(dsbench.__file__)").startswith(str(installed))


def test_published_table(run):
    assert "1,095,149" in run("dsbench", "kv", "--published-table")


def test_toggles(run):
    assert "mhc_input_reuse" in run("dsbench", "toggles")


def test_suites_and_weights_are_found(run, installed):
    code = "from dsbench.suite import load_suite; print(load_suite('quick').name, load_suite('kv').name)"
    assert run(sys.executable, "-c", code) == "quick kv\n"
    found = run(sys.executable, "-c", "from dsbench.doctor import _weights_folder; print(_weights_folder())")
    assert found.strip() == str(installed / "impl" / "weights")
