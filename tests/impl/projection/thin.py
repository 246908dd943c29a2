"""A model with the flash widths that matter to the toggles' bytes, and little else: it projects in a second."""

import inspect
import textwrap
from collections.abc import Callable
from functools import cache

from impl.dims import FLASH
from impl.projection.boot import project
from impl.projection.rank import Rank
from impl.projection.record import ArmProjection, Step, difference
from impl.toggles import ToggleSet, find

WINDOW, DENSE = (0, 0), (4, 128)


def thin(layers: tuple[int, ...], tokens: int = 8192, platform: str = "sm120", tp: int = 2) -> Rank:
    """T, H, hc, heads and the index rows' width are flash's; layers are few, experts and vocabulary small."""
    dims = FLASH.with_changes(
        name="thin", compress_ratios=layers, aux_layers=(len(layers) - 2, len(layers) - 1), n_draft_layers=1,
        draft_tokens=1, n_hash_layers=0, n_experts=4, experts_per_token=2, vocab_size=256, noise_token_id=1,
        markov_rank=16, max_num_batched_tokens=tokens, sinkhorn_iters=2,
    )  # fmt: skip
    return Rank(dims, platform, tp)


def projected(rank: Rank, toggles: tuple[str, ...]) -> ArmProjection:
    return project(rank, ToggleSet(toggles))


remembered = cache(projected)


def layers_of(toggle: str) -> tuple[int, ...]:
    return DENSE if toggle.startswith("c128") else WINDOW


def step(
    toggle: str, tokens: int = 8192, run: Callable[[Rank, tuple[str, ...]], ArmProjection] = remembered, **rank: object
) -> Step:
    """What `toggle` takes away; its baseline is remembered, and so is its arm unless `run` says otherwise."""
    needs = find(toggle).requires
    of = thin(layers_of(toggle), tokens, **rank)  # type: ignore[arg-type]
    return difference(toggle, remembered(of, needs), run(of, (*needs, toggle)))


def edited(function: Callable[..., object], old: str, new: str) -> Callable[..., object]:
    """The function with one edit of its source, in its own module's names."""
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(old) == 1, f"{function.__qualname__} has changed: {old!r} is in it {source.count(old)} times"
    names: dict[str, object] = {}
    exec(compile(source.replace(old, new), inspect.getsourcefile(function) or "", "exec"), _module(function), names)
    (made,) = names.values()
    return made  # type: ignore[return-value]


def _module(function: Callable[..., object]) -> dict[str, object]:
    return inspect.unwrap(function).__globals__
