"""Bytes of the model's weights on one rank as they are served: fp8 linears, fp4 experts, the rest as it comes.

Counted by rule from the names and shapes of the parameters, never allocated. Checked against the load measured on vLLM
0.26.0 (h200.md): six layers, 16 fp8 experts, TP 1 and 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Literal

from impl.dims import Dims
from impl.model.draft_weights import draft_parameter_shapes
from impl.model.weights import parameter_shapes

ExpertFormat = Literal["fp4", "fp8"]
Format = Literal["fp4", "fp8", "bf16", "fp32", "int32"]

FP8_BLOCK = 128
"""An fp8 matrix has one fp32 scale for each block of 128 x 128 values."""
FP4_GROUP = 32
"""An fp4 matrix has one scale byte (ue8m0) for each 32 values of a row."""
VALUE_BITS = {"fp4": 4, "fp8": 8, "bf16": 16, "fp32": 32, "int32": 32}


@dataclass(frozen=True)
class Rule:
    """How parameters whose names end in `name` are stored, and whether each rank holds its part only."""

    name: str
    format: Format
    split: bool
    source: str


def rules(experts: ExpertFormat) -> tuple[Rule, ...]:
    """The first rule whose name ends a parameter's name is the one that counts."""
    linear = "deepseek_v4_dspark.md 1.1: linears fp8 128x128 ue8m0"
    expert = "deepseek_v4_dspark.md 1.1: experts fp4" if experts == "fp4" else "vllm_hooks.md 5: expert_dtype fp8"
    return (
        Rule("moe.w13", experts, True, expert),
        Rule("moe.w2", experts, True, expert),
        Rule("shared_w13", "fp8", True, linear),
        Rule("shared_w2", "fp8", True, linear),
        Rule("attn.wqkv_a", "fp8", False, f"{linear}; one latent, whole on every rank"),
        Rule("attn.wq_b", "fp8", True, f"{linear}; split by heads"),
        Rule("attn.wo_a", "fp8", True, f"{linear}; split by groups of heads"),
        Rule("attn.wo_b", "fp8", True, f"{linear}; split by groups of heads"),
        Rule("indexer.wq_b", "fp8", False, f"{linear}; every rank selects for itself"),
        Rule("main_proj", "fp8", False, linear),
        Rule("indexer.w", "bf16", False, "inferred: too narrow for blocks of 128"),
        Rule("wkv_gate", "fp32", False, "deepseek_v4_dspark.md 3.2: in fp32"),
        Rule("ape", "fp32", False, "deepseek_v4_dspark.md 3.2"),
        Rule("moe.gate", "bf16", False, "inferred: the router is not quantized"),
        Rule("moe.bias", "fp32", False, "deepseek_v4_dspark.md 3.8"),
        Rule("tid2eid", "int32", False, "deepseek_v4_dspark.md 1.1: table tid2eid[V, 6]"),
        Rule("attn.sink", "fp32", True, "deepseek_v4_dspark.md 3.1: fp32 per head"),
        Rule("fn", "fp32", False, "deepseek_v4_dspark.md 2.1; mHC is whole on every rank (2.3)"),
        Rule("scale", "fp32", False, "deepseek_v4_dspark.md 2.1"),
        Rule("base", "fp32", False, "deepseek_v4_dspark.md 2.1"),
        Rule("embed", "bf16", True, "vllm_hooks.md 5: embed and lm_head bf16; split by vocabulary"),
        Rule("lm_head", "bf16", True, "vllm_hooks.md 5: embed and lm_head bf16; split by vocabulary"),
        Rule("markov.w1", "bf16", True, "deepseek_v4_dspark.md 1.2; inferred: split like embed"),
        Rule("markov.w2", "bf16", True, "deepseek_v4_dspark.md 1.2; inferred: split like lm_head"),
        Rule("confidence", "fp32", False, "deepseek_v4_dspark.md 1.2: fp32"),
        Rule("norm", "bf16", False, "deepseek_v4_dspark.md 2.1: RMSNorm weights"),
    )


@dataclass(frozen=True)
class WeightLine:
    """What one rule counts."""

    rule: Rule
    parameters: int
    """Values, over all ranks."""
    bytes: int
    """On one rank, scales included."""


def weight_lines(dims: Dims, tp: int, experts: ExpertFormat = "fp4") -> list[WeightLine]:
    """Target and draft of the whole model `dims` on one of `tp` ranks, rule by rule.

    Raises ValueError where a parameter has no rule or cannot be split evenly.
    """
    of_model = rules(experts)
    values, sizes = dict.fromkeys(of_model, 0), dict.fromkeys(of_model, 0)
    for name, shape in {**parameter_shapes(dims), **draft_parameter_shapes(dims)}.items():
        rule = next((rule for rule in of_model if name.endswith(rule.name)), None)
        if rule is None:
            raise ValueError(f"no rule says how {name} is stored: add one to impl/projection/weights.py")
        size = stored_bytes(shape, rule.format)
        if rule.split and size % tp:
            raise ValueError(f"{name}: {size} bytes do not split over {tp} ranks")
        values[rule] += prod(shape)
        sizes[rule] += size // tp if rule.split else size
    return [WeightLine(rule, values[rule], sizes[rule]) for rule in of_model if values[rule]]


def stored_bytes(shape: tuple[int, ...], format_: Format) -> int:
    """Bytes of one parameter with its scales."""
    n_values = prod(shape)
    size = n_values * VALUE_BITS[format_] // 8
    if format_ == "fp8":
        *many, rows, columns = shape
        size += 4 * prod(many) * -(-rows // FP8_BLOCK) * -(-columns // FP8_BLOCK)
    elif format_ == "fp4":
        size += n_values // FP4_GROUP
    return size


__all__ = ["ExpertFormat", "Rule", "WeightLine", "rules", "stored_bytes", "weight_lines"]
