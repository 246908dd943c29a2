"""Layers alike are not all run: what two of a kind have done alike is taken as what the next one does.

A projection asks only what a layer allocates. A layer is skipped when two of its kind have just had the same effect (no
bytes kept, equal peaks above what lived, equal index maps) and no more lives now than did then: then its peak cannot be
a new one. Anything a layer kept would show in the bytes alive, and the next layers would run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from impl.engine.pages import LayerPages
from impl.engine.profile import LiveBytes
from impl.engine.step import Step
from impl.model.streams import Streams
from impl.model.target import Layer
from impl.ops.workspace import Workspace


class Effect(NamedTuple):
    started: int
    """Bytes alive when the layer began."""
    kept: int
    index_maps: int


@dataclass
class Repeats:
    """What layers of each kind did last."""

    live: LiveBytes
    _last: dict[Hashable, list[Effect]] = field(default_factory=dict)
    run: int = 0
    skipped: int = 0

    def settled(self, kind: Hashable) -> Effect | None:
        """What the next layer of this kind does, where that is known."""
        seen = self._last.get(kind, [])
        if len(seen) < 2 or seen[-1][1:] != seen[-2][1:] or seen[-1].kept:
            return None
        return seen[-1] if self.live.live <= min(seen[-1].started, seen[-2].started) else None

    def saw(self, kind: Hashable, effect: Effect) -> None:
        self._last.setdefault(kind, []).append(effect)


class Repeated:
    """A layer's forward that runs unless two layers like it have settled what it does."""

    def __init__(
        self, forward: Callable[[Streams, Step, LayerPages, Workspace], None], kind: Hashable, repeats: Repeats
    ):
        self.forward, self.kind, self.repeats = forward, kind, repeats

    def __call__(self, streams: Streams, step: Step, pages: LayerPages, workspace: Workspace) -> None:
        repeats, rows = self.repeats, pages.index_rows
        kind = (self.kind, step.n_tokens, streams.y is None)
        known = repeats.settled(kind)
        if known is not None:
            repeats.skipped += 1
            if rows is not None:
                rows.maps += known.index_maps
            return
        repeats.run += 1
        started, maps = repeats.live.live, rows.maps if rows is not None else 0
        self.forward(streams, step, pages, workspace)
        index_maps = rows.maps - maps if rows is not None else 0
        repeats.saw(kind, Effect(started, repeats.live.live - started, index_maps))


def skip_repeated(layers: Sequence[Layer], what: str, repeats: Repeats) -> None:
    """Let `layers` share what they are known to do; two are of a kind if their ratio and their routing are the same."""
    for layer in layers:
        kind = (what, layer.attention.ratio, layer.moe.table is None)
        layer.forward = Repeated(layer.forward, kind, repeats)  # type: ignore[method-assign]


__all__ = ["Effect", "Repeats", "skip_repeated"]
