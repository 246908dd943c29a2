"""The real server under clients that leave, at any moment: their blocks come back, and the log has no traceback."""

from __future__ import annotations

import json
import random
import signal
import socket
import time
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from tests.impl.serving import Server, start

LEAVING = 300
"""Clients; the thousand of the engine itself are in `engine/test_under_load.py`."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory.mktemp("boot"), "--max-num-seqs", "16", "--max-waiting", "40")
    yield server
    server.client.close()
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(30) == -signal.SIGTERM


def connect(server: Server) -> socket.socket:
    parts = urlsplit(str(server.client.base_url))
    return socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30)


def post(body: bytes, length: int | None = None) -> bytes:
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {length or len(body)}\r\n\r\n"
    return head.encode() + body


def idle(server: Server) -> bool:
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    return all(server.metric(f"vllm:{name}") == 0 for name in names)


def wait_idle(server: Server, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not idle(server):
        assert time.monotonic() < deadline, "requests of clients that left still run"
        time.sleep(0.05)


def test_clients_that_leave_at_once_or_later_leave_nothing(server: Server) -> None:
    """Streaming or not, before the answer begins or in its middle: 16 long requests alone would take minutes."""
    rng = random.Random(3)
    for _ in range(LEAVING):
        body = {"model": "pico", "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": rng.random() < 0.5}
        with connect(server) as client:
            client.sendall(post(json.dumps(body).encode()))
            if rng.random() < 0.3:
                time.sleep(rng.uniform(0, 0.02))
    wait_idle(server, 60)
    answer = server.client.post("/v1/completions", json={"model": "pico", "prompt": "a", "max_tokens": 4})
    assert answer.status_code == 200


def test_a_client_that_leaves_in_its_own_request_is_no_error_of_the_server(server: Server) -> None:
    for _ in range(5):
        with connect(server) as client:
            client.sendall(post(b'{"model": "pico"', 5000))
            time.sleep(0.02)
    assert server.client.get("/health").status_code == 200
    assert "Traceback" not in (server.boot / "log").read_text()


def test_more_than_may_wait_are_refused_and_the_others_answered(server: Server) -> None:
    body = {"model": "pico", "prompt": ["a"] * 100, "max_tokens": 400, "ignore_eos": True}
    refused = server.client.post("/v1/completions", json=body)
    error = refused.json()["error"]
    assert (refused.status_code, set(error)) == (429, {"message", "type", "param", "code"})
    assert "40 requests are waiting already" in error["message"]
    wait_idle(server, 60)
