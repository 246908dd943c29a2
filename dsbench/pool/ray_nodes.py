"""Ray as a pool: nodes of a running cluster, units as tasks pinned to one node and its GPUs (the extra `ray`)."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any

from dsbench import __version__
from dsbench.engines.secrets import redact
from dsbench.engines.vllm import world_size
from dsbench.errors import InputError
from dsbench.fingerprint import Fingerprint, fingerprint
from dsbench.pool.hosts import Lost, Message, Node
from dsbench.pool.unit import SPARE_S, run_unit
from dsbench.records import Plan

RESOURCE = "dsbench"
"""Nodes that are started with it are hosts: `ray start --address HEAD --resources '{"dsbench": 1}'`."""
ASK_S = 120.0
VARIABLE = "RAY_ADDRESS"


def parse_pool(text: str) -> str | None:
    """The address in `ray` or `ray:ADDRESS`, or None. InputError for anything else, and without the package."""
    name, _, address = text.partition(":")
    if name != "ray":
        raise InputError(f"--pool {text}: the only pool is ray; write ray, or ray:HOST:PORT")
    if address.startswith("ray:"):
        raise InputError(f"--pool {text}: a Ray client cannot be told of boots as they end; give the head's HOST:PORT")
    _ray()
    return address or None


def gpus_of_build(plan: Plan) -> int:
    """GPUs of one boot, in the arm that takes most."""
    lines = [[*plan.engine_args, *arm.args] for arm in plan.arms]
    if plan.engine == "vllm":
        return max(world_size(line) for line in lines)
    return int(any(part in ("cuda", "--device=cuda") for line in lines for part in line))


class RayPool:
    """The live nodes of a Ray cluster that runs already; none is started or stopped.

    Where nodes offer the resource `dsbench` they alone are hosts, one unit at a time each. Without it hosts are the
    nodes that have the GPUs of the build.
    """

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self._ray = _ray()
        self._running: dict[Any, Node] = {}
        self._demand: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> RayPool:
        before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            self._ray.init(address=os.environ.get(VARIABLE) or "auto", log_to_driver=False,
                           logging_level=logging.CRITICAL)  # fmt: skip
        except (ConnectionError, ValueError, RuntimeError) as error:
            where = os.environ.get(VARIABLE) or "on this machine"
            told = " ".join(redact(str(error)).split())[:160]
            raise InputError(
                f"--pool ray: no Ray cluster {where} ({told}): start one with ray start --head, or give ray:HOST:PORT"
            ) from None
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for force in (False, True):
            for stream in self._running:
                with contextlib.suppress(Exception):
                    self._ray.cancel(stream, force=force)
            deadline = time.monotonic() + self.plan.timeouts.stop + 2 * SPARE_S
            while self._running and time.monotonic() < deadline:
                self.next(0.2)
        self._ray.shutdown()

    def nodes(self) -> list[Node]:
        """Every host that can run the plan, asked for what it is. InputError where there is none."""
        alive = [node for node in self._ray.nodes() if node["Alive"]]
        marked = [node for node in alive if node["Resources"].get(RESOURCE)]
        gpus = gpus_of_build(self.plan) if any(node["Resources"].get("GPU") for node in marked or alive) else 0
        hosts = [node for node in marked or alive if node["Resources"].get("GPU", 0) >= gpus]
        if (not marked and not gpus) or not hosts:
            need = f"{gpus} GPUs" if gpus else f"the resource {RESOURCE}"
            raise InputError(
                f"--pool ray: no node of the cluster has {need}: start one with ray start --address HEAD "
                f"--resources '{{\"{RESOURCE}\": 1}}'"
            )
        for node in hosts:
            self._demand[node["NodeID"]] = {
                "num_cpus": 0,
                "num_gpus": gpus,
                "resources": {RESOURCE: 1} if node in marked else {},
                "max_retries": 0,
            }
        asked = [self._pinned(_ask, node["NodeID"]).remote(self.plan.baseline.python) for node in hosts]
        return [self._node(node, answer) for node, answer in zip(hosts, asked, strict=True)]

    def start(self, node: Node, unit: Plan) -> None:
        task = self._pinned(_unit, node.id, num_returns="streaming")
        self._running[task.remote(unit.model_dump_json(), node.id)] = node

    def next(self, seconds: float) -> tuple[Node, Message] | None:
        """A node that fails is lost: its process, its machine, or what stands between them and here."""
        if not self._running:
            time.sleep(seconds)
            return None
        ready, _ = self._ray.wait(list(self._running), timeout=seconds, fetch_local=False)
        if not ready:
            return None
        stream = ready[0]
        node = self._running[stream]
        try:
            return node, self._ray.get(next(stream))
        except StopIteration:
            del self._running[stream]
            return None
        except Exception as error:
            del self._running[stream]
            return node, Lost(f"{type(error).__name__}: {_last_line(error)}")

    def _pinned(self, function: Any, node: str, **options: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(function).options(**self._demand[node], scheduling_strategy=here, **options)

    def _node(self, node: dict[str, Any], answer: Any) -> Node:
        where = f"--pool ray: node {node['NodeID'][:8]}"
        try:
            version, machine = self._ray.get(answer, timeout=ASK_S)
        except self._ray.exceptions.GetTimeoutError:
            raise InputError(f"{where} does not answer within {ASK_S:g} s: is another experiment on it?") from None
        except Exception as error:
            raise InputError(f"{where} cannot run dsbench ({_last_line(error)}): install this version there") from None
        if version != __version__:
            raise InputError(f"{where} has dsbench {version}, here is {__version__}: install this version there")
        return Node(node["NodeID"], int(node["Resources"].get("GPU", 0)), Fingerprint.model_validate_json(machine))


def _last_line(error: Exception) -> str:
    """Redacted before it is cut."""
    lines = redact(str(error)).strip().splitlines()
    return lines[-1].strip()[:200] if lines else "no reason given"


def _ray() -> Any:
    try:
        import ray
    except ImportError:
        raise InputError("--pool ray needs the package ray: pip install 'dsbench-dspark[ray]'") from None
    return ray


def _ask(interpreter: str | None) -> tuple[str, str]:
    """On a node: this harness's version, and the machine."""
    return __version__, fingerprint(interpreter).model_dump_json()


def _unit(unit: str, node: str) -> Iterator[Message]:
    """On a node: one unit of boots."""
    yield from run_unit(Plan.model_validate_json(unit), node)
