"""Real inputs that are changed by the fuzzer: files of a checkout, what the package ships, and a few of its own."""

from __future__ import annotations

from pathlib import Path

from dsbench.parse.boot_lines import TAKES
from dsbench.parse.health import CONSEQUENCES, HINTS, ROOTS
from dsbench.parse.progress import PHASES
from dsbench.suite import shipped

CHECKOUT = Path(__file__).resolve().parents[2]

SUITE: dict[str, list[str]] = {
    """
name = "fuzz"
summary = "a reading of each kind"
blocks = 2
warmup_boots = 0
guards = ["kv.available_bytes", "smoke.correct", "identity.tokens"]
drift_controls = ["kv.weights_bytes"]
[probes.kv]
[[probes.smoke.items]]
chat = "17+25"
answer = 42
[probes.identity]
tokens = 4
together = 2
prompts = ["7*8="]
[probes.prefill]
lengths = [64]
repeats = 1
""": [],
    """
name = "fuzz-drafts"
summary = "counts of drafts"
blocks = 2
warmup_boots = 0
guards = ["accept.*"]
[probes.kv]
[probes.acceptance]
prose = ["The small "]
structured = ["kx=42\\n?kx="]
tokens = 8
samples = 1
together = 2
""": ["--speculative", "dspark"],
}
"""Small suites by their text, and the engine arguments that each is planned with."""

RIG = b"""start = ["/opt/start.sh", "{arm}", "{args}"]
stop = ["/opt/stop.sh"]
health = ["/bin/true"]
url = "http://127.0.0.1:8000"
detached = true
[[ranks]]
log = "{boot_dir}/engine.log"
profile = "{boot_dir}/kv_profile.rank0.json"
"""

PAGE = b"""# HELP vllm:prompt_tokens_total Prompt tokens.
# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="m"} 12.0
# TYPE vllm:generation_tokens_total counter
vllm:generation_tokens_total{model_name="m"} 40.0
# TYPE vllm:spec_decode_num_drafts counter
vllm:spec_decode_num_drafts_total{model_name="m"} 30.0
vllm:spec_decode_num_draft_tokens_total{model_name="m"} 90.0
vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 50.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="0"} 28.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name="m",position="1"} 22.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m"} 0.25
"""

RESULTS = (
    b'{"model_id":"m","num_prompts":8,"completed":8,"output_throughput":83.2,"duration":12.5,"total_output_tokens":1040,'
    b'"mean_tpot_ms":11.5,"mean_itl_ms":30.1,"max_concurrency":1,"spec_decode_acceptance_length":2.6}',
    b'[{"n_prompt":512,"n_gen":0,"avg_ts":900.5,"stddev_ts":3.25,"samples_ts":[897.1,903.9]}]',
)

LOG_WORDS = (
    *(phrase for phrase, _ in TAKES), *(phrase for phrases in PHASES.values() for phrase in phrases),
    *(phrase for _, phrases in ROOTS for phrase in phrases), *CONSEQUENCES, *HINTS,
    "(Worker_TP0 pid=12) ", "(EngineCore_DP1 pid=7) ", "INFO 05-08 16:21:55 [kv_cache_utils.py:1] ", "ERROR ",
    "=== serve A ===",
    "GPU ", "GiB", " tokens", "x", "SpecDecoding metrics: ", "Mean acceptance length: ", "Accepted: ", "Drafted: ",
    "Per-position acceptance rate: 0.9, 0.5, 0.0", "Engine 000: Avg prompt throughput: 1.0 tokens/s, ", "arm=",
    "CELL: ",
    "Traceback (most recent call last):", "Tried to allocate 2.00 GiB", "SERVE1  c1=passed=1/2",
    "rule: all c1 passed in [1,2] ",
    "serve rc=", "-> 12.5 tok/s", "coherence: passed=1/2 concurrency=4", '"exact_match_flexible": 0.5',
    "[repeated 3x across cluster]",
)  # fmt: skip
"""What the readers of logs look for."""


def checkout_files(folder: str, ending: str) -> list[bytes]:
    """Files of the tests' data, without the answers that are expected; none where the package stands alone."""
    paths = sorted((CHECKOUT / folder).glob(f"*{ending}"))
    return [path.read_bytes() for path in paths if not path.name.endswith(f".expected{ending}")]


def shipped_suites() -> list[bytes]:
    return [path.read_bytes() for path in shipped().values()]
