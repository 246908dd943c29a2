"""What makes a boot, what a figure is taken from, and what stays unknown."""

import pytest

from dsbench.parse.boot_log import read_boots
from dsbench.parse.lines import read_lines


def boots(text):
    return read_boots(read_lines(text))


def worker(rank, gib, pid=100):
    return f"(Worker_{rank} pid={pid}) INFO 01-01 00:00:00 [gpu_worker.py:773] Available KV cache memory: {gib} GiB\n"


def engine(tokens, x, pid=50):
    return (
        f"(EngineCore pid={pid}) INFO 01-01 00:00:01 [kv_cache_utils.py:1] GPU KV cache size: {tokens} tokens\n"
        f"(EngineCore pid={pid}) INFO 01-01 00:00:01 [kv_cache_utils.py:2] "
        f"Maximum concurrency for 1,000 tokens per request: {x}x\n"
    )


def test_a_second_start_in_one_file_is_a_second_boot():
    first, second = boots(worker("TP0", "1.50") + engine("2,000", "2.00") + worker("TP0", "1.75", pid=9))
    assert (first.kv_gib, second.kv_gib) == ({"TP0": 1.5}, {"TP0": 1.75})
    assert (first.ok, second.ok) == (True, None)
    assert second.kv_tokens is None


def test_the_same_figure_again_after_the_tokens_is_a_second_boot():
    again = worker("TP0", "1.50") + engine("2,000", "2.00")
    assert len(boots(again + again)) == 2


def test_ranks_of_one_boot_are_kept_apart_and_ordered():
    (boot,) = boots("".join(worker(f"TP{rank}", f"1.{rank:02d}") for rank in (10, 2, 0)))
    assert list(boot.available_kv_gib_by_rank) == ["TP0", "TP2", "TP10"]


def test_workers_without_a_tag_are_told_apart_by_process():
    line = "(RayWorkerWrapper pid={}) INFO 01-01 00:00:00 [gpu_worker.py:1] Available KV cache memory: {} GiB\n"
    (boot,) = boots(line.format(7, "1.50") + line.format(8, "1.25"))
    assert boot.kv_gib == {"0": 1.5, "pid=8": 1.25}


def test_a_concurrency_that_does_not_follow_from_the_tokens_is_flagged():
    (boot,) = boots(engine("2,000", "2.10"))
    assert boot.consistent is False
    assert len(boot.flags) == 1


@pytest.mark.parametrize(
    ("line", "source", "gib"),
    [
        ("Initial free memory 90.00 GiB, reserved 12.50 GiB memory for KV Cache as specified by kv_cache_memory_bytes"
         " config and skipped memory profiling.", "pinned", 12.5),
        ("Explicitly set (0.25/12.0) GiB for KV cache on node 0.", "pinned", 0.25),
        ("Auto set (3.50/12.0) GiB for KV cache on node 0, use VLLM_CPU_KVCACHE_SPACE to change", None, None),
    ],
)  # fmt: skip
def test_memory_that_was_given_is_pinned_and_not_profiled(line, source, gib):
    (boot,) = boots(f"(Worker pid=3) INFO 01-01 00:00:00 [worker.py:1] {line}")
    assert (boot.kv_source, boot.kv_pinned_gib, boot.kv_gib) == (source, gib, {})


def test_a_users_override_of_blocks_is_told_from_the_profilers():
    said = "INFO 01-01 00:00:00 [kv_cache_utils.py:826] Overriding num_gpu_blocks={} with num_gpu_blocks_override={}"
    (boot,) = boots(
        "\n".join(("(Worker_TP0 pid=1) " + said.format(0, 16), "(EngineCore pid=2) " + said.format(90, 40)))
    )
    assert (boot.profiler_override, boot.user_override) == (16, 40)


@pytest.mark.parametrize(
    ("line", "cache"),
    [
        ("Compiling a graph for dynamic shape takes 15.52 s", "cold"),
        ("Directly load the compiled graph(s) for compile range (1, 8192) from the cache, took 3.1 s", "warm"),
        ("torch.compile takes 3.10 s in total", None),
    ],
)
def test_the_compile_cache_is_cold_where_something_was_compiled(line, cache):
    (boot,) = boots(f"INFO 01-01 00:00:00 [gpu_worker.py:1] torch.compile takes 9.00 s in total\n{line}\n")
    assert boot.compile_cache == cache
    assert boot.compile_seconds == 9.0


def test_sizes_and_times_of_loading_and_capture():
    (boot,) = boots(
        "INFO 01-01 00:00:00 [m.py:1] Model loading took 7.55 GiB memory and 12.250000 seconds\n"
        "INFO 01-01 00:00:00 [m.py:2] Graph capturing finished in 6 secs, took 0.21 GiB\n"
    )
    assert (boot.weights, boot.loading_seconds) == ((7.55, "GiB"), 12.25)
    assert (boot.graph_capture_seconds, boot.graph_capture_gib) == (6.0, 0.21)


def test_a_version_is_taken_from_a_banner_only():
    (boot,) = boots(
        "INFO 01-01 00:00:00 [core.py:1] Initializing a V1 LLM engine (v0.26.0) with config: tensor_parallel_size=2\n"
        "INFO 01-01 00:00:00 [x.py:1] this changed in v0.21.0\n"
    )
    assert (boot.version, boot.tensor_parallel_size) == ("0.26.0", 2)


def test_no_memory_is_a_failed_boot():
    (boot,) = boots(
        "(EngineCore pid=2) INFO 01-01 00:00:00 [core.py:1] Initializing a V1 LLM engine (v0.26.0) with config: x\n"
        "(EngineCore pid=2) ERROR 01-01 00:00:00 [core.py:9] ValueError: No available memory for the cache blocks.\n"
    )
    assert (boot.ok, boot.failure_kind, boot.available_kv_gib_by_rank) == (False, "no_kv_memory", {})


def test_a_server_that_came_up_and_then_died_did_come_up():
    (boot,) = boots(
        worker("TP0", "1.50") + "(APIServer pid=1) INFO:     Application startup complete.\n"
        "(Worker_TP0 pid=1) ERROR 01-01 00:00:00 [x.py:1] CUDA error: an illegal memory access was encountered\n"
    )
    assert (boot.ok, boot.failure_kind) == (True, "illegal_memory_access")


def test_a_text_without_a_boot_has_none():
    assert boots("=== heading ===\nnothing of the kind\n") == []


@pytest.mark.parametrize(
    ("tag", "process", "rank"),
    [
        ("(Worker_TP0_EP0 pid=1)", "Worker", "TP0_EP0"),
        ("(VllmWorker rank=2 pid=1)", "VllmWorker", "2"),
        ("(VllmWorker-0 pid=1)", "VllmWorker", "0"),
        ("(EngineCore_0 pid=1)", "EngineCore", "0"),
        ("(EngineCore pid=1)", "EngineCore", None),
        ("(RayWorkerWrapper pid=1, ip=192.0.2.1)", "RayWorkerWrapper", None),
        ("(not a tag)", "", None),
    ],
)
def test_who_printed_a_line(tag, process, rank):
    (line,) = read_lines(f"{tag} INFO 01-01 00:00:00 [a/b.py:12] hello")
    assert (line.process, line.rank, line.level, line.where) == (process, rank, "INFO", "a/b.py:12")
