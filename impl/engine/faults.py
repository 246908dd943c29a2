"""Planted defects of whole steps: a step that takes longer, and memory that every step keeps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from impl.handshake import Markers
from impl.toggles import ToggleSet

SLOW, LEAK = "slow_step", "leak"


class Faults:
    """`slow_step:P` and `leak:BYTES` of one engine; without them a step passes untouched."""

    def __init__(self, toggles: ToggleSet, markers: Markers, device: torch.device | str) -> None:
        self.markers, self.device = markers, device
        self.slower = toggles.argument(SLOW) / 100 if toggles.on(SLOW) else 0.0
        self.leak_bytes = int(toggles.argument(LEAK)) if toggles.on(LEAK) else 0
        self._leaked: list[Tensor] = []

    @contextmanager
    def around_step(self) -> Iterator[None]:
        """Around one step, the profile's included; a step that raises is left alone."""
        start = time.perf_counter()
        yield
        if self.slower:
            time.sleep(self.slower * (time.perf_counter() - start))
            self.markers.take(SLOW)
        if self.leak_bytes:
            self._leaked.append(torch.zeros(self.leak_bytes, dtype=torch.uint8, device=self.device))
            self.markers.take(LEAK)


__all__ = ["Faults"]
