"""The promise of `mhc_final_fused` over the kernels that dispatch chooses: on a GPU, or by Triton's interpreter.

`check_ops final` runs whole here as well, over a stand-in for vLLM's operations and numbers that are exact in bf16: the
interpreter cuts bits off where the GPU rounds.
"""

import os

import pytest
import torch

if not torch.cuda.is_available():
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("run by tests/impl/ops/test_by_interpreter.py, in a process of their own", allow_module_level=True)
    os.environ["DSBENCH_OPS"] = "triton"
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.ops import dispatch
from impl.vllm_plugin import check_ops, mhc_final_fused
from impl.vllm_plugin.patch import TILELANG

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HIDDEN = 192
STEP = 2**-8 if DEVICE == "cuda" else 2**-7
EPS = {"rms_eps": 1e-6, "hc_eps": 1e-5}


def normal(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def step_of(n, hidden=HIDDEN, seed=0):
    """x, residual, post, comb, as vLLM's POST takes them."""
    x, residual = normal(n, hidden, seed=seed).bfloat16(), normal(n, 4, hidden, seed=seed + 1).bfloat16()
    return x, residual, normal(n, 4, 1, seed=seed + 2).sigmoid(), (3 * normal(n, 4, 4, seed=seed + 3)).softmax(-1)


def head_weights(hidden=HIDDEN):
    return normal(4, 4 * hidden, seed=9) / 16, 0.7 + normal(1, seed=10).abs(), normal(4, seed=11)


def streams_of(x, residual, post, comb):
    """In fp64, so that it sides with nobody's rounding order."""
    new = post.double() * x.double()[:, None] + torch.einsum("nij,nih->njh", comb.double(), residual.double())
    return new.to(torch.bfloat16)


def head_of(streams, fn, scale, base, rms_eps, hc_eps):
    z = streams.double().flatten(1)
    mix = (z @ fn.double().T) * torch.rsqrt(z.square().mean(-1, keepdim=True) + rms_eps)
    gate = torch.sigmoid(mix * scale.double() + base.double()) + hc_eps
    return (gate[:, :, None] * streams.double()).sum(1)


@pytest.fixture
def consumer(stand_in, arm):
    """A module whose POST and head are the plugin's, over an fp64 stand-in for vLLM's; and the markers."""
    markers = arm("mtp_hidden_skip,mhc_final_fused")
    module = stand_in(
        TILELANG,
        mhc_post_tilelang=streams_of,
        hc_head_fused_kernel_tilelang=lambda *a: head_of(*a).to(torch.bfloat16),
    )
    mhc_final_fused.patch_consumer(module, "0.26.0")
    return module, markers


def within(found, expected, streams):
    """Rounded twice: streams, and what is made of them."""
    size = streams.double().abs().sum(1)
    return bool(((found.double() - expected).abs() <= 2 * STEP * size + 1e-6).all())


@pytest.mark.parametrize("n", [1, 5, 17])
def test_mean_and_head_alone_and_together(n, consumer):
    module, markers = consumer
    step, weights = step_of(n), head_weights()
    streams = streams_of(*step)
    wanted = streams.double().mean(1), head_of(streams, *weights, **EPS)

    alone = module.mhc_post_tilelang(*step)
    mean = alone.mean(dim=1)
    alone.end()
    head = module.hc_head_fused_kernel_tilelang(module.mhc_post_tilelang(*step), *weights, *EPS.values())
    both = module.mhc_post_tilelang(*step)
    beside = both.mean(dim=1)
    together = module.hc_head_fused_kernel_tilelang(both, *weights, *EPS.values())

    assert mean.shape == head.shape == (n, HIDDEN)
    assert mean.dtype == head.dtype == torch.bfloat16
    assert within(mean, wanted[0], streams)
    assert within(head, wanted[1], streams)
    assert torch.equal(beside, mean)
    assert torch.equal(together, head)
    assert markers.taken == {"mhc_final_fused": 4}
    assert not markers.refused
    if DEVICE == "cpu":
        assert all(dispatch.asked()[op] == ["triton"] for op in mhc_final_fused.OPS)


def test_no_tokens(consumer):
    module, markers = consumer
    promise = module.mhc_post_tilelang(*step_of(0))
    mean = promise.mean(dim=1)
    head = module.hc_head_fused_kernel_tilelang(promise, *head_weights(), *EPS.values())
    assert mean.shape == head.shape == (0, HIDDEN)
    assert not markers.refused


def test_another_number_of_streams_goes_vllms_way(consumer):
    module, markers = consumer
    x, residual, post, comb = step_of(3)
    streams = module.mhc_post_tilelang(
        x, residual[:, :2].contiguous(), post[:, :2].contiguous(), comb[:, :2, :2].contiguous()
    )
    assert streams.shape == (3, 2, HIDDEN)
    head = module.hc_head_fused_kernel_tilelang(
        streams, normal(2, 2 * HIDDEN, seed=1), normal(1, seed=2), normal(2, seed=3), *EPS.values()
    )
    assert head.shape == (3, HIDDEN)
    assert not markers.taken


def exact(n):
    """Each new stream is one of the old ones, of small multiples of four: streams and means are exact in bf16."""

    def integers(*shape, seed):
        return 4 * torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)

    sources = torch.randint(0, 4, (n, 4), generator=torch.Generator().manual_seed(n + 2)).to(DEVICE)
    comb = torch.nn.functional.one_hot(sources, 4).transpose(1, 2).float().contiguous()
    post = torch.tensor([0.0, 1.0, 2.0, 3.0], device=DEVICE).view(1, 4, 1).repeat(n, 1, 1)
    return integers(n, HIDDEN, seed=n).bfloat16(), integers(n, 4, HIDDEN, seed=n + 1).bfloat16(), post, comb


@pytest.fixture
def small_check(stand_in, arm, monkeypatch):
    arm("mtp_hidden_skip,mhc_final_fused")
    for name, value in {"DEVICE": DEVICE, "HIDDEN": HIDDEN, "FINAL_TOKENS": (1, 6, 33), "_seam_inputs": exact}.items():
        monkeypatch.setattr(check_ops, name, value)

    def vllm(post=streams_of):
        return stand_in(
            TILELANG,
            mhc_post_tilelang=post,
            hc_head_fused_kernel_tilelang=lambda *a: head_of(*a).to(torch.bfloat16),
        )

    stand_in("vllm.model_executor.kernels.mhc")
    return vllm


def test_check_ops_final_finds_the_same(small_check):
    small_check()
    rows = list(check_ops.check_final("0.26.0"))
    kinds = ["mean", "head", "mean and head"]
    compared = [row for row in rows if "captured" not in row[0]]
    assert [what for what, _, _ in compared] == [f"final {kind}, {n} tokens" for n in (1, 6, 33) for kind in kinds]
    assert [same for _, same, _ in compared] == [True, None, None] * 3, compared
    assert all(same for what, same, _ in rows if "captured" in what)
    assert all("triton" in figure for _, _, figure in compared), "no CUDA kernel has this width"


def test_check_ops_final_finds_streams_that_are_mixed_the_other_way(small_check):
    small_check(lambda x, residual, post, comb: streams_of(x, residual, post, comb.transpose(1, 2)))
    verdicts = {what: same for what, same, _ in check_ops.check_final("0.26.0") if "captured" not in what}
    assert all(same is False for what, same in verdicts.items() if "33" in what), verdicts
