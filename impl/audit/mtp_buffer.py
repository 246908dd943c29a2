"""The MTP staging buffer exists only where the speculative method reads it.

It holds [T, hc * H] between the target and the MTP layer: 256 MiB at flash. With `mtp_hidden_skip` a target without
speculation or with DSpark must have none, and one with the MTP method must have it whatever the toggle says, and say
so. Source: vllm_hooks.md 4.1, source_pr.md section 6.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from functools import partial
from types import ModuleType
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
NBYTES = SHAPE[0] * SHAPE[1] * torch.bfloat16.itemsize


def check(make_target: Callable[..., Target] = Target) -> Outcome:
    findings: list[Finding] = []
    evidence: dict[str, int | float | str] = {}
    where = place(Target.__init__)
    for method in METHODS:
        for skip in (False, True):
            markers = Markers()
            held = _buffers(*_target(make_target, method, skip, markers))
            staged = [name for name, nbytes in held.items() if nbytes >= NBYTES]
            arm = f"{method}, {TOGGLE} {'on' if skip else 'off'}"
            evidence[f"buffer bytes: {arm}"] = sum(held[name] for name in staged)
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


def _target(
    make_target: Callable[..., Target], method: str, skip: bool, markers: Markers
) -> tuple[Target, dict[str, Tensor]]:
    """A target, and the weights it was given."""
    toggles, device, weights = ToggleSet.parse(TOGGLE if skip else ""), torch.device("cpu"), random_weights(DIMS)
    return make_target(DIMS, weights, toggles, markers, Workspace(device), device, method=method), weights


def _buffers(target: Target, weights: dict[str, Tensor]) -> dict[str, int]:
    """Bytes of storage by the attribute that holds it, through containers and objects; weights left out.

    What one container holds counts together, so a buffer in pieces is a buffer.
    """
    held: Counter[str] = Counter()
    seen = {weight.untyped_storage()._cdata for weight in weights.values()}
    waiting: list[tuple[str, Any]] = [("", target)]
    while waiting:
        name, value = waiting.pop()
        key = value.untyped_storage()._cdata if isinstance(value, Tensor) else id(value)
        if key in seen or isinstance(value, ModuleType | type):
            continue
        seen.add(key)
        if isinstance(value, Tensor):
            held[name] += value.untyped_storage().nbytes()
        elif isinstance(value, Mapping):
            waiting += [(name, item) for item in value.values()]
        elif isinstance(value, list | tuple | set | frozenset | deque):
            waiting += [(name, item) for item in value]
        elif isinstance(value, partial):
            waiting += [(name, item) for item in (*value.args, *value.keywords.values())]
        else:
            fields = {slot: getattr(value, slot, None) for slot in getattr(type(value), "__slots__", ())}
            fields |= getattr(value, "__dict__", {})
            waiting += [(f"{name}.{field}".lstrip("."), item) for field, item in fields.items()]
    return dict(held)
