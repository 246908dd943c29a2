"""What is read back of a server: the files its ranks wrote, its log, its HTTP answers, and whether they agree.

A rank's own bytes outrank the log, which rounds to 0.01 GiB and prints one rank of a host. Without files the log is
all there is: then the profile is a sample of known rounding, and what it does not print is None.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

from dsbench.engines.bounded_get import get_body
from dsbench.engines.engine import Ranks, ReadBack, Running, read_ranks
from dsbench.json_text import read_json
from dsbench.parse.boot_facts import GIB, Boot
from dsbench.parse.boot_log import read_boots
from dsbench.parse.lines import read_lines
from dsbench.parse.prometheus import DRAFTS, Page, read_page
from dsbench.probe_settings import KvProbe
from dsbench.records import Arm

ROUNDING_BYTES = 0.005 * GIB
"""Half of the last digit that a log prints of GiB."""
ASK_S = 10.0

_RANK = re.compile(r"(DP|PP|TP)(\d+)")


def log_boot(log: Path) -> Boot | None:
    """The boot that a log tells of; None if it tells of none, and the last where it was started again."""
    try:
        boots = read_boots(read_lines(log.read_bytes().decode("utf-8", "replace")))
    except OSError:
        return None
    return boots[-1] if boots else None


def read_back_all(running: Running, arm: Arm, url: str | None) -> ReadBack:
    """Files, log and answers as one; `url` is None where the boot ended after its profile."""
    conditions, profiles = read_ranks(running.boot_dir, "conditions"), read_ranks(running.boot_dir, "kv_profile")
    boot = log_boot(running.log)
    served = ask(url) if url else {}
    findings = [("kv-disagrees", text) for text in disagreements(conditions, profiles, boot)]
    if not conditions:
        conditions = {0: conditions_without_plugin(arm, boot, served)}
    elif served:
        # The front end's own answers: the same for every rank.
        conditions = {rank: {**values, **_served(served)} for rank, values in conditions.items()}
    return ReadBack(
        model=str(served.get("model") or ""),
        conditions=conditions,
        kv_profiles=completed(profiles, boot, served),
        findings=findings,
    )


def ask(url: str) -> dict[str, Any]:
    """Version, model, limits, cache and whether drafts are counted, as told over HTTP; what one lacks is left out."""
    found: dict[str, Any] = {}
    version = _json(f"{url}/version")
    if isinstance(version, dict) and version.get("version"):
        found["version"] = str(version["version"])
    models = _json(f"{url}/v1/models")
    match models:
        case {"data": [{**first}, *_]}:
            found |= {"model": _if(str, first.get("id")), "max_model_len": _if(int, first.get("max_model_len"))}
    page = get_body(f"{url}/metrics", ASK_S)
    if page is not None:
        with contextlib.suppress(ValueError):
            read = read_page(page.decode("utf-8", "replace"))
            found |= _cache_config(read)
            found["drafts"] = read.total(DRAFTS) is not None
    return {name: value for name, value in found.items() if value is not None}


def _if(kind: type, value: Any) -> Any:
    return value if type(value) is kind else None


def _json(url: str) -> Any:
    body = get_body(url, ASK_S)
    try:
        return None if body is None else read_json(body.decode())
    except (ValueError, RecursionError):
        return None


def _cache_config(page: Page) -> dict[str, Any]:
    """Labels of vLLM's `cache_config_info`: prefix caching, tokens, concurrency."""
    for name, labels in page.values:
        if name == "vllm:cache_config_info":
            told = dict(labels)
            return {
                "prefix_caching": {"True": True, "False": False}.get(told.get("enable_prefix_caching", "")),
                "kv_tokens": _whole(told.get("kv_cache_size_tokens")),
                "kv_max_concurrency": _number(told.get("kv_cache_max_concurrency")),
                "kv_blocks": _whole(told.get("num_gpu_blocks")),
                "kv_pinned_bytes": _whole(told.get("kv_cache_memory_bytes")),
            }
    return {}


def _served(served: dict[str, Any]) -> dict[str, Any]:
    """Conditions that the front end told; the prefix cache's state is read back from where it counts."""
    told = ("version", "model", "max_model_len", "prefix_caching")
    return {f"served_{key}": served[key] for key in told if key in served}


def conditions_without_plugin(arm: Arm, boot: Boot | None, served: dict[str, Any]) -> dict[str, Any]:
    """What can be known of a server that writes no conditions. It has no toggles of ours: none can be confirmed."""
    return {
        "source": "log and HTTP",
        "toggles": [],
        "vllm": served.get("version") or (boot.version if boot else None),
        "served_model": served.get("model"),
        "max_model_len": served.get("max_model_len") or (boot.max_model_len if boot else None),
        "prefix_caching": served.get("prefix_caching", "unknown"),
        "tp": boot.tensor_parallel_size if boot else None,
        "pp": boot.pipeline_parallel_size if boot else None,
        "dp": boot.data_parallel_size if boot else None,
        "speculative": arm.speculative if arm.speculative is not None else "unknown",
        "draft_tokens": boot.speculative_tokens if boot else None,
        "cache_state": (boot.compile_cache if boot else None) or "unknown",
        "kv_pinned": bool(served.get("kv_pinned_bytes")) or (boot is not None and boot.kv_source == "pinned"),
    }


def completed(profiles: Ranks, boot: Boot | None, served: dict[str, Any]) -> Ranks:
    """Profiles with tokens and concurrency, which only the front end works out; from the log if there are none."""
    derived = {
        "tokens": (boot.kv_tokens if boot else None) or served.get("kv_tokens"),
        "max_concurrency": (boot.max_concurrency if boot else None) or served.get("kv_max_concurrency"),
    }
    # What an engine does not know is None: left out, it would look like a probe that failed.
    unknown = dict.fromkeys(key.removeprefix("kv.") for key in KvProbe().metrics())
    if profiles:
        return {rank: {**unknown, **derived, **{k: v for k, v in values.items() if v is not None or k not in derived}}
                for rank, values in profiles.items()}  # fmt: skip
    if boot is None:
        return {}
    gib = boot.kv_gib or ({"0": boot.kv_node_gib} if boot.kv_node_gib is not None else {})
    shared = {
        **unknown,
        "source": "pinned" if boot.kv_source == "pinned" else "log",
        "rounding_bytes": int(ROUNDING_BYTES),
        "blocks": boot.blocks or served.get("kv_blocks"),
        **derived,
    }
    by_rank = {rank_of(tag, boot): {**shared, "available_bytes": round(figure * GIB)} for tag, figure in gib.items()}
    return by_rank or ({0: {**shared, "available_bytes": None}} if derived["tokens"] else {})


def rank_of(tag: str, boot: Boot) -> int:
    """The global rank behind a printed tag such as `TP1` or `DP1_PP0_TP1_EP3`."""
    if tag.isdigit():
        return int(tag)
    place = {name: int(number) for name, number in _RANK.findall(tag)}
    tp, pp = boot.tensor_parallel_size or 1, boot.pipeline_parallel_size or 1
    return (place.get("DP", 0) * pp + place.get("PP", 0)) * tp + place.get("TP", 0)


def disagreements(conditions: Ranks, profiles: Ranks, boot: Boot | None) -> list[str]:
    """Where a rank's bytes and the log do not tell the same: rounding, minimum over ranks, derived tokens."""
    if boot is None or not profiles:
        return []
    found = []
    for tag, gib in boot.kv_gib.items():
        bytes_ = profiles.get(rank_of(tag, boot), {}).get("available_bytes")
        if bytes_ is not None and abs(bytes_ - gib * GIB) > ROUNDING_BYTES + 1:
            found.append(f"rank {tag} wrote {bytes_:,} B available, its log says {gib:g} GiB ({gib * GIB:,.0f} B)")
    available = [values["available_bytes"] for values in profiles.values() if values.get("available_bytes")]
    for rank, values in profiles.items():
        blocks, size = values.get("blocks"), values.get("block_bytes")
        if blocks and size and available and values.get("source") != "pinned":
            fits = min(available) // size
            if abs(blocks - fits) > 1:
                found.append(f"rank {rank} has {blocks:,} blocks; the smallest rank's bytes hold {fits:,}")
    if boot.consistent is False:
        found.append(f"{boot.kv_tokens:,} tokens of {boot.max_model_len:,} are not {boot.max_concurrency:g} requests")
    lengths = {values.get("max_model_len") for values in conditions.values()} - {None}
    if boot.max_model_len and lengths and lengths != {boot.max_model_len}:
        found.append(f"the log's concurrency is for {boot.max_model_len:,} tokens a request, the ranks run {lengths}")
    return found


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
