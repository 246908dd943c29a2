"""Operations of a few eager steps on the GPU, done again on the CPU from the same inputs; where they part, by line.

python3 .gpu/engine_diff.py [cuda|cpu] [pico|micro]
"""

import collections
import os
import sys
import time
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from impl import tokenizer
from impl.dims import SHAPES
from impl.engine.config import EngineConfig
from impl.engine.request import Request, SamplingParams
from impl.engine.runner import Runner
from impl.handshake import Handshake
from impl.toggles import ToggleSet

DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cuda"
DIMS = sys.argv[2] if len(sys.argv) > 2 else "micro"
ROOT = str(Path.cwd())


def site():
    frame, found = sys._getframe(2), []
    while frame is not None and len(found) < 3:
        name = frame.f_code.co_filename
        if "/impl/" in name and "engine_diff" not in name:
            found.append(f"{name.split('/impl/')[-1]}:{frame.f_lineno} {frame.f_code.co_name}")
        frame = frame.f_back
    return " < ".join(found)


class Compare(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops, self.skipped, self.failed = 0, collections.Counter(), collections.Counter()
        self.found = collections.OrderedDict()
        self.seconds = 0.0

    @classmethod
    def _should_skip_dynamo(cls):
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        is_view = not func._schema.is_mutable and any(r.alias_info for r in func._schema.returns)
        moves = name in (
            "_to_copy",
            "empty",
            "empty_like",
            "new_empty",
            "empty_strided",
            "_local_scalar_dense",
            "record_stream",
            "_unsafe_view",
        )
        if is_view or moves or not any(t.device.type == DEVICE for t in tensors):
            self.skipped[name] += 1
            return func(*args, **kwargs)
        begin = time.perf_counter()
        with torch.utils._python_dispatch._disable_current_modes():
            storages = {}

            def twin(leaf):
                if isinstance(leaf, torch.device):
                    return torch.device("cpu")
                if not isinstance(leaf, torch.Tensor):
                    return leaf
                storage = leaf.untyped_storage()
                if storage._cdata not in storages:
                    whole = torch.empty(0, dtype=torch.uint8, device=leaf.device).set_(storage)
                    storages[storage._cdata] = whole.cpu().clone().untyped_storage()
                made = torch.empty(0, dtype=leaf.dtype).set_(
                    storages[storage._cdata], leaf.storage_offset(), leaf.shape, leaf.stride()
                )
                if leaf.is_conj():
                    made = made.conj()
                return made

            cpu_args, cpu_kwargs = tree_map(twin, (args, kwargs))
        self.seconds += time.perf_counter() - begin
        out = func(*args, **kwargs)
        begin = time.perf_counter()
        with torch.utils._python_dispatch._disable_current_modes():
            try:
                ref = func(*cpu_args, **cpu_kwargs)
            except Exception as error:
                self.failed[f"{func}: {type(error).__name__} {str(error)[:80]} at {site()}"] += 1
                return out
            pairs = list(zip(tree_leaves(out), tree_leaves(ref), strict=False))
            if func._schema.is_mutable:
                pairs += list(zip(tree_leaves((args, kwargs)), tree_leaves((cpu_args, cpu_kwargs)), strict=False))
            for ours, theirs in pairs:
                if isinstance(ours, torch.Tensor) and ours.device.type == DEVICE:
                    self.compare(func, ours, theirs, tensors)
        self.ops += 1
        self.seconds += time.perf_counter() - begin
        return out

    def compare(self, func, ours, theirs, inputs):
        if ours.numel() > (1 << 24):
            return
        a, b = ours.cpu(), theirs
        if a.dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
            a, b = a.float(), b.float()
        if a.is_complex():
            a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
        if a.is_floating_point():
            a, b = a.double(), b.double()
            same = (a == b) | (a.isnan() & b.isnan())
            gap = torch.where(same, 0.0, (a - b).abs())
            gap = gap.nan_to_num(nan=float("inf"))
            finite = b[b.isfinite()]
            scale = float(finite.abs().max()) if finite.numel() else 0.0
            worst, bad = float(gap.max()) if gap.numel() else 0.0, 0
            limit = 2e-2 if ours.dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn) else 1e-4
            if worst > limit * max(scale, 1e-6):
                bad = int((gap > limit * max(scale, 1e-6)).sum())
        else:
            wrong = a != b
            bad = int(wrong.sum())
            worst, scale = float((a.double() - b.double()).abs().max()) if bad else 0.0, float(a.numel())
        if bad:
            key = f"{func} at {site()}"
            n, first = self.found.get(key, (0, None))
            where = (gap > limit * max(scale, 1e-6)) if ours.dtype.is_floating_point or ours.is_complex() else wrong
            at = where.nonzero()[0].tolist()
            first = first or (
                f"op {self.ops}: {bad} of {a.numel()} {ours.dtype} {list(ours.shape)} stride {list(ours.stride())}, "
                f"worst {worst:.4g} at {at} "
                f"gpu {a[tuple(at)].item():.6g} cpu {b[tuple(at)].item():.6g}, scale {scale:.4g}; inputs "
                + "; ".join(
                    f"{str(t.dtype)[6:]}{list(t.shape)}/{list(t.stride())}+{t.storage_offset()}" for t in inputs[:6]
                )
            )
            self.found[key] = (n + 1, first)


def main():
    print(
        "torch",
        torch.__version__,
        "tf32",
        torch.backends.cuda.matmul.allow_tf32,
        torch.get_float32_matmul_precision(),
        {
            k: v
            for k, v in os.environ.items()
            if "TF32" in k or "CUBLAS" in k or k.startswith("TORCH") or k.startswith("PYTORCH")
        },
    )
    try:
        print("fp32_precision", torch.backends.fp32_precision, torch.backends.cuda.matmul.fp32_precision)
    except Exception as error:
        print(error)
    dims = SHAPES[DIMS].with_changes(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=1024)
    texts = [
        "17+25=",
        "Q: Tom has 12 apples and buys 7 more. He gives 5 to Ann. How many apples does he have left?\nA:"[:60],
    ]
    for device in ("cpu", DEVICE):
        budget = (64 << 20) + ((2 << 30) if device == "cuda" else (512 << 20))
        runner = Runner(EngineConfig(dims, ToggleSet(), budget, device=device), Handshake(None))
        print(device, "batch invariant", runner.batch_invariant)
        runner.n_blocks = 300
        runner.allocate_pages()
        if device == "cuda":
            torch.cuda.empty_cache()
        for text in texts:
            request = Request(
                "r",
                [tokenizer.BOS, *tokenizer.encode(text)],
                SamplingParams(max_tokens=20, temperature=0.0, logprobs=3),
            )
            runner.scheduler.add(request)
            events = []
            while not events:
                events = runner.step()
            first = events[0]
            while runner.scheduler.has_work:
                runner.step()
            print(device, repr(text[:20]), repr(request.text), first.logprobs)
    compare = Compare()
    request = Request("r", [tokenizer.BOS, *tokenizer.encode(texts[1])], SamplingParams(max_tokens=4, temperature=0.0))
    runner.scheduler.add(request)
    with compare:
        while runner.scheduler.has_work and compare.seconds < float(os.environ.get("DIFF_SECONDS", "60")):
            runner.step()
            print(
                "step",
                compare.ops,
                "operations compared",
                f"{compare.seconds:.1f} s",
                len(compare.found),
                "lines part",
                flush=True,
            )
    for key, n in compare.failed.most_common(20):
        print("FAILED", n, key)
    for key, (n, first) in list(compare.found.items())[:60]:
        print(f"{n} x {key}\n     {first}")


main()
