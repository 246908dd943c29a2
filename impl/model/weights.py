"""Names and shapes of the target's parameters, and their files (safetensors + a card).

One flat dictionary of tensors serves training and serving. Matrices are `[out, in]`, applied as `x @ W.T`.
Source: deepseek_v4_dspark.md sections 2.1, 3 and 3.8.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from impl.dims import Dims

SHIPPED = Path(__file__).resolve().parents[1] / "weights"


def parameter_shapes(dims: Dims) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every parameter of the target; `tid2eid` tables are int32, all else float."""
    h, d, hc = dims.hidden_size, dims.head_dim, dims.hc_mult
    shapes: dict[str, tuple[int, ...]] = {"embed": (dims.vocab_size, h)}
    for layer, ratio in enumerate(dims.compress_ratios):
        at = f"layers.{layer}."
        for seam in ("hc_attn", "hc_ffn"):
            shapes[f"{at}{seam}.fn"] = (dims.n_mix, hc * h)
            shapes[f"{at}{seam}.scale"] = (3,)
            shapes[f"{at}{seam}.base"] = (dims.n_mix,)
        shapes |= {
            f"{at}attn_norm": (h,),
            f"{at}ffn_norm": (h,),
            f"{at}attn.wqkv_a": (dims.q_lora_rank + d, h),
            f"{at}attn.q_norm": (dims.q_lora_rank,),
            f"{at}attn.kv_norm": (d,),
            f"{at}attn.wq_b": (dims.n_heads * d, dims.q_lora_rank),
            f"{at}attn.sink": (dims.n_heads,),
            f"{at}attn.wo_a": (dims.o_groups, dims.o_lora_rank, dims.n_heads // dims.o_groups * d),
            f"{at}attn.wo_b": (h, dims.o_groups * dims.o_lora_rank),
        }
        if ratio:
            shapes |= compressor_shapes(f"{at}compressor.", h, d, ratio)
        if ratio == 4:
            shapes[f"{at}indexer.wq_b"] = (dims.index_heads * dims.index_dim, dims.q_lora_rank)
            shapes[f"{at}indexer.w"] = (dims.index_heads, h)
            shapes |= compressor_shapes(f"{at}indexer.compressor.", h, dims.index_dim, ratio)
        e, i = dims.n_experts, dims.expert_width
        shapes[f"{at}moe.gate"] = (e, h)
        if layer < dims.n_hash_layers:
            shapes[f"{at}moe.tid2eid"] = (dims.vocab_size, dims.experts_per_token)
        else:
            shapes[f"{at}moe.bias"] = (e,)
        shapes |= {
            f"{at}moe.w13": (e, 2 * i, h),
            f"{at}moe.w2": (e, h, i),
            f"{at}moe.shared_w13": (2 * i, h),
            f"{at}moe.shared_w2": (h, i),
        }
    shapes |= {
        "hc_head.fn": (hc, hc * h),
        "hc_head.base": (hc,),
        "hc_head.scale": (1,),
        "norm": (h,),
        "lm_head": (dims.vocab_size, h),
    }
    return shapes


def compressor_shapes(prefix: str, hidden: int, width: int, ratio: int) -> dict[str, tuple[int, ...]]:
    """A compressor of `width` channels: ratio 4 overlaps two windows and so has two column sets."""
    columns = (2 if ratio == 4 else 1) * width
    return {
        f"{prefix}wkv_gate": (2 * columns, hidden),
        f"{prefix}ape": (ratio, columns),
        f"{prefix}norm": (width,),
    }


def random_weights(dims: Dims, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """Untrained weights of the right scale: memory, shapes and times are real, the text means nothing.

    The mixing matrix starts near the identity and gates near one half, as in training, so that
    streams neither vanish nor blow up through the layers.
    """
    return fill(parameter_shapes(dims), dims, seed, dtype)


def fill(
    shapes: Mapping[str, tuple[int, ...]], dims: Dims, seed: int, dtype: torch.dtype = torch.float32
) -> dict[str, torch.Tensor]:
    """Random tensors of the named shapes, each scaled by what the last part of its name says it is."""
    gen = torch.Generator().manual_seed(seed)
    weights: dict[str, torch.Tensor] = {}
    for name, shape in shapes.items():
        leaf = name.rsplit(".", 1)[-1]
        if leaf == "tid2eid":
            noise = torch.rand(dims.vocab_size, dims.n_experts, generator=gen)
            weights[name] = noise.topk(dims.experts_per_token).indices.to(torch.int32)
        elif leaf.endswith("norm"):
            weights[name] = torch.ones(shape, dtype=dtype)
        elif leaf == "scale":
            weights[name] = torch.full(shape, 0.5, dtype=dtype)
        elif leaf == "base":
            weights[name] = seam_base(dims, shape, dtype)
        elif leaf in ("bias", "sink"):
            weights[name] = torch.zeros(shape, dtype=dtype)
        else:
            std = 0.02 if leaf in ("embed", "ape") else shape[-1] ** -0.5
            weights[name] = (torch.randn(shape, generator=gen) * std).to(dtype)
    return weights


def seam_base(dims: Dims, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Starting offsets of a seam's gates: pre and post at zero, the mixing matrix leaning to its diagonal."""
    base = torch.zeros(shape, dtype=dtype)
    if shape == (dims.n_mix,):
        base[2 * dims.hc_mult :] = 4.0 * torch.eye(dims.hc_mult, dtype=dtype).flatten()
    return base


def save_weights(path: Path, weights: dict[str, torch.Tensor], dims: Dims) -> None:
    """Write `path` (safetensors); the dims travel in its header so that a file names its own shape."""
    save_file({k: v.contiguous() for k, v in weights.items()}, path, metadata={"dims": json.dumps(dims.to_json())})


def load_weights(path: Path) -> tuple[dict[str, torch.Tensor], Dims]:
    """Tensors and dims of a weights file.

    Raises ValueError with one line when the file is not a whole set of this model's parameters.
    """
    return read(path, parameter_shapes, "train them with 'python -m impl.train', or use --load-format dummy")


def read(
    path: Path, shapes_of: Callable[[Dims], Mapping[str, tuple[int, ...]]], mend: str
) -> tuple[dict[str, torch.Tensor], Dims]:
    """Tensors and dims of a file that must hold the parameters `shapes_of(dims)`; `mend` says where one comes from.

    What a file holds in a smaller float type comes as fp32.
    """
    try:
        with safe_open(path, framework="pt") as file:
            dims = Dims.from_json(json.loads(file.metadata()["dims"]))
            weights = {name: whole(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118 (a reader, not a dict)
    except FileNotFoundError:
        raise ValueError(f"no weights at {path}: {mend}") from None
    except Exception as error:
        raise ValueError(f"{path} is not a readable weights file: {error}") from error
    for name, shape in shapes_of(dims).items():
        if name not in weights:
            raise ValueError(f"{path} lacks {name}")
        if tuple(weights[name].shape) != shape:
            raise ValueError(f"{path}: {name} is {tuple(weights[name].shape)}, {dims.name} needs {shape}")
    return weights, dims


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor
