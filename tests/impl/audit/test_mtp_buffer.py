"""The buffer check is clean on the target, and names each way in which a target can have it wrong."""

import pytest
import torch

from impl.audit.mtp_buffer import SHAPE, check
from impl.model.target import Target


class Always(Target):
    """Allocates whatever the toggle says, under another name."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.mtp_hidden is None:
            self.staging = torch.zeros(SHAPE, dtype=torch.bfloat16)


class Spare(Target):
    """Keeps the buffer out of sight: in a list of a dictionary of one of its layers."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.mtp_hidden is None:
            self.layers[1].spare = {"rows": [torch.zeros(SHAPE, dtype=torch.bfloat16)[:1]]}


class Pieces(Target):
    """Keeps it row by row."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if self.mtp_hidden is None:
            self.spare = [torch.zeros(SHAPE[1], dtype=torch.bfloat16) for _ in range(SHAPE[0])]


class Never(Target):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.mtp_hidden = None


class Silent(Target):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.markers.refused.clear()


def test_the_tree_is_clean():
    outcome = check()
    assert outcome.findings == ()
    size = SHAPE[0] * SHAPE[1] * 2
    sizes = {key.removeprefix("buffer bytes: "): value for key, value in outcome.evidence.items()}
    assert sizes == {
        "none, mtp_hidden_skip off": size,
        "none, mtp_hidden_skip on": 0,
        "mtp, mtp_hidden_skip off": size,
        "mtp, mtp_hidden_skip on": size,
        "dspark, mtp_hidden_skip off": size,
        "dspark, mtp_hidden_skip on": 0,
    }


@pytest.mark.parametrize(
    ("planted", "codes"),
    [
        (Always, ["needless-buffer"] * 2),
        (Spare, ["needless-buffer"] * 2),
        (Pieces, ["needless-buffer"] * 2),
        (Never, ["baseline-without-buffer"] * 2 + ["missing-buffer"] * 2),
        (Silent, ["silent-refusal"]),
    ],
)
def test_a_planted_target_is_found(planted, codes):
    found = check(planted).findings
    assert sorted(finding.code for finding in found) == sorted(codes)
    assert all(finding.where.startswith("impl/model/target.py:") for finding in found)
