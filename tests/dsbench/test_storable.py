"""No secret, and nothing that cannot be read again, becomes part of a plan, whatever option brings it."""

import os
import subprocess
import sys

import pytest

from dsbench.errors import InputError
from dsbench.storable import plan_text, refuse_secrets_in
from dsbench.store import create
from tests.dsbench.conftest import ROOT

KEY = "sk-planted-SECRET-abcdef12345"
RIG = 'start = ["serve", "{args}"%s]\nurl = "http://%s127.0.0.1:9"\nstop = ["stop"%s]\nhealth = ["ask"%s]\n'
SUITE = """name = "s"
summary = "s"
blocks = 1
[probes.decode]
streams = [1]
tokens = 8
prompts = ["Say %s"]
"""
EMBEDDED = ("--suite", "kv", "--dims", "pico")
VLLM = ("--engine", "vllm")
COMMAND = ("--engine", "command", "--rig", "rig.toml", "--arm", "a=env=A=1", "--arm", "b=env=A=2")
CASES = {
    "url query": (("--a", f"http://127.0.0.1:9/?api_key={KEY}", "--b", "http://127.0.0.1:9"), "--a", "MY_API_KEY"),
    "url user": (("--a", "http://127.0.0.1:9", "--b", f"http://u:{KEY}@127.0.0.1:9"), "--b", "MY_API_KEY"),
    "url literal": (("--a", "http://127.0.0.1:9", "--b", "http://u:hunter2secret@h:9"), "--b", "user:password@"),
    "url name": (("--a", "http://127.0.0.1:9/?token=hunter2secret", "--b", "http://h:9"), "--a", "token"),
    "no user": (("--a", "u:hunter2secret@h", "--b", "http://h:9"), "--endpoint", "http://host:port"),
    "no url": (("--a", "htp:/u:hunter2secret@h", "--b", "http://h:9"), "--endpoint", "user:password@"),
    "arm env": ((*EMBEDDED, "--arm", "a=env=X=1", "--arm", f"b=env=X={KEY}"), "--arm b", "MY_API_KEY"),
    "arm name": ((*EMBEDDED, "--arm", "a=env=X=1", "--arm", "b=env=FOO_TOKEN=hunter2secret"), "--arm b", "FOO_TOKEN"),
    "arm args": ((*EMBEDDED, "--arm", "a=", "--arm", f"b=args=--other {KEY}"), "--arm b: args", "MY_API_KEY"),
    "arm flag": ((*EMBEDDED, "--arm", "a=", "--arm", "b=args=--api-key hunter2secret"), "--arm b: args", "--api-key"),
    "serve-args": ((*VLLM, "--serve-args", f"m --header {KEY}", "--arm", "a=", "--arm", "b="), "--serve-args", "MY_"),
    "env": ((*VLLM, "--serve-args", "m", "--env", "A_TOKEN=hunter2secret", "-t", "x"), "--env A_TOKEN", "export it"),
    "env authorization": ((*VLLM, "--serve-args", "m", "--env", "AUTHORIZATION=Basic hunter2secret", "-t", "x"),
                          "--env AUTHORIZATION", "export it"),
    "arm authorization": ((*EMBEDDED, "--arm", "a=env=X=1", "--arm", "b=env=HEADERS=Bearer hunter2secret"), "--arm b",
                          "holds an Authorization of the kind Bearer"),
    "env value": ((*VLLM, "--serve-args", "m", "--env", f"A={KEY}", "-t", "x"), "--env A=...", "MY_API_KEY"),
    "rig start": ((*COMMAND, f', "{KEY}"', "", "", ""), "--rig.start.2", "MY_API_KEY"),
    "rig literal": ((*COMMAND, ', "HF_TOKEN=hunter2secret"', "", "", ""), "--rig.start.2", "HF_TOKEN"),
    "rig url": ((*COMMAND, "", "u:hunter2secret@", "", ""), "--rig.url", "user:password@"),
    "rig stop": ((*COMMAND, "", "", f', "{KEY}"', ""), "--rig.stop.1", "MY_API_KEY"),
    "rig health": ((*COMMAND, "", "", "", f', "http://h/?k={KEY}"'), "--rig.health.1", "MY_API_KEY"),
    "suite": (("--suite", "s.toml", "--dims", "pico", "--arm", "a=env=X=1", "--arm", "b=env=X=2"),
              "suite s: probes.decode.prompts.0", "MY_API_KEY"),
}  # fmt: skip
"""Arguments; what the line must name: the option, and the variable or the mend."""


@pytest.mark.parametrize("command", ["ab", pytest.param("plan", marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", CASES)
def test_a_secret_is_refused_wherever_it_stands_and_told_nowhere(case, command, tmp_path):
    args, option, named = CASES[case]
    if "rig.toml" in args:
        (tmp_path / "rig.toml").write_text(RIG % args[-4:])
        args = args[:-4]
    (tmp_path / "s.toml").write_text(SUITE % KEY)
    before = sorted(path.name for path in tmp_path.rglob("*"))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MY_API_KEY": KEY}
    done = subprocess.run([sys.executable, "-P", "-m", "dsbench", command, *args], capture_output=True, text=True,
                          cwd=tmp_path, env=environment, timeout=120, check=False)  # fmt: skip
    told = done.stdout + done.stderr
    assert done.returncode == 2, told
    assert not [part for part in ("planted", "abcdef12345", "hunter2", "secret@") if part in told], told
    assert told.count("\n") == 1, told
    assert option in told
    assert named in told
    assert sorted(path.name for path in tmp_path.rglob("*")) == before


def test_what_every_plan_says_is_no_secret(make_plan, monkeypatch):
    """Words of ours that are the value of a variable by chance."""
    for value in ("baseline", "available", "mhc_input_reuse", "process-local", "2025-05-01T10:11:12+00:00", "embedded"):
        monkeypatch.setenv("SOME_PASSWORD", value)
        if value != "mhc_input_reuse":
            refuse_secrets_in(make_plan())
    monkeypatch.setenv("SOME_PASSWORD", "mhc_input_reuse")
    with pytest.raises(InputError, match="SOME_PASSWORD"):
        refuse_secrets_in(make_plan())


def test_a_plan_is_stored_as_it_can_be_read_again(make_plan):
    plan = make_plan()
    assert type(plan).model_validate_json(plan_text(plan)) == plan
    wide = [metric.model_copy(update={"margin": 1e300}) for metric in plan.metrics]
    with pytest.raises(InputError, match=r"could not be read again: metrics\.0\.margin .*1e\+300"):
        plan_text(plan.model_copy(update={"metrics": wide}))


def test_nothing_of_a_plan_that_may_not_be_stored_is_left(make_plan, tmp_path, monkeypatch):
    plan = make_plan()
    arms = [plan.arms[0], plan.arms[1].model_copy(update={"args": ["--x", "abcdefgh"]})]
    monkeypatch.setenv("SOME_TOKEN", "abcdefgh")
    for change in ({"arms": arms}, {"metrics": [plan.metrics[0].model_copy(update={"margin": 1e300})]}):
        with pytest.raises(InputError):
            create(plan.model_copy(update=change), tmp_path / "results")
    assert list(tmp_path.iterdir()) == []
