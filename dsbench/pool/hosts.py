"""What a pool is to the driver: nodes that take one unit of boots at a time, and messages of what happens there."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from dsbench.fingerprint import Fingerprint
from dsbench.records import Plan


@dataclass(frozen=True)
class Node:
    """One machine that can run a plan's boots."""

    id: str
    """What the pool calls it, as long as it stays up."""
    gpus: int
    fingerprint: Fingerprint


@dataclass(frozen=True)
class Line:
    """One whole line of the unit's records.jsonl, with its checksum."""

    content: bytes


@dataclass(frozen=True)
class Files:
    """The folder of a boot that has ended, as tar.gz; told before the boot's last line."""

    boot: int
    archive: bytes


@dataclass(frozen=True)
class Ended:
    """The unit's harness is gone: its exit code, and the last line that it said if that is not 0."""

    code: int
    said: str = ""


@dataclass(frozen=True)
class Lost:
    """Nothing more will come from this node."""

    reason: str


Message = Line | Files | Ended | Lost


class Pool(Protocol):
    """Nodes of one plan; left to end everything that still runs on them."""

    def __enter__(self) -> Pool: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def nodes(self) -> list[Node]:
        """Live nodes that can run the plan. InputError if one cannot run this harness."""
        ...

    def start(self, node: Node, unit: Plan) -> None:
        """Begin the boots of `unit` on an idle node."""
        ...

    def next(self, seconds: float) -> tuple[Node, Message] | None:
        """The next message of any node; None if there is none within the time. After Ended a node is idle."""
        ...
