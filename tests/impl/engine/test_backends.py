"""Which operations an engine asks dispatch for, and that what dispatch names is what computes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from impl.dims import MICRO, PICO
from impl.ops import dispatch
from tests.impl.engine.engines import boot_runner, generate, make_request, random_prompts

OWN_END = PICO.with_changes(aux_layers=(1, 2))
"""The last layer is not captured: its head has no mean beside it."""
FUSED = "mtp_hidden_skip,mhc_final_fused"
MEMORY = "c128a_topk_shared,q_in_place,c128_indices_in_place"
ALWAYS = {"mhc_pre", "mhc_seam", "query_norm_rope", "kv_insert", "topk_metadata", "index_map"}
DRAFTED = {"mhc_post", "draft_sample", "rejection"}
CASES = [
    ("none", "", PICO, ALWAYS | {"mhc_post"}),
    ("none", f"{FUSED},{MEMORY}", PICO, ALWAYS | {"mhc_post_mean", "mhc_post_mean_head"}),
    ("none", FUSED, OWN_END, ALWAYS | {"mhc_post_mean", "mhc_post_head"}),
    ("dspark", "", PICO, ALWAYS | DRAFTED),
    ("dspark", f"{FUSED},{MEMORY}", PICO, ALWAYS | DRAFTED | {"mhc_post_mean", "mhc_post_mean_head"}),
    ("mtp", "", PICO, ALWAYS | DRAFTED),
]
IDS = [f"{method}-{'all' if MEMORY in toggles else 'fused' if toggles else 'off'}" for method, toggles, *_ in CASES]


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What `kernel` remembers is what this test has told it."""
    monkeypatch.delenv(dispatch.FORCE, raising=False)
    dispatch._kept.cache_clear()
    yield
    dispatch._kept.cache_clear()


def tokens(method: str, toggles: str, dims: Any, **settings: Any) -> list[list[int]]:
    """Of a long prompt, and of short ones, half of them sampled."""
    runner = boot_runner(dims, toggles=toggles, speculative=method, **settings)
    prompts = random_prompts(4, 90, seed=2)
    requests = [make_request(p, max_tokens=6, temperature=float(i % 2), seed=i) for i, p in enumerate(prompts)]
    return generate(runner, requests)


@pytest.mark.parametrize(("method", "toggles", "dims", "wanted"), CASES, ids=IDS)
def test_an_engine_asks_for_every_operation_with_a_kernel(forgetful, monkeypatch, method, toggles, dims, wanted):
    asked: list[tuple[str, Any, str, int]] = []
    real = dispatch.backend

    def noting(op: str, device: Any, shape: Any, n: int) -> dispatch.Operation:
        chosen = real(op, device, shape, n)
        assert chosen.backend == "torch"
        asked.append((op, device, shape, n))
        return chosen

    monkeypatch.setattr(dispatch, "backend", noting)
    expected = tokens(method, toggles, dims)
    assert not asked, "a CPU that is told nothing is not looked up"
    monkeypatch.setenv(dispatch.FORCE, "torch")
    assert tokens(method, toggles, dims) == expected
    assert {op for op, *_ in asked} == wanted
    assert {shape for op, _, shape, _ in asked if op != "kv_insert"} == {"pico"}
    assert {device for _, device, _, _ in asked} == {"cpu"}
    assert all(dispatch.asked()[op] for op in wanted)


def test_the_cases_have_every_operation():
    assert set.union(*(wanted for *_, wanted in CASES)) == set(dispatch.REFERENCES)


@pytest.mark.parametrize(("method", "toggles", "dims", "wanted"), CASES, ids=IDS)
def test_what_dispatch_names_is_called_as_the_reference_is(forgetful, monkeypatch, method, toggles, dims, wanted):
    """The references under a backend's name, by a kernel's path: each runs, and the tokens stay."""
    expected, ran = tokens(method, toggles, dims), Counter[str]()
    real = dispatch.backend

    def as_kernel(op: str, device: Any, shape: Any, n: int) -> dispatch.Operation:
        chosen = real(op, device, shape, n)
        return dispatch.Operation("counted", counting(chosen.function, op, ran), {})

    monkeypatch.setattr(dispatch, "backend", as_kernel)
    monkeypatch.setenv(dispatch.FORCE, "torch")
    assert tokens(method, toggles, dims) == expected
    assert set(ran) == wanted


def counting(function: Callable[..., Any], op: str, ran: Counter[str]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        ran[op] += 1
        return function(*args, **kwargs)

    return run


@pytest.mark.parametrize("binding", ["", "rejection_keyword_binding=off"])
def test_a_kernel_gets_a_rounds_arguments_by_name(forgetful, monkeypatch, binding):
    """The rates by position are the reference's own slip, and are left to it."""
    settings: dict[str, Any] = {"synthetic_rates": (1.0, 0.5, 0.5, 0.0, 0.0)}
    expected = tokens("dspark", binding, PICO, **settings)
    seen: list[int] = []
    real = dispatch.backend

    def noting(op: str, device: Any, shape: Any, n: int) -> dispatch.Operation:
        chosen = real(op, device, shape, n)

        def run(*args: Any, **kwargs: Any) -> Any:
            if op == "rejection":
                seen.append(len(args))
            return chosen.function(*args, **kwargs)

        return dispatch.Operation("counted", run, {})

    monkeypatch.setattr(dispatch, "backend", noting)
    monkeypatch.setenv(dispatch.FORCE, "torch")
    assert tokens("dspark", binding, PICO, **settings) == expected
    assert set(seen) == (set() if binding else {0})


def test_corrupted_rows_are_corrupted_before_they_are_mapped(forgetful, monkeypatch):
    """The control needs local indices of decodes: it keeps the reference's two steps, and maps by the kernel."""
    expected, ran = tokens("none", "c128_row_corrupt:3", PICO), Counter[str]()
    real = dispatch.backend
    monkeypatch.setattr(
        dispatch, "backend",
        lambda op, *rest: dispatch.Operation("counted", counting(real(op, *rest).function, op, ran), {}),
    )  # fmt: skip
    monkeypatch.setenv(dispatch.FORCE, "torch")
    assert tokens("none", "c128_row_corrupt:3", PICO) == expected
    assert ran["index_map"] > 0
    assert "topk_metadata" not in ran


@pytest.mark.parametrize("dims", [PICO, MICRO], ids=lambda d: d.name)
@pytest.mark.parametrize("op", dispatch.REFERENCES)
def test_an_engines_shapes_have_one_point_whatever_the_tokens(monkeypatch, op, dims):
    """A row has the same bits alone and in a batch only so; products in tiles need their tile named."""
    monkeypatch.delenv(dispatch.FORCE, raising=False)
    monkeypatch.setattr(dispatch, "card_of", lambda _device: dispatch.Card("a card that nobody has", (9, 0), 132))
    monkeypatch.setattr(dispatch, "operations", lambda name: dict.fromkeys(dispatch.REFERENCES, print))
    points = {str(dispatch.backend(op, "cuda:0", dims, n)) for n in (1, 8, 16, 17, 64, 65, 2048)}
    assert len(points) == 1
    if op in ("mhc_pre", "mhc_seam", "mhc_post_head", "mhc_post_mean_head"):
        assert {"tokens", "columns", "span"} <= dispatch.backend(op, "cuda:0", dims, 8).parameters.keys()


