"""A pool of this machine: each node is a thread that runs real units, and can be killed with all it has at work."""

from __future__ import annotations

import queue
import sys
import threading
from pathlib import Path

from dsbench.fingerprint import fingerprint
from dsbench.pool.hosts import Ended, Lost, Node
from dsbench.pool.unit import run_unit

FAKE = (sys.executable, str(Path(__file__).with_name("fake_unit.py")))
"""The harness of a unit with the fake engine in place of the embedded one."""


class LocalPool:
    """`loses` is called with each message; where it says so the node is lost there and then."""

    def __init__(self, names=("a", "b"), loses=lambda node, message: False, harness=FAKE, machines=None):
        machines = machines or {}
        self._nodes = [Node(name, 0, machines.get(name) or fingerprint()) for name in names]
        self._loses = loses
        self._harness = harness
        self._told = queue.Queue()
        self._dead = set()
        self._threads = []
        self.begun = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._dead |= {node.id for node in self._nodes}
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()

    def nodes(self):
        return self._nodes

    def start(self, node, unit):
        self.begun.append((node.id, [boot.number for boot in unit.boots]))
        self._threads.append(threading.Thread(target=self._run, args=(node, unit)))
        self._threads[-1].start()

    def next(self, seconds):
        try:
            return self._told.get(timeout=seconds)
        except queue.Empty:
            return None

    def _run(self, node, unit):
        try:
            self._tell(node, run_unit(unit, node.id, self._harness))
        except BaseException as error:
            self._told.put((node, Lost(repr(error))))
            raise

    def _tell(self, node, messages):
        for message in messages:
            if node.id in self._dead:
                break
            if self._loses(node.id, message):
                self._dead.add(node.id)
                self._told.put((node, Lost("planted")))
                break
            self._told.put((node, message))
            if isinstance(message, Ended):
                return
        messages.close()
