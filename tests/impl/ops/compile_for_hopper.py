"""Compile Triton's kernels for compute capability 9.0 without a GPU: a JSON line of counts a kernel."""

import json
import re

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from impl.ops.triton import (
    attention,
    index_map,
    indexer,
    kv_insert,
    linear,
    mhc,
    mhc_gates,
    query,
    rejection,
    sampling,
)

BF16, FP32, INT64, INT32 = "*bf16", "*fp32", "*i64", "i32"
OLD = {"residual": BF16, "y": BF16, "post": FP32, "comb": FP32}
GATES = {"sums": FP32, "scale": FP32, "base": FP32, "n_tokens": INT32, "splits": INT32, "rms_eps": "fp32",
         "hc_eps": "fp32"}  # fmt: skip
ROWS = {"logits": FP32, "temperature": FP32, "seeds": INT64, "positions": INT64, "best": FP32, "width": INT32,
        "stride": INT32, "n_blocks": INT32, "tag": INT32}  # fmt: skip
ROUND = {"target": FP32, "drafts": INT64, "draft": FP32, "mapping": INT64, "temperature": FP32, "seeds": INT64,
         "positions": INT64, "n_drafted": INT64, "rates": FP32, "best": FP32, "best_id": "*i32", "sums": FP32,
         "draft_best": FP32, "draft_sums": FP32, "n_accepted": INT64, "how": "*i32", "greatest": "*i32",
         "log_sums": FP32, "near": FP32, "tokens": INT64, "n_sampled": INT64, "width": INT32, "target_stride": INT32,
         "target_row": INT32, "drafts_stride": INT32, "draft_stride": INT32, "draft_row": INT32, "n_blocks": INT32,
         "n_mapped": INT32, "n_slots": INT32}  # fmt: skip
DRAFTED = {"HAS_DRAFT": True, "HAS_MAP": True}
WHOLE = ("stride", "_row", "width", "page_bytes")
"""Numbers that are multiples of 16 in the shapes measured."""
POST = {"H": 4096, "TOKENS": 2, "COLUMNS": 512}
KERNELS = {
    **{
        name: (mhc._post_kernel, {**OLD, "out": BF16, "out_row": INT32, "n_tokens": INT32}, {**POST, **constants})
        for name, constants in (
            ("post", {"MEAN": False, "KEEP": "evict_first"}), ("post_mean", {"MEAN": True, "KEEP": ""})
        )
    },
    "sums": (
        mhc._sums_kernel,
        {**OLD, "fn": FP32, "new": BF16, "mean": BF16, "mean_row": INT32, "sums": FP32, "n_tokens": INT32},
        {"H": 4096, "TOKENS": 32, "COLUMNS": 32, "SPAN": 1024, "ROWS": 24, "WIDTH": 32, "POST": True, "STORE": True,
         "MEAN": False, "OPERAND": tl.bfloat16, "EARLY": True},
    ),
    "head": (
        mhc._head_kernel, {**OLD, **GATES, "out": BF16, "out_row": INT32},
        {"H": 4096, "COLUMNS": 1024, "SPLITS": 4, "ROWS": 4, "WIDTH": 16, "EARLY": True},
    ),
    "input": (
        mhc_gates.input_kernel,
        {**GATES, "streams": BF16, "norm": FP32, "post_out": FP32, "comb_out": FP32, "out": BF16,
         "gate_programs": INT32, "post_mult": "fp32"},
        {"H": 4096, "COLUMNS": 4096, "SPLITS": 4, "ROWS": 24, "WIDTH": 32, "TOKENS": 64, "ITERS": 20, "EARLY": True},
    ),
    "query": (
        query._query_kernel,
        {"q": BF16, "out": BF16, "positions": INT64, "table": FP32, "eps": FP32, "heads": INT32, "q_stride": INT32,
         "out_stride": INT32},
        {"PAIRS": 32, "HEADS": 2, "D": 512, "KEEP": "evict_first"},
    ),
    **{
        f"linear_{name}_{parts}": (
            linear._linear_kernel,
            {"x": kind, "weight": FP32, "out": FP32, "n": INT32, "x_row_stride": INT32, "x_group_stride": INT32,
             "w_row_stride": INT32, "w_group_stride": INT32, "out_row_stride": INT32, "out_group_stride": INT32},
            {"COLUMNS": 1168, "K": 256, "X_PARTS": of_x, "W_PARTS": parts, "WIDTH": 32, "DEPTH": 128,
             "OPERAND": tl.bfloat16},
        )
        for name, kind, of_x in (("bf16", BF16, 1), ("fp32", FP32, 3))
        for parts in (1, 3)
    },
    "map": (
        index_map._map_kernel,
        {"local": "*i32", "out": "*i32", "lens": "*i32", "table": INT64, "requests": INT64, "valid": "*i32",
         "width": INT32, "local_stride": INT32, "out_stride": INT32, "table_stride": INT32, "n_blocks": INT32},
        {"PER_PAGE": 2, "BLOCK": 2048, "PARTS": 4, "IN_PLACE": True, "HAS_VALID": False, "DENSE": True},
    ),
    "near": (sampling._near_kernel, {**ROWS, "kept": FP32, "slots": INT64, "kept_stride": INT32},
             {"BLOCK": 1024, "KEEP": True}),
    "exact": (sampling._exact_kernel, {**ROWS, "out": INT64}, {"BLOCK": 1024, "BLOCKS": 128}),
    "stats": (rejection._stats_kernel, ROUND, {"K": 5, "BLOCK": 4096, **DRAFTED}),
    **{
        f"verdict{'_synthetic' * synthetic}": (
            rejection._verdict_kernel, ROUND,
            {"K": 5, "PADDED_K": 8, "BLOCKS": 32, **DRAFTED, "SYNTHETIC": synthetic},
        )
        for synthetic in (False, True)
    },
    "resample": (rejection._near_kernel, ROUND, {"BLOCK": 1024, **DRAFTED}),
    "emit": (rejection._emit_kernel, ROUND, {"K": 5, "PADDED_K": 8, "BLOCK": 1024, "BLOCKS": 128, **DRAFTED}),
    **{
        f"attend_{selected}": (
            attention._attend_kernel,
            {"q": BF16, "window_slots": INT64, "entry_slots": INT64, "hidden": "*i1", "sink": FP32, "positions": INT64,
             "table": FP32, "window_pages": "*u8", "entry_pages": "*u8", "out": BF16, "heads": INT32, "q_stride": INT32,
             "hidden_stride": INT32, "window_bytes": INT32, "entry_bytes": INT32, "window_scales": INT32,
             "entry_scales": INT32, "scaling": "fp32"},
            {"WINDOW": window, "SELECTED": selected, "ENTRIES": entries, "WINDOW_PAGE": 64, "ENTRY_PAGE": 64, "D": 64,
             "NOPE": 32, "GROUP": 16, "DATA_BYTES": 96, "SCALE_BYTES": 3, "PAIRS": 16, "OPERAND": tl.bfloat16},
        )
        for window, selected, entries in ((69, 0, 128), (64, 32, 128), (64, 128, 256))
    },
    "order": (
        indexer._order_kernel,
        {"codes": "*u8", "folded": FP32, "table": INT64, "visible": INT64, "pages": "*u8", "out": INT64,
         "n_pages": INT32, "page_bytes": INT32, "scales_at": INT32, "columns": INT32},
        {"HEADS": 4, "PADDED": 4, "D": 32, "PER_PAGE": 64, "ENTRIES": 64},
    ),
    "insert": (
        kv_insert._insert_kernel,
        {"kv": BF16, "positions": INT64, "table": FP32, "slots": INT64, "pages": "*u8", "n": INT32, "kv_stride": INT32,
         "page_bytes": INT32, "scales_at": INT32},
        {"PER_PAGE": 64, "PAIRS": 32, "ROWS": 4, "D": 512, "NOPE": 448, "GROUP": 64, "DATA_BYTES": 576,
         "SCALE_BYTES": 8},
    ),
}  # fmt: skip


def compiled(kernel, types, constants):
    """PTX with pointers and strides that are multiples of 16, as the ones of whole tensors are."""
    names = kernel.arg_names
    types = {name: kind for name, kind in types.items() if name in names}
    aligned = [name for name, kind in types.items() if kind.startswith("*") or name.endswith(WHOLE)]
    source = ASTSource(
        fn=kernel, signature={name: types.get(name, "constexpr") for name in names},
        constexprs={(names.index(name),): value for name, value in constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )  # fmt: skip
    return triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"]


if __name__ == "__main__":
    for label, (kernel, types, constants) in KERNELS.items():
        ptx = compiled(kernel, types, constants)
        loads, stores = (re.findall(rf"{what}\.global[.\w:]*", ptx) for what in ("ld", "st"))
        print(json.dumps({
            "kernel": label, "loads": len(loads), "wide_loads": sum(".v4." in load for load in loads),
            "stores": len(stores), "wide_stores": sum(".v4." in store for store in stores),
            "tensor_core": len(re.findall(r"mma\.sync", ptx)), "fma": len(re.findall(r"fma\.rn\.f32", ptx)),
            "anywhere": [p.name for p in kernel.params if p.do_not_specialize_on_alignment or p.do_not_specialize],
            "copies": len(re.findall(r"cp\.async\.c[ag]\.", ptx)),
            "wide_copies": len(re.findall(r"cp\.async\.c[ag]\.shared\.global [^;]*, 0x10\b", ptx)),
        }))  # fmt: skip
