"""Dense index rows: one buffer for decodes and prefills, and rows mapped to global slots where they lie."""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from impl.vllm_plugin import c128_indices_in_place, c128a_topk_shared
from impl.vllm_plugin.patch import CACHE_OPS, FLASHINFER, SPARSE_MLA, UP_TO_026, VERSIONS
from tests.impl.vllm_plugin.extract import module_of

SHARED, IN_PLACE = "c128a_topk_shared", "c128_indices_in_place"
T, WIDTH, BLOCK = 12, 128, 2


def fill(decode, lens, prefill, positions, ratio, width, n_decode, requests, table, block, slots):
    """The metadata kernel's meaning, a token at a time, through the views it is given."""
    for token, position in enumerate(positions.tolist()):
        visible = min((position + 1) // ratio, width)
        entries = torch.arange(width)
        if token < n_decode:
            blocks = table[requests[token]][(entries // block).clamp(max=table.shape[1] - 1)]
            decode[token, :width] = torch.where(entries < visible, blocks * block + entries % block, -1).int()
            lens[token] = visible if slots[token] >= 0 else 0
        else:
            prefill[token - n_decode, :width] = torch.where(entries < visible, entries, -1).int()


class Launcher:
    """`kernel[grid](...)` of up to 0.26: pointers come with strides."""

    def __getitem__(self, grid):
        def launch(
            decode, _, lens, prefill, __, positions, ratio, width, n_decode, requests, table, ___, block, slots, **k
        ):
            fill(decode, lens, prefill, positions, ratio, width, n_decode, requests, table, block, slots)

        return launch


@pytest.fixture
def builder(sources, arm):
    """A metadata builder of a version with vLLM's own build; returns a function that makes one, and the markers."""

    def make(version, patched):
        markers = arm(SHARED if patched else "")
        old = version in UP_TO_026
        name = c128a_topk_shared.OLDER_BUILDER if old else c128a_topk_shared.BUILDERS[version]
        module = module_of(
            sources(version),
            SPARSE_MLA,
            [f"{name}._build_c128a_metadata", "build_c128a_topk_metadata"],
            split_decodes_and_prefills=lambda cm, decode_threshold: cm.split,
            triton=SimpleNamespace(next_power_of_2=_power),
            current_platform=SimpleNamespace(get_device_capability=lambda: SimpleNamespace(major=9)),
            _C128A_TOPK_ALIGNMENT=128,
            _build_c128a_topk_metadata_kernel=Launcher(),
            _BUILD_C128A_TOPK_METADATA_KERNEL=fill,
        )

        def init(self, kv_cache_spec, layer_names, vllm_config, device):
            self.compress_ratio, self.kv_cache_spec, self.reorder_batch_threshold = (
                128,
                SimpleNamespace(block_size=256),
                6,
            )
            self.c128a_max_compressed = WIDTH
            self.c128a_global_decode_buffer = torch.full((T, WIDTH), 99, dtype=torch.int32)
            self.c128a_prefill_buffer = torch.full((T, WIDTH), 99, dtype=torch.int32)
            self.c128a_decode_lens_buffer = torch.full((T,), 99, dtype=torch.int32)

        cls = getattr(module, name)
        cls.__init__ = init
        if patched:
            c128a_topk_shared.PATCH.hooks[SPARSE_MLA](module, version)
        return cls(None, [], None, "cpu"), markers

    return make


def _power(n):
    return 1 << (n - 1).bit_length()


def step(n_decode, n_prefill, seed):
    generator = torch.Generator().manual_seed(seed)
    n = n_decode + n_prefill
    return SimpleNamespace(
        split=(n_decode, 1 if n_prefill else 0, n_decode, n_prefill),
        positions=torch.randint(0, 128 * WIDTH, (n,), generator=generator),
        max_seq_len=128 * WIDTH,
        block_table_tensor=torch.randint(0, 1000, (max(n, 1), WIDTH // BLOCK), generator=generator, dtype=torch.int32),
        slot_mapping=torch.randint(-1, 5, (n,), generator=generator),
    )


@pytest.mark.parametrize("version", VERSIONS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])  # makes its own builders
@given(data=st.data())
def test_one_buffer_holds_what_two_did(version, builder, data):
    plain, _ = builder(version, patched=False)
    ours, markers = builder(version, patched=True)
    assert ours.c128a_prefill_buffer is ours.c128a_global_decode_buffer
    for i in range(3):
        n_decode = data.draw(st.integers(0, T))
        n_prefill = data.draw(st.integers(0 if n_decode else 1, T - n_decode))
        cm = step(n_decode, n_prefill, seed=i)
        requests = torch.arange(n_decode + n_prefill).clamp(max=max(n_decode - 1, 0))
        expected = plain._build_c128a_metadata(cm, requests)
        found = ours._build_c128a_metadata(cm, requests)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert markers.taken == {SHARED: 1 + 3}, "where the buffer is shared, and at each step"


@pytest.mark.parametrize("version", VERSIONS)
def test_more_rows_than_the_buffer_raise(version, builder):
    ours, _ = builder(version, patched=True)
    with pytest.raises(RuntimeError, match="13 rows in a buffer of 12"):
        ours._build_c128a_metadata(step(6, 7, 0), torch.zeros(13, dtype=torch.int64))


def convert(out, lens, rows, requests, table, block, valid):
    """The map kernel's meaning: each element read, then stored where `out` says."""
    for token in range(rows.shape[0]):
        local = rows[token].clone()
        blocks = table[requests[token]][(local.clamp(min=0) // block).long()]
        out[token] = torch.where(local >= 0, blocks * block + local % block, -1).int()
        lens[token] = int((local >= 0).sum()) if valid[token] else 0


class MapLauncher:
    def __getitem__(self, grid):
        def launch(out, _, lens, rows, __, width, requests, table, ___, block, valid, TRITON_BLOCK_SIZE):
            convert(out, lens, rows, requests, table, block, valid)

        return launch


@pytest.fixture
def attention(sources, stand_in, arm):
    """SM120's attention of a version with vLLM's own map; prefill is reduced to the call that the patch is about."""

    def build(version, patched):
        markers = arm(IN_PLACE if patched else "")
        real = module_of(
            sources(version), CACHE_OPS, [c128_indices_in_place.MAP],
            **{c128_indices_in_place.KERNEL: MapLauncher(), c128_indices_in_place.LAUNCHER_033: convert},
        )  # fmt: skip
        stand_in(CACHE_OPS, **{k: v for k, v in vars(real).items() if not k.startswith("__")})
        module = stand_in(FLASHINFER, **{c128_indices_in_place.MAP: getattr(real, c128_indices_in_place.MAP)})

        class Attention:
            def __init__(self, ratio, local=None):
                self.compress_ratio, self.local = ratio, local

            def _forward_prefill(self, q, compressed_k_cache, swa_k_cache, output, attn_metadata, swa_metadata):
                local = attn_metadata.c128a_prefill_topk_indices if self.local is None else self.local
                return getattr(module, c128_indices_in_place.MAP)(
                    local, swa_metadata.requests, attn_metadata.block_table, BLOCK, swa_metadata.valid
                )

        setattr(module, c128_indices_in_place.ATTENTION_CLASS, Attention)
        if patched:
            c128_indices_in_place.PATCH.hooks[FLASHINFER](module, version)
        return Attention, markers

    return build


def metadata(width, seed=0):
    generator = torch.Generator().manual_seed(seed)
    visible = torch.randint(0, width, (5, 1), generator=generator)
    entries = torch.arange(WIDTH).expand(5, -1)
    buffer = torch.where(entries < visible, entries, -1).int()
    swa = SimpleNamespace(requests=torch.tensor([0, 0, 1, 1, 1]), valid=torch.tensor([True, True, True, False, True]))
    table = torch.randint(0, 50, (2, WIDTH), generator=generator, dtype=torch.int32)
    return SimpleNamespace(c128a_prefill_topk_indices=buffer[:, :width], block_table=table), swa


def prefill(layer, rows, swa):
    return layer._forward_prefill(None, None, None, None, attn_metadata=rows, swa_metadata=swa)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("width", [WIDTH, 64])
def test_mapped_once_and_shared_by_all_layers(version, width, attention):
    plain, _ = attention(version, patched=False)
    expected, lens = prefill(plain(128), *metadata(width))
    cls, markers = attention(version, patched=True)
    rows, swa = metadata(width)
    address = rows.c128a_prefill_topk_indices.data_ptr()
    results = [prefill(cls(128), rows, swa) for _ in range(3)]
    for slots, found in results:
        assert slots.data_ptr() == address
        assert slots.is_contiguous()
        assert torch.equal(slots[:, :width], expected)
        assert torch.equal(found, lens)
    assert markers.taken == {IN_PLACE: 3}
    prefill(cls(128), *metadata(width, seed=1))
    assert markers.taken == {IN_PLACE: 4}


@pytest.mark.parametrize("version", VERSIONS)
def test_c4_layers_convert_for_themselves(version, attention):
    cls, markers = attention(version, patched=True)
    rows, swa = metadata(WIDTH)
    own = rows.c128a_prefill_topk_indices.clone()
    before = own.clone()
    prefill(cls(4, own), rows, swa)
    prefill(cls(128, own), rows, swa)
    assert torch.equal(own, before)
    assert not markers.taken
