"""A worker's resident bytes leave out what the allocator adds to the pages' one block: it changes with their number."""

import json
from types import SimpleNamespace

import pytest

from impl.handshake import ENVIRONMENT
from impl.vllm_plugin import worker

MIB = 1 << 20
BASE = 23_290_718_976
"""Pages of base over two H200s (results/h200/vllm-tp2/ladder)."""
OTHERS = [112_210_776_064, 12_800, 36]


class Allocator:
    """Blocks as PyTorch's CUDA allocator keeps them: multiples of 512 bytes, in segments of whole 2 MiB.

    Where 1 MiB or less of a segment would be left, it stays in the block.
    """

    def __init__(self, sizes):
        self.sizes = sizes

    def memory_stats(self, device):
        assert device == "cuda:0"
        return {
            "requested_bytes.all.current": sum(self.sizes),
            "allocated_bytes.all.current": sum(map(block, self.sizes)),
        }

    def memory_allocated(self, device):
        return self.memory_stats(device)["allocated_bytes.all.current"]


def block(size):
    size = -(-size // 512) * 512
    segment = -(-size // (2 * MIB)) * 2 * MIB
    return size if size < 10 * MIB or segment - size > MIB else segment


def pages(size):
    storage = SimpleNamespace(data_ptr=lambda: 1, nbytes=lambda: size)
    return [SimpleNamespace(untyped_storage=lambda: storage)] * 2


@pytest.fixture
def boot(monkeypatch, tmp_path):
    """Profile and allocator of a worker that has allocated pages of some bytes beside OTHERS."""
    monkeypatch.setenv(ENVIRONMENT, str(tmp_path))

    def run(kv_bytes, blocks=34_798):
        allocator = Allocator([*OTHERS, kv_bytes])
        monkeypatch.setattr(worker, "_cuda", lambda: SimpleNamespace(cuda=allocator))
        parallel = SimpleNamespace(data_parallel_rank=0, world_size=2)
        runner = SimpleNamespace(kv_caches=pages(kv_bytes))
        config = SimpleNamespace(parallel_config=parallel)
        fake = SimpleNamespace(rank=0, device="cuda:0", model_runner=runner, vllm_config=config)
        worker.Report(fake, "0.26.0").pages_allocated(SimpleNamespace(num_blocks=blocks))
        return json.loads((tmp_path / "kv_profile.rank0.json").read_text()), allocator

    return run


@pytest.mark.parametrize(
    ("kv_bytes", "beside"),
    [(23_559_113_088, 41_344), (23_827_507_200, 82_688), (24_095_901_312, 124_032), (24_162_832_512, 301_696)],
)
def test_resident_bytes_do_not_change_with_the_pages(boot, kv_bytes, beside):
    """`beside`: what the ladder over two H200s showed beside the claims, read from allocated bytes."""
    (base, before), (step, after) = boot(BASE), boot(kv_bytes)
    assert step["kv_bytes"] - base["kv_bytes"] == kv_bytes - BASE
    allocated = after.memory_allocated("cuda:0") - before.memory_allocated("cuda:0") - (kv_bytes - BASE)
    assert allocated == beside
    assert base["resident_bytes"] == step["resident_bytes"] == sum(OTHERS)
    assert step["stage"] == "pages allocated"


def test_without_a_gpu_or_pages_there_is_no_figure(boot, monkeypatch):
    assert boot(0)[0]["resident_bytes"] is None
    fake = worker.Report.__new__(worker.Report)
    fake.worker = SimpleNamespace(device="cuda:0", model_runner=SimpleNamespace(kv_caches=pages(BASE)))
    fake.profile, fake.write = {}, lambda: None
    monkeypatch.setattr(worker, "_cuda", lambda: None)
    fake.pages_allocated(SimpleNamespace(num_blocks=34_798))
    assert fake.profile["resident_bytes"] is None
