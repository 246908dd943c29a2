"""Profiler traces: which steps count, and how long the GPU worked in them."""

import gzip
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.parse.trace import BadTrace, covered, decode_steps


def mark(start, prompts, requests, stream=7):
    name = f"execute_context_{prompts}({prompts * 8})_generation_{requests}({requests * 6})"
    return {"ph": "X", "cat": "gpu_user_annotation", "name": name, "ts": start, "dur": 50, "pid": 0, "tid": stream}


def kernel(start, length, cat="kernel", stream=7):
    return {"ph": "X", "cat": cat, "name": "k", "ts": start, "dur": length, "pid": 0, "tid": stream}


def written(tmp_path, events, name="rank0.1.pt.trace.json"):
    path = tmp_path / name
    text = json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *events]})
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


@pytest.mark.parametrize("name", ["rank0.1.pt.trace.json", "rank0.1.pt.trace.json.gz"])
def test_a_step_lasts_until_the_next_and_kernels_that_run_at_once_count_once(tmp_path, name):
    events = [mark(1000 * i, 0, 2) for i in range(4)]
    for i in range(4):
        events += [
            kernel(1000 * i, 300),
            kernel(1000 * i + 200, 200, stream=8),
            kernel(1000 * i + 900, 50, "gpu_memcpy"),
        ]
    found = decode_steps(written(tmp_path, events, name), 2)
    assert (found.steps, found.busy_ms, found.span_ms) == (3, pytest.approx(0.45), pytest.approx(1.0))


def test_prompts_and_other_batches_are_left_out(tmp_path):
    events = [mark(0, 2, 0), mark(1000, 1, 1), mark(2000, 0, 1), mark(3000, 0, 2), mark(5000, 0, 2), mark(9000, 0, 1)]
    events += [kernel(t, 400) for t in range(0, 9000, 1000)]
    found = decode_steps(written(tmp_path, events), 2)
    assert (found.steps, found.busy_ms, found.span_ms) == (1, pytest.approx(0.8), pytest.approx(2.0))


def test_the_longest_run_counts_and_a_step_marked_on_two_streams_is_one(tmp_path):
    events = [mark(1000 * i, int(i == 1), 3) for i in range(6)] + [mark(1000 * i, 0, 3, stream=8) for i in (2, 4)]
    assert decode_steps(written(tmp_path, events), 3).steps == 3


def test_a_kernel_across_the_edge_counts_with_its_part_inside(tmp_path):
    events = [mark(1000, 0, 1), mark(2000, 0, 1), kernel(900, 200), kernel(1950, 500)]
    assert decode_steps(written(tmp_path, events), 1).busy_ms == pytest.approx(0.15)


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"traceEvents": 5}', b"[1]", b"\x1f\x8b\x08", b'{"traceEvents": []}']
)
@pytest.mark.parametrize("name", ["t.json", "t.json.gz"])
def test_what_is_no_trace_or_holds_no_steps_is_said(tmp_path, content, name):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadTrace, match=r"t\.json"):
        decode_steps(tmp_path / name, 1)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 20)), max_size=12))
def test_the_union_is_what_counting_points_gives(spans):
    points = {x for start, length in spans for x in range(start, start + length)}
    assert covered([(a, a + length) for a, length in spans]) == len(points)
