"""Ray as a pool, without Ray: the GPUs of a boot are those of the arm that takes most; last words are redacted."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.pool import ray_nodes
from dsbench.pool.ray_nodes import gpus_of_build


@pytest.fixture(scope="module")
def built():
    """A plan's engine and its arguments, shared and by arm; what a build takes of a plan."""
    from dsbench.records import Arm, Plan

    def build(engine, shared, *arms):
        made = [Arm.model_construct(name=f"a{i}", args=list(args)) for i, args in enumerate(arms)]
        return Plan.model_construct(engine=engine, engine_args=list(shared), arms=made)

    return build


@pytest.mark.parametrize(
    ("shared", "arms", "gpus"),
    [
        (["org/m"], [[], []], 1),
        (["org/m", "--tensor-parallel-size", "2"], [[], []], 2),
        (["org/m", "-tp", "2", "--pipeline-parallel-size=2"], [[], []], 4),
        (["org/m"], [["--tensor-parallel-size", "2"], ["-tp", "4"]], 4),
        (["org/m", "-tp", "2", "--data-parallel-size", "2"], [[], []], 4),
        (["org/m", "-tp", "4"], [[], ["-tp", "2"]], 4),  # an arm's own flag comes last and holds
    ],
)
def test_vllm_takes_all_its_ranks(built, shared, arms, gpus):
    assert gpus_of_build(built("vllm", shared, *arms)) == gpus


@given(st.lists(st.integers(1, 8), min_size=2, max_size=4), st.integers(1, 4))
def test_the_arm_that_takes_most_decides(built, sizes, stages):
    arms = [["-tp", str(size), "-pp", str(stages)] for size in sizes]
    assert gpus_of_build(built("vllm", ["org/m"], *arms)) == max(sizes) * stages


@pytest.mark.parametrize(
    ("shared", "arms", "gpus"),
    [
        (["--dims", "pico", "--device", "cpu"], [[], []], 0),
        (["--dims", "pico", "--device", "cuda"], [[], []], 1),
        (["--dims", "pico"], [[], ["--device", "cuda"]], 1),
        (["--dims", "pico"], [["--device=cuda"], []], 1),
    ],
)
def test_the_embedded_engine_takes_one_on_cuda(built, shared, arms, gpus):
    assert gpus_of_build(built("embedded", shared, *arms)) == gpus


def test_a_lost_nodes_last_words_are_redacted_before_they_are_cut(monkeypatch):
    """Cut first, the beginning of the key would be no value that redaction knows."""
    monkeypatch.setenv("PLANTED_API_KEY", "sk-planted-0123456789")
    told = ray_nodes._last_line(RuntimeError("a traceback\n" + "y" * 190 + "sk-planted-0123456789"))
    assert told == "y" * 190 + "[redacted]"
    assert ray_nodes._last_line(RuntimeError()) == "no reason given"
