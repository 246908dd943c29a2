"""How far a start is, and what tells of a compiler at work."""

import pytest

from dsbench.parse.progress import compile_lines, phases_of

START = """\
INFO 01-01 00:00:00 [r.py:1] Starting to load model m...
INFO 01-01 00:00:09 [r.py:2] Model loading took 7.55 GiB memory and 9.000000 seconds
INFO 01-01 00:00:10 [b.py:1] Compiling a graph for compile range (1, 8192) takes 15.52 s
INFO 01-01 00:00:30 [w.py:1] Available KV cache memory: 6.87 GiB
Capturing CUDA graphs (mixed prefill-decode, PIECEWISE): 100%
INFO:     Application startup complete.
"""


def test_the_phases_of_a_start_in_order():
    assert phases_of(START) == ["loading", "compiling", "profiling", "capturing", "serving"]
    assert phases_of("hello") == []


@pytest.mark.parametrize(
    "line",
    [
        "INFO 01-01 00:00:00 [jit.py:1] TileLang begins to compile kernel `main` with `out_idx=None`",
        "(Worker_TP1 pid=2) [Autotuner]: Autotuning process starts ...",
        "INFO 01-01 00:00:00 [m.py:34] torch.compile takes 25.11 s in total",
        "(EngineCore pid=7) WARNING [jit_monitor.py:149] Triton kernel JIT compilation during inference: "
        "_resample_kernel. This causes a latency spike; consider extending warmup to cover this shape/config.",
        "(Worker_TP1 pid=2) WARNING 01-01 00:00:00 [jit_monitor.py:147] TileLang JIT compilation during inference: "
        "mhc_pre (cache_key=(8, 4096); runtime_shapes={x=(8, 4096)}). This causes a latency spike; consider extending "
        "warmup to cover this shape/config.",
        "WARNING 01-01 00:00:00 [jit_monitor.py:149] CuTeDSL JIT compilation during inference: Kernel. This causes a "
        "latency spike; consider extending warmup to cover this shape/config.",
        "(Worker_TP0 pid=1) Triton autotuning for function _fused_kernel,",
    ],
)
def test_a_compiler_at_work_is_seen(line):
    assert compile_lines(f"a line\n{line}\nanother\n") == [line[:300]]


def test_a_monitor_that_starts_has_seen_nothing():
    line = "INFO [jit_monitor.py:79] Kernel JIT monitor activated; monitored JIT compilations during inference will use"
    assert compile_lines(f"{line} mode=warn.\n") == []


def test_serving_is_no_compiling():
    assert compile_lines('INFO: "POST /v1/completions HTTP/1.1" 200 OK\nEngine 000: Running: 3 reqs\n') == []
