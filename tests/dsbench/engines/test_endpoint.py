"""Servers that run already: visited, and left as they were found."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.engines.endpoint import alive
from dsbench.errors import InputError
from dsbench.execute import execute
from dsbench.served import read_served

ROOT = Path(__file__).resolve().parents[3]


def served(*endpoints, **options):
    settings = {"python": None, "serve_args": None, "env": (), "rig": None, "toggles": (), **options}
    return read_served("endpoint", endpoints=endpoints, **settings)


@pytest.fixture
def server(tmp_path):
    """A fake engine that runs for the whole test."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DSBENCH_BOOT_DIR": str(tmp_path)}
    line = [sys.executable, str(ROOT / "tests/dsbench/fake_engine.py"), "--dims", "pico"]
    process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    ready = tmp_path / "ready.json"
    deadline = time.monotonic() + 30
    while not ready.is_file() and time.monotonic() < deadline:
        time.sleep(0.05)
    url = f"http://127.0.0.1:{json.loads(ready.read_text())['port']}"
    while not alive(url) and time.monotonic() < deadline:  # its file comes before it listens
        time.sleep(0.05)
    yield url, process
    process.terminate()
    process.wait()


def test_two_visits_to_running_servers(server, small, tmp_path):
    from dsbench.plan import plan_experiment

    url, process = server
    asked = served(f"a={url}", f"b={url}/")
    suite = asked.suite(small.model_copy(update={"warmup_boots": 0, "blocks": 1}), timeout=30.0)
    assert suite.probes.kv is None
    plan = asked.finish(
        plan_experiment((), suite, asked.dims(), arms=asked.specs(()), engine="endpoint", alike=True)
    ).model_copy(update={"dims": {"name": "pico", "vocab_size": 95}})
    assert [arm.url for arm in plan.arms] == [url, url]
    folder = store.create(plan, tmp_path / "results")
    execute(plan, folder, quiet=True)
    records = store.load_records(folder)[0]
    assert [end.status for end in records if isinstance(end, r.BootEnded)] == ["ok", "ok"]
    assert {check.status for check in records if isinstance(check, r.Check)} == {"done"}
    assert process.poll() is None


@pytest.mark.parametrize(
    ("endpoints", "said"),
    [
        (("a=http://x",), "needs two arms"),
        (("a=http://x", "a=http://y"), "there twice"),
        (("a=ftp://x", "b=http://y"), "write NAME=http"),
    ],
)
def test_endpoints_that_cannot_be(endpoints, said):
    with pytest.raises(InputError, match=said):
        served(*endpoints)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/"])
def test_an_address_may_end_in_v1_as_other_clients_take_it(end):
    assert served(f"a=http://x:1{end}", f"b=http://y/of{end}").urls == {"a": "http://x:1", "b": "http://y/of"}


def test_what_is_asked_must_fit_the_shorter_of_the_servers(monkeypatch):
    told = {"a": {"max_model_len": 4096}, "b": {"max_model_len": 1024}, "c": {}}
    asked = served(*(f"{name}=http://{name}" for name in told))
    vars(asked)["told"] = told
    assert asked.dims().max_model_len == 1024


def test_a_running_server_takes_no_toggles():
    with pytest.raises(InputError, match="takes no toggles"):
        served("a=http://x", "b=http://y", toggles=("mhc_input_reuse",))


def test_variables_are_checked(monkeypatch):
    monkeypatch.delenv("SOME_TOKEN", raising=False)
    with pytest.raises(InputError, match="export it to pass a secret"):
        served("a=http://x", "b=http://y", env=("SOME_TOKEN",))
    monkeypatch.setenv("SOME_TOKEN", "abcdefgh")
    assert served("a=http://x", "b=http://y", env=("SOME_TOKEN", "X=1")).env == {"X": "1"}
    with pytest.raises(InputError, match="set by dsbench"):
        served("a=http://x", "b=http://y", env=("DSBENCH_TOGGLES=a",))
