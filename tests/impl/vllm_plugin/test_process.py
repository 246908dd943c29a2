"""The plugin in processes of its own: found by vLLM's own plugin loader, refusing starts, writing a worker's files.

The package `vllm` here is the real sources of 0.26.0, with stand-ins laid over what would need torch and a GPU.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from impl.vllm_plugin.metadata import write_metadata

ROOT = Path(__file__).resolve().parents[3]

OVER = {
    "vllm/__init__.py": "",
    "vllm/envs.py": "VLLM_PLUGINS = None\n",
    "vllm/engine/__init__.py": "",
    "vllm/v1/__init__.py": "",
    "vllm/v1/worker/__init__.py": "",
    "vllm/platforms.py": """
class Platform:
    def is_cpu(self): return False
    def is_cuda(self): return True
    def get_device_capability(self):
        from types import SimpleNamespace
        return SimpleNamespace(major=9, minor=0)
current_platform = Platform()
""",
    "vllm/engine/arg_utils.py": """
from types import SimpleNamespace as N
import json, os
class EngineArgs:
    def __init__(self):
        from vllm.plugins import load_general_plugins
        load_general_plugins()
    def create_engine_config(self, usage_context=None, headless=False):
        hf = N(architectures=["DeepseekV4ForCausalLM"], num_attention_heads=64)
        return N(
            model_config=N(hf_config=hf, model="/m", dtype="bf16", seed=0, max_model_len=4096, enforce_eager=True),
            parallel_config=N(tensor_parallel_size=2, pipeline_parallel_size=1, data_parallel_size=2,
                data_parallel_rank=1, world_size=2, enable_expert_parallel=False, all2all_backend="naive"),
            cache_config=N(enable_prefix_caching=False, cache_dtype="fp8", block_size=256, gpu_memory_utilization=0.5,
                kv_cache_memory_bytes=None, num_gpu_blocks_override=None),
            scheduler_config=N(max_num_batched_tokens=8192, max_num_seqs=8),
            compilation_config=N(cudagraph_mode=N(name="NONE")),
            speculative_config=N(method="dspark", num_speculative_tokens=5),
            load_config=N(load_format="dummy"), use_v2_model_runner=True)
""",
    "vllm/v1/worker/gpu_worker.py": """
from types import SimpleNamespace as N
class Tensor:
    # tensors of a size share their storage
    def __init__(self, size): self.size = size
    def untyped_storage(self): return N(data_ptr=lambda: self.size, nbytes=lambda: self.size)
class Worker:
    def __init__(self, config, rank):
        self.vllm_config, self.rank, self.device = config, rank, "cuda:0"
        pages = [Tensor(600), [Tensor(900), Tensor(900)], Tensor(600)]
        experts = N(modules=list, moe_config=N(moe_parallel_config=N(sp_size=2)))
        model = N(modules=lambda: [N(experts=experts), N(), experts])
        self.model_runner = N(model_memory_usage=1000, model=model, kv_caches=pages)
        self.init_snapshot = N(free_memory=9000)
    def determine_available_memory(self):
        self.requested_memory, self.peak_activation_memory, self.non_torch_memory = 5000, 300, 7
        self.cudagraph_memory_estimate = 0
        return 3693
    def initialize_from_config(self, kv_cache_config):
        return "initialized"
    def compile_or_warm_up_model(self):
        return "warm"
""",
}  # fmt: skip

START = "from vllm.engine.arg_utils import EngineArgs; config = EngineArgs().create_engine_config()\n"
WORKER = """
from types import SimpleNamespace as N
from vllm.v1.worker.gpu_worker import Worker
from impl.vllm_plugin import state
worker = Worker(config, 1)
assert worker.determine_available_memory() == 3693
assert worker.initialize_from_config(N(num_blocks=5)) == "initialized"
assert worker.compile_or_warm_up_model() == "warm"
state.take("mtp_hidden_skip")
print("modules", sorted(name for name in __import__("sys").modules if "deepseek" in name or name == "torch"))
"""


@pytest.fixture
def run(tmp_path, sources):
    """Run code beside a `vllm` of some version, with the plugin's metadata in reach."""
    site, meta, boot = tmp_path / "site", tmp_path / "meta", tmp_path / "boot"
    shutil.copytree(sources("0.26.0") / "vllm", site / "vllm")
    for name, text in OVER.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    boot.mkdir()
    write_metadata(meta)

    def start(code, toggles="", version="0.26.0", installed=True):
        info = site / f"vllm-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
        path = [str(site), *([str(meta)] if installed else []), str(ROOT)]
        environment = {
            **os.environ, "PYTHONPATH": os.pathsep.join(path), "DSBENCH_TOGGLES": toggles, "DSBENCH_BOOT_DIR": str(boot)
        }  # fmt: skip
        done = subprocess.run(
            # Without -S the interpreter that runs the tests may have the plugin in its own site-packages.
            [sys.executable, "-P", *([] if installed else ["-S"]), "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        shutil.rmtree(info)
        return done, boot

    return start


def read(boot, name, rank):
    return json.loads((boot / f"{name}.rank{rank}.json").read_text())


def test_a_worker_writes_its_files(run):
    done, boot = run(START + WORKER, "mtp_hidden_skip")
    assert done.returncode == 0, done.stderr
    assert "modules []" in done.stdout, "neither torch nor model code is imported by the plugin"
    conditions, profile, markers = (read(boot, name, 3) for name in ("conditions", "kv_profile", "markers"))
    assert conditions["vllm"] == "0.26.0"
    assert "mtp_hidden_skip" in conditions["toggles"]
    assert (conditions["tp_rank"], conditions["tp"], conditions["dp"]) == (1, 2, 2)
    assert conditions["speculative"] == "dspark"
    assert conditions["kv_cache_memory_bytes"] is None
    known = {
        "requested_bytes": 5000, "load_bytes": 1000, "peak_activation_bytes": 300, "non_torch_bytes": 7,
        "graph_estimate_bytes": 0, "available_bytes": 3693, "initial_free_bytes": 9000, "blocks": 5, "kv_bytes": 1500,
        "block_bytes": 300, "graph_bytes": 0, "source": "vllm-memory-profiling", "total_consumed_bytes": None,
        "allocator_peak_bytes": None, "weights_bytes": None, "index_maps_per_step": None, "stage": "serving",
        "moe_layers": 1, "moe_layers_sequence_parallel": 1, "moe_sp_active": 1,
    }  # fmt: skip
    assert {key: profile[key] for key in known} == known
    assert markers["toggles"]["mtp_hidden_skip"]["taken"] == 1, "written at exit"


def test_a_plugin_that_is_not_installed_writes_nothing(run):
    done, boot = run(START + WORKER.replace("from impl.vllm_plugin import state\n", "").replace(
        'state.take("mtp_hidden_skip")\n', ""), "mtp_hidden_skip", installed=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert list(boot.iterdir()) == []


def test_measuring_works_with_an_unknown_version(run):
    done, boot = run(START + WORKER, version="0.99.0")
    assert done.returncode == 0, done.stderr
    assert read(boot, "kv_profile", 3)["available_bytes"] == 3693


@pytest.mark.parametrize(
    ("toggles", "version", "words"),
    [
        ("mtp_hidden_skipp", "0.26.0", "unknown toggle 'mtp_hidden_skipp': did you mean mtp_hidden_skip?"),
        ("mtp_hidden_skip", "0.30.0", "written for vLLM 0.25.1, 0.26.0, 0.33.0, this is 0.30.0"),
        ("c128_indices_in_place", "0.26.0", "on sm90 it reads local indices"),
        ("q_in_place", "0.26.0", "32 local heads, the kernel reads 64"),
        ("residual_reuse_small_path", "0.26.0", "has no vLLM implementation"),
    ],
)
def test_a_start_that_cannot_run_ends_with_one_line(toggles, version, words, run):
    done, boot = run(START + "print('started')", toggles, version)
    assert done.returncode == 2
    assert done.stdout == ""
    assert list(boot.iterdir()) == []
    (line,) = done.stderr.splitlines()
    assert line.startswith("dsbench: ")
    assert words in line
    assert f"DSBENCH_TOGGLES={toggles}" in line


def test_a_boot_folder_that_is_missing_ends_the_start(run, tmp_path):
    done, _ = run(f"import os; os.environ['DSBENCH_BOOT_DIR'] = '{tmp_path}/none'\n" + START)
    assert done.returncode == 2
    assert "is no folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_second_load_changes_nothing(run):
    twice = "from impl.vllm_plugin import register\nregister(); register()\nimport sys\n"
    count = "from impl.vllm_plugin.hooks import _finder; print({k: len(v) for k, v in _finder.hooks.items()})"
    once, _ = run(twice.replace("register(); register()", "register()") + count, "mtp_hidden_skip")
    again, _ = run(twice + count, "mtp_hidden_skip")
    assert once.stdout == again.stdout
    assert once.returncode == again.returncode == 0
