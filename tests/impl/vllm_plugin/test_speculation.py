"""Correctness toggles: arguments of rejection sampling at vLLM's call sites, draft logits kept or handed over."""

import ast
import inspect
from types import SimpleNamespace

import pytest
import torch

from impl.vllm_plugin.draft_logits_persistent import PATCH as LOGITS
from impl.vllm_plugin.patch import DSPARK, REJECTION_V1, REJECTION_V2, REJECTION_V2_UTILS, VERSIONS
from impl.vllm_plugin.rejection_keyword_binding import ADDED, FIRST_OPTIONAL
from impl.vllm_plugin.rejection_keyword_binding import PATCH as BINDING
from tests.impl.vllm_plugin.extract import call_in, module_of

KEYWORD, PERSISTENT = "rejection_keyword_binding", "draft_logits_persistent"
SITES = [(v, REJECTION_V2, REJECTION_V2_UTILS) for v in VERSIONS]
SITES += [(v, REJECTION_V1, REJECTION_V1) for v in (*VERSIONS, "0.32.0")]


@pytest.fixture
def bound(sources, stand_in, arm):
    """What the sampler receives when its call site of a version runs: parameter -> the argument's source text."""

    def run(version, place, defined_in, toggles):
        markers = arm(toggles)
        root = sources(version)
        real = module_of(root, defined_in, ["rejection_sample"], SamplingMetadata=None)
        signature = inspect.signature(real.rejection_sample)

        def sample(*args, **kwargs):
            arguments = signature.bind(*args, **kwargs)
            arguments.apply_defaults()
            return dict(arguments.arguments)

        sample.__signature__ = signature
        module = stand_in(place, rejection_sample=sample)
        BINDING.hooks[place](module, version)
        call = call_in(root, place, "RejectionSampler", "rejection_sample")
        positional = [ast.unparse(argument) for argument in call.args]
        named = {k.arg: ast.unparse(k.value) for k in call.keywords if k.arg}
        return module.rejection_sample(*positional, **named), markers

    return run


@pytest.mark.parametrize(("version", "place", "defined_in"), SITES)
def test_by_name_nothing_slips(version, place, defined_in, bound):
    received, markers = bound(version, place, defined_in, "")
    assert received["synthetic_conditional_rates"] == "self.synthetic_conditional_rates"
    assert received["target_logits"] in ("processed_logits", "target_logits")
    assert ADDED not in received
    assert markers.taken == {KEYWORD: 1}


@pytest.mark.parametrize("version", VERSIONS)
def test_by_place_the_rates_are_lost_without_an_error(version, bound):
    received, markers = bound(version, REJECTION_V2, REJECTION_V2_UTILS, f"{KEYWORD}=off")
    assert received["synthetic_conditional_rates"] is None
    assert received["num_speculative_steps"] == "self.num_speculative_steps"
    assert received["use_fp64"] == "self.sampler.use_fp64_gumbel"
    assert not markers.taken


def test_the_added_parameter_is_in_no_version(sources):
    for version, place, defined_in in SITES:
        real = module_of(sources(version), defined_in, ["rejection_sample"], SamplingMetadata=None)
        names = list(inspect.signature(real.rejection_sample).parameters)
        assert ADDED not in names
        assert FIRST_OPTIONAL[place] in names


REQUESTS, STEPS, VOCAB = 3, 2, 7


@pytest.fixture
def drafting(sources, stand_in, arm):
    """vLLM's own sequential drafting of a version over a tiny model; returns the speculator and the markers."""

    def sampler(logits, idx_map, temperature, seeds, positions, **k):
        cache = k.get("output_processed_logits", k.get("logits_cache"))
        column = k.get("output_processed_logits_col", k.get("logits_cache_col"))
        cache[idx_map, column] = logits
        return logits.argmax(-1)

    def build(version, toggles):
        markers = arm(toggles)
        methods = ["_sample_sequential", *(["_sample_logits"] if version == "0.33.0" else [])]
        module = module_of(
            sources(version), DSPARK, [f"DSparkSpeculator.{name}" for name in methods], gumbel_sample=sampler
        )
        LOGITS.hooks[DSPARK](module, version)
        built = module.DSparkSpeculator()
        built.num_speculative_steps, built._d2t_scatter_index, built._draft_topk = STEPS, None, None
        built.use_confidence_head = built.use_fp64_gumbel = False
        built.temperature = built.seeds = built.draft_watermarker = None
        built._maybe_predict_acceptance = lambda *args: None
        built.sample_indices = torch.arange(REQUESTS * STEPS)
        built.sample_idx_mapping = torch.tensor([[2, 2], [0, 0], [1, 1]]).flatten()
        built.sample_pos = torch.zeros(REQUESTS * STEPS, dtype=torch.int64)
        built._step_cols, built._anchor_idx = torch.arange(STEPS), torch.arange(REQUESTS) * STEPS
        built.input_buffers = SimpleNamespace(input_ids=torch.arange(REQUESTS * STEPS))
        built.draft_tokens = torch.zeros(REQUESTS, STEPS, dtype=torch.int64)
        built.draft_logits = torch.zeros(REQUESTS, STEPS, VOCAB)
        built.model = SimpleNamespace(
            compute_draft_logits=lambda hidden: hidden @ torch.ones(4, VOCAB) + torch.arange(VOCAB),
            markov_embed=lambda ids: ids[:, None].float(),
            markov_bias=lambda embed: embed * torch.arange(VOCAB),
        )
        return built, markers

    return build


@pytest.mark.parametrize("version", VERSIONS)
def test_on_the_buffer_stays_off_it_is_replaced(version, drafting):
    hidden = torch.randn(REQUESTS * STEPS, 4, generator=torch.Generator().manual_seed(0))
    kept, markers = drafting(version, "")
    first = kept.draft_logits
    kept._sample_sequential(REQUESTS, hidden)
    assert kept.draft_logits is first
    assert markers.taken == {PERSISTENT: 1}
    handed, markers = drafting(version, f"{PERSISTENT}=off")
    before = handed.draft_logits
    handed._sample_sequential(REQUESTS, hidden)
    assert handed.draft_logits is not before
    assert not before.any()
    assert torch.equal(handed.draft_logits, kept.draft_logits), "eager: the same values, in other memory"
    assert torch.equal(handed.draft_tokens, kept.draft_tokens)
    assert not markers.taken
