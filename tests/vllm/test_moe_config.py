"""How MoE layers run, read from vLLM's own configuration of fused experts."""

import json
import subprocess

from tests.vllm.environment import NEEDS_VLLM, PYTHON, ROOT

pytestmark = NEEDS_VLLM

ASK = """
import dataclasses, inspect, json, sys
sys.path.insert(0, sys.argv[1])
from types import SimpleNamespace as N
from vllm.model_executor.layers.fused_moe.config import FusedMoEConfig, FusedMoEParallelConfig
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner
from impl.vllm_plugin.moe import sequence_parallel

assert "moe_parallel_config" in {field.name for field in dataclasses.fields(FusedMoEConfig)}
assert "self.moe_config = moe_config" in inspect.getsource(MoERunner.__init__)

def told(ranks):
    parallel = dataclasses.replace(FusedMoEParallelConfig.make_no_parallel(), sp_size=ranks)
    layer = N(experts=N(modules=list, moe_config=N(moe_parallel_config=parallel)))
    return [parallel.is_sequence_parallel, sequence_parallel([N(modules=lambda: [layer])])["moe_sp_active"]]

print(json.dumps([told(1), told(2)]))
"""


def test_vllm_keeps_the_number_of_ranks_that_share_tokens():
    done = subprocess.run([str(PYTHON), "-P", "-c", ASK, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [[False, 0], [True, 1]]
