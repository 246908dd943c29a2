"""Context staging: the real propose of each version, in its profiling form, hands the mixed rows on without a copy."""

from types import SimpleNamespace

import pytest
import torch

from impl.vllm_plugin.dflash_staging_skip import PATCH, HandOver
from impl.vllm_plugin.patch import DFLASH, DSPARK, UP_TO_026, VERSIONS
from tests.impl.vllm_plugin.extract import module_of

TOGGLE = "dflash_staging_skip"
ROWS, HIDDEN = 12, 8


@pytest.fixture
def speculator(sources, stand_in, arm):
    """A speculator of a version whose propose is vLLM's own; returns it, what its model was given, and the markers."""

    def build(version, patched, graph_mode="NONE", aux_staging=None):
        markers = arm(TOGGLE if patched else "")
        methods = ["propose"] if version in UP_TO_026 else ["propose", "_store_hidden_states", "_precompute_context_kv"]
        root, given = sources(version), []
        base = module_of(
            root, DFLASH, [f"DFlashSpeculator.{name}" for name in methods], CUDAGraphMode=SimpleNamespace(NONE=0)
        )

        class DSparkSpeculator(base.DFlashSpeculator):
            def __init__(self, vllm_config, device):
                self.hidden_states = torch.zeros(64, HIDDEN)
                self.context_positions = torch.arange(64)
                self._aux_staging = aux_staging
                self.num_query_per_req, self.max_model_len, self.draft_tokens = 5, 4096, torch.zeros(4, 5)
                self.model = SimpleNamespace(
                    combine_hidden_states=lambda aux: aux[:, :HIDDEN] * 2,
                    precompute_and_store_context_kv=lambda rows, *rest: given.append(rows),
                )
                for name in (
                    "_copy_request_inputs",
                    "_prepare_eplb_forward",
                    "_generate_draft",
                    "prepare_context_anchor",
                ):
                    setattr(self, name, lambda *args, **kwargs: None)

        module = stand_in(DSPARK, DSparkSpeculator=DSparkSpeculator)
        if patched:
            PATCH.hooks[DSPARK](module, version)
        mode = SimpleNamespace(name=graph_mode)
        config = SimpleNamespace(compilation_config=SimpleNamespace(cudagraph_mode=mode))
        return module.DSparkSpeculator(config, "cpu"), given, markers

    return build


def propose(built, seed=0):
    aux = [torch.randn(ROWS, HIDDEN, generator=torch.Generator().manual_seed(seed + i)) for i in range(3)]
    batch = SimpleNamespace(
        num_reqs=2, num_tokens=ROWS, seq_lens_cpu_upper_bound=torch.tensor([40, 50]), idx_mapping=None,
        query_start_loc=None,
    )  # fmt: skip
    nothing = {name: None for name in ("num_sampled", "num_rejected", "last_sampled", "next_prefill_tokens")}
    return built.propose(
        batch, {}, {}, torch.zeros(ROWS, HIDDEN), aux, **nothing, temperature=None, seeds=None, dummy_run=True,
        skip_attn_for_dummy_run=True,
    )  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_the_draft_gets_the_same_rows_without_a_copy(version, speculator):
    plain, expected, _ = speculator(version, patched=False)
    ours, given, markers = speculator(version, patched=True)
    for step in range(3):
        propose(plain, step)
        expected[step] = expected[step].clone()
        propose(ours, step)
    assert len(given) == len(expected) == 3
    assert all(map(torch.equal, given, expected))
    assert markers.taken == {TOGGLE: 3}
    assert not isinstance(ours.hidden_states, torch.Tensor)
    assert ours.hidden_states._waiting == {}


def test_033_graph_that_reads_the_buffer_itself_is_refused(speculator):
    kept, _, markers = speculator("0.33.0", patched=True, graph_mode="FULL_AND_PIECEWISE")
    assert isinstance(kept.hidden_states, torch.Tensor)
    assert markers.refused[TOGGLE]
    staged, _, _ = speculator("0.33.0", True, "FULL_AND_PIECEWISE", aux_staging=torch.zeros(4, 24))
    assert isinstance(staged.hidden_states, HandOver)


def test_rows_that_do_not_fit_raise(arm):
    arm(TOGGLE)
    over = HandOver()
    with pytest.raises(RuntimeError, match="3 rows for 0:4"):
        over[:4].copy_(torch.zeros(3, 2))
    over[:4].copy_(torch.zeros(4, 2))
    with pytest.raises(RuntimeError, match="4 were staged"):
        over[:5]


def test_parts_are_kept_apart(arm):
    arm(TOGGLE)
    over, head, tail = HandOver(), torch.zeros(2, 3), torch.ones(4, 3)
    over[0:2].copy_(head)
    over[2:6].copy_(tail)
    assert over[2:6] is tail
    assert over[0:2] is head
