"""What is refused at start, and in which words: versions, platforms, methods, parallelism."""

from pathlib import Path

import pytest

from impl.ops import dispatch
from impl.toggles import ToggleSet
from impl.vllm_plugin.facts import DEEPSEEK_V4, Facts
from impl.vllm_plugin.install import PATCHES, named, start_refusal, version_refusal, wanted
from impl.vllm_plugin.patch import VERSIONS

H200 = Facts(
    version="0.26.0", platform="sm90", architecture=DEEPSEEK_V4, method="dspark", runner="v2", heads=64, tp=1, pp=1,
    dp=1, expert_parallel=False, graph_mode="FULL_AND_PIECEWISE", draft_sample_method="probabilistic", synthetic=True,
    expert_width=2048, token_shards=True, hidden=4096, streams=4,
)  # fmt: skip
REACHABLE = (
    "mtp_hidden_skip", "c128a_topk_shared", "dflash_staging_skip", "q_in_place", "mhc_residual_reuse",
    "mhc_input_reuse",
)  # fmt: skip


def with_(**changes):
    return Facts(**{**vars(H200), **changes})


@pytest.mark.parametrize("name", REACHABLE)
def test_reachable_on_h200(name):
    assert PATCHES[name].refuse(H200) is None


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("mtp_hidden_skip", {"method": "mtp"}, "the mtp method reads"),
        ("mtp_hidden_skip", {"method": "eagle3"}, "the eagle3 method reads"),
        ("mtp_hidden_skip", {"architecture": "Qwen3ForCausalLM"}, "this model is Qwen3ForCausalLM"),
        ("mtp_hidden_skip", {"platform": "cpu"}, "this platform is cpu"),
        ("c128a_topk_shared", {"graph_mode": "FULL"}, "one graph"),
        ("dflash_staging_skip", {"method": "mtp"}, "only the dspark method"),
        ("dflash_staging_skip", {"runner": "v1"}, "V2 model runner"),
        ("q_in_place", {"tp": 2}, "32 local heads, the kernel reads 64"),
        ("q_in_place", {"platform": "sm100"}, "unknown platform 'sm100'"),
        ("c128_indices_in_place", {}, "on sm90 it reads local indices"),
        ("mhc_final_fused", {"pp": 2}, "pipeline_parallel_size is 2"),
        ("mhc_final_fused", {"method": "mtp"}, "reads the streams before the head"),
        ("mhc_final_fused", {"version": "0.33.0", "expert_parallel": True, "tp": 2}, "gathers the streams"),
        ("mhc_final_fused", {"streams": 2}, "mix 4 streams, and this model has 2"),
        ("mhc_residual_reuse", {"pp": 2}, "one pipeline stage"),
        ("mhc_input_reuse", {"platform": "other"}, "this platform is other"),
        ("sp_moe_config_aware", {}, "the gate stays off"),
        ("sp_moe_config_aware", {"expert_parallel": True, "tp": 2, "dp": 2}, "on already"),
        ("sp_moe_config_aware", {"expert_parallel": True, "tp": 2, "expert_width": 1408}, "no multiple of 256"),
    ],
)
def test_refused(name, changes, word):
    assert word in (PATCHES[name].refuse(with_(**changes)) or "")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("q_in_place", {"platform": "sm120", "tp": 2}),
        ("c128_indices_in_place", {"platform": "sm120"}),
        ("mhc_residual_reuse", {"tp": 2}),
        ("sp_moe_config_aware", {"expert_parallel": True, "tp": 2}),
    ],
)
def test_accepted_elsewhere(name, changes):
    assert PATCHES[name].refuse(with_(**changes)) is None


@pytest.mark.parametrize(
    ("name", "changes", "word"),
    [
        ("rejection_keyword_binding", {}, None),
        ("rejection_keyword_binding", {"synthetic": False}, "synthetic"),
        ("rejection_keyword_binding", {"runner": "v1"}, "none can slip"),
        ("rejection_keyword_binding", {"method": None}, "no speculation"),
        ("draft_logits_persistent", {}, None),
        ("draft_logits_persistent", {"method": "ngram"}, "this is ngram"),
        ("draft_logits_persistent", {"draft_sample_method": "greedy"}, "greedy drafts"),
    ],
)
def test_defects_need_somewhere_to_show(name, changes, word, arm):
    arm(f"{name}=off")
    reason = PATCHES[name].refuse(with_(**changes))
    assert reason is None if word is None else word in (reason or "")
    arm("")
    assert PATCHES[name].refuse(with_(**changes)) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_known_versions_take_every_toggle(version):
    for name in PATCHES:
        if name not in ("draft_logits_persistent", "rejection_keyword_binding", "mhc_final_fused"):
            assert version_refusal(ToggleSet([name]), version) is None
    assert version_refusal(ToggleSet(["mtp_hidden_skip", "mhc_final_fused"]), version) is None
    assert version_refusal(ToggleSet(off=["draft_logits_persistent"]), version) is None


def test_an_unknown_version_measures_but_takes_no_toggle():
    assert version_refusal(ToggleSet(), "0.99.0") is None
    assert wanted(ToggleSet(), "0.99.0") == []
    reason = version_refusal(ToggleSet(["mtp_hidden_skip"]), "0.99.0")
    assert "0.25.1, 0.26.0, 0.33.0" in reason
    assert "this is 0.99.0" in reason
    assert "rejection_keyword_binding=off" in version_refusal(ToggleSet(off=["rejection_keyword_binding"]), "0.99.0")


def test_the_cpu_build_binds_by_name_and_takes_no_optimization():
    assert [patch.toggle for patch in wanted(ToggleSet(), "0.32.0")] == ["rejection_keyword_binding"]
    assert version_refusal(ToggleSet(), "0.32.0") is None
    assert version_refusal(ToggleSet(["mtp_hidden_skip"]), "0.32.0")


def test_a_control_without_an_implementation_is_refused():
    reason = version_refusal(ToggleSet(["residual_reuse_small_path"]), "0.26.0")
    assert "residual_reuse_small_path has no vLLM implementation" in reason


def test_named_is_what_the_arm_asks_for():
    assert named(ToggleSet()) == []
    asked = named(ToggleSet(["mtp_hidden_skip"], off=["draft_logits_persistent"]))
    assert asked == ["mtp_hidden_skip", "draft_logits_persistent"]


def test_sources_that_changed_refuse_the_start(tmp_path, sources):
    patch, root = PATCHES["mtp_hidden_skip"], sources("0.26.0")
    assert start_refusal([patch], H200, root, [patch.toggle]) is None
    (tmp_path / "vllm").mkdir()
    reason = start_refusal([patch], H200, tmp_path, [patch.toggle])
    assert reason.startswith("toggle mtp_hidden_skip does not fit this vLLM 0.26.0: there is no module")
    assert isinstance(root, Path)


FINAL = PATCHES["mhc_final_fused"]


@pytest.fixture
def backends(monkeypatch):
    """Backends that are here, as dispatch sees them: those named have every operation, the others say why not."""
    built = []

    def here(*names, forced="", build=lambda: built.append("all")):
        monkeypatch.setenv(dispatch.FORCE, forced)
        written = dict.fromkeys(dispatch.REFERENCES)
        monkeypatch.setattr(dispatch, "operations", lambda name: written if name in names else {})
        monkeypatch.setattr(dispatch, "missing", lambda name: "" if name in names else f"there is no {name} compiler")
        monkeypatch.setattr("impl.ops.cuda.build.build_all", build)
        return built

    return here


@pytest.mark.parametrize(
    ("names", "forced", "changes", "built"),
    [
        (("cuda", "triton"), "", {}, True),
        (("cuda",), "", {}, True),
        (("triton",), "", {}, False),
        (("cuda", "triton"), "", {"platform": "sm120"}, False),
        (("cuda", "triton"), "", {"hidden": 7168}, False),
        (("cuda", "triton"), "triton", {}, False),
        (("cuda", "triton"), "torch, mhc_post_mean=cuda, mhc_post_head=triton, mhc_post_mean_head=triton", {}, True),
    ],
)
def test_one_backend_that_can_run_is_enough(names, forced, changes, built, backends):
    """What has to be compiled is compiled before the start, where it would be taken."""
    calls = backends(*names, forced=forced)
    assert FINAL.refuse(with_(**changes)) is None
    assert bool(calls) == built


@pytest.mark.parametrize(
    ("names", "forced", "changes", "words"),
    [
        ((), "", {}, "computes mhc_post_mean: triton: there is no triton compiler; cuda: there is no cuda compiler"),
        (("cuda",), "", {"platform": "sm120"}, "mhc_post_mean: triton: there is no triton compiler"),
        (("cuda",), "", {"hidden": 7168}, "mhc_post_mean: triton: there is no triton compiler"),
        (("cuda", "triton"), "cuda", {"platform": "sm120"}, "no row of it for flash on this card"),
        (("triton",), "cuda", {}, "mhc_post_mean: cuda: there is no cuda compiler"),
        (("cuda", "triton"), "torch", {}, "torch: DSBENCH_OPS asks for it, and it is no kernel"),
        (("cuda", "triton"), "mhc_post_head=torch", {}, "no kernel computes mhc_post_head: torch"),
        (("cuda", "triton"), "tritom", {}, "unknown backend in DSBENCH_OPS 'tritom'"),
    ],
)
def test_without_a_kernel_the_start_is_refused(names, forced, changes, words, backends):
    backends(*names, forced=forced)
    reason = FINAL.refuse(with_(**changes))
    assert words in reason
    assert "\n" not in reason


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            RuntimeError("nvcc could not build mhc.cu: expected a ';'\nmore"),
            "nvcc could not build mhc.cu: expected a ';'",
        ),
        (PermissionError(13, "Permission denied", "/kept"), "[Errno 13] Permission denied: '/kept'"),
    ],
)
def test_a_kernel_that_cannot_be_built_refuses_the_start(error, words, backends):
    def build():
        raise error

    backends("cuda", "triton", build=build)
    reason = f"its CUDA kernels cannot be built: {words}: DSBENCH_OPS=triton does without"
    assert FINAL.refuse(H200) == reason
