"""Samples of a running server's process, and whether its memory is flat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from scipy import stats

WARM_UP = 0.25
"""Part of a soak that is left out: buffers and caches are still filled."""
GROUPS = 12
"""Neighbouring samples are alike, so the line goes through means of as many groups."""
MOST_MB_A_MINUTE = 1.0
LEVEL = 0.95


@dataclass(frozen=True)
class Sample:
    """What a server's process held at one moment."""

    seconds: float
    """Since the load began."""
    rss_bytes: int
    threads: int
    fds: int
    """Open files and sockets."""
    free_blocks: int
    running: int
    waiting: int
    preemptions: int
    """Since the server's start."""


def process_state(pid: int) -> tuple[int, int, int]:
    """Resident bytes, threads and open files of a process (Linux). OSError if it is gone."""
    proc = Path("/proc") / str(pid)
    fields = dict(line.split(":", 1) for line in (proc / "status").read_text().splitlines() if ":" in line)
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"]), len(list((proc / "fd").iterdir()))


@dataclass(frozen=True)
class Slope:
    """Growth of the resident memory after the warm-up, MB (1e6 bytes) a minute, with its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def word(self) -> str:
        """flat: surely below the limit; grows: surely above it; open: neither can be said."""
        if self.high < MOST_MB_A_MINUTE:
            return "flat"
        return "grows" if self.low > MOST_MB_A_MINUTE else "open"


def rss_slope(samples: Sequence[Sample]) -> Slope | None:
    """A line through the means of GROUPS groups of samples; None where there are too few for that."""
    end = samples[-1].seconds if samples else 0.0
    kept = [sample for sample in samples if sample.seconds >= WARM_UP * end]
    if len(kept) < GROUPS:
        return None
    groups = [kept[at * len(kept) // GROUPS : (at + 1) * len(kept) // GROUPS] for at in range(GROUPS)]
    minutes = [fmean(sample.seconds for sample in group) / 60 for group in groups]
    megabytes = [fmean(sample.rss_bytes for sample in group) / 1e6 for group in groups]
    line = stats.linregress(minutes, megabytes)
    half = float(stats.t.ppf((1 + LEVEL) / 2, GROUPS - 2) * line.stderr)
    return Slope(float(line.slope), float(line.slope) - half, float(line.slope) + half)
