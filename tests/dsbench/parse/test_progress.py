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
    ],
)
def test_a_compiler_at_work_is_seen(line):
    assert compile_lines(f"a line\n{line}\nanother\n") == [line]


def test_serving_is_no_compiling():
    assert compile_lines('INFO: "POST /v1/completions HTTP/1.1" 200 OK\nEngine 000: Running: 3 reqs\n') == []
