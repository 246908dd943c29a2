"""The engine on its kernels on a CUDA device: each ran, none was compiled in a capture; the tokens are the CPU's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from impl import tokenizer
from impl.dims import PICO
from impl.engine.config import EngineConfig
from impl.engine.runner import Runner
from impl.handshake import Handshake
from impl.ops import dispatch
from impl.toggles import ToggleSet
from tests.impl.engine.engines import generate, make_request
from tests.impl.engine.test_backends import CASES, IDS, counting, forgetful

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]
__all__ = ["forgetful"]
TEXTS = ["17+25=", "7*8=", "Q: 36+47\nA:", "3+4=7\n" * 40 + "17+25="]
"""The last is longer than a window, and has dense entries."""


def answers(device: str, method: str, toggles: str, **settings: Any) -> list[list[int]]:
    """Greedy tokens of the shipped model. A draft by the mtp method is random: it never decides a greedy token."""
    if method == "mtp":
        settings["draft_load_format"] = "dummy"
    budget = (1 << 30) if device == "cuda" else (64 << 20)
    config = EngineConfig(PICO, ToggleSet.parse(toggles), budget, device=device, speculative=method, **settings)
    runner = Runner(config, Handshake(None))
    runner.allocate_pages()
    requests = [make_request([tokenizer.BOS, *tokenizer.encode(text)], max_tokens=3) for text in TEXTS]
    return generate(runner, requests)


@pytest.fixture
def ran(forgetful: None, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each operation was computed, as `op by backend`."""
    calls: Counter[str] = Counter()
    real = dispatch.backend

    def noting(op: str, *rest: Any) -> dispatch.Operation:
        chosen = real(op, *rest)
        name = f"{op} by {chosen.backend}"
        return chosen._replace(function=counting(chosen.function, name, calls))

    monkeypatch.setattr(dispatch, "backend", noting)
    return calls


PICOS = [(case, id_) for case, id_ in zip(CASES, IDS, strict=True) if case[2] is PICO]


@pytest.mark.parametrize("capture", ["eager", "steps"])
@pytest.mark.parametrize(("method", "toggles", "dims", "wanted"), [c for c, _ in PICOS], ids=[i for _, i in PICOS])
def test_tokens_are_the_cpus_and_every_kernel_ran(ran, method, toggles, dims, wanted, capture):
    if method == "mtp" and capture == "steps":
        pytest.skip("the mtp method's passes are not captured")
    expected = answers("cpu", method, toggles)
    assert not ran
    settings = {"eager": True} if capture == "eager" else {"eager": False, "capture": "steps"}
    assert answers("cuda", method, toggles, **settings) == expected
    assert set(ran) == {f"{op} by triton" for op in wanted}
    assert min(ran.values()) > 0


@pytest.mark.parametrize("capture", ["draft", "rounds", "steps"])
def test_nothing_is_compiled_or_chosen_for_the_first_time_in_a_capture(forgetful, monkeypatch, capture):
    """In a process whose kernels are forgotten: a compilation in a capture would end it, a look-up could allocate."""
    import triton

    from impl.ops.triton import index_map, mhc, rejection, sampling

    compiled: list[bool] = []
    chosen: list[bool] = []

    def hook(*_args: Any, **_kwargs: Any) -> None:
        compiled.append(torch.cuda.is_current_stream_capturing())

    real = dispatch.backend

    def noting(*given: Any) -> dispatch.Operation:
        chosen.append(torch.cuda.is_current_stream_capturing())
        return real(*given)

    for module in (index_map, mhc, rejection, sampling):
        for kernel in vars(module).values():
            if isinstance(kernel, triton.runtime.jit.JITFunction):
                kernel.device_caches.clear()
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", hook)
    monkeypatch.setattr(dispatch, "backend", noting)
    answers("cuda", "dspark", "", eager=False, capture=capture)
    assert compiled
    assert chosen
    assert not any(compiled)
    assert not any(chosen)


def test_other_batches_ask_for_no_other_compilation(forgetful, monkeypatch):
    """Of the kernels that the engine asks dispatch for: a batch of another size must not wait for a compiler."""
    import triton

    config = EngineConfig(PICO, ToggleSet(), 1 << 30, device="cuda", speculative="dspark", eager=True)
    runner = Runner(config, Handshake(None))
    runner.allocate_pages()

    def serve(texts: list[str]) -> None:
        ids = [[tokenizer.BOS, *tokenizer.encode(text)] for text in texts]
        generate(runner, [make_request(i, max_tokens=6, temperature=float(n % 2)) for n, i in enumerate(ids)])

    serve(TEXTS[:2])
    compiled: list[str] = []
    monkeypatch.setattr(
        triton.knobs.runtime, "jit_cache_hook", lambda *_args, **given: compiled.append(str(given["fn"]))
    )  # fmt: skip
    for texts in (TEXTS[:1], TEXTS[:3], TEXTS, TEXTS[1:2] + TEXTS[3:]):
        serve(texts)
    mine = ("triton.index_map", "triton.rejection", "triton.sampling", "triton.mhc")
    assert [name for name in compiled if any(word in name for word in mine)] == []


@pytest.mark.parametrize("method", ["none", "dspark"])
def test_sampled_tokens_are_those_of_torch_on_the_same_device(forgetful, monkeypatch, method):
    """Noise is counted, so a draw differs only where two scores differ by less than rounding."""

    def drawn() -> list[list[int]]:
        config = EngineConfig(PICO, ToggleSet(), 1 << 30, device="cuda", speculative=method, eager=True)
        runner = Runner(config, Handshake(None))
        runner.allocate_pages()
        ids = [[tokenizer.BOS, *tokenizer.encode(text)] for text in TEXTS]
        return generate(
            runner, [make_request(i, max_tokens=3, temperature=0.3, seed=s) for s, i in enumerate(ids)]
        )  # fmt: skip

    found = drawn()
    drawing = "mhc_post,topk_metadata,index_map,draft_sample,rejection"
    monkeypatch.setenv(dispatch.FORCE, ",".join(f"{op}=torch" for op in drawing.split(",")))
    assert drawn() == found
