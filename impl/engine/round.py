"""The requests of one draft: where verification left them, on the device."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from impl.ops.sampling import SamplingRows


@dataclass
class Round:
    """R requests to draft for; int64 [R] where not said otherwise."""

    anchors: Tensor
    """The last token of each, not computed by the target yet."""
    first: Tensor
    """Position of the anchor."""
    limits: Tensor
    """Positions at and beyond it have no page."""
    request_rows: Tensor
    slots: Tensor
    """Where the draft logits go."""
    how: SamplingRows
    of_chunk: Tensor
    """Index among the chunks that sample."""
