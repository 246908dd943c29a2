"""The source document's speed, acceptance and quality figures, each with where and how it was measured.

The memory table is computed in dsbench/published.py. Sections are those of the reference's `source_pr.md`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rig:
    """What figures were measured on, as far as the document says; None where it does not."""

    name: str
    card: str
    """Part of the card's name, as drivers give it."""
    cards: int
    tp: int
    layers: int
    """Of the target; DeepSeek-V4-Flash is not named layer by layer, its size is known."""
    speculative: str
    draft_tokens: int
    gpu_memory_utilization: float
    max_model_len: int
    max_num_batched_tokens: int | None
    kv_cache_dtype: str | None
    version: str
    engine: str = "vllm"
    weights: str = "trained"
    graphs: str = "captured"
    rejection: str = "by the target"
    """Which drafts are accepted: as the target has it, or at synthetic rates."""

    def conditions(self) -> dict[str, object]:
        """What a measurement of ours is held against, by the name of our condition."""
        return {
            "card": self.card,
            "cards": self.cards,
            "engine": self.engine,
            "version": self.version,
            "graphs": self.graphs,
            "rejection": self.rejection,
            "target layers": self.layers,
            "weights": self.weights,
            "tp": self.tp,
            "speculative": self.speculative,
            "draft_tokens": self.draft_tokens,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "kv_cache_dtype": self.kv_cache_dtype,
        }


@dataclass(frozen=True)
class Figure:
    """One published figure."""

    metric: str
    """Ours that comes nearest."""
    value: float
    unit: str
    rig: Rig
    section: str
    note: str
    """How it was measured, and where that differs from the metric of ours."""


SM120 = Rig("SM120", "RTX PRO 6000", 2, 2, 43, "dspark", 5, 0.975, 524_288, 8192, None, "a fork, the PR's head")
GB10 = Rig("GB10", "GB10", 2, 2, 43, "mtp", 2, 0.85, 49_152, None, "fp8", "a fork, 1ee1ec7930")

WARM = "warm decode, one stream"
CONCURRENT = "max_tokens 500, temperature 0, thinking off"
RATE = "accepted of drafted tokens"
LONG = "2,048 tokens at temperature 1; prompt of {:,} tokens"

FIGURES: tuple[Figure, ...] = (
    Figure("decode.tps.c1", 297.7, "tok/s", SM120, "4.5", f"{WARM}: median of the backed-out current-step logits"),
    Figure("decode.tps.c1", 310.9, "tok/s", SM120, "4.5", f"{WARM}: median with persistent logits, 304.7 to 311.4"),
    Figure("decode.tps.c1", 309.2, "tok/s", SM120, "4.5", f"{WARM}: mean with persistent logits"),
    Figure("decode.tps.c1", 307.5, "tok/s", SM120, "4.6", f"{WARM}: before the input reuse"),
    Figure("decode.tps.c1", 307.6, "tok/s", SM120, "4.6", f"{WARM}: with the input reuse"),
    Figure("decode.tps.c1", 310.0, "tok/s", SM120, "4.6", f"{WARM}: median as deployed"),
    Figure("prefill.tps.1024", 6106.0, "tok/s", SM120, "4.5", "prompt of 1K"),
    Figure("prefill.tps.4096", 8004.0, "tok/s", SM120, "4.5", "prompt of 4K"),
    Figure("prefill.tps.16384", 7710.0, "tok/s", SM120, "4.5", "prompt of 16K"),
    Figure("prefill.tps.65536", 6369.0, "tok/s", SM120, "4.5", "prompt of 65K"),
    Figure("concurrency.tps.c2", 275.7, "tok/s", SM120, "4.7", CONCURRENT),
    Figure("concurrency.tps.c4", 393.2, "tok/s", SM120, "4.7", CONCURRENT),
    Figure("concurrency.tps.c8", 577.9, "tok/s", SM120, "4.7", CONCURRENT),
    Figure("concurrency.tps.c12", 643.5, "tok/s", SM120, "4.4", "12 requests, 5,986 tokens in 9.30 s, temperature 0"),
    Figure("concurrency.accept.c2", 0.5295, "share", SM120, "4.7", RATE),
    Figure("concurrency.accept.c4", 0.5507, "share", SM120, "4.7", RATE),
    Figure("concurrency.accept.c8", 0.5692, "share", SM120, "4.7", RATE),
    Figure("concurrency.accept.c12", 0.4683, "share", SM120, "4.4", f"{RATE}, 12 requests"),
    Figure("accept.rate", 0.4683, "share", SM120, "4.4", f"{RATE}, 12 requests; its prompts are not stated"),
    Figure("accept.length", 3.341, "tok/round", SM120, "4.4", "mean of 12 requests; its prompts are not stated"),
    Figure("long_context.tps.32783", 286.5, "tok/s", SM120, "4.8", LONG.format(32_783)),
    Figure("long_context.tps.65539", 287.9, "tok/s", SM120, "4.8", LONG.format(65_539)),
    Figure("gsm8k.correct", 0.9568, "share", GB10, "5.1", "one run at the merge, as before it"),
    Figure("gsm8k.correct", 0.9469, "share", GB10, "5.2", "34 commits later, run 1"),
    Figure("gsm8k.correct", 0.9507, "share", GB10, "5.2", "the same build, run 2"),
    Figure("gsm8k.correct", 0.9583, "share", GB10, "5.2", "the same build, run 3"),
    Figure("coherence.recall", 1.0, "share", GB10, "5.1", "2 of 2 requests, one at a time; ours counts needles"),
    Figure(
        "coherence.recall", 23 / 24, "share", GB10, "5.1", "23 of 24 requests, twelve at a time; ours counts needles"
    ),
    Figure("toolcall.points", 0.86, "share", GB10, "5.1", "three ways of thinking, three rounds; ours counts points"),
    Figure("instruction.correct", 1.0, "share", GB10, "5.1", "JSON only: PASS; the number of tasks is not stated"),
)
