"""Small pure checks for defects that were met in public, by name."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

CHECKS: dict[str, tuple[str, str]] = {
    "acceptance_too_good": ("acceptance", "acceptance at or above what a draft of this depth can reach"),
    "control_token_inside_fluent_text": ("text", "control tokens leaked into text that reads well otherwise"),
    "draft_depth_against_block_size": ("acceptance", "drafting deeper than the blocks the draft was trained for"),
    "first_boot_reads_less_kv": ("kv_boots", "cold boots, which book compilation as activation peak"),
    "gate_that_was_not_run": ("gates", "gates without a result line, which are not passed"),
    "identities_between_metrics": ("identities", "figures of one row that cannot all be true"),
    "kv_swing_between_boots": ("kv_boots", "one boot against the spread of others"),
    "kv_tokens_are_derived": ("kv_capacity", "token counts that may not be compared"),
    "prefix_cache_vetoed_by_draft": ("prefix_cache", "a prefix cache that never hits although it should"),
    "rank_capacity_mismatch": ("kv_capacity", "ranks whose caches differ in size"),
    "token_id_equals_vocab_size": ("token_ids", "token ids outside the vocabulary, and what came before a fault"),
    "tool_call_inside_reasoning": ("tool_calls", "tool calls swallowed by the reasoning, and rates of calls"),
    "uniform_scale_error": ("scale", "outputs too large by one factor, or from one size on"),
}
"""Module of `dsbench.checks` that has a function of the check's name, and what it finds."""


def function(name: str) -> Callable[[Any], Any]:
    """The check: takes the content of a JSON file, gives an Answer. KeyError for an unknown name."""
    module, _ = CHECKS[name]
    found: Callable[[Any], Any] = getattr(importlib.import_module(f"dsbench.checks.{module}"), name)
    return found
