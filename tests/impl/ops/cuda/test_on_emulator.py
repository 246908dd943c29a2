"""The CUDA kernels compiled as C++ and run on a CPU, a fiber a thread, in random order: what they compute.

Only the functions of `hopper.cuh`, which are instructions, are written anew (`emulator/`); kernels, index maps,
barriers and byte counts are the ones a GPU runs. A barrier that not all come to, or bytes that nobody sends, end the
process.
"""

import contextlib
import ctypes
import shutil
import subprocess
import types
from functools import partial
from pathlib import Path

import pytest
import torch

from impl.bench.case import copied
from impl.bench.mhc_cases import computed, four
from impl.bench.mhc_exact import check
from impl.ops import mhc
from impl.ops.cuda import build
from impl.ops.cuda import mhc as kernels

COMPILER = shutil.which("g++")
pytestmark = pytest.mark.skipif(COMPILER is None, reason="a C++ compiler builds the emulated kernels")
# The last: a copy of a library has variables of its own.
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-w", "-fPIC", "-shared", "-fno-gnu-unique"]
HIDDEN = kernels.HIDDEN
GEN = torch.Generator()
WEIGHTS = {}
"""Of the test that runs."""


def normal(*shape):
    return torch.randn(shape, generator=GEN)


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    folder = tmp_path_factory.mktemp("emulated")
    for path in build.SOURCES.glob("mhc*.cuh"):
        shutil.copy(path, folder)
    for path in Path(__file__).with_name("emulator").iterdir():
        shutil.copy(path, folder)
    made = {}
    for name in ("mhc_few", "mhc_heads", "mhc_many", "mhc_post"):
        source = shutil.copy(build.SOURCES / f"{name}.cu", folder / f"{name}.cpp")
        target = folder / f"{name}.so"
        subprocess.run([COMPILER, *FLAGS, "-I", folder, "-o", target, source], check=True)
        made[name] = ctypes.CDLL(str(target))
        getattr(made[name], f"{name}_error").restype = ctypes.c_char_p
    return made


@pytest.fixture
def emulated(libraries, monkeypatch):
    GEN.manual_seed(1)
    seam = mhc.SeamWeights(
        normal(24, 4 * HIDDEN) / 128, 1 + 0.1 * normal(3), 0.1 * normal(24), 1 + 0.1 * normal(HIDDEN), 1e-6, 1e-6, 20
    )
    head = mhc.HeadWeights(normal(4, 4 * HIDDEN) / 128, 1 + 0.1 * normal(1), 0.1 * normal(4), 1e-6, 1e-6)
    monkeypatch.setattr(kernels, "_library", lambda name, _device: libraries[name])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _device: types.SimpleNamespace(cuda_stream=0))
    monkeypatch.setattr(torch.cuda, "device", lambda _device: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "new_empty", used_before)
    WEIGHTS.update(weights=seam, head=head)


def used_before(self, *shape, dtype=None):
    """Memory in which another call has left counts of whole tiles: what is not cleared is seen as such."""
    size = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    made = torch.empty(*size, dtype=dtype or self.dtype)
    made.view(torch.uint8).view(torch.int32).fill_(16) if made.numel() * made.element_size() % 4 == 0 else made.zero_()
    return made


def acts(n):
    """Mixing matrices far from symmetric, so that a transposed one is seen."""
    comb = torch.softmax(3 * normal(n, 4, 4), -1)
    post = 2 * normal(n, 4).sigmoid()
    residual, y = normal(n, 4, HIDDEN).bfloat16(), normal(n, HIDDEN).bfloat16()
    return {"residual": residual, "y": y, "post": post, "comb": comb, **WEIGHTS}


def tokens_of(variant):
    """A ragged last tile; for a cluster three tiles for its first chain, so that every buffer is used again."""
    if "groups" in variant:  # two tiles for every team of a block, a third for one
        return [16 * 6 + 5]
    if "tiles" in variant:  # a block with all of its tiles, and one with a part of them
        return [16 * variant["tiles"] + 21]
    return [16 * 2 * variant["chains"] * variant["stages"] + 5] if "cluster" in variant else [1, 17]


@pytest.mark.parametrize(
    ("op", "variant"),
    [
        pytest.param(op, variant, marks=[pytest.mark.long] if number else [])
        for op, points in kernels.VARIANTS.items()
        for number, variant in enumerate(points)
    ],
)
def test_against_the_reference_and_in_place_against_fresh(emulated, op, variant):
    if "groups" in variant:  # one group as every group: what is emulated has 16 multiprocessors
        variant = {**variant, "groups": 1}
    for n in tokens_of(variant):
        found = check(op, partial(kernels.OPERATIONS[op], **variant), acts(n))
        assert found["ok"], (n, found)


@pytest.mark.parametrize("early", [0, 2])
def test_groups_part_the_tiles(emulated, libraries, monkeypatch, tmp_path, early):
    """Two groups of 16 blocks, one of them a tile behind; more than fit are refused."""
    library = ctypes.CDLL(str(shutil.copy(libraries["mhc_many"]._name, tmp_path / "own.so")))
    ctypes.c_int.in_dll(library, "emulator_resident").value = 2
    library.mhc_many_error.restype = ctypes.c_char_p
    monkeypatch.setattr(kernels, "_library", lambda _name, _device: library)
    found = check("mhc_seam", partial(kernels.seam, groups=2, early=early), acts(16 * 6 + 5))
    assert found["ok"], found
    with pytest.raises(RuntimeError, match=r"mhc_many\.cu: an error"):
        kernels.seam(*four(acts(1)), WEIGHTS["weights"], groups=3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a: {"y": a["y"][:-1]}, r"y must have 8192 numbers"),
        (lambda a: {"y": torch.empty(2 * HIDDEN + 1, dtype=torch.bfloat16)[1:].view(2, HIDDEN)}, r"2 bytes past one"),
    ],
)
def test_what_a_kernel_would_read_past_is_refused(emulated, change, message):
    a = acts(2)
    given = {name: a[name] for name in ("residual", "y", "post", "comb")} | change(a)
    with pytest.raises(ValueError, match=message):
        kernels.seam(**given, weights=WEIGHTS["weights"], splits=64)


def test_an_output_a_token_beside_its_input_is_refused(emulated):
    whole = normal(3, 4, HIDDEN).bfloat16()
    a = acts(2)
    with pytest.raises(ValueError, match="residual_out must be residual itself or apart from it"):
        kernels.seam(whole[:2], a["y"], a["post"], a["comb"], WEIGHTS["weights"], residual_out=whole[1:], splits=64)


HEADS = [{"splits": 64}, {"splits": 128}, {"cluster": 8}, {"cluster": 16, "chains": 3}]


@pytest.mark.parametrize("variant", HEADS)
def test_means_into_a_column_of_a_wider_buffer_are_the_dense_ones(emulated, variant):
    """As the engine's captured means are: side by side by layer."""
    a, rows = acts(17), torch.full((17, 3, HIDDEN), -7.0, dtype=torch.bfloat16)
    mean, out, beside = (torch.empty_like(a["y"]) for _ in range(3))
    kernels.post_mean(*four(a), mean)
    kernels.post_mean(*four(a), rows[:, 1])
    assert torch.equal(rows[:, 1], mean)
    kernels.post_head(*four(a), WEIGHTS["head"], out, beside, **variant)
    assert torch.equal(beside, mean)
    placed = torch.empty_like(out)
    kernels.post_head(*four(a), WEIGHTS["head"], placed, rows[:, 0], **variant)
    assert torch.equal(rows[:, 0], mean)
    assert torch.equal(placed, out)
    assert (rows[:, 2] == -7).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda a: kernels.post_head(*four(a), a["head"], a["y"], a["y"]), "must be two places: each is written"),
        (lambda a: kernels.post_head(*four(a), a["head"], *[torch.empty_like(a["y"])] * 2), "must be two places"),
        (lambda a: kernels.seam(*four(a), a["weights"], input_out=a["residual"][:1, 0].clone()),
         "input_out must have 8192 numbers"),
        (lambda a: kernels.seam(*four(a), a["weights"], input_out=a["residual"].view(-1)[: 2 * HIDDEN].view(2, HIDDEN)),
         "input_out must lie apart from residual, which is read again"),
        (lambda a: kernels.post_mean(*four(a), a["y"].view(4, HIDDEN // 2)), "mean must be contiguous"),
        (lambda a: kernels.post_mean(*four(a), torch.empty(2, HIDDEN + 1, dtype=torch.bfloat16)[:, :HIDDEN]),
         "mean must have 8192 numbers from a multiple of 16"),
    ],
)  # fmt: skip
def test_outputs_that_would_be_written_wrongly_are_refused(emulated, call, message):
    with pytest.raises(ValueError, match=message):
        call(acts(2))


def test_a_library_that_lays_its_arguments_out_otherwise_is_refused(libraries, monkeypatch):
    for name, library in libraries.items():
        assert kernels.checked(name, library) is library
    stale = types.SimpleNamespace(mhc_args_bytes=lambda: ctypes.sizeof(kernels._Args) - 8)
    with pytest.raises(
        RuntimeError, match=r"mhc_few\.cu reads arguments of .* bytes, mhc\.py writes .*: build it again"
    ):
        kernels.checked("mhc_few", stale)


def test_clusters_part_the_tiles(emulated, libraries, monkeypatch, tmp_path):
    """Three at once in a library of its own: one keeps how many fit."""
    library = ctypes.CDLL(str(shutil.copy(libraries["mhc_heads"]._name, tmp_path / "own.so")))
    ctypes.c_int.in_dll(library, "emulator_resident").value = 3
    monkeypatch.setattr(kernels, "_library", lambda _name, _device: library)
    found = check("mhc_post_head", partial(kernels.post_head), acts(16 * 13 + 1))
    assert found["ok"], found
    assert ctypes.c_int.in_dll(library, "emulator_clusters").value == 3


@pytest.mark.parametrize("variant", [{"splits": 64}, {"groups": 1}])
def test_a_row_has_the_same_bits_alone_and_in_a_batch(emulated, variant):
    a = acts(21)
    batch = kernels.seam(*four(a), WEIGHTS["weights"], **variant)
    part = tuple(t[18:19].clone() for t in four(a))
    alone = kernels.seam(*part, WEIGHTS["weights"], **variant)
    assert all(torch.equal(x[18:19], y) for x, y in zip(batch, alone, strict=True))


@pytest.mark.parametrize("op", ["mhc_seam", "mhc_pre"])
@pytest.mark.parametrize("more", [{"early": 1}, {"early": 2}])
def test_when_the_kernels_start_leaves_the_bits_alone(emulated, op, more):
    a = acts(16 * 3 + 5)
    plain = computed(op, partial(kernels.OPERATIONS[op], groups=1), a)
    cut = computed(op, partial(kernels.OPERATIONS[op], groups=1, **more), a)
    assert all(torch.equal(x, y) for x, y in zip(plain, cut, strict=True))
    if op == "mhc_seam":
        placed = computed(op, partial(kernels.seam, groups=1, **more), copied(a), in_place=True)
        assert all(torch.equal(x, y) for x, y in zip(plain, placed, strict=True))


@pytest.mark.parametrize("op", ["mhc_seam", "mhc_pre", "mhc_post_head", "mhc_post_mean_head"])
@pytest.mark.parametrize("tiles", [2, 4])
def test_tiles_of_a_block_leave_the_bits_alone(emulated, op, tiles):
    a = acts(16 * tiles + 21)
    alone = computed(op, partial(kernels.OPERATIONS[op], splits=64), a)
    together = computed(op, partial(kernels.OPERATIONS[op], splits=64, tiles=tiles), a)
    assert all(torch.equal(x, y) for x, y in zip(alone, together, strict=True))
    if op == "mhc_seam":
        placed = computed(op, partial(kernels.seam, splits=64, tiles=tiles), copied(a), in_place=True)
        assert all(torch.equal(x, y) for x, y in zip(alone, placed, strict=True))


def test_untuned_as_many_groups_as_fit_are_taken(emulated):
    """An H20 has 78 multiprocessors: seven groups of 16 do not fit."""
    a = acts(16 * 4 + 1)
    untuned, one = kernels.seam(*four(a), WEIGHTS["weights"]), kernels.seam(*four(a), WEIGHTS["weights"], groups=1)
    assert all(torch.equal(x, y) for x, y in zip(untuned, one, strict=True))


@pytest.mark.parametrize("tuning", [{"groups": -1}, {"groups": 1, "early": 3}, {"groups": 1, "early": -1}])
def test_another_cut_of_the_tiles_is_named(emulated, tuning):
    with pytest.raises(RuntimeError, match=r"mhc_many\.cu: no kernel of groups"):
        kernels.seam(*four(acts(1)), WEIGHTS["weights"], **tuning)


def test_no_tiles_is_named(emulated):
    with pytest.raises(RuntimeError, match=r"mhc_few\.cu: no kernel of splits 64, tiles 0"):
        kernels.seam(*four(acts(1)), WEIGHTS["weights"], splits=64, tiles=0)


def test_what_was_not_compiled_is_named(emulated):
    out = torch.empty_like(acts(1)["y"])
    with pytest.raises(RuntimeError, match=r"mhc_heads\.cu: no kernel of cluster 8, chains 3, stages 1, blocks 1"):
        kernels.post_head(*four(acts(1)), WEIGHTS["head"], out, cluster=8, chains=3)
    with pytest.raises(ValueError, match="unknown tuning cluster=8: known are groups, early"):
        kernels.seam(*four(acts(1)), WEIGHTS["weights"], cluster=8)  # the heads' alone
    with pytest.raises(RuntimeError, match=r"mhc_few\.cu: no kernel of splits 3"):
        kernels.pre(acts(1)["residual"], WEIGHTS["weights"], splits=3)
