"""Locks of GPUs between real processes, and which GPUs a plan holds."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dsbench.engines import devices, gpu_lock
from dsbench.engines.gpu_lock import gpus_of, locked
from dsbench.errors import InputError
from dsbench.execute import execute
from dsbench.store import create

HOLDER = """
import sys, time
from pathlib import Path
from dsbench.engines.gpu_lock import locked
with locked([0, 2], Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_gpu_is_held_until_its_holder_is_gone(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    )
    try:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(InputError, match="GPU 2 is measured by another dsbench"), locked([1, 2], tmp_path):
            pass
        with locked([1, 3], tmp_path):
            pass
    finally:
        holder.send_signal(signal.SIGKILL)
        holder.communicate()
    with locked([0, 1, 2, 3], tmp_path), pytest.raises(InputError, match="GPU 0 is"), locked([0], tmp_path):
        pass


@pytest.fixture
def two_gpus(monkeypatch, tmp_path):
    monkeypatch.setattr(
        devices, "reading", lambda visible: {"gpus": [{"number": n} for n in devices.seen_by_engine(visible, 2)]}
    )
    monkeypatch.setattr(gpu_lock.tempfile, "gettempdir", lambda: str(tmp_path))


def test_only_boots_on_a_gpu_hold_one(make_plan, two_gpus, monkeypatch):
    args = ["--dims", "pico", "--seed", "0"]
    assert gpus_of(make_plan(engine_args=args)) == set()
    on_gpu = make_plan(engine_args=[*args, "--device", "cuda"])
    assert gpus_of(on_gpu) == {0, 1}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert gpus_of(on_gpu) == {1}


def test_a_run_on_a_held_gpu_begins_nothing(make_plan, two_gpus, tmp_path):
    plan = make_plan(engine_args=["--dims", "pico", "--seed", "0", "--device", "cuda"])
    folder = create(plan, tmp_path)
    with locked([1]), pytest.raises(InputError, match="GPU 1 is measured by another dsbench"):
        execute(plan, folder, command=lambda plan, arm: ["/no/such/engine"], quiet=True)
    assert list((folder / "boots").iterdir()) == []
