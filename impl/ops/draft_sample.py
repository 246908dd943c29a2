"""Drawing one draft for each request, and keeping the logits it was drawn from (deepseek_v4_dspark.md section 4)."""

from __future__ import annotations

from torch import Tensor

from impl.ops.rejection import draft_tag
from impl.ops.sampling import SamplingRows, sample
from impl.ops.workspace import Workspace


def draft_sample(
    logits: Tensor, k: int, how: SamplingRows, kept: Tensor, slots: Tensor, workspace: Workspace
) -> Tensor:
    """int64 [R]: draft `k` of each request; its logits, as they are, go into the request's slot of `kept`.

    logits: fp32 [R, V]. how.position: of each round's first logits row. kept: fp32 [slots, K, V], out at `k`; the
    buffer that verification reads, so it must outlive every graph. slots: int64 [R]; one that comes twice has
    the same logits twice, as padding has.
    """
    kept[:, k].index_copy_(0, slots, logits)
    return sample(logits, how, workspace, draft_tag(k))


__all__ = ["draft_sample"]
