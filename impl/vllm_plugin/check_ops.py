"""Compare the plugin's operations with vLLM's own, bit by bit, on a GPU: `python -m impl.vllm_plugin.check_ops [NAME]`.

Names: seam, final, query, index; all of them without one. Needs vLLM and a GPU, loads no model. `index` maps dense rows
in place and reads them through a simulated consumer. `c128_indices_in_place` is unverified on SM120: this is its check.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from impl.toggles import find

DEVICE = "cuda"
HIDDEN, STREAMS, HEADS, HEAD_DIM = 4096, 4, 64, 512
TOKENS = (64, 1024, 8192)
FINAL_TOKENS = (1, 6, 16, 20, 32, 48, 64, 96, 128, 512, 1000, 1024, 8192)
"""Every point that the tuning table has for the final operations of this width."""
INDEX_TOGGLE = "c128_indices_in_place"
GATES: tuple[Any, ...] = (1e-6, 1e-6, 1e-6, 2.0, 20)

Check = Iterator[tuple[str, bool | None, str]]
"""What was compared, whether it is equal (None: a bound is given instead), and the figure."""


def check_seam(version: str) -> Check:
    """Old streams and sublayer output written over, against fresh buffers."""
    import torch
    from vllm.model_executor.kernels.mhc import tilelang

    from impl.vllm_plugin.mhc_seam import Seam

    weights = (_normal(24, STREAMS * HIDDEN, seed=1) / 128, 1 + 0.1 * _normal(3), 0.1 * _normal(24))
    norm = (1 + 0.1 * _normal(HIDDEN)).bfloat16()
    ours: Any = Seam(tilelang.mhc_fused_post_pre_tilelang, version)
    ours.reuse = {"residual", "input"}
    for n in TOKENS:
        args = _seam_inputs(n)
        expected = ours.original(*args, *weights, *GATES, norm_weight=norm, norm_eps=1e-6)
        x, residual, post, comb = _seam_inputs(n)
        found = ours(x, residual, post, comb, *weights, *GATES, norm_weight=norm, norm_eps=1e-6)
        in_place = found[0].data_ptr() == residual.data_ptr() and found[3].data_ptr() == x.data_ptr()
        same = in_place and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        yield f"seam, {n} tokens", same, "in place" if in_place else "NOT in place"


def check_final(version: str) -> Check:
    """Mean and head by what the plugin puts in the place of POST and the head, against streams.

    Each alone, both in one kernel, and both as a captured graph runs them.
    """
    import torch
    from vllm.model_executor.kernels.mhc import tilelang

    from impl.vllm_plugin import mhc_final_fused as fused

    patched: Any = ModuleType("patched")
    vars(patched).update({name: getattr(tilelang, name) for name in (fused.POST, fused.HEAD)})
    fused.patch_consumer(patched, version)
    promise, head_of = getattr(patched, fused.POST), getattr(patched, fused.HEAD)
    fn, scale, base = _normal(STREAMS, STREAMS * HIDDEN, seed=2) / 128, 1 + 0.1 * _normal(1), 0.1 * _normal(STREAMS)

    def both(args: tuple[Any, ...]) -> tuple[Any, Any]:
        streams = promise(*args)
        mean = streams.mean(dim=1)
        return mean, head_of(streams, fn, scale, base, 1e-6, 1e-6)

    for n in FINAL_TOKENS:
        args = _seam_inputs(n)
        alone = promise(*args)
        if not isinstance(alone, fused.Promise):
            yield f"final, {n} tokens", False, f"refused: {fused.refusal(*args)}"
            continue
        streams = tilelang.mhc_post_tilelang(*args)
        wanted = streams.mean(dim=1), tilelang.hc_head_fused_kernel_tilelang(streams, fn, scale, base, 1e-6, 1e-6)
        mean = alone.mean(dim=1)
        alone.end()
        yield f"final mean, {n} tokens", torch.equal(mean, wanted[0]), _computed_by(fused.MEAN_OP, args, n)
        head = head_of(promise(*args), fn, scale, base, 1e-6, 1e-6)
        same, figure = _near_head(head, wanted[1], streams)
        yield f"final head, {n} tokens", same, f"{figure}, {_computed_by(fused.HEAD_OP, args, n)}"
        mean, head = both(args)
        same, figure = _near_head(head, wanted[1], streams)
        same = same if torch.equal(mean, wanted[0]) else False
        yield f"final mean and head, {n} tokens", same, f"{figure}, {_computed_by(fused.BOTH_OP, args, n)}"
        if DEVICE == "cuda":
            graph, found = torch.cuda.CUDAGraph(), [tensor.clone() for tensor in (mean, head)]
            with torch.cuda.graph(graph):
                captured = both(args)
            for tensor in captured:
                tensor.fill_(float("nan"))
            graph.replay()
            yield f"final, captured, {n} tokens", all(map(torch.equal, captured, found)), "against the same, eager"


def _near_head(found: Any, expected: Any, streams: Any) -> tuple[bool | None, str]:
    """Whether a head is within its bound, and how much of it differs.

    The gates' sum in another order moves the last bits of fp32: one rounding step of the output, or, where the gated
    streams cancel, as little of what was added up.
    """
    import torch

    off = (found.float() - expected.float()).abs()
    step = torch.ldexp(torch.ones_like(off), torch.frexp(expected.float())[1] - 8)
    limit = torch.maximum(step, 2**-16 * streams.float().abs().sum(1))
    share = (off > 0).float().mean().item()
    return None if bool((off <= limit).all()) else False, f"{share:.2e} of elements differ"


def _computed_by(op: str, args: tuple[Any, ...], n: int) -> str:
    from impl.ops import dispatch
    from impl.vllm_plugin.mhc_final_fused import shape_of

    chosen = dispatch.backend(op, args[0].device, shape_of(HIDDEN, STREAMS), n)
    return " ".join([chosen.backend, *(f"{key}={value}" for key, value in chosen.parameters.items())])


def check_query(version: str) -> Check:
    """Query and cache, against the operator that allocates its output."""
    import torch
    import vllm._custom_ops  # noqa: F401  registers the operators

    from impl.vllm_plugin import q_in_place

    n_blocks, block = 256, 64
    angles = _normal(8192, 32, seed=3)
    cos_sin = torch.cat([angles.cos(), angles.sin()], -1).contiguous()
    page = -(-block * 584 // 576) * 576
    for n in TOKENS[1:]:
        q, kv = _normal(n, HEADS, HEAD_DIM, seed=n).bfloat16(), _normal(n, HEAD_DIM, seed=n + 1).bfloat16()
        positions = torch.arange(n, device="cuda")
        slots = torch.randperm(n_blocks * block, device="cuda")[:n].long()
        slots[::7] = -1
        caches = [torch.zeros(n_blocks, page, dtype=torch.uint8, device="cuda") for _ in range(2)]
        expected = getattr(torch.ops._C, q_in_place.INSERT_OP)(
            q, kv, caches[0], slots, positions, cos_sin, HEADS, 1e-6, block
        )
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        q_in_place.turn_queries(q, kv, positions, cos_sin, 1e-6)
        q_in_place.insert_keys(kv, caches[1], slots, positions, cos_sin, 1e-6, block)
        torch.cuda.synchronize()
        peak = (torch.cuda.max_memory_allocated() - before) / 2**20
        yield f"query, {n} rows", torch.equal(q, expected), f"{peak:.1f} MiB for {q.nbytes / 2**20:.1f} MiB"
        yield f"cache, {n} rows", torch.equal(*caches), ""


def check_index(version: str) -> Check:
    """Rows mapped in place and read by a consumer that sums what the slots hold, against fresh rows."""
    import torch
    from vllm.models.deepseek_v4.common.ops.cache_utils import compute_global_topk_indices_and_lens

    from impl.vllm_plugin.c128_indices_in_place import map_in_place, whole_rows

    width, block = 4096, 2
    for n, active in ((128, 4096), (1000, 4096), (8192, 4096), (1000, 1024)):
        visible = torch.randint(0, active, (n, 1), device="cuda")
        entries = torch.arange(width, device="cuda").expand(n, -1)
        buffer = torch.where(entries < visible, entries, -1).int()
        rows = buffer[:, :active]
        requests = torch.randint(0, 16, (n,), device="cuda", dtype=torch.int32)
        table = torch.randint(0, 5000, (16, width // block), device="cuda", dtype=torch.int32)
        valid = torch.rand(n, device="cuda") > 0.1
        memory = torch.randn(5000 * block, device="cuda")
        fresh, lens = compute_global_topk_indices_and_lens(rows, requests, table, block, valid)
        expected = _consume(memory, fresh, lens)
        found = map_in_place(rows, requests, table, block, valid, version)
        same = torch.equal(rows, fresh) and torch.equal(found, lens)
        same = same and torch.equal(_consume(memory, whole_rows(rows)[:, :active], found), expected)
        yield f"index rows, {n} x {active}", same, "through a simulated consumer"


def index_status(platform: str) -> str:
    """What the `index` check says of its toggle on a platform, such as `sm90`."""
    toggle = find(INDEX_TOGGLE)
    if platform == toggle.unverified_on.lower():
        return f"{toggle.name} is unverified on {toggle.unverified_on}; this is the check of its kernel there"
    stays = f"{toggle.name} is unverified on {toggle.unverified_on}, and stays so: this is {platform}"
    return f"{stays}. On such a card: {toggle.verified_by}"


def _consume(memory: Any, slots: Any, lens: Any) -> Any:
    import torch

    live = torch.arange(slots.shape[1], device=slots.device) < lens[:, None]
    return torch.where(live, memory[slots.clamp(min=0).long()], 0).double().sum(1)


def _normal(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(*shape, device=DEVICE, generator=torch.Generator(DEVICE).manual_seed(seed))


def _seam_inputs(n: int) -> tuple[Any, Any, Any, Any]:
    import torch

    x, residual = _normal(n, HIDDEN, seed=n).bfloat16(), _normal(n, STREAMS, HIDDEN, seed=n + 1).bfloat16()
    post = 2 * torch.sigmoid(_normal(n, STREAMS, 1, seed=n + 2))
    return x, residual, post, torch.softmax(_normal(n, STREAMS, STREAMS, seed=n + 3), -1)


CHECKS: dict[str, Callable[[str], Check]] = {
    "seam": check_seam,
    "final": check_final,
    "query": check_query,
    "index": check_index,
}


def main(names: list[str]) -> int:
    from impl.vllm_plugin.install import platform_name, vllm_version

    unknown = [name for name in names if name not in CHECKS]
    if unknown:
        sys.stderr.write(f"unknown check '{unknown[0]}': {', '.join(CHECKS)}\n")
        return 2
    version, failed = vllm_version(), 0
    print(f"vLLM {version}, {platform_name()}")
    for name in names or CHECKS:
        if name == "index":
            print(index_status(platform_name()), flush=True)
        for what, same, figure in CHECKS[name](version):
            failed += same is False
            verdict = {True: "same bits", None: "within the bound", False: "DIFFERS"}[same]
            print(f"{what:28} {verdict:17} {figure}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
