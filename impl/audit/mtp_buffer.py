"""The MTP staging buffer exists only where the speculative method reads it.

It holds [T, hc * H] between the target and the MTP layer: 256 MiB at flash. With `mtp_hidden_skip` a target without
speculation or with DSpark must have none, and one with the MTP method must have it whatever the toggle says, and say
so. Source: vllm_hooks.md 4.1, source_pr.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from impl.audit.report import Finding, Outcome
from impl.audit.source import place
from impl.audit.trial import DIMS
from impl.handshake import Markers
from impl.model.target import Target
from impl.model.weights import random_weights
from impl.ops.workspace import Workspace
from impl.toggles import ToggleSet

TOGGLE = "mtp_hidden_skip"
METHODS = ("none", "mtp", "dspark")
SHAPE = (DIMS.max_num_batched_tokens, DIMS.hc_mult * DIMS.hidden_size)


def check(make_target: Callable[..., Target] = Target) -> Outcome:
    findings: list[Finding] = []
    evidence: dict[str, int | float | str] = {}
    where = place(Target.__init__)
    for method in METHODS:
        for skip in (False, True):
            markers = Markers()
            target = _target(make_target, method, skip, markers)
            staged = [name for name, buffer in _own_tensors(target) if buffer.numel() >= SHAPE[0] * SHAPE[1]]
            arm = f"{method}, {TOGGLE} {'on' if skip else 'off'}"
            evidence[f"buffer bytes: {arm}"] = sum(b.nbytes for name, b in _own_tensors(target) if name in staged)
            if method == "mtp" and staged != ["mtp_hidden"]:
                what = f"{arm}: the method reads mtp_hidden, and the target holds {', '.join(staged) or 'none'}"
                findings.append(Finding("missing-buffer", what, where, "allocate it whenever the method is mtp"))
            if method == "mtp" and skip and not markers.refused[TOGGLE]:
                what = f"{arm}: the toggle does nothing and does not say so"
                findings.append(Finding("silent-refusal", what, where, "refuse the toggle with a reason"))
            if method != "mtp" and skip and staged:
                what = f"{arm}: nothing reads {', '.join(staged)} of {SHAPE} values"
                findings.append(Finding("needless-buffer", what, where, "allocate it for the mtp method only"))
            if method != "mtp" and not skip and not staged:
                what = f"{arm}: the baseline holds no buffer, so the toggle cannot save one"
                findings.append(Finding("baseline-without-buffer", what, where, "restore the baseline's branch"))
    return Outcome(tuple(findings), evidence)


def _target(make_target: Callable[..., Target], method: str, skip: bool, markers: Markers) -> Target:
    toggles, device = ToggleSet.parse(TOGGLE if skip else ""), torch.device("cpu")
    return make_target(DIMS, random_weights(DIMS), toggles, markers, Workspace(device), device, method=method)


def _own_tensors(target: Target) -> list[tuple[str, Tensor]]:
    """The target's buffers by attribute, weights left out."""
    weights = {"embed", "lm_head", "norm"}
    values: dict[str, Any] = vars(target)
    return [(name, value) for name, value in values.items() if isinstance(value, Tensor) and name not in weights]
