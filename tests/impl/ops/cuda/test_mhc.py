"""mHC in CUDA C++: its checks on a Hopper GPU, and that what it refuses is named."""

from functools import partial

import pytest
import torch

from impl.bench.case import copied
from impl.bench.mhc_cases import computed, inputs
from impl.bench.mhc_exact import check
from impl.dims import FLASH
from impl.ops import mhc as reference
from impl.ops.cuda import build
from impl.ops.cuda import mhc as kernels

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == build.CAPABILITY
needs_hopper = pytest.mark.skipif(not HOPPER, reason="a Hopper GPU runs these kernels")
TOKENS = [1, 7, 8, 16, 17, 32, 33, 128, 1000]


@pytest.mark.gpu
@needs_hopper
@pytest.mark.parametrize(("op", "variant"), [(op, v) for op in kernels.VARIANTS for v in ({}, *kernels.VARIANTS[op])])
def test_against_the_reference_and_in_place_against_fresh(op, variant):
    for n in TOKENS:
        found = check(op, partial(kernels.OPERATIONS[op], **variant), inputs(FLASH, n, torch.device("cuda"), n))
        assert found["ok"], (n, found)


@pytest.mark.gpu
@needs_hopper
def test_small_numbers_of_tokens_in_place_over_many_runs():
    for n in range(1, 17):
        a = inputs(FLASH, n, torch.device("cuda"), n)
        fresh = computed("mhc_seam", kernels.seam, a)
        for _ in range(50):
            placed = computed("mhc_seam", kernels.seam, copied(a), in_place=True)
            assert all(torch.equal(u, v) for u, v in zip(placed, fresh, strict=True)), n


def seam_weights(hidden):
    ones = torch.ones
    return reference.SeamWeights(ones(24, 4 * hidden), ones(3), ones(24), ones(hidden), 1e-6, 1e-6, 20)


def test_other_widths_are_refused():
    with pytest.raises(ValueError, match="4 streams of 4096, got 4 of 128"):
        kernels.pre(torch.zeros(2, 4, 128, dtype=torch.bfloat16), seam_weights(128))


def test_unknown_tuning_is_named():
    with pytest.raises(ValueError, match=r"unknown tuning group=8: known are groups, early"):
        kernels.pre(torch.zeros(2, 4, 4096, dtype=torch.bfloat16), seam_weights(4096), group=8)
    tile = torch.zeros(2, 4, 4096, dtype=torch.bfloat16), torch.zeros(2, 4096, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match="unknown hint 'none': known are streaming"):
        kernels.post_streams(*tile, torch.zeros(2, 4), torch.zeros(2, 4, 4), hint="none")


def test_the_mean_is_not_written_over_what_few_tokens_read_again():
    y = torch.zeros(2, 4096, dtype=torch.bfloat16)
    old = torch.zeros(2, 4, 4096, dtype=torch.bfloat16), y, torch.zeros(2, 4), torch.zeros(2, 4, 4)
    head = reference.HeadWeights(torch.ones(4, 4 * 4096), torch.ones(1), torch.ones(4), 1e-6, 1e-6)
    with pytest.raises(ValueError, match="mean must not be y"):
        kernels.post_head(*old, head, torch.empty_like(y), y, splits=128)


def test_wrong_types_are_named():
    with pytest.raises(ValueError, match=r"residual must be contiguous torch\.bfloat16"):
        kernels.pre(torch.zeros(2, 4, 4096), seam_weights(4096))


def test_no_compiler_says_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setenv("DSBENCH_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "compiler", lambda: None)
    with pytest.raises(build.NoCompiler, match="set CUDA_HOME"):
        build.build("mhc_heads")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(build.compiler() is None, reason="nvcc is not installed here")
def test_a_source_is_built_once_and_its_errors_are_shown(monkeypatch, tmp_path):
    monkeypatch.setenv("DSBENCH_KERNEL_CACHE", str(tmp_path / "kept"))
    monkeypatch.setattr(build, "SOURCES", tmp_path)
    (tmp_path / "one.cu").write_text('extern "C" int one() { return 1; }\n')
    library = build.build("one")
    assert build.load("one").one() == 1
    written = library.stat().st_mtime_ns
    assert build.build("one") == library
    assert library.stat().st_mtime_ns == written
    (tmp_path / "two.cu").write_text("no C++ at all\n")
    with pytest.raises(RuntimeError, match=r"nvcc could not build two\.cu"):
        build.build("two")
