"""Rejection in Triton against the torch reference, token by token: on a GPU, or by Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.ops import rejection
from impl.ops.sampling import SamplingRows, sample
from impl.ops.triton.rejection import rejection_sample
from impl.ops.workspace import Workspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WORKSPACE = Workspace(DEVICE)
EARLY = sorted({False, torch.cuda.is_available() and torch.cuda.get_device_capability() >= (9, 0)})
"""Whether later kernels are launched before earlier ones end: both ways, where a GPU can."""
NAN, INF = float("nan"), float("inf")


def case(n, k, width, seed, temperature=1.0, noise=1.0):
    """Random arguments; drafts are drawn from their own logits."""
    g = torch.Generator().manual_seed(seed)
    target = torch.randn(n, k + 1, width, generator=g) * 2
    draft = target[:, :k] + noise * torch.randn(n, k, width, generator=g)
    warmth = torch.as_tensor(temperature, dtype=torch.float32).expand(n).contiguous()
    arguments = {
        "target_logits": target.to(DEVICE),
        "draft_logits": draft.to(DEVICE),
        "temperature": warmth.to(DEVICE),
        "seeds": torch.randint(-(2**62), 2**62, (n,), generator=g).to(DEVICE),
        "positions": torch.randint(0, 5000, (n,), generator=g).to(DEVICE),
        "n_drafted": torch.full((n,), k, device=DEVICE),
    }
    keep = torch.zeros(n, dtype=torch.int64, device=DEVICE)
    how = SamplingRows(
        arguments["temperature"], keep, keep + 1.0, arguments["seeds"], arguments["positions"], False, False
    )
    tokens = [sample(arguments["draft_logits"][:, i], how, WORKSPACE, rejection.draft_tag(i)) for i in range(k)]
    arguments["draft_tokens"] = torch.stack(tokens, 1) if k else keep.new_empty((n, 0))
    return arguments


def assert_same(arguments, **more):
    arguments = arguments | more
    wanted = rejection.rejection_sample(**arguments, workspace=WORKSPACE)
    for early in EARLY:
        found = rejection_sample(**arguments, block=64, resample_block=32, early=early)
        for name, own, other in zip(wanted._fields, found, wanted, strict=True):
            assert own.dtype == other.dtype
            assert own.tolist() == other.tolist(), (name, early)
    return wanted


def test_sampled_rounds():
    wanted = assert_same(case(10, 3, 70, 0, noise=0.5))
    assert 0 < wanted.n_accepted.sum() < 10 * 3, "the case has rounds of both kinds"


def test_mixed_temperatures_and_ragged_rounds():
    arguments = case(8, 3, 70, 1, [0.0, 0.6, 1.0, 1.7] * 2)
    arguments["n_drafted"] = torch.tensor([0, 1, 2, 3, 3, 2, 1, 0], device=DEVICE)
    assert_same(arguments)


def test_greedy_rounds():
    arguments = case(8, 3, 100, 2, 0.0, noise=0.2)
    wanted = assert_same(arguments, all_greedy=True)
    assert wanted.n_accepted.sum() > 0
    assert_same(arguments)


def test_plain_steps_draw_what_a_sampler_draws():
    assert_same(case(4, 0, 90, 3))
    assert_same(case(4, 2, 90, 4), n_drafted=torch.zeros(4, dtype=torch.int64, device=DEVICE))


def test_drafts_that_were_not_drawn():
    assert_same(case(8, 3, 60, 5), draft_logits=None)


def test_slots_by_a_mapping_and_draft_logits_of_half_width():
    arguments = case(6, 2, 60, 6)
    order = torch.tensor([3, 1, 5, 0, 2, 4], device=DEVICE)
    slots = torch.zeros(6, 4, 60, device=DEVICE, dtype=torch.bfloat16)
    slots[order, :2] = arguments["draft_logits"].bfloat16()
    assert_same(arguments, draft_logits=slots, draft_logits_index_mapping=order)
    assert_same(arguments, draft_logits=slots, draft_logits_index_mapping=torch.tensor([0.9, 7.0], device=DEVICE))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_synthetic_rates(temperature):
    rates = torch.tensor([1.0, 0.5, 0.0], device=DEVICE)
    wanted = assert_same(case(8, 3, 60, 7, temperature), synthetic_conditional_rates=rates)
    assert wanted.n_accepted.min() >= 1


def test_rows_that_cannot_be_read():
    arguments = case(9, 2, 60, 8)
    target, draft, drafts = (arguments[key].clone() for key in ("target_logits", "draft_logits", "draft_tokens"))
    target[0, 0, 3], target[1, 1, 5], target[2, 2] = NAN, INF, -INF
    draft[3, 0, 9], draft[4, 1, 2], draft[5, 0] = NAN, INF, -INF
    drafts[6, 0], drafts[7, 1] = -1, 60
    target[8, 0, 10:] = -INF
    assert_same(arguments, target_logits=target, draft_logits=draft, draft_tokens=drafts)
    assert_same(arguments, target_logits=target, draft_logits=None, draft_tokens=drafts)


def test_rejection_without_any_likelier_token_draws_from_p():
    arguments = case(5, 1, 40, 9)
    arguments["draft_logits"] = arguments["target_logits"][:, :1].clone()
    wanted = assert_same(arguments, synthetic_conditional_rates=torch.zeros(1, device=DEVICE))
    assert wanted.n_accepted.tolist() == [0] * 5


def test_what_the_kernel_does_not_do_is_refused():
    with pytest.raises(ValueError, match="block verification"):
        rejection_sample(**case(2, 2, 20, 10), block_verification=True)
    with pytest.raises(ValueError, match="draft_tokens"):
        rejection_sample(**(case(2, 2, 20, 10) | {"draft_tokens": torch.zeros(2, 3, device=DEVICE)}))


def test_columns_of_a_wider_table_are_read_as_they_are():
    """As the engine's integers of a round are, side by side a request."""
    arguments = case(6, 3, 50, 21)
    slots = torch.randperm(6, generator=torch.Generator().manual_seed(5)).to(DEVICE)
    counts = torch.tensor([3, 0, 2, 1, 3, 2], device=DEVICE)
    n_drafted, mapping = torch.stack((counts, slots, slots), 1)[:, :2].unbind(1)
    seeds = torch.stack((arguments["seeds"], slots), 1)[:, 0]
    assert_same(arguments, n_drafted=n_drafted, draft_logits_index_mapping=mapping, seeds=seeds)


def test_rows_that_are_not_dense_are_refused():
    arguments = case(2, 3, 50, 22)
    for name in ("target_logits", "draft_logits", "draft_tokens"):
        spread = arguments[name].repeat_interleave(2, -1)[..., ::2]
        with pytest.raises(ValueError, match=f"{name} must be dense along its rows"):
            rejection_sample(**arguments | {name: spread})


def test_rates_by_position_are_read_as_a_map_as_the_reference_does():
    """What a caller from before the map was added gets, bit for bit: `rejection_keyword_binding` off."""
    arguments = case(5, 3, 50, 23)
    order = ("target_logits", "draft_tokens", "draft_logits", "temperature", "seeds", "positions", "n_drafted")
    given = [arguments[name] for name in order]
    rates = torch.tensor([0.9, 2.5, 1.0], device=DEVICE)
    wanted = rejection.rejection_sample(*given, rates, workspace=WORKSPACE)
    found = rejection_sample(*given, rates, block=64, resample_block=32)
    assert found.tokens.tolist() == wanted.tokens.tolist()
