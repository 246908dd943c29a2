"""The source document's memory table, computed from block counts and page sizes.

Stored are the states' names and their block counts only: the one set of counts that reproduces every published figure
(kv_profile.md, section 4). Bytes, tokens and concurrency follow from geometry and limits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from impl.dims import FLASH, Dims
from impl.kv_geometry import Capacity, KvGeometry, Rule
from impl.toggles import REGISTRY

SOURCE_RULE: Rule = "0.25.1"
SOURCE_TP = 2


@dataclass(frozen=True)
class State:
    """One cumulative state of the table: the change that led to it, and the KV blocks it reached."""

    name: str
    blocks: int
    toggle: str | None


STATES = (
    State("baseline before this cleanup", 10_511, None),
    State("after MTP-buffer cleanup", 10_761, "mtp_hidden_skip"),
    State("after in-place Q cleanup", 11_010, "q_in_place"),
    State("after C128 SM120 prefill in-place global indices", 11_010, "c128_indices_in_place"),
    State("after fused MHC final/aux captures", 11_259, "mhc_final_fused"),
    State("after MHC residual-buffer reuse", 11_509, "mhc_residual_reuse"),
    State("after MHC input-buffer reuse", 11_571, "mhc_input_reuse"),
)


@dataclass(frozen=True)
class Row:
    state: str
    capacity: Capacity
    step_bytes: int
    """Bytes the change frees in the profile, from the shapes of its buffers."""
    modelled: Capacity
    """The baseline's blocks plus exactly the bytes freed so far."""

    @property
    def block_distance(self) -> int:
        return self.modelled.blocks - self.capacity.blocks

    @property
    def token_distance(self) -> int:
        return self.modelled.tokens - self.capacity.tokens


def profile_bytes(toggle: str | None, dims: Dims) -> int:
    """Bytes by which a change moves the profiled KV line, at TP=2 where that matters; 0 if it does not move it."""
    if toggle == "q_in_place":  # the fork's reservation of padded Q: [T, heads of one rank, D] in bf16
        return dims.max_num_batched_tokens * dims.n_heads // SOURCE_TP * dims.head_dim * 2
    if toggle is None or toggle not in REGISTRY or not REGISTRY[toggle].moves_line:
        return 0
    size = REGISTRY[toggle].expected_bytes
    return size(dims) if size else 0


def rows(
    max_num_batched_tokens: int,
    max_model_len: int,
    rule: Rule = SOURCE_RULE,
    concurrent_batches: int | None = None,
    states: Sequence[State] = STATES,
) -> list[Row]:
    """The table under given limits and rule: what the published bytes are worth there.

    The buffers keep the sizes they had when it was published (T = 8192).
    """
    geometry = KvGeometry.of(FLASH)
    block_bytes = geometry.block_bytes(SOURCE_RULE)

    def worth(available_bytes: int) -> Capacity:
        return geometry.capacity(available_bytes, max_num_batched_tokens, max_model_len, rule, concurrent_batches)

    freed = 0
    table = []
    for state in states:
        step = profile_bytes(state.toggle, FLASH)
        freed += step
        table.append(
            Row(
                state=state.name,
                capacity=worth(state.blocks * block_bytes),
                step_bytes=step,
                modelled=worth(states[0].blocks * block_bytes + freed),
            )
        )
    return table
