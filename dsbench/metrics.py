"""The registry of metrics: what each figure means, which way is better, and how it is judged."""

from __future__ import annotations

import difflib
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from dsbench.errors import InputError

Kind = Literal["exact", "sample", "item", "counter-ratio"]


class Metric(BaseModel):
    """One metric as a plan snapshots it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str
    """Dotted name; a family such as `prefill.tps.*` is resolved to one member, `prefill.tps.256`."""
    unit: str
    better: Literal["up", "down", "same"]
    """same: the value is asked for, so that any change is a fault."""
    kind: Kind
    """exact: process-local, compared for equality. sample: one noisy value a boot. item: paired by item.
    counter-ratio: increases of two counters by item, resampled by boot."""
    margin: Annotated[float, Field(ge=0, le=1e18, allow_inf_nan=False)]
    """Smallest change that matters: a fraction of the baseline, for items a share of the items, for exact 0."""
    absolute: bool = False
    """Whether the margin is in the metric's own unit instead: 0.01 of a share is one point."""
    scope: Literal["process", "device"]
    summary: str
    own_items: bool = False
    """Whether an arm may have items that another lacks, as the tests of two checkouts do."""
    clock: bool = False
    """Whether it is a clock reading; two boots never read the same clock value to the last bit."""


def _kv(name: str, unit: str, better: Literal["up", "down"], summary: str) -> Metric:
    return Metric(
        key=f"kv.{name}", unit=unit, better=better, kind="exact", margin=0.0, scope="process", summary=summary
    )


def _tps(key: str, summary: str) -> Metric:
    return Metric(
        key=key, unit="tok/s", better="up", kind="sample", margin=0.02, scope="process", summary=summary, clock=True
    )


def _ms(key: str, summary: str) -> Metric:
    return Metric(
        key=key, unit="ms", better="down", kind="sample", margin=0.02, scope="process", summary=summary, clock=True
    )


def _accept(name: str, unit: str, margin: float, summary: str) -> Metric:
    return Metric(
        key=f"accept.{name}",
        unit=unit,
        better="up",
        kind="counter-ratio",
        margin=margin,
        absolute=unit == "share",
        scope="process",
        summary=summary,
    )


def _item(key: str, summary: str, margin: float = 0.0, better: Literal["up", "down"] = "up") -> Metric:
    return Metric(key=key, unit="items", better=better, kind="item", margin=margin, scope="process", summary=summary)


def _tests(name: str, summary: str) -> Metric:
    return _item(f"{name}.passed", summary).model_copy(update={"unit": "tests", "own_items": True})


_METRICS = (
    _kv("available_bytes", "B", "up", "bytes left for the KV cache after the profile"),
    _kv("weights_bytes", "B", "down", "bytes of the weights"),
    _kv("persistent_bytes", "B", "down", "bytes of buffers that live as long as the engine, workspace apart"),
    _kv("workspace_bytes", "B", "down", "bytes of the persistent workspace for temporaries"),
    _kv("peak_activation_bytes", "B", "down", "most bytes of activations alive at once in the profile step"),
    _kv("runtime_peak_bytes", "B", "down", "most bytes of serving operations that no profile runs, beside the KV line"),
    _kv("resident_bytes", "B", "down", "bytes of all that stays, later buffers included; no pages, no graphs"),
    _kv("index_maps_per_step", "maps", "down", "maps of dense compressed indices that a step of prefills launches"),
    _kv("non_torch_bytes", "B", "down", "bytes the device gave to something other than the allocator"),
    _kv("blocks", "blocks", "up", "KV blocks that fit"),
    _kv("tokens", "tokens", "up", "KV tokens, derived from the blocks"),
    _kv("max_concurrency", "requests", "up", "requests of max_model_len that fit at once, derived from the blocks"),
    _tps("decode.tps.c*", "decoded tokens per second with * streams, first token to last"),
    _ms("decode.ttft_ms.c*", "time to the first token with * streams, from sending the request"),
    _ms("decode.itl_ms.c*", "time between neighbouring pieces of a stream with * streams"),
    _ms("decode.tpot_ms.c*", "time a token after the first piece with * streams"),
    _ms("decode.step_ms.c*", "time a step with * streams, whatever number of tokens a step emits"),
    _ms(
        "decode.gpu_ms.c*",
        "time of the GPU itself a decode step with * streams, read from a trace",
    ),
    _tps("concurrency.tps.c*", "tokens per second of all of * requests, from sending the first to the last token"),
    _tps("concurrency.request_tps.c*", "tokens per second of one of * requests, from sending it to its last token"),
    Metric(
        key="concurrency.accept.c*",
        unit="share",
        better="up",
        kind="counter-ratio",
        margin=0.01,
        absolute=True,
        scope="process",
        summary="accepted of drafted tokens with * requests",
    ),
    _tps("long_context.tps.*", "decoded tokens per second after prompts of * tokens, first token to last"),
    _tps("prefill.tps.*", "prompt tokens per second of prompts of * tokens"),
    _item("smoke.correct", "short questions with one right answer"),
    _item("coherence.recall", "needles of long prompts that the reply names", 0.02),
    _item("coherence.clean", "replies without leaked tokens, broken characters, other scripts or repetition", 0.02),
    _item("coherence.finished", "replies that ended before their token limit", 0.02),
    Metric(
        key="coherence.prefix_reuse",
        unit="share",
        better="same",
        kind="counter-ratio",
        margin=0.01,
        absolute=True,
        scope="process",
        summary="prompt tokens that the prefix cache gave",
    ),
    _item("toolcall.points", "points of conversations with tools, of two each; clustered by scenario", 0.02),
    _item("toolcall.selection", "of these, the ones where one tool must be chosen", 0.02),
    _item("toolcall.parameters", "of these, the ones where arguments must be exact", 0.02),
    _item("toolcall.chain", "of these, the ones where a call needs what another gave", 0.02),
    _item("toolcall.restraint", "of these, the ones where nothing must be called", 0.02),
    _item("toolcall.recovery", "of these, the ones where a tool fails", 0.02),
    _item("gsm8k.correct", "word problems whose reply gives the right number", 0.01),
    _item("gsm8k.truncated", "word problems whose reply was cut off by the limit of tokens", 0.01, "down"),
    _item("gsm8k.strict", "word problems that lm-eval's strict-match would count as right", 0.01),
    _item("gsm8k.flexible", "word problems that lm-eval's flexible-extract would count as right", 0.01),
    _item("instruction.correct", "sentences whose facts came back as JSON, with nothing around it", 0.02),
    _tests("kernels", "kernel tests that pass, paired by test id"),
    _tests("unit", "unit tests that pass, paired by test id"),
    _item("identity.tokens", "greedy token ids of fixed prompts, equal to the baseline's"),
    _accept("rate", "share", 0.01, "accepted of drafted tokens; depends on the number drafted"),
    _accept("length", "tok/round", 0.02, "tokens a round emits, bonus included: 1 + accepted / rounds"),
    _accept("per_position", "share", 0.01, "rounds that accepted draft k and all before it"),
    _accept("conditional", "share", 0.01, "rounds that accepted draft k, of those that accepted all before it"),
    Metric(
        key="moe.sp_active",
        unit="flag",
        better="up",
        kind="exact",
        margin=0.0,
        scope="process",
        summary="1 where the MoE layers run sequence-parallel",
    ),
    _item("output_law", "prompts whose sampled tokens follow the target's own law, chi-square with Holm at 0.001"),
)

REGISTRY: dict[str, Metric] = {metric.key: metric for metric in _METRICS}


def metric(key: str) -> Metric:
    """The definition of one metric; a member of a family takes the family's with its own key.

    Raises InputError with the nearest names for an unknown key.
    """
    if key in REGISTRY and "*" not in key:
        return REGISTRY[key]
    for family in REGISTRY.values():
        stem, star, _ = family.key.partition("*")
        member = key.removeprefix(stem)
        if star and key.startswith(stem) and member.isdigit():
            return family.model_copy(update={"key": key, "summary": family.summary.replace("*", member)})
    near = difflib.get_close_matches(key[:100], REGISTRY, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(REGISTRY)}"
    raise InputError(f"unknown metric '{key}': {hint}")


def check_pattern(pattern: str) -> None:
    """InputError unless a pattern such as `decode.tps.*` or `kv.blocks` can match a registered metric."""
    stem = pattern.rstrip("*").rstrip("0123456789")
    if not any(key.startswith(stem) for key in REGISTRY) or (pattern == stem and pattern not in REGISTRY):
        near = difflib.get_close_matches(pattern[:100], REGISTRY, n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(REGISTRY)}"
        raise InputError(f"matches no metric: '{pattern}'; {hint}")
