"""What a file of a server says, in one object: boots, health, speculation, throughput, counters. Unknown is said so."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from itertools import combinations, pairwise
from typing import Any

from dsbench.parse import prometheus, vllm_log
from dsbench.parse.boot_facts import GIB, Boot
from dsbench.parse.boot_log import read_boots
from dsbench.parse.driver_log import read_driver
from dsbench.parse.health import Health, out_of_memory, read_health
from dsbench.parse.lines import LONGEST, Line, number_word, read_lines
from impl.engine.acceptance import AcceptanceCounts

UNKNOWN = "unknown"
MOST_PAIRED = 64
"""Boots of one file that are compared two by two: 64 are 2,016 pairs, and ten times as many a hundred times as much."""

_PAGE = re.compile(r"(?m)^(?:# SNAPSHOT |# (?:TYPE|HELP) |vllm:\w+(?:\{[^\n]{0,2000}\})? [0-9.eE+-]+$)")


def inspect(text: str) -> dict[str, Any]:
    """Everything that known shapes say of `text`; `shape` is `metrics`, `log` or `unknown`."""
    text = text.removeprefix("\ufeff")
    if _PAGE.search(text[:20_000]) and max(map(len, text.split("\n"))) <= LONGEST:
        try:
            return {"shape": "metrics", **_metrics(text)}
        except ValueError as error:
            return {"shape": UNKNOWN, "why": f"begins like a metrics page, but is none: {str(error)[:200]}"}
    lines = list(read_lines(text))
    found = _log(lines)
    return {"shape": "log" if found else UNKNOWN, **found}


# --- metrics pages ----------------------------------------------------------------------------------------------------


def _metrics(text: str) -> dict[str, Any]:
    pages = prometheus.read_snapshots(text)
    if not pages:
        page = prometheus.read_page(text)
        return {"pages": 1, "totals": {name: page.total(name) for name in sorted({n for n, _ in page.values})}}
    first, last = pages[0], pages[-1]
    found: dict[str, Any] = {"pages": len(pages)}
    refused = [page.status for page in pages if page.status not in (None, 200)]
    if refused:
        return {**found, "flags": [f"a page was answered with status {refused[0]}"]}
    if len(pages) == 1:
        return {**found, "totals": {name: first.total(name) for name in sorted({n for n, _ in first.values})}}
    try:
        for before, after in pairwise(pages):
            prometheus.window(before, after)
        window = prometheus.window(first, last)
        shared = prometheus.window(first, last, prompts_share_a_prefix=True)
    except prometheus.CounterReset as error:
        return {**found, "flags": [str(error)], "counter_reset": True}
    told = [flag for flag in shared.flags if flag not in window.flags]
    return {
        **found,
        **{name: value for name, value in vars(window).items() if name not in ("spec", "flags")},
        "generation_tokens_per_second": window.generation_tokens_per_second,
        "prefix_cache_hit_fraction": window.prefix_cache_hit_fraction,
        "spec": _counts(window.spec),
        "flags": window.flags,
        "flag_when_prompts_share_a_prefix": told[0] if told else None,
        "flag_when_prompts_are_unique": None,
    }


def _counts(counts: AcceptanceCounts | None) -> dict[str, Any] | None:
    if counts is None:
        return None
    return {
        "num_drafts": counts.drafts,
        "drafted_tokens": counts.drafted,
        "accepted_tokens": counts.accepted,
        "mean_acceptance_length": counts.acceptance_length,
        "draft_acceptance_rate": counts.acceptance_rate,
        "per_position": counts.survival,
        "per_position_conditional": counts.conditional,
        "drafted_per_draft": counts.drafted / counts.drafts if counts.drafts else None,
    }


# --- logs -------------------------------------------------------------------------------------------------------------


def _log(lines: Sequence[Line]) -> dict[str, Any]:
    driver = read_driver(lines)
    boots = [] if driver else read_boots(lines)
    spec, windows = vllm_log.spec_records(lines), vllm_log.engine_windows(lines)
    health = read_health(lines)
    if not (driver or boots or spec or windows or health.events or any(line.level for line in lines)):
        return {}
    found: dict[str, Any] = {**driver}
    if boots:
        found["boots"] = [boot_json(boot) for boot in boots]
        found |= _between(boots)
    if spec:
        found["spec"] = [_spec(record) for record in spec]
        found["combined"] = _combined(spec)
    if windows:
        found["engine_windows"] = [asdict(window) for window in windows]
    found["health"] = health_json(health)
    return {**found, **_who(health, lines), **_memory(lines)}


def boot_json(boot: Boot) -> dict[str, Any]:
    """One boot by the keys that a person or a test looks for; None is not in the log."""
    over = boot.tokens_over_max_model_len
    found: dict[str, Any] = {
        "label": boot.label,
        "boot_ok": boot.ok,
        "vllm_version": boot.version,
        "tensor_parallel_size": boot.tensor_parallel_size,
        "pipeline_parallel_size": boot.pipeline_parallel_size,
        "data_parallel_size": boot.data_parallel_size,
        "available_kv_gib_by_rank": boot.available_kv_gib_by_rank,
        "kv_source": boot.kv_source,
        "kv_pinned_gib": boot.kv_pinned_gib,
        "kv_tokens": boot.kv_tokens,
        "kv_blocks": boot.blocks,
        "max_concurrency": boot.max_concurrency,
        "max_model_len": boot.max_model_len or boot.told_max_model_len,
        "kv_tokens_over_max_model_len": None if over is None else round(over, 4),
        "tokens_and_concurrency_consistent": boot.consistent,
        "cudagraph_estimate_gib_by_rank": boot.graph_estimate_gib,
        "torch_compile_seconds": boot.compile_seconds,
        "compile_cache": boot.compile_cache,
        "failure_kind": boot.failure_kind,
        "failure_needed_kv_gib": boot.needed_gib,
        "failure_available_kv_gib": boot.quoted_available_gib,
        "failure_estimated_max_model_len": boot.estimated_max_model_len,
        "flags": boot.flags,
    }
    return {**found, **{key: value for key, value in _extras(boot).items() if value is not None}, **_nulls(boot)}


def _extras(boot: Boot) -> dict[str, Any]:
    """Keys of lines that only some logs have."""
    low = min(boot.kv_gib.values(), default=None)
    tokens = boot.kv_tokens if len(boot.tokens) == 1 else None
    return {
        "available_kv_gib_min": low if len(boot.kv_gib) > 1 else None,
        "kv_tokens_by_engine": boot.tokens if len(boot.tokens) > 1 else None,
        "bytes_per_token": round(low * GIB / tokens, 1) if low is not None and tokens else None,
        "kv_node_gib": boot.kv_node_gib,
        "cpu_blocks": boot.cpu_blocks,
        "max_seq_len": boot.max_seq_len,
        "speculative_tokens": boot.speculative_tokens,
        "attention_block_size_tokens": boot.attention_block_size,
        "gpu_memory_utilization": boot.utilization,
        "gpu_memory_utilization_without_graph_estimate": boot.utilization_without_estimate,
        "gpu_memory_utilization_advised": boot.utilization_advised,
        "weights_size": boot.weights[0] if boot.weights else None,
        "weights_size_unit_as_printed": boot.weights[1] if boot.weights else None,
        "model_loading_seconds": boot.loading_seconds,
        "graph_capture_seconds": boot.graph_capture_seconds,
        "graph_capture_gib": boot.graph_capture_gib,
        "requested_max_model_len": boot.failed_max_model_len,
        "failure_max_tokens_in_kv_cache": boot.failed_max_tokens,
    }


def _nulls(boot: Boot) -> dict[str, Any]:
    """Keys whose None says something: the unit of a size is not stated, or an override is not the user's."""
    found: dict[str, Any] = {}
    if boot.weights:
        found["weights_size_gib"] = boot.weights[0] if boot.weights[1] == "GiB" else None
    if boot.profiler_override is not None or boot.user_override is not None:
        found["user_num_gpu_blocks_override"] = boot.user_override
    return found


def _between(boots: Sequence[Boot]) -> dict[str, Any]:
    """What the boots of one file say of each other: which may be compared, and by what."""
    found: dict[str, Any] = {}
    if any(boot.reprinted_tokens for boot in boots):
        found["wrong_sum_if_reprint_counted"] = sum((b.kv_tokens or 0) + b.reprinted_tokens for b in boots)
    if len(boots) < 2:
        return found
    named = [boot for boot in boots if boot.label]
    if len(named) < len(boots):
        if not any(boot.ok is False for boot in boots):
            count = number_word(len(boots))
            found["ambiguous"] = f"{count} builds in one file: report {count} boots, never the larger or the last one"
        return found
    flags: list[str] = []
    if len(named) <= MOST_PAIRED:
        found |= _pairs(named)
        flags = _apart(named)
    else:
        flags.append(f"{len(named)} boots: pairs are compared in files of at most {MOST_PAIRED}")
    if len({boot.label for boot in named}) == len(named):
        flags.append("one boot each: no verdict")
    return {**found, "flags": flags}


def _pairs(named: Sequence[Boot]) -> dict[str, Any]:
    """Boots of one limit, two by two, and how much more KV memory the second has."""
    pairs = [(a, b) for a, b in combinations(named, 2) if a.max_model_len == b.max_model_len]
    found: dict[str, Any] = {"token_comparable_pairs": [[a.label, b.label] for a, b in pairs]}
    for a, b in pairs:
        if a.kv_gib and b.kv_gib and a.label and b.label:
            delta = min(b.kv_gib.values()) - min(a.kv_gib.values())
            found[f"delta_gib_{b.label.split()[-1]}_minus_{a.label.split()[-1]}"] = round(delta, 6)
    return found


def _apart(named: Sequence[Boot]) -> list[str]:
    """A flag for boots of one speculation whose limits differ."""
    apart = [
        f"{str(a.label).split()[-1]} against {str(b.label).split()[-1]}"
        for a, b in combinations(named, 2)
        if a.speculative_tokens == b.speculative_tokens and a.max_model_len != b.max_model_len
    ]
    return [f"{' and '.join(apart)} differ in max_model_len: compare GiB, not tokens"] if apart else []


def health_json(health: Health) -> dict[str, Any]:
    """Kinds, line numbers and counts."""
    counts = dict(health.counts)
    if "illegal_memory_access" in counts:
        counts.setdefault("device_assert", 0)
    return {
        "fatal": health.kinds,
        "fatal_line_numbers": health.fatal_lines,
        "benign": len(health.benign_lines),
        "benign_line_numbers": health.benign_lines,
        "events_by_kind": counts,
    }


def _who(health: Health, lines: Sequence[Line]) -> dict[str, Any]:
    """Which rank reported first, where ranks are printed."""
    first = next((event.rank for event in health.events if event.rank is not None), None)
    if first is None:
        return {}
    return {"first_rank": first, "ranks_seen": list(dict.fromkeys(line.rank for line in lines if line.rank))}


def _memory(lines: Sequence[Line]) -> dict[str, Any]:
    found = out_of_memory(lines)
    return {} if found is None else {f"oom_{name}": value for name, value in asdict(found).items()}


def _spec(record: vllm_log.SpecRecord) -> dict[str, Any]:
    printed = {name: value for name, value in asdict(record).items() if name not in _V0 or value is not None}
    derived = {
        "num_drafts": record.num_drafts,
        "mean_acceptance_length_recomputed": record.mean_acceptance_length_recomputed,
        "per_position_conditional": record.per_position_conditional,
        "trailing_zero_positions": record.trailing_zero_positions,
        "window_seconds_estimate": record.window_seconds_estimate,
    }
    if record.system_efficiency is not None:
        derived["system_efficiency_recomputed"] = record.system_efficiency_recomputed
    return {**printed, **derived}


_V0 = ("system_efficiency", "emitted_tokens")


def _combined(records: Sequence[vllm_log.SpecRecord]) -> dict[str, Any] | None:
    totals = vllm_log.combine(records)
    if totals is None:
        return None
    return {
        **asdict(totals),
        "draft_acceptance_rate": totals.draft_acceptance_rate,
        "mean_acceptance_length": totals.mean_acceptance_length,
    }
