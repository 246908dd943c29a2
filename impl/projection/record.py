"""What a projection found: bytes by phase of one arm, and what each toggle takes away."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

PhaseName = Literal["load", "init", "profile", "after profile", "serve"]
PHASES: tuple[PhaseName, ...] = ("load", "init", "profile", "after profile", "serve")


@dataclass(frozen=True)
class Site:
    """One tensor that is alive at a phase's figure."""

    where: str
    """file:line function of the model's code that allocated it"""
    shape: tuple[int, ...]
    dtype: str
    bytes: int


@dataclass(frozen=True)
class Phase:
    name: PhaseName
    bytes: int
    """Buffers that stay (load, init, after profile), or the peak above what lived before (profile, serve)."""
    on_line: bool
    """Whether a profile of memory charges it: whether it lowers the bytes available for KV pages."""
    sites: tuple[Site, ...]
    """The largest tensors behind `bytes`."""


@dataclass(frozen=True)
class ArmProjection:
    """One engine of one rank under some toggles. Every figure is projected."""

    toggles: tuple[str, ...]
    """Optimizations that are on."""
    weights_bytes: int
    """Counted by rule, not allocated."""
    workspace_bytes: int
    phases: tuple[Phase, ...]
    modelled_reservation_bytes: int
    """The padded query scratch that serving was seen to allocate, as the source document's fork reserves it in its
    profile. Not an allocation of this engine's profile: modelled."""
    index_maps_per_step: int
    markers: Mapping[str, Any]
    """Which optimized branches were taken, and why others were not."""

    def phase(self, name: PhaseName) -> Phase:
        return next(phase for phase in self.phases if phase.name == name)

    @property
    def profiled_bytes(self) -> int:
        """What this engine's profile charges against the budget."""
        of_phases = sum(phase.bytes for phase in self.phases if phase.on_line)
        return self.weights_bytes + self.workspace_bytes + of_phases

    @property
    def line_bytes(self) -> int:
        """The same with the modelled reservation, as in the source document's ladder."""
        return self.profiled_bytes + self.modelled_reservation_bytes

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "profiled_bytes": self.profiled_bytes, "line_bytes": self.line_bytes}


@dataclass(frozen=True)
class Step:
    """What turning on one toggle takes away from the arm before it."""

    toggle: str
    line_bytes: int
    """Off the profiled line: by how much the bytes available for KV pages grow."""
    modelled: bool
    """Whether the line moves only against the modelled reservation."""
    phases: Mapping[str, int]
    """Per phase, bytes that are gone; phases that did not change are left out."""
    index_maps: int
    """Fewer index maps a step."""
    refused: tuple[str, ...]
    """Why the toggle did not act, where it did not."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def difference(toggle: str, before: ArmProjection, after: ArmProjection) -> Step:
    """What `toggle`, on in `after` alone, takes away."""
    freed = {phase.name: phase.bytes - after.phase(phase.name).bytes for phase in before.phases}
    own, modelled = before.profiled_bytes - after.profiled_bytes, before.line_bytes - after.line_bytes
    return Step(
        toggle=toggle,
        line_bytes=modelled,
        modelled=own != modelled,
        phases={name: size for name, size in freed.items() if size},
        index_maps=before.index_maps_per_step - after.index_maps_per_step,
        refused=tuple(after.markers.get(toggle, {}).get("refused", {})),
    )


__all__ = ["PHASES", "ArmProjection", "Phase", "PhaseName", "Site", "Step", "difference"]
