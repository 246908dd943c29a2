import pytest
import torch

from impl.dims import PICO, Dims
from impl.model.draft_weights import draft_parameter_shapes
from impl.model.weights import parameter_shapes


@pytest.fixture(scope="package")
def tiny() -> Dims:
    """Every part of the model at a width that a loop over tokens can check."""
    return PICO.with_changes(
        name="tiny", hidden_size=16, compress_ratios=(0, 4, 8, 4), n_heads=4, head_dim=12, rope_dim=8, q_lora_rank=8,
        o_lora_rank=6, window=8, index_dim=8, index_topk=3, n_experts=4, expert_width=10, vocab_size=100,
    )  # fmt: skip


@pytest.fixture(scope="package")
def tiny_weights(tiny: Dims) -> dict[str, torch.Tensor]:
    """Weights with nothing at a neutral value: norms, sinks, gates, biases and position terms all count."""
    gen = torch.Generator().manual_seed(3)
    return telling(parameter_shapes(tiny), gen)


@pytest.fixture(scope="package")
def tiny_draft(tiny: Dims) -> dict[str, torch.Tensor]:
    """Weights of a draft for `tiny`, likewise."""
    return telling(draft_parameter_shapes(tiny), torch.Generator().manual_seed(4))


def telling(shapes: dict[str, tuple[int, ...]], gen: torch.Generator) -> dict[str, torch.Tensor]:
    weights = {}
    for name, shape in shapes.items():
        if name.endswith("tid2eid"):
            weights[name] = torch.rand(shape[0], 4, generator=gen).topk(2).indices.to(torch.int32)
        else:
            scale = 0.6 if len(shape) == 1 else 1.5 * shape[-1] ** -0.5
            weights[name] = torch.randn(shape, generator=gen) * scale + (1.0 if name.endswith("norm") else 0.0)
    return weights
