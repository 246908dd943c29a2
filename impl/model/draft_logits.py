"""The logits that drafts were drawn from, kept from their proposal to their verification; and the drawing.

Verification needs q of exactly these logits. They wait in one buffer that exists before any graph is captured, by
request slot, because a batch may have another order by then. The off state of `draft_logits_persistent` is the defect
this replaces: an attribute is assigned where the logits are made. A captured graph runs that Python once, so that after
the last capture the attribute stays with that graph's memory, while every replay writes elsewhere
(deepseek_v4_dspark.md section 4). A graph of a whole step holds the reader too: off, it reads what the attribute held
at capture, memory that no step writes, so that there too the handoff is stale under replay.
"""

from __future__ import annotations

import torch
from torch import Tensor

from impl.dims import Dims
from impl.handshake import Markers
from impl.ops import dispatch
from impl.ops.draft_sample import draft_sample
from impl.ops.rejection import draft_tag
from impl.ops.sampling import SamplingRows, sample
from impl.ops.workspace import Workspace

TOGGLE = "draft_logits_persistent"


class DraftLogits:
    """Logits of the last drafts; `probabilistic` False keeps none and drafts greedily."""

    def __init__(
        self, dims: Dims, persistent: bool, probabilistic: bool, markers: Markers, device: torch.device
    ) -> None:
        self.shape = dims.name
        self.persistent = persistent
        self.probabilistic = probabilistic
        self.markers = markers
        self.values: Tensor | None = None
        """fp32 [slots, K, V], before temperature. A slot is a request's row, or (off state) its place in the batch."""
        if probabilistic:
            shape = (dims.max_num_seqs, dims.draft_tokens, dims.vocab_size)
            self.values = torch.zeros(shape, dtype=torch.float32, device=device)

    def draw(self, logits: Tensor, k: int, how: SamplingRows, slots: Tensor, workspace: Workspace) -> Tensor:
        """int64 [R]: draft k from fp32 logits [R, V], which are kept for the requests at int64 `slots` [R].

        `how.position` is that of the round's first logits row. The off state keeps them at the round's end.
        """
        if not self.probabilistic:
            return logits.argmax(-1)
        if not self.persistent:
            return sample(logits, how, workspace, draft_tag(k))
        assert self.values is not None
        draw = dispatch.kernel("draft_sample", logits.device, self.shape, logits.shape[0]) or draft_sample
        return draw(logits, k, how, self.values, slots, workspace)

    def drawn(self, logits: Tensor) -> None:
        """All drafts of a round have been drawn, from fp32 logits [R, K, V]."""
        if not self.probabilistic:
            return
        if self.persistent:
            self.markers.take(TOGGLE)
        else:
            self.values = logits.clone()
