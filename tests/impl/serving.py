"""One real server process with untrained weights, and a client of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
PICO = [sys.executable, "-m", "impl.serve", "--dims", "pico"]
SERVE = [*PICO, "--load-format", "dummy", "--memory-budget", str(16 << 20)]


def environment(boot: Path | None = None, toggles: str = "") -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith("DSBENCH_")}
    added = {"DSBENCH_BOOT_DIR": str(boot)} if boot else {}
    return {**kept, **added, "DSBENCH_TOGGLES": toggles, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}


@dataclass
class Server:
    process: subprocess.Popen[bytes]
    boot: Path
    client: httpx.Client

    def complete(self, **body: Any) -> dict[str, Any]:
        response = self.client.post("/v1/completions", json={"model": "pico", **body})
        assert response.status_code == 200, response.text
        return response.json()

    def stream(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Chunks of a stream, after checking that it is one and ends as one."""
        with self.client.stream("POST", path, json={"model": "pico", "stream": True, **body}) as response:
            assert response.status_code == 200
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line]
        assert all(line.startswith("data: ") for line in lines)
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]

    def metric(self, name: str) -> float:
        lines = self.client.get("/metrics").text.splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name}{{", f"{name} ")))


def start(boot: Path, *flags: str, toggles: str = "") -> Server:
    log = (boot / "log").open("wb")
    process = subprocess.Popen(
        [*SERVE, "--port", "0", *flags], env=environment(boot, toggles), cwd=boot, stdout=log, stderr=log
    )
    ready = boot / "ready.json"
    while not ready.exists():
        assert process.poll() is None, (boot / "log").read_text()
        time.sleep(0.05)
    facts = json.loads(ready.read_text())
    assert facts["pid"] == process.pid
    return Server(process, boot, httpx.Client(base_url=f"http://{facts['host']}:{facts['port']}", timeout=60))


def run(*flags: str, boot: Path | None = None, toggles: str = "") -> subprocess.CompletedProcess[str]:
    command = [*PICO, *flags]
    return subprocess.run(
        command, env=environment(boot, toggles), cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
