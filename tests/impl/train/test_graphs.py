"""What can be held of the GPU's means without one: their fallbacks, and that compiled parts round as plain ones do."""

from __future__ import annotations

import pytest
import torch

from impl.dims import Dims
from impl.train import loop, runs
from impl.train.forward import PLAIN, Seam, gates, seam
from impl.train.graphs import Graphed
from impl.train.loop import Settings
from impl.train.prefetch import step_rows
from impl.train.rounding import SERVED, e4m3, round_bf16
from impl.train.runs import Means

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def weights_after(tiny: Dims, graphs: bool, device: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    settings = Settings(steps=4, warmup_steps=1)
    state = loop.new_state(tiny, settings, device)
    work = runs.timed(state, Means(graphs=graphs), lambda use: loop.differentiate(state, tiny, settings))
    points = [loop.train_step(state, settings, step_rows("tiny", 0, n, 0.1, 1), work) for n in range(2)]
    return state.weights, [point.loss.item() for point in points]


def test_without_a_device_graphs_give_way_to_the_plain_step(tiny: Dims, capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    wanted, losses = weights_after(tiny, False, "cpu")
    got, same = weights_after(tiny, True, "cpu")
    error = capsys.readouterr().err
    assert error.startswith("CUDA graph failed, going on without: ")
    assert error.count("\n") == 1
    assert same == losses
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in got.items())


@needs_gpu
def test_graphs_train_as_the_plain_step_does(tiny: Dims, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, losses = weights_after(tiny, False, "cuda")
    got, same = weights_after(tiny, True, "cuda")
    assert not capsys.readouterr().err
    assert same == pytest.approx(losses, rel=1e-3)
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0.05, atol=5e-3)


def test_a_failing_compiler_gives_way_to_the_plain_work(capsys: pytest.CaptureFixture[str]) -> None:
    parameter = torch.tensor([1.0, 2.0], requires_grad=True)

    def plain(x: torch.Tensor) -> torch.Tensor:
        loss = (parameter * x).sum()
        loss.backward()
        return loss.detach()

    def compiled(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such kernel\nand more")

    work = Graphed(compiled, [parameter], plain)
    assert work(torch.tensor([3.0, 4.0])).item() == 11.0
    assert parameter.grad is not None
    assert parameter.grad.tolist() == [3.0, 4.0]
    assert "compiled step failed, going on without a compiler: " in capsys.readouterr().err


def test_rounding_by_bits_equals_the_casts() -> None:
    """What compiled parts use, on random bit patterns of every size, and at ties."""
    gen = torch.Generator().manual_seed(0)
    x = torch.randint(-(2**31), 2**31 - 1, (200_000,), generator=gen, dtype=torch.int64).int().view(torch.float32)
    x = torch.cat((x[x.isfinite()], torch.arange(0x3F800000, 0x3F900000, 0x800, dtype=torch.int32).view(torch.float32)))
    by_bits = torch.compile(round_bf16, backend="eager", dynamic=False)
    assert torch.equal(by_bits(x), x.bfloat16().float())


def test_e4m3_equals_the_cast() -> None:
    gen = torch.Generator().manual_seed(1)
    x = torch.randn(4000, 32, generator=gen) * torch.logspace(-9, 3, 4000)[:, None]
    absmax = x.abs().amax(-1, keepdim=True).clamp_min(1e-4)
    scale = torch.exp2(torch.ceil(torch.log2(absmax.double() / 448))).float()
    wanted = (x / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
    assert torch.equal(e4m3(x), wanted)


def test_a_seam_for_a_compiler_equals_the_plain_one(tiny: Dims, tiny_weights: dict[str, torch.Tensor]) -> None:
    """The mix of streams is written differently where a compiler fuses it."""
    gen = torch.Generator().manual_seed(2)
    streams = torch.randn(6, 4, 16, generator=gen).bfloat16().float()
    y = torch.randn(6, 16, generator=gen)
    weights = Seam.of(tiny_weights, "layers.1.hc_ffn", "layers.1.ffn_norm")
    _, post, comb = gates(weights, streams, tiny)
    traced = torch.compile(seam, backend="eager", dynamic=False, fullgraph=True)
    results = (run(weights, streams, y, post, comb, tiny, SERVED) for run in (traced, PLAIN.seam))
    for got, wanted in zip(*results, strict=True):
        torch.testing.assert_close(got, wanted, rtol=2**-7, atol=1e-5)
