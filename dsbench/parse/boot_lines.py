"""Lines about a boot, in the forms of vLLM's versions: each says one thing, and only the line that states it counts."""

from __future__ import annotations

import re
from collections.abc import Callable

from dsbench.parse.boot_facts import Boot
from dsbench.parse.lines import Line

_COUNT = r"(\d[\d,]{0,20})"
_FIGURE = r"(\d{1,12}(?:\.\d{1,9})?)"

_AVAILABLE = re.compile(rf"Available KV cache memory: {_FIGURE} GiB")
_V0_AVAILABLE = re.compile(rf"(?:\bkv_cache_size=|reserved for KV Cache is ){_FIGURE}\s?GiB")
TOKENS = re.compile(rf"\b[A-Z]{{2,6}} KV cache size: {_COUNT} tokens")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_COUNT} tokens per request: {_FIGURE}x")
BLOCKS = re.compile(rf"\b(?:GPU|cuda) blocks: {_COUNT}")
_CPU_BLOCKS = re.compile(rf"\bCPU blocks: {_COUNT}")
_ESTIMATE = re.compile(rf"Estimated CUDA graph memory: {_FIGURE} GiB")
_CAPTURED = re.compile(rf"Graph capturing finished in {_FIGURE} secs?, took {_FIGURE} GiB")
_COMPILE = re.compile(rf"torch\.compile (?:takes|took) {_FIGURE} s")
_WEIGHTS = re.compile(rf"(?:Loading model weights|Model loading) took {_FIGURE} (GiB|GB)")
_LOADING = re.compile(rf"Model loading took {_FIGURE} GiB (?:memory )?and {_FIGURE} seconds")
_ADVICE = re.compile(
    rf"current --gpu-memory-utilization={_FIGURE} is equivalent to --gpu-memory-utilization={_FIGURE}"
    rf".{{0,200}}increase --gpu-memory-utilization to {_FIGURE}"
)
_UTILIZATION = re.compile(rf"\bgpu_memory_utilization=({_FIGURE})(?=[\s,)]|$)")
_PINNED = re.compile(rf"reserved {_FIGURE} GiB memory for KV Cache as specified by kv_cache_memory_bytes")
_NODE = re.compile(rf"(Explicitly|Auto) set \({_FIGURE}/{_FIGURE}\) GiB for KV cache on node")
_OVERRIDE = re.compile(r"Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})")
_NEEDED = re.compile(rf"\(?{_FIGURE} GiB KV cache is needed")
_QUOTED = re.compile(rf"larger than the available KV cache memory \({_FIGURE} GiB\)")
_ESTIMATED = re.compile(rf"estimated maximum model length is {_COUNT}")
_MAX_SEQ = re.compile(r"max seq len \((\d{1,12})\)")
_MAX_TOKENS = re.compile(r"stored in KV cache \((\d{1,15})\)")
_ATTENTION_BLOCK = re.compile(r"Setting attention block size to (\d{1,9}) tokens")
INITIALIZING = re.compile(r"Initializing an? (?:V1 )?LLM engine \(v(\d[\w.+-]{0,60})\)")
_VERSION = re.compile(r"(?:API server version|^.{0,200}\.\.  version|Initializing an? (?:V1 )?LLM engine \(v)\s?"
                      r"(\d[\w.+-]{0,60})")  # fmt: skip
_MAX_MODEL_LEN = re.compile(r"Using max model len (\d{1,12})")
_SIZES = {
    name: re.compile(rf"\b{name}['\"]?\s?[=:]\s?(\d{{1,6}})\b")
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
}
_DRAFTS = re.compile(r"\bnum_spec(?:ulative)?_tokens['\"]?\s?[=:]\s?(\d{1,4})\b")
_HEADER_DRAFTS = re.compile(r"(?i)\b(?:mtp|dspark|eagle3?|ngram)[ -]?(\d{1,3})\b")


def kv_figure(text: str) -> float | None:
    if "KV cache memory: " in text and (found := _AVAILABLE.search(text)):
        return float(found[1])
    if ("kv_cache_size=" in text or "KV Cache is " in text) and (found := _V0_AVAILABLE.search(text)):
        return float(found[1])
    return None


def _available(line: Line, boot: Boot) -> None:
    figure = kv_figure(line.text)
    if figure is not None:
        boot.kv_gib[rank_tag(line, boot)] = figure
        if line.rank is None and line.pid not in boot.untagged:
            boot.untagged.append(line.pid)


def rank_tag(line: Line, boot: Boot) -> str:
    """Rank tag of a memory line; workers without one are told apart by process, the first being `0`."""
    if line.rank is not None:
        return line.rank
    return "0" if not line.pid or line.pid in boot.untagged[:1] or not boot.untagged else f"pid={line.pid}"


def engine_tag(line: Line) -> str:
    return line.rank or "0"


def _tokens(line: Line, boot: Boot) -> None:
    if found := TOKENS.search(line.text):
        engine, tokens = engine_tag(line), whole(found[1])
        if engine in boot.tokens:
            boot.reprinted_tokens += tokens
        boot.tokens[engine] = tokens


def _concurrency(line: Line, boot: Boot) -> None:
    if found := _CONCURRENCY.search(line.text):
        boot.max_model_len = whole(found[1])
        boot.concurrency[engine_tag(line)] = float(found[2])


def _blocks(line: Line, boot: Boot) -> None:
    if found := BLOCKS.search(line.text):
        boot.blocks = whole(found[1])
        cpu = _CPU_BLOCKS.search(line.text)
        boot.cpu_blocks = whole(cpu[1]) if cpu else boot.cpu_blocks


def _estimate(line: Line, boot: Boot) -> None:
    if found := _ESTIMATE.search(line.text):
        boot.graph_estimate_gib[engine_tag(line)] = float(found[1])


def _captured(line: Line, boot: Boot) -> None:
    if found := _CAPTURED.search(line.text):
        boot.graph_capture_seconds, boot.graph_capture_gib = float(found[1]), float(found[2])


def _compile(line: Line, boot: Boot) -> None:
    if found := _COMPILE.search(line.text):
        boot.compile_seconds = max(float(found[1]), boot.compile_seconds or 0.0)


def _compiled(line: Line, boot: Boot) -> None:
    boot.compiled = True


def _cached(line: Line, boot: Boot) -> None:
    boot.loaded_from_cache = True


def _weights(line: Line, boot: Boot) -> None:
    if found := _WEIGHTS.search(line.text):
        boot.weights = float(found[1]), found[2]
    if found := _LOADING.search(line.text):
        boot.loading_seconds = float(found[2])


def _advice(line: Line, boot: Boot) -> None:
    if found := _ADVICE.search(line.text):
        boot.utilization = float(found[1])
        boot.utilization_without_estimate, boot.utilization_advised = float(found[2]), float(found[3])


def _utilization(line: Line, boot: Boot) -> None:
    if found := _UTILIZATION.search(line.text):
        boot.utilization = float(found[1])


def _pinned(line: Line, boot: Boot) -> None:
    if found := _PINNED.search(line.text):
        boot.kv_pinned_gib = float(found[1])


def _node(line: Line, boot: Boot) -> None:
    if found := _NODE.search(line.text):
        boot.kv_node_gib = float(found[2])
        if found[1] == "Explicitly":
            boot.kv_pinned_gib = float(found[2])


def _override(line: Line, boot: Boot) -> None:
    if found := _OVERRIDE.search(line.text):
        # The profiler of graph memory runs before any block is counted; a user's override replaces a count.
        if int(found[1]) == 0:
            boot.profiler_override = int(found[2])
        else:
            boot.user_override = int(found[2])


def _too_small(line: Line, boot: Boot) -> None:
    for name, pattern in (("needed_gib", _NEEDED), ("quoted_available_gib", _QUOTED)):
        if found := pattern.search(line.text):
            setattr(boot, name, float(found[1]))
    counts = (
        ("estimated_max_model_len", _ESTIMATED), ("failed_max_model_len", _MAX_SEQ), ("failed_max_tokens", _MAX_TOKENS)
    )  # fmt: skip
    for name, pattern in counts:
        if found := pattern.search(line.text):
            setattr(boot, name, whole(found[1]))


def _attention_block(line: Line, boot: Boot) -> None:
    if found := _ATTENTION_BLOCK.search(line.text):
        boot.attention_block_size = int(found[1])


def _version(line: Line, boot: Boot) -> None:
    if found := _VERSION.search(line.text[:1000]):
        boot.version = found[1].rstrip(".,)")


def _configuration(line: Line, boot: Boot) -> None:
    for name, pattern in _SIZES.items():
        if found := pattern.search(line.text):
            setattr(boot, name, int(found[1]))


def _drafts(line: Line, boot: Boot) -> None:
    if found := _DRAFTS.search(line.text):
        boot.speculative_tokens = int(found[1])


def _header_drafts(line: Line, boot: Boot) -> None:
    if boot.label is not None and line.major_header is not None:
        if found := _HEADER_DRAFTS.search(boot.described):
            boot.speculative_tokens = int(found[1])
        elif re.search(r"(?i)\bno[ -]?spec\b", boot.described):
            boot.speculative_tokens = 0


def _max_seq_len(line: Line, boot: Boot) -> None:
    if found := re.search(r"\bmax_seq_len=(\d{1,12})\b", line.text):
        boot.max_seq_len = int(found[1])


def _told_max_model_len(line: Line, boot: Boot) -> None:
    if found := _MAX_MODEL_LEN.search(line.text):
        boot.told_max_model_len = int(found[1])


def _served(line: Line, boot: Boot) -> None:
    boot.served = True


TAKES: tuple[tuple[str, Callable[[Line, Boot], None]], ...] = (
    ("Available KV cache memory: ", _available),
    ("kv_cache_size=", _available),
    ("reserved for KV Cache is ", _available),
    ("KV cache size: ", _tokens),
    ("Maximum concurrency for ", _concurrency),
    (" blocks: ", _blocks),
    ("Estimated CUDA graph memory", _estimate),
    ("Graph capturing finished", _captured),
    ("torch.compile t", _compile),
    ("Compiling a graph for", _compiled),
    ("Directly load the compiled graph", _cached),
    ("Directly load AOT compilation", _cached),
    (" took ", _weights),
    ("is equivalent to --gpu-memory-utilization", _advice),
    ("gpu_memory_utilization=", _utilization),
    ("as specified by kv_cache_memory_bytes", _pinned),
    ("GiB for KV cache on node", _node),
    ("num_gpu_blocks_override", _override),
    ("larger than the ", _too_small),
    ("Setting attention block size", _attention_block),
    ("version ", _version),
    ("Initializing a", _version),
    ("_parallel_size", _configuration),
    ("num_spec", _drafts),
    ("max_seq_len=", _max_seq_len),
    ("Using max model len", _told_max_model_len),
    ("===", _header_drafts),
    ("Application startup complete", _served),
    ("Starting vLLM API server", _served),
    ("Starting vLLM server on ", _served),
)


def whole(text: str) -> int:
    return int(text.replace(",", ""))
