"""When sequence-parallel MoE is on, and what that does to the shared expert (torch-free).

Under sequence parallelism each tensor-parallel rank takes its share of a step's tokens through the MoE, in place of all
tokens through a share of the weights. vLLM asks for expert parallelism, TP > 1 and DP > 1; the rule proposed in its
place asks the model instead of DP. Flipping the gate flips `pad_shared_expert` too, and with it the shapes in which the
shared expert's weights are loaded: what broke a deployment. Source: source_pr.md section 7, vllm_hooks.md 4.11.

How wide a padded share is (whole quantization blocks), and that an unpadded one is the whole expert, is our model of
what the source says in words; vLLM with expert parallelism was booted to its profile only, where it acts on nothing
(results/h200, `vllm-tp2`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, get_args

from impl.dims import Dims

ModelKind = Literal["dense", "moe", "deepseek_v4", "deepseek_v4_dspark"]
KINDS: tuple[ModelKind, ...] = get_args(ModelKind)

SHARDS_TOKENS_AT_DP1: frozenset[ModelKind] = frozenset({"deepseek_v4", "deepseek_v4_dspark"})
"""Kinds whose MoE gains from token shards with one data-parallel rank. Any other keeps the memory that
vllm-project/vllm#48849 restored DP > 1 for."""
QUANT_BLOCK = 128
"""Rows and columns of fp8 weights that share a scale."""


@dataclass(frozen=True)
class MoeConfig:
    """What the gate reads. Raises ValueError for sizes below one and kinds unknown."""

    kind: ModelKind
    expert_parallel: bool
    tp: int
    """Tensor-parallel ranks."""
    dp: int
    """Data-parallel ranks."""
    token_shards: bool = True
    """Whether the all-to-all backend takes token shards; an engine knows it of its backends."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"model kind '{self.kind}' is unknown: one of {', '.join(KINDS)}")
        for name in ("tp", "dp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")


def requires_dp(config: MoeConfig) -> bool:
    """vLLM's gate: expert parallelism, more than one tensor-parallel and more than one data-parallel rank."""
    return _possible(config) and config.dp > 1


def config_aware(config: MoeConfig) -> bool:
    """The same with DP = 1 left to the model's kind. Never off where `requires_dp` is on."""
    return _possible(config) and (config.dp > 1 or config.kind in SHARDS_TOKENS_AT_DP1)


def _possible(config: MoeConfig) -> bool:
    """Without EP the experts are sharded by TP, and with TP = 1 there is nothing to share out."""
    return config.kind != "dense" and config.expert_parallel and config.token_shards and config.tp > 1


class TruthRow(NamedTuple):
    config: MoeConfig
    requires_dp: bool
    config_aware: bool

    @property
    def differs(self) -> bool:
        return self.requires_dp != self.config_aware


def truth_table(tps: Iterable[int] = (1, 2, 4), dps: Iterable[int] = (1, 2)) -> Iterator[TruthRow]:
    """Every combination of kind, EP, token shards, TP and DP."""
    for kind, ep, shards, tp, dp in product(KINDS, (False, True), (False, True), tuple(tps), tuple(dps)):
        config = MoeConfig(kind, ep, tp, dp, shards)
        yield TruthRow(config, requires_dp(config), config_aware(config))


@dataclass(frozen=True)
class SharedExpert:
    """One layer's shared expert as one rank loads it."""

    padded: bool
    """vLLM's `pad_shared_expert`."""
    width: int
    """Inner width on this rank."""
    up: tuple[int, int]
    """Gate and up projection: [2 * width, H]."""
    down: tuple[int, int]
    """[H, width]"""

    @property
    def nbytes(self) -> int:
        """fp8 weights and one fp32 scale for each block of QUANT_BLOCK x QUANT_BLOCK."""
        return sum(rows * columns + 4 * _blocks(rows) * _blocks(columns) for rows, columns in (self.up, self.down))


def pad_shared_expert(sequence_parallel: bool) -> bool:
    """Shares of the weights are padded, whole weights are not: the coupling that flipping the gate sets off."""
    return not sequence_parallel


def shared_expert(dims: Dims, tp: int, sequence_parallel: bool) -> SharedExpert:
    """Shapes on one of `tp` ranks: a padded share of the inner width, or under sequence parallelism all of it."""
    padded = pad_shared_expert(sequence_parallel)
    width = dims.expert_width
    if padded:
        width = _blocks(-(-width // tp)) * QUANT_BLOCK
    return SharedExpert(padded, width, (2 * width, dims.hidden_size), (dims.hidden_size, width))


def _blocks(size: int) -> int:
    return -(-size // QUANT_BLOCK)
