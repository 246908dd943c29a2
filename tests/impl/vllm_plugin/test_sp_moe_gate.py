"""The gate of sequence-parallel MoE: vLLM's own property of each version beside ours, over the whole truth table."""

from itertools import product
from types import SimpleNamespace

import pytest

from impl import sp_moe
from impl.vllm_plugin.facts import TOKEN_SHARD_BACKENDS
from impl.vllm_plugin.patch import MODEL, PARALLEL_CONFIG, VERSIONS
from impl.vllm_plugin.sp_moe_config_aware import PATCH
from tests.impl.vllm_plugin.extract import module_of

TOGGLE = "sp_moe_config_aware"


def config(module, ep, tp, dp, backend, pp=1):
    built = module.ParallelConfig()
    vars(built).update(
        enable_expert_parallel=ep, tensor_parallel_size=tp, data_parallel_size=dp, all2all_backend=backend,
        pipeline_parallel_size=pp,
    )  # fmt: skip
    return built


@pytest.mark.parametrize("version", VERSIONS)
def test_the_gate_asks_the_model(version, sources, arm):
    markers = arm(TOGGLE)
    root, wanted = sources(version), ["ParallelConfig.use_sequence_parallel_moe"]
    upstream = module_of(root, PARALLEL_CONFIG, wanted)
    ours = module_of(root, PARALLEL_CONFIG, wanted)
    PATCH.hooks[PARALLEL_CONFIG](ours, version)
    flipped = 0
    backends = [*TOKEN_SHARD_BACKENDS[version], "naive", "pplx"]
    for ep, tp, dp, backend in product((False, True), (1, 2), (1, 2), backends):
        was = config(upstream, ep, tp, dp, backend).use_sequence_parallel_moe
        on = config(ours, ep, tp, dp, backend).use_sequence_parallel_moe
        shards = backend in TOKEN_SHARD_BACKENDS[version]
        rule = sp_moe.MoeConfig("deepseek_v4", ep, tp, dp, shards)
        assert bool(was) == sp_moe.requires_dp(rule), "upstream's gate is the rule of impl.sp_moe"
        assert bool(on) == sp_moe.config_aware(rule)
        flipped += on and not was
    assert markers.taken == {TOGGLE: flipped}
    assert flipped == len(TOKEN_SHARD_BACKENDS[version])


def test_033_model_gate_follows(sources, arm):
    markers = arm(TOGGLE)
    root = sources("0.33.0")
    parallel = module_of(root, PARALLEL_CONFIG, ["ParallelConfig.use_sequence_parallel_moe"])
    PATCH.hooks[PARALLEL_CONFIG](parallel, "0.33.0")
    model = module_of(root, MODEL, ["_use_sequence_parallel"], MEGA_MOE_BACKENDS=("mega",))
    upstream = model._use_sequence_parallel
    PATCH.hooks[MODEL](model, "0.33.0")

    def ask(gate, **sizes):
        return gate(
            SimpleNamespace(
                parallel_config=config(parallel, backend="allgather_reducescatter", **sizes),
                kernel_config=SimpleNamespace(moe_backend="triton"),
            )
        )

    assert not ask(upstream, ep=True, tp=2, dp=1)
    assert ask(model._use_sequence_parallel, ep=True, tp=2, dp=1)
    assert not ask(model._use_sequence_parallel, ep=True, tp=2, dp=1, pp=2)
    assert not ask(model._use_sequence_parallel, ep=False, tp=2, dp=1)
    assert markers.taken[TOGGLE] > 0
