"""What is fatal, what it brought with it, and what only sounds like it."""

import pytest

from dsbench.parse.health import fatal_findings, read_health
from dsbench.parse.lines import read_lines


def health(text):
    return read_health(read_lines(text))


KINDS = {
    "illegal_memory_access": "torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    "device_assert": "RuntimeError: CUDA error: device-side assert triggered",
    "python_assert": "AssertionError: num_tokens must be positive",
    "oom": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
    "nccl_timeout": "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE)",
    "nccl_error": "RuntimeError: NCCL error: unhandled system error",
    "engine_core_init_failed": "RuntimeError: Engine core initialization failed. See root cause above.",
    "kv_cache_too_small": "ValueError: 9.00 GiB KV cache is needed, which is larger than the available KV cache memory",
    "no_kv_memory": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.",
    "missing_weight": "ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight'}",
    "gate_not_run": "bash: scripts/gate.sh: No such file or directory",
    "guard_not_evaluated": "guard kv.available_bytes: not evaluated",
}


@pytest.mark.parametrize(("kind", "line"), KINDS.items())
def test_every_kind(kind, line):
    (finding,) = fatal_findings(f"INFO 01-01 00:00:00 [a.py:1] all is well\n{line}\n")
    assert (finding.kind, finding.line, finding.text) == (kind, 2, line)


@pytest.mark.parametrize(
    "line",
    [
        "WARNING 01-01 00:00:00 [a.py:1] The following error message 'CUDA out of memory' can be ignored.",
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.",
        "errors: 0, ima_or_assert: 0",
        "KeyError: 'c1a'",
        "If OOM'ed, check the difference of initial free memory between the current run and the previous run.",
        "rc=1  FAIL smoke: passed=1/2",
        'INFO:     127.0.0.1:1 - "GET /health HTTP/1.1" 200 OK',
    ],
)
def test_a_line_that_only_sounds_like_it(line):
    assert fatal_findings(line) == []


def test_a_cause_takes_the_reports_of_other_processes_with_it():
    text = """\
(Worker_TP1 pid=7) ERROR 01-01 00:00:00 [multiproc.py:9] Traceback (most recent call last):
(Worker_TP1 pid=7) ERROR 01-01 00:00:00 [multiproc.py:9]   File "x.py", line 3, in forward
(Worker_TP1 pid=7) ERROR 01-01 00:00:00 [multiproc.py:9] torch.OutOfMemoryError: CUDA out of memory.
(Worker_TP0 pid=6) WARNING 01-01 00:00:00 [other.py:2] a warning of its own
(EngineCore pid=5) ERROR 01-01 00:00:01 [core.py:1] RuntimeError: Worker failed with error 'CUDA out of memory.'
(APIServer pid=1) Traceback (most recent call last):
(APIServer pid=1)   File "y.py", line 5, in run
(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.
"""
    found = health(text)
    assert found.kinds == ["oom"]
    assert found.counts == {"oom": 1}
    assert found.events[0].rank == "TP1"
    assert found.fatal_lines == [1, 2, 3, 5, 6, 7, 8]
    assert found.benign_lines == [4]


def test_two_ranks_that_fail_are_two_events():
    line = "(Worker_TP{0} pid={0}) ERROR 01-01 00:00:00 [m.py:9] CUDA error: an illegal memory access was encountered\n"
    assert [event.rank for event in health(line.format(0) + line.format(1)).events] == ["TP0", "TP1"]


def test_one_run_of_a_script_does_not_explain_another():
    found = health("=== a ===\nCUDA out of memory\n=== b ===\nWorkerProc was terminated\n")
    assert (found.fatal_lines, found.benign_lines) == ([2], [4])
