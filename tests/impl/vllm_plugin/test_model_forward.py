"""Real forwards of target and draft of each version, layers included, patched and not: same bits on the CPU."""

from itertools import islice
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from impl.ops import dispatch
from impl.vllm_plugin import mhc_final_fused
from impl.vllm_plugin.install import PATCHES
from impl.vllm_plugin.patch import DRAFT, MODEL, VERSIONS
from tests.impl.vllm_plugin import kernels
from tests.impl.vllm_plugin.extract import module_of
from tests.impl.vllm_plugin.mhc_modules import FUSED, HEAD, POST, tilelang

MTP, FINAL, RESIDUAL, INPUT = "mtp_hidden_skip", "mhc_final_fused", "mhc_residual_reuse", "mhc_input_reuse"
LAYERS, TOKENS = 3, 40


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(kernels.random_weights()["norm"], requires_grad=False)
        self.variance_epsilon = 1e-6

    def forward(self, x):
        return (x.float() * 0.5).to(torch.bfloat16)


def attention(positions, x, _):
    return (x.float() * 1.25 + positions[:, None].remainder(3)).to(torch.bfloat16)


def experts(x, input_ids, *rest):
    return (torch.roll(x.float(), 1, -1) - 0.5).to(torch.bfloat16)


def pre(x, fn, scale, base, rms_eps, pre_eps, sinkhorn_eps, post_mult, repeat, norm_weight, norm_eps):
    n = x.shape[0]
    post = torch.sigmoid(x.float().sum(-1))[..., None]
    comb = torch.softmax(x.float()[:, :, :4], -1)
    return post.contiguous(), comb.contiguous(), x.float().mean(1).to(torch.bfloat16).view(n, -1)


def pre_broadcast(x, fn, *gates, norm_weight, norm_eps, fn_broadcast):
    streams = x[:, None].repeat(1, 4, 1)
    return (streams, *pre(streams, fn, *gates, norm_weight=norm_weight, norm_eps=norm_eps))


def modules(root, version, stand_in):
    """The model's and the draft's module of a version, forwards and layers real, kernels stood in for."""
    lang = tilelang(root, version, stand_in)
    shared = {name: getattr(lang, name) for name in (FUSED, POST, HEAD)}
    shared |= {"mhc_pre_tilelang": pre, "mhc_pre_broadcast_tilelang": pre_broadcast, "islice": islice}
    group = SimpleNamespace(is_first_rank=True, is_last_rank=True)
    model = module_of(
        root, MODEL,
        ["DeepseekV4DecoderLayer.forward", "DeepseekV4Model.forward",
         "DeepseekV4ForCausalLM.get_mtp_target_hidden_states"],
        get_pp_group=lambda: group, **shared,
    )  # fmt: skip
    model.DeepseekV4Model.__init__ = init_model
    draft = module_of(root, DRAFT, ["DSparkDeepseekV4Model.forward"], **{k: shared[k] for k in (POST, HEAD)})
    return model, draft


def init_model(self, *, vllm_config, prefix=""):
    """Attributes that the real forward reads; the buffer is made as the real `__init__` makes it."""
    weights, e = kernels.random_weights(), kernels.EPS
    self.layers = [layer(self.layer_class, seed) for seed in range(LAYERS)]
    self.start_layer, self.end_layer, self.aux_hidden_state_layers = 0, LAYERS, vllm_config.aux
    self.embed_input_ids = lambda ids: torch.randn(
        len(ids), kernels.HIDDEN, generator=torch.Generator().manual_seed(3)
    ).bfloat16()
    self.use_mega_moe = self.use_native_mega_moe = self.use_sequence_parallel = False
    self.collect_remote_aux_hidden_states = lambda tensors: []
    self.hc_head_fn, self.hc_head_scale, self.hc_head_base = (weights[f"head_{k}"] for k in ("fn", "scale", "base"))
    self.rms_norm_eps, self.hc_eps, self.hc_mult = e["rms_eps"], e["pre_eps"], 4
    self.norm = Norm()
    self._mtp_hidden_buffer = torch.zeros(64, 4 * kernels.HIDDEN, dtype=torch.bfloat16)


def layer(cls, seed):
    built, weights, e = cls(), kernels.random_weights(seed), kernels.EPS
    for part in ("attn", "ffn"):
        for name in ("fn", "scale", "base"):
            setattr(built, f"hc_{part}_{name}", weights[name])
    built.hc_attn_fn_broadcast = weights["fn"][:, : kernels.HIDDEN]
    built.attn_norm, built.ffn_norm, built.attn, built.ffn = Norm(), Norm(), attention, experts
    built.rms_norm_eps, built.hc_eps, built.hc_post_alpha, built.hc_sinkhorn_iters = e["rms_eps"], e["pre_eps"], 2.0, 3
    built.use_sequence_parallel = False
    return built


@pytest.fixture
def target(sources, stand_in, arm, monkeypatch):
    """Build a target of a version under an arm; returns it, its module and the draft's, and the markers."""

    def build(version, toggles, method="dspark", aux=(2, 3)):
        markers = arm(toggles)
        model, draft = modules(sources(version), version, stand_in)
        monkeypatch.setattr(dispatch, "kernel", lambda op, device, dims, tokens: KERNELS[op])
        model.DeepseekV4Model.layer_class = model.DeepseekV4DecoderLayer
        for name in filter(None, toggles.split(",")):
            for place, hook in PATCHES[name].hooks.items():
                if place in (MODEL, DRAFT):
                    hook({MODEL: model, DRAFT: draft}[place], version)
        speculative = SimpleNamespace(method=method) if method else None
        config = SimpleNamespace(speculative_config=speculative, aux=aux, version=version)
        built = model.DeepseekV4Model(vllm_config=config)
        built.layers = [callable_layer(item) for item in built.layers]
        return built, model, draft, markers

    return build


def callable_layer(item):
    """vLLM's layers are called; the cut-out class is no nn.Module."""
    type(item).__call__ = lambda self, *args, **kwargs: type(self).forward(self, *args, **kwargs)
    return item


def streams_of(residual, y, post, comb):
    out = torch.empty_like(residual)
    kernels.post(comb, residual, post, y, out, 4, kernels.HIDDEN)
    return out


def post_mean(residual, y, post, comb, out):
    out.copy_(streams_of(residual, y, post, comb).mean(dim=1))


def post_head(residual, y, post, comb, weights, out, mean=None):
    streams, w = streams_of(residual, y, post, comb), weights
    kernels.head(streams, w.fn, w.scale, w.base, out, kernels.HIDDEN, w.rms_eps, w.hc_eps, 4)
    if mean is not None:
        mean.copy_(streams.mean(dim=1))


def mean_and_head(*inputs):
    assert inputs[6] is not None, "without a mean it is the head's operation"
    post_head(*inputs)


def head_alone(*inputs):
    assert inputs[6] is None, "with a mean it is one operation for both"
    post_head(*inputs)


KERNELS = {"mhc_post_mean": post_mean, "mhc_post_head": head_alone, "mhc_post_mean_head": mean_and_head}
"""The operations' meaning, in torch, over the same rounding as the stood-in POST."""


def forward(model, n_tokens=TOKENS):
    ids, positions = torch.arange(n_tokens), torch.arange(n_tokens)
    return model.forward(ids, positions, None)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("toggles", [MTP, f"{MTP},{FINAL}", f"{RESIDUAL},{INPUT}", f"{MTP},{FINAL},{RESIDUAL},{INPUT}"])
@pytest.mark.parametrize("aux", [(2, 3), (1,)], ids=["aux ends at the last layer", "aux ends before it"])
def test_target_gives_the_same_bits(version, toggles, aux, target):
    plain, *_ = target(version, "", aux=aux)
    hidden, means = forward(plain)
    patched, _, _, markers = target(version, toggles, aux=aux)
    ours, our_means = forward(patched)
    assert torch.equal(ours, hidden)
    assert len(means) == len(our_means) == len(aux)
    assert all(map(torch.equal, our_means, means))
    assert set(markers.taken) == set(toggles.split(","))
    if FINAL in toggles:
        assert markers.taken[FINAL] == len(aux) + 1, "each aux mean and the head"
    assert not markers.refused


@pytest.mark.parametrize("version", VERSIONS)
def test_mtp_keeps_the_buffer_and_others_drop_it(version, target):
    kept, model, _, markers = target(version, MTP, method="mtp", aux=())
    assert forward(kept).shape == (TOKENS, kernels.HIDDEN)
    assert isinstance(kept._mtp_hidden_buffer, torch.Tensor)
    assert kept._mtp_hidden_buffer[:TOKENS].any()
    assert hasattr(model.DeepseekV4ForCausalLM, "get_mtp_target_hidden_states")
    assert not markers.taken
    assert markers.refused[MTP] == {"inert: the mtp method reads the staged hidden states": 1}
    for method in ("dspark", None):
        dropped, model, _, markers = target(version, MTP, method=method)
        forward(dropped)
        assert not isinstance(dropped._mtp_hidden_buffer, torch.Tensor)
        assert markers.taken == {MTP: 1}
        reader = getattr(model.DeepseekV4ForCausalLM, "get_mtp_target_hidden_states", None)
        if version == "0.33.0":
            assert reader is not None
            assert reader(SimpleNamespace(model=dropped)) is None
        else:
            assert reader is None


@pytest.mark.parametrize("version", VERSIONS)
def test_eagle_like_methods_keep_the_buffer(version, target):
    kept, _, _, markers = target(version, MTP, method="eagle3", aux=())
    assert isinstance(kept._mtp_hidden_buffer, torch.Tensor)
    assert "eagle3" in next(iter(markers.refused[MTP]))


@pytest.mark.parametrize("version", VERSIONS)
def test_draft_gives_the_same_bits(version, target):
    def drafted(toggles):
        built, _, draft, markers = target(version, toggles)
        model = draft.DSparkDeepseekV4Model()
        vars(model).update({k: v for k, v in vars(built).items() if k != "embed_tokens"})
        markers.taken.clear()
        return model.forward(torch.arange(TOKENS), torch.arange(TOKENS)), markers

    expected, _ = drafted("")
    found, markers = drafted(f"{MTP},{FINAL}")
    assert torch.equal(found, expected)
    assert markers.taken == {FINAL: 1}


def test_a_promise_ends_with_the_next_layer(target):
    patched, *_ = target("0.26.0", f"{MTP},{FINAL}")
    step = kernels.random_step(4)
    promise = mhc_final_fused.Promise(step["x"], step["residual"], step["post"], step["comb"])
    mhc_final_fused._promised.append(promise)
    forward(patched)
    with pytest.raises(RuntimeError, match="after another layer ran"):
        promise.mean(dim=1)


def test_a_promise_does_not_keep_old_streams_alive(target, monkeypatch):
    """The point of it: while the layer after an aux layer runs, the aux layer's streams are gone."""
    patched, *_ = target("0.26.0", f"{MTP},{FINAL}", aux=(1, 3))
    held = []
    second = patched.layers[1]
    run = type(second).forward

    def look(self, *args, **kwargs):
        done = run(self, *args, **kwargs)
        if self is second:
            held.extend(promise for promise in made if promise._inputs is not None)
        return done

    made = []
    init = mhc_final_fused.Promise.__init__

    def note(self, *args):
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(mhc_final_fused.Promise, "__init__", note)
    monkeypatch.setattr(type(second), "forward", look)
    forward(patched)
    assert len(made) == 2
    assert held == []


def test_a_mean_that_was_asked_for_is_there_before_the_next_layer_runs(target, monkeypatch):
    """That layer may write over what the mean is made of."""
    patched, *_ = target("0.26.0", f"{MTP},{FINAL}", aux=(1,))
    second, asked, seen = type(patched.layers[1]), [], []
    ask, run = mhc_final_fused.Promise.mean, second.__call__

    def note(self, dim):
        asked.append((ask(self, dim), streams_of(*self.inputs()).mean(dim=1)))
        return asked[-1][0]

    def look(self, *args, **kwargs):
        done = run(self, *args, **kwargs)
        seen.extend(torch.equal(mean, wanted) for mean, wanted in asked)
        return done

    monkeypatch.setattr(mhc_final_fused.Promise, "mean", note)
    monkeypatch.setattr(second, "__call__", look)
    forward(patched)
    assert len(asked) == 1
    assert seen == [True, True], "after the second layer, and after the third"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda s: {**s, "residual": s["residual"].float()}, "residual of torch.bfloat16 (4, 4, 64), got"),
        (lambda s: {**s, "post": s["post"].double()}, "post of torch.float32 (4, 4, 1), got torch.float64"),
        (lambda s: {**s, "residual": s["residual"][:, :2].contiguous()}, "residual of torch.bfloat16 (4, 4, 64), got"),
        (lambda s: {**s, "comb": s["comb"].transpose(1, 2)}, "not contiguous"),
        (lambda s: {**s, "x": torch.zeros(4 * 64 + 1).bfloat16()[1:].view(4, 64)}, "multiple of 16 bytes"),
    ],
)
def test_what_the_kernels_do_not_take_goes_vllms_way(change, word, target):
    _, model, _, markers = target("0.26.0", f"{MTP},{FINAL}")
    step = kernels.random_step(4)
    taken = getattr(model, POST)(step["x"], step["residual"], step["post"], step["comb"])
    assert isinstance(taken, mhc_final_fused.Promise)
    changed = change(step)
    refused = mhc_final_fused.refusal(changed["x"], changed["residual"], changed["post"], changed["comb"])
    assert word in refused
    if changed["residual"].shape == step["residual"].shape:
        found = getattr(model, POST)(changed["x"], changed["residual"], changed["post"], changed["comb"])
        assert isinstance(found, torch.Tensor)
        assert list(markers.refused[FINAL]) == [refused]


def test_without_a_kernel_every_step_goes_vllms_way(target, monkeypatch):
    plain, *_ = target("0.26.0", "")
    hidden, means = forward(plain)
    patched, _, _, markers = target("0.26.0", f"{MTP},{FINAL}")
    monkeypatch.setattr(dispatch, "kernel", lambda op, *rest: None if op == "mhc_post_mean_head" else KERNELS[op])
    ours, our_means = forward(patched)
    assert torch.equal(ours, hidden)
    assert all(map(torch.equal, our_means, means))
    assert FINAL not in markers.taken
    (reason,) = markers.refused[FINAL]
    assert "no kernel computes mhc_post_mean_head for (40, 4, 64) on cpu" in reason
