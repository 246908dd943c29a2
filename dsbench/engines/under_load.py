"""Accelerators while an engine runs: who is on them, and while it is measured power, clocks and throttling.

Beside a boot a GPU is idle; what it does under load shows only meanwhile. A thread of its own looks once a second, and
asks NVML five things and nothing of the engine.
"""

from __future__ import annotations

import statistics
import threading
import time
from typing import Any

from dsbench.engines import devices, nvml
from dsbench.engines.neighbours import Neighbours

LOOK_S = 1.0
SLOWED = {
    0x8: "hardware slowdown",
    0x20: "thermal slowdown by the driver",
    0x40: "thermal slowdown by the hardware",
    0x80: "power brake",
}
"""NVML's bits of reasons that are a fault of the machine. A power cap is none: at full load a GPU may live at it."""
LOOKED_AT = ("power_milliwatts", "sm_clock_mhz", "temperature_c")


class UnderLoad:
    """The looks at the GPUs of one boot, from `start` to `stop`; at their load from `measure` on."""

    def __init__(self, visible: str | None, neighbours: Neighbours, every_s: float = LOOK_S) -> None:
        """`visible` is CUDA_VISIBLE_DEVICES of the engine."""
        self.over = threading.Event()
        """Set, it ends the thread."""
        self._visible = visible
        self._neighbours = neighbours
        self._measured = threading.Event()
        self._wake = threading.Event()
        self._every_s = every_s
        self._looks: dict[int, list[dict[str, Any]]] = {}
        self._energy: dict[int, int | None] = {}
        self._failed = ""
        self._answered = 0.0
        """When NVML has last answered."""
        self._thread = threading.Thread(target=self._look, name="dsbench-devices", daemon=True)

    def start(self) -> None:
        self._answered = time.monotonic()
        if not nvml.gave_up():
            self._thread.start()

    def measure(self) -> None:
        """From here on the load counts; the next look is now."""
        self._measured.set()
        self._wake.set()

    def stop(self) -> tuple[dict[str, Any], list[str]]:
        """What the looks saw, and a line for each GPU that a fault of the machine slowed down.

        By GPU: the least, the median and the most of each figure (None where NVML does not say), all reasons of
        throttling as one mask, and millijoules from the first look to the last. No GPU, no entry. `unknown` is there
        where the looks did not go on to the end, and says why.
        """
        self.over.set()
        self._wake.set()
        why = nvml.gave_up()
        if self._thread.ident is not None:
            self._thread.join(max(LOOK_S, self._answered + nvml.ANSWER_S - time.monotonic()))
            why = nvml.give_up() if self._thread.is_alive() else self._failed
        gpus = [self._summary(number, looks) for number, looks in sorted(self._looks.items())]
        slowed = [
            f"GPU {gpu['number']} ran slower than it can, by {', '.join(gpu['slowed'])}: at {gpu['slowed_looks']} of "
            f"{gpu['looks']} looks"
            for gpu in gpus
            if gpu["slowed"]
        ]
        seen = {"source": devices.NVML, "every_s": self._every_s, "gpus": gpus}
        return seen | ({"unknown": why} if why else {}), slowed

    def _look(self) -> None:
        try:
            with nvml.session() as asked:
                if asked is not None:
                    self._look_at(asked)
        except Exception as error:  # a GPU that is lost, or anything else: what was seen before stays
            self._failed = nvml.failed(error)

    def _look_at(self, asked: Any) -> None:
        numbers = devices.seen_by_engine(self._visible, asked.nvmlDeviceGetCount())
        handles = {number: asked.nvmlDeviceGetHandleByIndex(number) for number in numbers}
        first: dict[int, int | None] = {}
        while not self.over.is_set():
            measured = self._measured.is_set()
            if measured and not first:
                first = {number: devices.energy(asked, handle) for number, handle in handles.items()}
            for number, handle in handles.items():
                self._neighbours.see(number, devices.processes(asked, handle))
                if measured:
                    self._looks.setdefault(number, []).append(devices.load(asked, handle))
                self._answered = time.monotonic()
            self._wake.wait(self._every_s)
            self._wake.clear()
        for number in first:
            began, ended = first[number], devices.energy(asked, handles[number])
            self._energy[number] = None if began is None or ended is None else ended - began

    def _summary(self, number: int, looks: list[dict[str, Any]]) -> dict[str, Any]:
        figures: dict[str, list[float] | None] = {}
        for name in LOOKED_AT:
            values = [look[name] for look in looks if look[name] is not None]
            figures[name] = [min(values), statistics.median(values), max(values)] if values else None
        masks = [look["throttle_reasons"] for look in looks if look["throttle_reasons"] is not None]
        met = 0
        for mask in masks:
            met |= mask
        return {
            "number": number,
            "looks": len(looks),
            **figures,
            "energy_millijoules": self._energy.get(number),
            "throttle_reasons": met if masks else None,
            "slowed": [told for reason, told in SLOWED.items() if met & reason],
            "slowed_looks": sum(any(mask & reason for reason in SLOWED) for mask in masks),
        }
