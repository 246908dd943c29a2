"""What a log tells of one engine start, and what follows from it. None means that the log does not say."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from dsbench.parse.health import NO_ENGINE_KINDS, Health
from dsbench.parse.lines import Line

GIB = 2**30
CONCURRENCY_ROUNDING = 0.005
"""Half of the last printed digit of a concurrency."""


@dataclass
class Boot:
    """One engine start, as its log tells it. Memory in GiB as printed."""

    label: str | None = None
    described: str = ""
    """What a header said of it beside its label."""
    version: str | None = None
    untagged: list[str] = field(default_factory=list)
    """Process ids of workers that printed memory without a rank tag."""
    tensor_parallel_size: int | None = None
    pipeline_parallel_size: int | None = None
    data_parallel_size: int | None = None
    kv_gib: dict[str, float] = field(default_factory=dict)
    """Profiled bytes for the KV cache by rank tag."""
    workers: list[str] = field(default_factory=list)
    """Tags of the workers that printed anything."""
    kv_pinned_gib: float | None = None
    kv_node_gib: float | None = None
    """CPU builds: memory set aside on a node."""
    tokens: dict[str, int] = field(default_factory=dict)
    """KV tokens by engine tag."""
    reprinted_tokens: int = 0
    """Tokens of lines that an engine printed a second time."""
    concurrency: dict[str, float] = field(default_factory=dict)
    max_model_len: int | None = None
    told_max_model_len: int | None = None
    """From a line about the configuration; the concurrency line outranks it."""
    blocks: int | None = None
    cpu_blocks: int | None = None
    graph_estimate_gib: dict[str, float] = field(default_factory=dict)
    graph_capture_seconds: float | None = None
    graph_capture_gib: float | None = None
    compile_seconds: float | None = None
    compiled: bool = False
    loaded_from_cache: bool = False
    weights: tuple[float, str] | None = None
    """Size and unit as printed."""
    loading_seconds: float | None = None
    utilization: float | None = None
    utilization_without_estimate: float | None = None
    utilization_advised: float | None = None
    speculative_tokens: int | None = None
    max_seq_len: int | None = None
    attention_block_size: int | None = None
    profiler_override: int | None = None
    user_override: int | None = None
    needed_gib: float | None = None
    quoted_available_gib: float | None = None
    estimated_max_model_len: int | None = None
    failed_max_model_len: int | None = None
    failed_max_tokens: int | None = None
    served: bool = False
    """Whether the log shows a server that is up."""
    followed: bool = False
    """Whether another boot follows in the file."""
    lines: list[Line] = field(default_factory=list)
    health: Health = field(default_factory=Health)

    @property
    def told(self) -> bool:
        """Whether any line told something of a boot."""
        return bool(self.facts() or self.workers)

    def facts(self) -> list[object]:
        return [
            fact
            for fact in (self.version, self.kv_gib, self.kv_pinned_gib, self.kv_node_gib, self.tokens, self.concurrency,
                         self.blocks, self.graph_estimate_gib, self.compile_seconds, self.weights, self.max_seq_len,
                         self.needed_gib, self.failed_max_tokens, self.utilization, self.attention_block_size,
                         self.profiler_override, self.user_override, self.data_parallel_size)
            if fact
        ]  # fmt: skip

    @property
    def failure_kind(self) -> str | None:
        """The first fatal event of the engine."""
        return next((kind for kind in self.health.kinds if kind not in NO_ENGINE_KINDS), None)

    @property
    def ok(self) -> bool | None:
        """Whether it came up; None if the excerpt does not show."""
        if self.served:
            return True
        if self.failure_kind:
            return False
        whole = bool(self.kv_gib and (self.tokens or self.blocks) and self.concurrency)
        return True if whole and (self.followed or self.label) else None

    @property
    def kv_source(self) -> str | None:
        if self.kv_pinned_gib is not None:
            return "pinned"
        return "profiled" if self.kv_gib else None

    @property
    def compile_cache(self) -> str | None:
        """Cold where a graph was compiled, warm where all came from the cache."""
        if self.compiled:
            return "cold"
        return "warm" if self.loaded_from_cache else None

    @property
    def kv_tokens(self) -> int | None:
        """Of all engines together."""
        return sum(self.tokens.values()) if self.tokens else None

    @property
    def max_concurrency(self) -> float | None:
        """Of all engines together, as printed."""
        return round(sum(self.concurrency.values()), 2) if self.concurrency else None

    @property
    def available_kv_gib_by_rank(self) -> dict[str, float | None]:
        """A worker that printed no figure is None, unless the boot failed before anyone could."""
        if self.failure_kind and not self.kv_gib:
            return {}
        return {tag: self.kv_gib.get(tag) for tag in sorted({*self.workers, *self.kv_gib}, key=_natural)}

    @property
    def tokens_over_max_model_len(self) -> float | None:
        return self.kv_tokens / self.max_model_len if self.kv_tokens and self.max_model_len else None

    @property
    def consistent(self) -> bool | None:
        """Whether every engine's tokens agree with its printed concurrency."""
        engines = [tag for tag in self.tokens if tag in self.concurrency]
        if not engines or not self.max_model_len:
            return None
        # Tokens are rounded down before they are printed, so they may be one short.
        rounding = CONCURRENCY_ROUNDING + 1 / self.max_model_len
        return all(abs(self.tokens[tag] / self.max_model_len - self.concurrency[tag]) <= rounding for tag in engines)

    @property
    def flags(self) -> list[str]:
        """What a person should look at."""
        flags = []
        low, high = min(self.kv_gib.values(), default=0.0), max(self.kv_gib.values(), default=0.0)
        if high > low:
            share = 100 * (high - low) / high
            flags.append(f"rank spread {high - low:.2f} GiB ({share:.1f} % of the larger): "
                         "capacity is the smallest rank")  # fmt: skip
        if self.consistent is False:
            flags.append("tokens / max_model_len does not agree with the printed concurrency")
        if self.kv_pinned_gib is not None:
            flags.append("KV memory is pinned, not profiled")
        if self.profiler_override is not None:
            flags.append(
                f"num_gpu_blocks_override={self.profiler_override} is set by the graph profiler, not by the user"
            )
        if self.user_override is not None:
            flags.append(f"num_gpu_blocks_override={self.user_override}: the blocks are pinned, not profiled")
        if self.failure_kind and self.kv_gib and not self.served:
            flags.append("failed boot: its KV figures are not those of a running server")
        if self.quoted_available_gib is not None:
            flags.append(f"{self.quoted_available_gib:g} comes from the error text of a failed boot: "
                         "never a measured KV reading")  # fmt: skip
        known = self.kv_gib or self.tokens or self.blocks or self.concurrency or self.kv_node_gib or self.failure_kind
        if not flags and not known and (self.version or self.weights):
            flags.append("no KV figures in this excerpt")
        return flags


def _natural(tag: str) -> tuple[object, ...]:
    """TP2 before TP10."""
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", tag) if part)
