"""What one engine is started with, and its weights: checked by their headers first, then loaded."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Literal

import torch
from safetensors import safe_open
from torch import Tensor

from impl.dims import Dims
from impl.model import draft_weights, mtp
from impl.model.weights import SHIPPED, load_weights, parameter_shapes, random_weights
from impl.toggles import ToggleSet, find

LoadFormat = Literal["auto", "dummy"]
Method = Literal["none", "mtp", "dspark"]
Capture = Literal["draft", "rounds", "steps"]
"""What graphs hold: the DSpark draft's passes, as in vLLM up to 0.26; also the target's forward over decodes; or
everything between a decode step's input and its tokens, in one graph."""

SERVING_LIMITS = ("name", "max_num_batched_tokens", "max_model_len", "max_num_seqs")
"""Fields of the dims that weights do not fix."""


@dataclass(frozen=True)
class EngineConfig:
    """What one engine is started with. Raises ValueError for settings that exclude each other."""

    dims: Dims
    toggles: ToggleSet
    memory_budget: int
    """Bytes for everything: weights, buffers, a step's activations, and with the rest KV pages."""
    weights: Path | None = None
    """None is the shipped file of the dims' name."""
    load_format: LoadFormat = "auto"
    device: str = "cpu"
    seed: int = 0
    """Of dummy weights, and of requests that bring no seed."""
    threads: int = 1
    speculative: Method = "none"
    draft_weights: Path | None = None
    """None is the shipped file of the dims' name and the method."""
    draft_load_format: LoadFormat | None = None
    """None is the target's."""
    draft_sample_method: Literal["probabilistic", "greedy"] = "probabilistic"
    synthetic_rates: tuple[float, ...] | None = None
    """Conditional rates of synthetic acceptance, one a draft; None verifies by the target."""
    eager: bool = True
    """False replays captured graphs, where there are any."""
    capture: Capture = "draft"

    def __post_init__(self) -> None:
        longest, ratio = self.dims.max_model_len, max(self.dims.compress_ratios)
        if longest < ratio:
            raise ValueError(f"--max-model-len {longest} is shorter than one compressed entry: give at least {ratio}")
        for toggle in map(find, self.toggles.names()):
            if "embedded" not in toggle.engines:
                raise ValueError(f"toggle '{toggle.name}' does not run on this engine, only on {toggle.engines[0]}")
        if self.capture != "draft" and self.speculative == "mtp":
            raise ValueError(
                f"--capture {self.capture} goes with --speculative none or dspark: mtp reads the step's ragged rows"
            )

    @property
    def weights_path(self) -> Path:
        return self.weights or SHIPPED / f"{self.dims.name}.safetensors"

    @property
    def draft_weights_path(self) -> Path:
        return self.draft_weights or SHIPPED / f"{self.dims.name}-{self.speculative}.safetensors"

    @property
    def draft_format(self) -> LoadFormat:
        return self.draft_load_format or self.load_format

    @property
    def graph_mode(self) -> Literal["replay", "eager"]:
        """Whether anything is replayed."""
        any_graph = self.speculative == "dspark" or self.capture != "draft"
        return "replay" if any_graph and not self.eager else "eager"

    @property
    def n_draft_layers(self) -> int:
        """Layers beyond the target's that need pages."""
        return {"none": 0, "mtp": 1, "dspark": self.dims.n_draft_layers}[self.speculative]

    @property
    def draft_tokens(self) -> int:
        """K; 0 without speculation."""
        return self.dims.draft_tokens if self.speculative != "none" else 0


@dataclass(frozen=True)
class _DraftFiles:
    """The weights of one speculative method."""

    prefix: str
    shapes: Callable[[Dims], dict[str, tuple[int, ...]]]
    random: Callable[[Dims, int], dict[str, Tensor]]
    load: Callable[[Path], tuple[dict[str, Tensor], Dims]]
    mend: str


_DRAFTS = {
    "dspark": _DraftFiles(
        draft_weights.PREFIX,
        draft_weights.draft_parameter_shapes,
        draft_weights.random_draft_weights,
        draft_weights.load_draft_weights,
        "train them with 'python -m impl.train.draft', or use --draft-load-format dummy",
    ),
    "mtp": _DraftFiles(
        mtp.PREFIX,
        mtp.mtp_parameter_shapes,
        mtp.random_mtp_weights,
        mtp.load_mtp_weights,
        "none are shipped: use --draft-load-format dummy",
    ),
}


def check_weights(config: EngineConfig) -> None:
    """Raises ValueError, with one line, unless the budget holds the weights and their files are of the dims' shape.

    Reads the files' headers only.
    """
    draft = _DRAFTS.get(config.speculative)
    shapes = [*parameter_shapes(config.dims).values(), *(draft.shapes(config.dims).values() if draft else ())]
    size = sum(4 * prod(shape) for shape in shapes)
    if size > config.memory_budget:
        raise ValueError(f"--memory-budget {config.memory_budget} does not hold the weights alone, {size} bytes")
    if config.load_format != "dummy":
        mend = "train them with 'python -m impl.train', or use --load-format dummy"
        _check_header(config, config.weights_path, "--load-format", mend)
    if draft and config.draft_format != "dummy":
        _check_header(config, config.draft_weights_path, "--draft-load-format", draft.mend)


def _check_header(config: EngineConfig, path: Path, flag: str, mend: str) -> None:
    if not path.is_file():
        raise ValueError(f"no weights at {path}: {mend}")
    try:
        with safe_open(path, framework="pt") as file:
            of_file = Dims.from_json(json.loads(file.metadata()["dims"]))
    except Exception as error:
        raise ValueError(f"{path} is not a readable weights file: {error}") from error
    for name, value in config.dims.to_json().items():
        if name not in SERVING_LIMITS and getattr(of_file, name) != value:
            raise ValueError(
                f"{name} is {value}, but the weights {path.name} have {getattr(of_file, name)}: "
                f"use {flag} dummy, or weights trained at this shape"
            )


def load_parameters(config: EngineConfig, device: torch.device) -> tuple[dict[str, Tensor], str]:
    """The flat weights on `device`, and what they are: the file's sha256, or `dummy:SEED`."""
    check_weights(config)
    if config.load_format == "dummy":
        return _placed(random_weights(config.dims, config.seed), device), f"dummy:{config.seed}"
    weights, _ = load_weights(config.weights_path)
    return _placed(weights, device), _sha256(config.weights_path)


def load_draft_parameters(config: EngineConfig, device: torch.device) -> tuple[dict[str, Tensor], str]:
    """The same for the method's draft, its names without their prefix; nothing and `none` without speculation."""
    files = _DRAFTS.get(config.speculative)
    if files is None:
        return {}, "none"
    if config.draft_format == "dummy":
        weights, what = files.random(config.dims, config.seed), f"dummy:{config.seed}"
    else:
        weights, _ = files.load(config.draft_weights_path)
        what = _sha256(config.draft_weights_path)
    return _placed({name.removeprefix(files.prefix): tensor for name, tensor in weights.items()}, device), what


def _placed(weights: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {
        name: tensor.to(device, torch.float32 if tensor.is_floating_point() else tensor.dtype)
        for name, tensor in weights.items()
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
