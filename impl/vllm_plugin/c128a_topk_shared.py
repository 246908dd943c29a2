"""Toggle `c128a_topk_shared`: decodes and prefills keep their dense index rows in one buffer.

A step's decode rows come first, so the prefill rows start where they end. That start moves from step to step: a full
graph over both kinds of rows would keep an old one, and is refused.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from impl.vllm_plugin import state
from impl.vllm_plugin.facts import Facts, first, on_v4_gpu
from impl.vllm_plugin.patch import SPARSE_MLA, V033, Patch, sites
from impl.vllm_plugin.sites import Calls, Symbol, Text

TOGGLE = "c128a_topk_shared"
BUILDERS = {"0.33.0": "DeepseekV4SparseMLAMetadataBuilder"}
OLDER_BUILDER = "DeepseekV4FlashMLAMetadataBuilder"
BUILD = "build_c128a_topk_metadata"


def _patch_metadata(module: ModuleType, version: str) -> None:
    builder = getattr(module, BUILDERS.get(version, OLDER_BUILDER))
    init, build = builder.__init__, getattr(module, BUILD)

    @functools.wraps(init)
    def init_shared(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        if self.compress_ratio == 128:
            self.c128a_prefill_buffer = self.c128a_global_decode_buffer
            state.take(TOGGLE)

    @functools.wraps(build)
    def build_shared(
        positions: Any, compress_ratio: int, num_decode_tokens: int, token_to_req_indices: Any, block_table: Any,
        block_size: int, slot_mapping: Any, global_decode_buffer: Any, decode_lens_buffer: Any, prefill_buffer: Any,
        max_compressed_tokens: int = 8192,
    ) -> Any:  # fmt: skip
        if prefill_buffer.data_ptr() == global_decode_buffer.data_ptr():
            if positions.shape[0] > prefill_buffer.shape[0]:
                raise RuntimeError(f"{TOGGLE}: {positions.shape[0]} rows in a buffer of {prefill_buffer.shape[0]}")
            if positions.shape[0] > num_decode_tokens:
                prefill_buffer = prefill_buffer[num_decode_tokens:]
            state.take(TOGGLE)
        return build(
            positions, compress_ratio, num_decode_tokens, token_to_req_indices, block_table, block_size, slot_mapping,
            global_decode_buffer, decode_lens_buffer, prefill_buffer, max_compressed_tokens=max_compressed_tokens,
        )  # fmt: skip

    builder.__init__ = init_shared
    setattr(module, BUILD, build_shared)


def _refuse(facts: Facts) -> str | None:
    mixed = "graph mode FULL captures decode and prefill rows in one graph, which would keep an old start of the rows"
    return first(on_v4_gpu(facts), mixed if facts.graph_mode == "FULL" else None)


_PARAMETERS = (
    "positions", "compress_ratio", "num_decode_tokens", "token_to_req_indices", "block_table", "block_size",
    "slot_mapping", "global_decode_buffer", "decode_lens_buffer", "prefill_buffer", "max_compressed_tokens",
)  # fmt: skip


def _of_builder(name: str) -> tuple[Calls | Symbol | Text, ...]:
    return (
        Symbol(SPARSE_MLA, f"{name}.__init__", ("self", "kv_cache_spec", "layer_names", "vllm_config", "device")),
        Calls(SPARSE_MLA, f"{name}._build_c128a_metadata", BUILD, times=1, positional=10),
    )


PATCH = Patch(
    toggle=TOGGLE,
    sites=sites(
        every=(
            Symbol(SPARSE_MLA, BUILD, _PARAMETERS),
            Text(SPARSE_MLA, BUILD, "decode_lens = decode_lens_buffer[:num_decode_tokens]"),
        ),
        up_to_026=(
            *_of_builder(OLDER_BUILDER),
            Text(SPARSE_MLA, BUILD, "prefill_local = prefill_buffer[:num_prefill_tokens]"),
            Text(SPARSE_MLA, "_build_c128a_topk_metadata_kernel", "pfx_idx = token_idx - num_decode_tokens"),
        ),
        v033=(
            *_of_builder(BUILDERS[V033[0]]),
            Text(SPARSE_MLA, BUILD, "prefill_local = prefill_buffer[:num_prefill_tokens, :max_compressed_tokens]"),
            Text(
                SPARSE_MLA,
                "BuildC128ATopkMetadataKernel.kernel",
                "pfx_idx = token_idx - num_decode_tokens",
            ),
        ),
    ),
    hooks={SPARSE_MLA: _patch_metadata},
    refuse=_refuse,
)

__all__ = ["PATCH"]
