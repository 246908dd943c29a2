"""Lines under the table: what the toggles of a matrix do, one by one and in pairs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsbench.effects import Effect, MetricEffects

AVERAGED = "main effects are averages over the other toggles' states; a x b is what both do beyond the sum of each"
MIXED = "half a factorial gives a name with brackets and what they hold one figure: they cannot be told apart"


def effect_lines(found: Sequence[MetricEffects]) -> Iterator[str]:
    """Exact metrics first, one line each and one an interaction; then samples, one line an effect."""
    if any(effect.kind in ("main", "interaction") for entry in found for effect in entry.effects):
        mixed = any(effect.mixed_with for entry in found for effect in entry.effects)
        yield f"effects: {AVERAGED}" + (f"; {MIXED}" if mixed else "")
    elif found:
        yield "effects: " + ("each step against the one before it" if _ladder(found) else "each given all the others")
    for entry in found:
        if entry.exact:
            yield from _exact_lines(entry)
    sampled = [entry for entry in found if not entry.exact]
    for entry in sampled:
        for effect in entry.effects:
            yield f"{_where(entry)} {_name(effect)}: {_estimate(effect)}"
    if sampled:
        first = sampled[0].effects[0]
        told = f"{first.confidence * 100:.1f} % interval, " if first.confidence is not None else ""
        yield f"effects on samples: {told}sign-flip over {first.blocks} blocks, not corrected for their number"


def _exact_lines(entry: MetricEffects) -> Iterator[str]:
    alone = [effect for effect in entry.effects if effect.kind != "interaction"]
    together = [effect for effect in entry.effects if effect.kind == "interaction"]
    answer = {True: "; additive to the byte" if entry.unit == "B" else "; additive", False: "; not additive", None: ""}
    parts = ", ".join(f"{_name(effect)} {_figure(effect.estimate)}{_range(effect)}" for effect in alone)
    yield f"{_where(entry)} {entry.unit}: {parts}{answer[entry.additive]}"
    for effect in together:
        if effect.estimate or effect.low or effect.high:
            yield f"{_where(entry)} {entry.unit}: {_name(effect)} {_figure(effect.estimate)}{_range(effect)}"


def _estimate(effect: Effect) -> str:
    span = f" [{_percent(effect.interval[0])}, {_percent(effect.interval[1])}]" if effect.interval else ""
    return f"{_percent(effect.estimate)}{span}" + (f", p={effect.p:.3g}" if effect.p is not None else "")


def _percent(fraction: float) -> str:
    return f"{fraction * 100:+.1f} %"


def _name(effect: Effect) -> str:
    joined = (" x " if effect.kind == "interaction" else " + ").join(effect.toggles)
    return f"{joined} ({effect.mixed_with})" if effect.mixed_with else joined


def _range(effect: Effect) -> str:
    if effect.low is None or effect.high is None or effect.low == effect.high:
        return ""
    return f" (from {_figure(effect.low)} to {_figure(effect.high)})"


def _figure(value: float) -> str:
    return f"{value:+,.0f}" if float(value).is_integer() else f"{value:+,.5g}"


def _where(entry: MetricEffects) -> str:
    return entry.metric if entry.rank is None else f"{entry.metric} rank {entry.rank}"


def _ladder(found: Sequence[MetricEffects]) -> bool:
    return any(effect.kind == "step" for entry in found for effect in entry.effects)
