"""Shapes of the model and of one serving configuration (torch-free).

The architecture is one; `pico`, `micro` and `flash` differ in widths only
(reference: deepseek_v4_dspark.md, sections 1 and 8).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any


@dataclass(frozen=True)
class Dims:
    """Every width of one model, and the serving limits its buffers are sized by."""

    name: str
    hidden_size: int
    """H: width of a token's layer input and of each residual stream."""
    compress_ratios: tuple[int, ...]
    """One entry a layer: 0 is sliding window only, 4 is C4A (indexed), anything larger is C128A-style (dense)."""
    n_heads: int
    head_dim: int
    """D: width of the one latent that is both K and V."""
    rope_dim: int
    """The last `rope_dim` of `head_dim` rotate, as interleaved pairs."""
    q_lora_rank: int
    o_groups: int
    o_lora_rank: int
    window: int
    """Sliding window in tokens; every layer has one."""
    block_tokens: int
    """Tokens a block of the full-attention group holds; a sliding-window page holds a quarter."""
    index_heads: int
    index_dim: int
    index_topk: int
    n_experts: int
    experts_per_token: int
    expert_width: int
    """Inner width of a routed expert and of the shared expert."""
    n_hash_layers: int
    """The first layers route by a table of token ids."""
    vocab_size: int
    sinkhorn_iters: int
    aux_layers: tuple[int, ...]
    """Layers after which the stream mean is captured for the DSpark draft."""
    n_draft_layers: int
    draft_tokens: int
    """K: tokens drafted a round."""

    max_num_batched_tokens: int
    """T: tokens one step may process."""
    max_model_len: int
    max_num_seqs: int

    markov_rank: int = 16
    """r: rank of the draft's Markov head."""
    noise_token_id: int = 99
    """What a draft's query rows behind the anchor hold."""
    hc_mult: int = 4
    hc_eps: float = 1e-6
    post_mult: float = 2.0
    rms_norm_eps: float = 1e-6
    routed_scale: float = 1.5
    swiglu_limit: float = 10.0
    rope_theta: float = 10_000.0
    compress_rope_theta: float = 160_000.0
    yarn_factor: float = 16.0
    yarn_original_len: int = 65_536
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0

    def __post_init__(self) -> None:
        for name in ("hidden_size", "n_heads", "max_num_batched_tokens", "max_model_len", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.n_heads % self.o_groups:
            raise ValueError(f"n_heads {self.n_heads} must be a multiple of o_groups {self.o_groups}")
        if self.rope_dim % 2 or self.rope_dim > self.head_dim:
            raise ValueError(f"rope_dim {self.rope_dim} must be even and at most head_dim {self.head_dim}")
        if not 0 <= self.noise_token_id < self.vocab_size:
            raise ValueError(f"noise_token_id {self.noise_token_id} is not in the vocabulary of {self.vocab_size}")
        if any(layer >= self.n_layers for layer in self.aux_layers):
            raise ValueError(f"aux_layers {self.aux_layers} name a layer beyond the {self.n_layers} there are")

    @property
    def n_layers(self) -> int:
        return len(self.compress_ratios)

    @property
    def nope_dim(self) -> int:
        """Values of a state that are quantized to fp8; the rope part stays bf16."""
        return self.head_dim - self.rope_dim

    @property
    def index_rope_dim(self) -> int:
        return min(self.rope_dim, self.index_dim)

    @property
    def quant_group(self) -> int:
        """Values that share one power-of-two scale in a packed state."""
        return min(64, self.nope_dim)

    @property
    def swa_page_tokens(self) -> int:
        return self.block_tokens // 4

    @property
    def large_ratio(self) -> int:
        """The dense compression ratio (128 at flash, 32 at pico)."""
        return max((r for r in self.compress_ratios if r > 4), default=128)

    @property
    def index_row_width(self) -> int:
        """W: width of one row of dense compressed indices, in entries."""
        return -(-self.max_model_len // self.large_ratio // 128) * 128 if self.max_model_len else 0

    @property
    def n_mix(self) -> int:
        """M: rows of a seam's projection: hc pre gates, hc post gates, hc x hc mixing matrix."""
        return self.hc_mult * (self.hc_mult + 2)

    def with_changes(self, **changes: Any) -> Dims:
        """A copy with some fields replaced; unknown names raise TypeError."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Dims:
        """The dims of a weights file's header; what a file of an earlier version lacks takes its default."""
        as_tuples: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}
        return cls(**as_tuples)


PICO = Dims(
    name="pico", hidden_size=64, compress_ratios=(0, 4, 32, 4), n_heads=4, head_dim=32, rope_dim=16,
    q_lora_rank=32, o_groups=2, o_lora_rank=16, window=32, block_tokens=64,
    index_heads=2, index_dim=16, index_topk=16, n_experts=4, experts_per_token=2, expert_width=64,
    n_hash_layers=1, vocab_size=100, sinkhorn_iters=6, aux_layers=(2, 3), n_draft_layers=2, draft_tokens=5,
    max_num_batched_tokens=256, max_model_len=2048, max_num_seqs=8,
)  # fmt: skip

MICRO = Dims(
    name="micro", hidden_size=256, compress_ratios=(0, 0, 4, 128, 4, 128, 4), n_heads=8, head_dim=64, rope_dim=32,
    q_lora_rank=128, o_groups=2, o_lora_rank=64, window=64, block_tokens=256,
    index_heads=4, index_dim=32, index_topk=32, n_experts=8, experts_per_token=2, expert_width=64,
    n_hash_layers=2, vocab_size=128, sinkhorn_iters=20, aux_layers=(4, 5, 6), n_draft_layers=3, draft_tokens=5,
    max_num_batched_tokens=1024, max_model_len=8192, max_num_seqs=16, markov_rank=32,
)  # fmt: skip

FLASH = Dims(
    name="flash", hidden_size=4096, compress_ratios=(0, 0) + (4, 128) * 20 + (4,),
    n_heads=64, head_dim=512, rope_dim=64, q_lora_rank=1024, o_groups=8, o_lora_rank=1024, window=128,
    block_tokens=256, index_heads=64, index_dim=128, index_topk=512, n_experts=256, experts_per_token=6,
    expert_width=2048, n_hash_layers=3, vocab_size=129_280, sinkhorn_iters=20, aux_layers=(40, 41, 42),
    n_draft_layers=3, draft_tokens=5, max_num_batched_tokens=8192, max_model_len=524_288, max_num_seqs=16,
    markov_rank=256, noise_token_id=128_799,
)  # fmt: skip

SHAPES: dict[str, Dims] = {d.name: d for d in (PICO, MICRO, FLASH)}
