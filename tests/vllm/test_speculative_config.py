"""Synthetic acceptance as vLLM's own configuration keeps it, read as the plugin reads it."""

import json
import subprocess

from tests.vllm.environment import NEEDS_VLLM, PYTHON, ROOT

pytestmark = NEEDS_VLLM

ASK = """
import json, sys
sys.path.insert(0, sys.argv[1])
from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig
from impl.vllm_plugin.conditions import synthetic_rates

def told(**given):
    config = SpeculativeConfig(method="ngram", num_speculative_tokens=5, prompt_lookup_max=3,
                               target_parallel_config=ParallelConfig(), **given)
    return [config.synthetic_acceptance_length, synthetic_rates(config)]

print(json.dumps([told(rejection_sample_method="synthetic", synthetic_acceptance_length=3.3),
                  told(rejection_sample_method="synthetic", synthetic_acceptance_length=2.1),
                  told(rejection_sample_method="synthetic", synthetic_acceptance_rates=[0.9, 0.5, 0.5, 0.1, 0]),
                  told()]))
"""


def test_vllm_forgets_a_length_and_keeps_rates():
    done = subprocess.run([str(PYTHON), "-P", "-c", ASK, str(ROOT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [
        [None, [1, 1, 0.3, 0, 0]], [None, [1, 0.1, 0, 0, 0]], [None, [0.9, 0.5, 0.5, 0.1, 0]], [None, []],
    ]  # fmt: skip
