import json
import os
import platform
import socket
import sys

import pytest

from dsbench.errors import InputError
from dsbench.fingerprint import fingerprint


def test_it_is_this_machine_and_names_nobody():
    found = fingerprint()
    assert (found.kernel, found.python) == (platform.release(), platform.python_version())
    assert found.cores >= 1
    assert found.memory_gib >= 1
    assert found.cpu
    text = found.model_dump_json()
    assert socket.gethostname() not in text
    assert os.path.expanduser("~") not in text
    assert "/" not in found.torch


def test_another_interpreter_tells_its_own_versions(tmp_path):
    assert fingerprint(sys.executable) == fingerprint()
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\nprintf '3.99.0\\n2.99.0\\n'\n")
    fake.chmod(0o755)
    assert fingerprint().changes(fingerprint(str(fake))) == [
        f"python {platform.python_version()} -> 3.99.0",
        f"torch {fingerprint().torch} -> 2.99.0",
    ]
    fake.write_text("#!/bin/sh\nexit 3\n")
    fingerprint.cache_clear()
    with pytest.raises(InputError, match="does not tell its version"):
        fingerprint(str(fake))


def test_versions_read_back_from_an_engine_count():
    now = fingerprint()
    assert now.read_back({"python": now.python, "torch": now.torch, "seed": 0}) == now
    assert now.changes(now.read_back({"torch": "0.1"})) == [f"torch {now.torch} -> 0.1"]
    assert now.read_back({}) == now


def test_changes_name_lists_too():
    now = fingerprint()
    more = now.model_copy(update={"gpus": ["X, 80 GiB, driver 1"], "cores": now.cores + 1})
    assert now.model_copy(update={"gpus": []}).changes(more) == [
        f"cores {now.cores} -> {now.cores + 1}",
        "gpus none -> X, 80 GiB, driver 1",
    ]
    assert json.loads(now.model_dump_json())["kernel"] == platform.release()
