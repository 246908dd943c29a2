"""How far a starting server is, from its log: loading, profiling, compiling, capturing, serving."""

from __future__ import annotations

PHASES: dict[str, tuple[str, ...]] = {
    "loading": ("Starting to load model", "Loading safetensors", "Model loading took"),
    "compiling": ("Dynamo bytecode transform", "Compiling a graph", "torch.compile took", "torch.compile takes"),
    "profiling": ("Memory profiling takes", "Profiling CUDA graph", "Available KV cache memory", "KV cache size: "),
    "capturing": ("Capturing CUDA graph", "Graph capturing finished"),
    "serving": ("Starting vLLM", "Application startup complete"),
}
"""Phrases of each phase, in the order in which a start usually goes through them."""

WHILE_SERVING = ("JIT compilation during inference:", "Triton autotuning for function", "Autotuning process starts",
                 "TileLang begins to compile")  # fmt: skip
"""What vLLM's monitor of Triton, TileLang and CuTeDSL kernels says, and what the compilers say themselves."""

COMPILING = (*PHASES["compiling"], *PHASES["capturing"], *WHILE_SERVING)
"""What a server that is already measured must not print: it would time the compiler."""


def phases_of(text: str) -> list[str]:
    """The phases that `text` has lines of, in the order of their first lines."""
    first = {name: [at for phrase in phrases if (at := text.find(phrase)) >= 0] for name, phrases in PHASES.items()}
    return sorted((name for name, found in first.items() if found), key=lambda name: min(first[name]))


def compile_lines(text: str) -> list[str]:
    """Lines that tell of compiling, capturing or tuning."""
    return [line.strip()[:300] for line in text.split("\n") if any(phrase in line[:2000] for phrase in COMPILING)]
