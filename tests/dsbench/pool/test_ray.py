"""A real experiment over two local Ray nodes, one of which is killed: `pytest -m ray`."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsbench import records as r
from dsbench import store
from dsbench.engines.strays import strays
from dsbench.evidence import gather
from dsbench.record_lines import record_of

ROOT = Path(__file__).resolve().parents[3]
PATIENCE_S = 90.0

SUITE = """
name = "pooled"
summary = "bytes of two hosts"
blocks = 4
warmup_boots = 1
until = "profile"
guards = ["kv.available_bytes"]
drift_controls = ["kv.weights_bytes"]
[timeouts]
boot = 60
stop = 3
[probes.kv]
"""

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def cluster():
    """A head that runs nothing, and two hosts on this machine; the last test kills one."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dsbench-dspark[ray]'")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", str(ROOT))
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.hosts = [cluster.add_node(num_cpus=1, resources={"dsbench": 1}) for _ in range(2)]
    yield cluster
    cluster.shutdown()
    patch.undo()


ON_FAKE = """#!/bin/sh
export FAKE_FAULT="$(cat {folder}/fault 2>/dev/null)"
if [ "$3" = impl.serve ]; then
    shift 3
    echo "${{CUDA_VISIBLE_DEVICES-none}}" >>{folder}/gpus
    for flag; do shift; case $flag in --device|cuda) ;; *) set -- "$@" "$flag" ;; esac; done
    sleep "$(cat {folder}/pause 2>/dev/null || echo 0)"
    PYTHONPATH={root} exec {python} {root}/tests/dsbench/fake_engine.py "$@"
fi
exec {python} "$@"
"""
"""An arm's interpreter that runs the fake engine where the embedded one is asked for: it starts without torch."""


def on_fake(folder):
    """Arms of the fake engine. Nodes, tasks, harnesses and records are real.

    In `folder` a file `fault` names the engine's fault, and `pause` the seconds before it starts; `gpus` gets a line
    a boot, of the GPUs that its engine sees.
    """
    python = folder / "python"
    python.write_text(ON_FAKE.format(root=ROOT, python=sys.executable, folder=folder))
    python.chmod(0o755)
    return ("--arm", f"base=python={python}", "--arm", f"input=toggles=mhc_input_reuse;python={python}")


def dsbench(*arguments, folder):
    """The command as a process of its own; its environment names no cluster."""
    line = [sys.executable, "-P", "-m", "dsbench", "ab", *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    return subprocess.Popen(
        line, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def records_so_far(folder):
    """The whole lines that are on the disk while the experiment runs."""
    found = list(folder.glob("results/*/records.jsonl"))
    lines = found[0].read_bytes().split(b"\n")[:-1] if found else []
    return [record_of(line) for line in lines]


def node_of(records, name):
    return next(host.node for x in records if isinstance(x, r.Run) for host in x.hosts if host.name == name)


def exact_rows(verdict):
    return [(row.metric, row.role, row.word, row.baseline, row.candidate, row.delta) for row in verdict.rows]


def wait_for(look):
    deadline = time.monotonic() + PATIENCE_S
    while not (found := look()):
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)
    return found


def stay(look, number):
    """What it gives, if it is so many and the same two seconds later."""
    first = look()
    if len(first) != number:
        return None
    time.sleep(2)
    return first if look() == first else None


def engines(experiment):
    """Ids of the processes of its boots that run on this machine, whatever node they are of."""
    place = Path(os.environ.get("TMPDIR", "/tmp")) / f"dsbench-pool-{os.getuid()}"
    return sorted(pid for folder in place.glob(f"{experiment}-*") for pid in strays(folder))


def no_orphan(experiment):
    deadline = time.monotonic() + 15
    while (found := engines(experiment)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return not found


def test_a_driver_that_is_killed_leaves_no_engine_and_goes_on(cluster, tmp_path):
    (tmp_path / "pooled.toml").write_text(SUITE)
    what = (*on_fake(tmp_path), "--suite", "pooled.toml", "--json")
    run = dsbench(*what, "--pool", f"ray:{cluster.address}", folder=tmp_path)
    wait_for(lambda: len([x for x in records_so_far(tmp_path) if isinstance(x, r.BootEnded)]) > 4)
    (folder,) = (tmp_path / "results").glob("*")
    (tmp_path / "fault").write_text("hang-boot")
    hanging = wait_for(lambda: stay(lambda: engines(folder.name), 2))
    run.kill()
    run.wait()
    (tmp_path / "fault").unlink()
    kept = [x for x in records_so_far(tmp_path) if isinstance(x, r.Observation)]
    assert no_orphan(folder.name), hanging
    again = dsbench("--resume", str(folder), "--pool", f"ray:{cluster.address}", "--json", folder=tmp_path)
    out, err = again.communicate(timeout=PATIENCE_S)
    assert again.returncode == 0, out + err
    result = store.load(folder)
    assert [x for x in result.records if isinstance(x, r.Observation)][: len(kept)] == kept != []
    assert (result.verdict.word, result.verdict.void) == ("improved", [])
    assert {host.name for host in result.verdict.hosts} <= {"host1", "host2"}


def test_the_embedded_engine_reads_over_two_nodes_what_it_reads_alone(cluster, tmp_path):
    suite = SUITE.replace("warmup_boots = 1", "warmup_boots = 0")
    verdicts = {}
    for place, where in (("pool", ("--pool", f"ray:{cluster.address}")), ("alone", ())):
        (tmp_path / place).mkdir()
        (tmp_path / place / "pooled.toml").write_text(suite)
        what = ("--toggle", "mhc_input_reuse", "--suite", "pooled.toml", "--blocks", "2", "--json", *where)
        run = dsbench(*what, folder=tmp_path / place)
        out, err = run.communicate(timeout=PATIENCE_S)
        assert run.returncode == 0, out + err
        (folder,) = (tmp_path / place / "results").glob("*")
        verdicts[place] = store.load(folder).verdict
    assert exact_rows(verdicts["pool"]) == exact_rows(verdicts["alone"])
    assert (verdicts["pool"].word, verdicts["pool"].void) == ("improved", [])
    assert [host.name for host in verdicts["pool"].hosts] == ["host1", "host2"]


@pytest.fixture
def gpu_cluster():
    """A host with two GPUs, as far as Ray is told, beside one that has none."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'dsbench-dspark[ray]'")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", str(ROOT))
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    cluster.with_gpus = cluster.add_node(num_cpus=1, num_gpus=2, resources={"dsbench": 1})
    cluster.add_node(num_cpus=1, num_gpus=0, resources={"dsbench": 1})
    yield cluster
    cluster.shutdown()
    patch.undo()


def test_units_that_need_a_gpu_get_one_of_their_own(gpu_cluster, tmp_path):
    (tmp_path / "pooled.toml").write_text(SUITE)
    what = (*on_fake(tmp_path), "--device", "cuda", "--suite", "pooled.toml", "--json")
    run = dsbench(*what, "--pool", f"ray:{gpu_cluster.address}", folder=tmp_path)
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, out + err
    (folder,) = (tmp_path / "results").glob("*")
    result = store.load(folder)
    assert result.verdict.word == "improved"
    assert {x.host for x in result.records if isinstance(x, r.BootStarted)} == {"host1"}
    assert node_of(result.records, "host1") == gpu_cluster.with_gpus.node_id
    assert set((tmp_path / "gpus").read_text().split()) in ({"0"}, {"1"}, {"0", "1"}), "each boot sees one GPU, no more"


def test_two_nodes_one_killed(cluster, tmp_path):
    for place in ("pool", "alone"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "pooled.toml").write_text(SUITE)
    what = (*on_fake(tmp_path), "--suite", "pooled.toml", "--json")
    (tmp_path / "pause").write_text("3")  # of the boot that is to be met at work
    run = dsbench(*what, "--pool", f"ray:{cluster.address}", folder=tmp_path / "pool")

    def in_a_block_of_host2():
        """Its first boot of a block has ended, and it is at the second."""
        assert run.poll() is None, run.communicate()
        records = records_so_far(tmp_path / "pool")
        at = [x for x in records if isinstance(x, r.BootStarted) and x.host == "host2" and x.block is not None]
        return records if len(at) == 2 else None

    records = wait_for(in_a_block_of_host2)
    killed = next(host for host in cluster.hosts if host.node_id == node_of(records, "host2"))
    cluster.remove_node(killed, allow_graceful=False)
    (tmp_path / "pause").unlink()
    kept = (next((tmp_path / "pool").glob("results/*/records.jsonl"))).read_bytes()
    kept = kept[: kept.rfind(b"\n") + 1]
    out, err = run.communicate(timeout=PATIENCE_S)
    assert run.returncode == 0, out + err
    assert "host2 is lost" in err

    (folder,) = (tmp_path / "pool/results").glob("*")
    result = store.load(folder)
    assert (folder / "records.jsonl").read_bytes().startswith(kept)
    boots = gather(result.plan, result.records)
    assert all(boot.ok for boot in boots)
    hosts = {}
    for boot in boots:
        hosts.setdefault(boot.planned.block, set()).add(boot.host)
        assert (folder / boot.ended.log).stat().st_size == boot.ended.log_bytes
    assert all(len(of_block) == 1 for block, of_block in hosts.items() if block is not None)
    lost = [x for x in result.records if isinstance(x, r.BootEnded) and "host2 was lost" in x.reason]
    assert [x.status for x in lost] == ["interrupted"] * 2
    assert sum("superseded" in x.reason for x in lost) == 1
    started = {(x.boot, x.attempt) for x in result.records if isinstance(x, r.BootStarted)}
    assert started == {(x.boot, x.attempt) for x in result.records if isinstance(x, r.BootEnded)}

    undisturbed = dsbench(*what, folder=tmp_path / "alone")
    assert undisturbed.wait(PATIENCE_S) == 0, undisturbed.communicate()
    (alone,) = (tmp_path / "alone/results").glob("*")
    assert exact_rows(result.verdict) == exact_rows(store.load(alone).verdict)
    assert (result.verdict.word, result.verdict.void) == ("improved", [])
    assert no_orphan(result.plan.id)
