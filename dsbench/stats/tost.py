"""Two one-sided tests (TOST): whether a difference is shown to be inside a margin.

Both tests are the exact ones that the intervals invert, so that p <= 0.05 says the same as a 90 % interval inside
the margin.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def tost_p(typical: NDArray[np.float64], margin: float) -> float:
    """The larger p of the two one-sided tests against -margin and +margin.

    `typical` are the subset means of blocks (samples.subset_means) or the swap differences of two arms
    (unblocked.swap_differences): what the one-sided tests count.
    """
    patterns = len(typical) + 1
    below = 1 + int((typical <= -margin).sum())
    above = 1 + int((typical >= margin).sum())
    return float(max(below, above) / patterns)
