"""What each toggle relies on is there, in the real sources of every version that it claims."""

import ast

import pytest

from impl.vllm_plugin import dummy
from impl.vllm_plugin.install import PATCHES
from impl.vllm_plugin.patch import DRAFT, MODEL, VERSIONS
from impl.vllm_plugin.sites import Calls, Symbol, Text

PAIRS = [(name, version) for name, patch in PATCHES.items() for version in patch.sites]
ISSUE = {
    "mtp_hidden_skip", "c128a_topk_shared", "dflash_staging_skip", "q_in_place", "c128_indices_in_place",
    "mhc_final_fused", "mhc_residual_reuse", "mhc_input_reuse", "draft_logits_persistent", "rejection_keyword_binding",
    "sp_moe_config_aware",
}  # fmt: skip


def test_every_toggle_has_a_patch_for_three_versions():
    assert set(PATCHES) == ISSUE
    for patch in PATCHES.values():
        assert {"0.25.1", "0.26.0", "0.33.0"} <= set(patch.sites)
        assert all(patch.sites.values())


@pytest.mark.parametrize(("name", "version"), PAIRS)
def test_sources_are_as_expected(name, version, sources):
    assert PATCHES[name].faults(version, sources(version)) == []


@pytest.mark.parametrize("version", dummy.SITES)
def test_dummy_weights(version, sources):
    root = sources(version)
    assert [fault for site in dummy.SITES[version] if (fault := site.fault(root))] == []


@pytest.mark.parametrize("version", ["0.25.1", "0.26.0", "0.33.0"])
@pytest.mark.parametrize(
    "site",
    [
        Symbol("vllm.v1.worker.gpu_worker", "Worker.determine_available_memory", ("self",)),
        Symbol("vllm.v1.worker.gpu_worker", "Worker.initialize_from_config", ("self", "kv_cache_config")),
        Symbol("vllm.v1.worker.gpu_worker", "Worker.compile_or_warm_up_model", ("self",)),
        Symbol("vllm.v1.worker.gpu.model_runner", "GPUModelRunner.capture_model"),
        Symbol("vllm.v1.worker.gpu.cudagraph_utils", "CudaGraphManager.run_fullgraph", ("self", "desc")),
        Symbol("vllm.compilation.breakable_cudagraph", "BreakableCUDAGraphCapture.replay", ("self",)),
        Text("vllm.compilation.breakable_cudagraph", "BreakableCUDAGraphCapture.replay", "r()"),
        Symbol("vllm.engine.arg_utils", "EngineArgs.create_engine_config", ("self", "usage_context", "headless")),
        Calls("vllm.v1.worker.worker_base", "WorkerWrapperBase.init_worker", "load_general_plugins", times=1),
        Calls("vllm.plugins", "load_general_plugins", "func", times=1),
    ],
    ids=str,
)
def test_what_measuring_relies_on(site, version, sources):
    assert site.fault(sources(version)) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("module", "name"),
    [(MODEL, "DeepseekV4Model"), (MODEL, "DeepseekV4ForCausalLM"), (DRAFT, "DSparkDeepseekV4Model")],
)
def test_no_compiler_traces_the_model(module, name, version, sources):
    """Patches look at addresses and launch by ctypes, which torch.compile would not trace; decorators ask for it."""
    path = sources(version).joinpath(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    assert found.decorator_list == []


@pytest.mark.parametrize("version", VERSIONS)
def test_a_step_of_each_size_runs_before_its_capture(version, sources):
    """Libraries are loaded and Triton compiles at the first call of a size, which a capture would not bear."""
    path = sources(version) / "vllm/v1/worker/gpu/cudagraph_utils.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    (manager,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "CudaGraphManager")
    (capture,) = (node for node in manager.body if isinstance(node, ast.FunctionDef) and node.name == "capture")
    lines = {
        kind: [node.lineno for node in ast.walk(capture) if isinstance(node, ast.Call) and ast.unparse(node) == text]
        for kind, text in (
            ("eager", "forward_fn(CUDAGraphMode.NONE)"),
            ("piecewise", "forward_fn(CUDAGraphMode.PIECEWISE)"),
            ("graph", "torch.cuda.graph(graph, self.pool)"),
        )
    }
    assert min(lines["eager"]) < min(lines["piecewise"] + lines["graph"]), lines


@pytest.fixture
def module(tmp_path):
    (tmp_path / "m.py").write_text(
        "def f(a, b=1, *, c): g(a, b); g(a, c)\nclass K:\n    def h(self, *rest, **more):\n        x = 1\ntop = 3\n"
    )
    return tmp_path


@pytest.mark.parametrize(
    ("site", "word"),
    [
        (Symbol("m", "f", ("a", "b", "*", "c")), None),
        (Symbol("m", "K.h", ("self", "*rest", "**more")), None),
        (Symbol("m", "top"), None),
        (Calls("m", "f", "g", times=2, positional=2), None),
        (Text("m", "K.h", "x = 1"), None),
        (Symbol("n", "f"), "no module n"),
        (Symbol("m", "K.f"), "has no K.f"),
        (Symbol("m", "top", ()), "is no function"),
        (Symbol("m", "f", ("a", "b", "c")), "takes (a, b, *, c), not (a, b, c)"),
        (Calls("m", "f", "g", times=1), "calls g 2 times"),
        (Calls("m", "f", "g", times=2, positional=1), "positional"),
        (Calls("m", "e", "g", times=2), "has no e"),
        (Text("m", "K.h", "x = 2"), "no longer says"),
    ],
)
def test_a_site_says_what_changed(site, word, module):
    fault = site.fault(module)
    assert fault is None if word is None else word in fault
