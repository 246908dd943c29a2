"""How MoE layers run is read from the layers that were built; contracts with the sources of each version."""

import ast
from types import SimpleNamespace

import pytest
import torch

from impl.vllm_plugin.moe import sequence_parallel
from impl.vllm_plugin.patch import MODEL, V033, VERSIONS


class Experts(torch.nn.Module):
    """As vLLM's fused experts keep it: how many ranks share the tokens."""

    def __init__(self, sp_size):
        super().__init__()
        if sp_size is not None:
            self.moe_config = SimpleNamespace(moe_parallel_config=SimpleNamespace(sp_size=sp_size))


class Layer(torch.nn.Module):
    def __init__(self, sp_size=None, own=None):
        super().__init__()
        self.experts = Experts(sp_size)
        if own is not None:
            self.use_sequence_parallel = own


def model(*layers):
    return torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Sequential(*layers))


@pytest.mark.parametrize(
    ("layers", "parallel", "active"),
    [
        ([Layer(1), Layer(1)], 0, 0),
        ([Layer(2), Layer(2)], 2, 1),
        ([Layer(2, True), Layer(2, True)], 2, 1),
        ([Layer(None, True)], 1, 1),  # experts of their own, as DeepGEMM's
        ([Layer(1, True)], 0, 0),  # the gate is on and the experts got all tokens
        ([Layer(2), Layer(1)], 1, 0),
        ([Layer(2), Layer()], None, None),
        ([Layer()], None, None),
        ([], 0, None),
    ],
)
def test_all_layers_count(layers, parallel, active):
    assert sequence_parallel([model(*layers), None]) == {
        "moe_layers": len(layers), "moe_layers_sequence_parallel": parallel, "moe_sp_active": active
    }  # fmt: skip


def test_the_draft_counts_too():
    assert sequence_parallel([model(Layer(2)), model(Layer(1))])["moe_sp_active"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_what_deepseek_v4_tells(version, sources):
    """Of 0.33 the layer keeps the gate and hands it to its experts; before, the layer never asks, and has none."""
    tree = ast.parse(sources(version).joinpath(*MODEL.split(".")).with_suffix(".py").read_text(encoding="utf-8"))
    (layer,) = [node for node in tree.body if getattr(node, "name", "") == "DeepseekV4MoE"]
    stored = {ast.unparse(node) for node in ast.walk(layer) if isinstance(node, ast.Assign)}
    assert any(line.startswith("self.experts = ") for line in stored)
    handed = {ast.unparse(k) for node in ast.walk(layer) if isinstance(node, ast.Call) for k in node.keywords}
    kept, given = (
        "self.use_sequence_parallel = use_sequence_parallel",
        "is_sequence_parallel=self.use_sequence_parallel",
    )
    if version in V033:
        assert kept in stored
        assert given in handed
    else:
        assert "sequence_parallel" not in ast.unparse(layer)
