"""A draft file names its shape, holds every parameter, and says what is wrong with it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from impl.dims import PICO, SHAPES
from impl.model.draft_weights import (
    draft_parameter_shapes,
    load_draft_weights,
    random_draft_weights,
    save_draft_weights,
)
from impl.model.weights import parameter_shapes, random_weights, save_weights


def test_layers_are_target_layers_of_ratio_zero() -> None:
    shapes = draft_parameter_shapes(PICO)
    target = parameter_shapes(PICO.with_changes(compress_ratios=(0, 0), n_hash_layers=0, aux_layers=()))
    for layer in range(PICO.n_draft_layers):
        names = {name for name in target if name.startswith(f"layers.{layer}.")}
        assert {f"draft.{n}" for n in names} == {n for n in shapes if n.startswith(f"draft.layers.{layer}.")}
        assert all(shapes[f"draft.{n}"] == target[n] for n in names)
    assert shapes["draft.main_proj"] == (64, 128)
    assert shapes["draft.confidence"] == (1, 64 + 16)
    assert not {"draft.embed", "draft.lm_head"} & shapes.keys()


@pytest.mark.parametrize("name", ["pico", "micro"])
def test_file_gives_back_weights_and_dims(name: str, tmp_path: Path) -> None:
    dims = SHAPES[name]
    weights = random_draft_weights(dims, 3)
    save_draft_weights(tmp_path / "d.safetensors", weights, dims)
    loaded, saved = load_draft_weights(tmp_path / "d.safetensors")
    assert saved == dims
    assert loaded.keys() == draft_parameter_shapes(dims).keys()
    assert all(torch.equal(loaded[n], t) for n, t in weights.items())


def test_seeds_differ() -> None:
    first, second = random_draft_weights(PICO, 0), random_draft_weights(PICO, 1)
    assert not torch.equal(first["draft.main_proj"], second["draft.main_proj"])


def test_target_file_is_refused(tmp_path: Path) -> None:
    save_weights(tmp_path / "t.safetensors", random_weights(PICO), PICO)
    with pytest.raises(ValueError, match=r"lacks draft\.main_proj"):
        load_draft_weights(tmp_path / "t.safetensors")


def test_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"python -m impl\.train\.draft"):
        load_draft_weights(tmp_path / "none.safetensors")
