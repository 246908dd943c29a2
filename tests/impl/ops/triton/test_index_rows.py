"""Index rows in Triton against the torch reference, element by element: on a GPU, or by Triton's interpreter."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton", reason="Triton is not installed here; vLLM's environments have it")

from impl.ops import index_map
from impl.ops.topk_metadata import topk_metadata
from impl.ops.triton import index_map as kernels
from impl.ops.workspace import Workspace

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CASES = [(n, width, per_page, seed) for seed, (n, width, per_page) in enumerate([(1, 12, 1), (7, 130, 2), (20, 64, 3)])]


def case(n, width, per_page, seed, dtype=torch.int64):
    """Rows with entries that are missing and entries beyond the table."""
    gen = torch.Generator().manual_seed(seed)
    n_blocks = width // per_page // 2 + 1
    local = torch.randint(-3, n_blocks * per_page + 5, (n, width), generator=gen, dtype=torch.int32)
    table = torch.randint(0, 1000, (3, n_blocks), generator=gen, dtype=dtype)
    requests = torch.randint(0, 3, (n,), generator=gen, dtype=dtype)
    return local.to(DEVICE), table.to(DEVICE), requests.to(DEVICE), per_page


def mapped(module, local, table, requests, per_page, out, **options):
    lens = torch.full((len(local),), 99, dtype=torch.int32, device=DEVICE)
    module.to_global(local, table, requests, per_page, out, lens, Workspace(DEVICE), **options)
    return out, lens


@pytest.mark.parametrize("block", [16, 4096])
@pytest.mark.parametrize("shape", CASES)
def test_map_equals_the_reference_in_place_and_apart(shape, block):
    local, *rest = case(*shape)
    wanted, lens = mapped(index_map, local, *rest, torch.empty_like(local))
    before = local.clone()
    out, found = mapped(kernels, local, *rest, torch.full_like(local, 77), block=block)
    assert torch.equal(out, wanted)
    assert torch.equal(found, lens)
    assert torch.equal(local, before)
    out, found = mapped(kernels, local, *rest, local, block=block)
    assert torch.equal(out, wanted)
    assert torch.equal(found, lens)


@pytest.mark.parametrize("per_page", [1, 2, 4])
@pytest.mark.parametrize("n_blocks", [9, 64])
def test_dense_rows_equal_the_reference_and_their_tails_are_left_alone(per_page, n_blocks):
    """Rows of every length, one of them with an entry out of its place; pages end within the rows, or do not."""
    n, width, block = 41, 40, 16
    columns, lengths = torch.arange(width), torch.arange(n)[:, None]
    local = torch.where(columns < lengths, columns, -1).to(torch.int32)
    local[17, 5], local[18, 30] = 6, -4
    gen = torch.Generator().manual_seed(1)
    table = torch.randint(1, 1000, (3, n_blocks), generator=gen)
    rest = [table.to(DEVICE), (torch.arange(n) % 3).to(DEVICE), per_page]
    local = local.to(DEVICE)
    wanted, lens = mapped(index_map, local, *rest, torch.empty_like(local))
    for dense in (True, False):
        options = {"block": block, "dense": dense}
        out, found = mapped(kernels, local, *rest, torch.full_like(local, 77), **options)
        assert torch.equal(out, wanted)
        assert torch.equal(found, lens)
        placed = local.clone()
        out, found = mapped(kernels, placed, *rest, placed, **options)
        assert torch.equal(out, wanted)
        assert torch.equal(found, lens)


def test_rows_of_a_wider_buffer_leave_the_rest_alone():
    local, *rest = case(7, 40, 2, 5, torch.int32)
    buffer = torch.full((7, 64), -7, dtype=torch.int32, device=DEVICE)
    buffer[:, :40] = local
    out, _ = mapped(kernels, buffer[:, :40], *rest, buffer[:, :40])
    assert torch.equal(out, mapped(index_map, local, rest[0].long(), rest[1].long(), rest[2], local.clone())[0])
    assert (buffer[:, 40:] == -7).all()


def test_padding_rows_have_no_length():
    local, *rest = case(7, 40, 2, 6)
    valid = torch.tensor([True, False, True, True, False, True, True], device=DEVICE)
    out, lens = mapped(kernels, local, *rest, torch.empty_like(local), valid=valid)
    wanted, all_lens = mapped(index_map, local, *rest, torch.empty_like(local))
    assert torch.equal(out, wanted)
    assert torch.equal(lens, all_lens * valid)


@pytest.mark.parametrize(("n", "n_decode"), [(9, 4), (5, 0), (5, 5), (1, 1)])
def test_metadata_equals_the_reference(n, n_decode):
    width, per_page = 40, 2
    gen = torch.Generator().manual_seed(n + n_decode)
    visible = torch.randint(0, 60, (n,), generator=gen).to(DEVICE)
    table = torch.randint(0, 99, (3, 15), generator=gen).to(DEVICE)
    requests = torch.randint(0, 3, (n,), generator=gen).to(DEVICE)
    columns = torch.arange(width, dtype=torch.int32, device=DEVICE)
    results = []
    for build, options in ((topk_metadata, {}), (kernels.topk_metadata, {"block": 16})):
        rows = torch.full((n, width), 77, dtype=torch.int32, device=DEVICE)
        lens = torch.full((n,), 99, dtype=torch.int32, device=DEVICE)
        decode, prefill = rows[:n_decode], rows[n_decode:]
        build(visible, table, requests, per_page, decode, prefill, lens, columns, Workspace(DEVICE), **options)
        results.append((rows, lens))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: {"out": i["local"].long()}, r"out must be int32 \[7, 40\], each row dense, got torch.int64"),
        (lambda i: {"out": torch.empty_like(i["local"])[:, :39]}, r"out must be int32 \[7, 40\]"),
        (lambda i: {"out": i["local"].t().contiguous().t()}, "each row dense, got torch.int32"),
        (lambda i: {"local": i["local"].repeat(1, 2)[:, ::2]}, "local must be int32"),
        (lambda i: {"lens": torch.zeros(6, dtype=torch.int32, device=DEVICE)}, r"lens must be int32 \[7\]"),
        (lambda i: {"lens": torch.zeros(7, device=DEVICE)}, "lens must be int32"),
        (lambda i: {"request_rows": i["request_rows"][:6]}, "one entry for each of 7 rows"),
        (lambda i: {"table": i["table"].t()}, "table must be"),
        (lambda i: {"local": i["local"][:6], "out": i["local"][1:], "request_rows": i["request_rows"][:6],
                    "lens": i["lens"][:6]}, "out must be local itself or apart"),
        (lambda i: {"lens": i["out"].view(-1)[:7]}, "lens and out must be two places"),
    ],
)  # fmt: skip
def test_a_map_that_would_write_elsewhere_is_refused(change, message):
    local, table, requests, per_page = case(7, 40, 2, 8)
    given = {"local": local, "table": table, "request_rows": requests, "per_page": per_page,
             "out": torch.empty_like(local), "lens": torch.zeros(7, dtype=torch.int32, device=DEVICE)}  # fmt: skip
    before = local.clone()
    with pytest.raises(ValueError, match=message):
        kernels.to_global(**given | change(given))
    assert torch.equal(local, before)


def test_requests_may_be_a_column_of_a_wider_table():
    """As a captured step's inputs are."""
    local, table, requests, per_page = case(7, 40, 2, 9)
    spread = torch.stack((requests, requests + 1), 1)[:, 0]
    wanted = mapped(kernels, local, table, requests, per_page, torch.empty_like(local))
    found = mapped(kernels, local, table, spread, per_page, torch.empty_like(local))
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: {"prefill": i["prefill"][1:]}, "4 decode and 4 prefill rows, 9 requests and 9 lengths for 9 tokens"),
        (lambda i: {"prefill": i["decode"]}, "4 decode and 4 prefill rows"),
        (lambda i: {"decode": i["prefill"], "prefill": i["rows"][3:7]}, "prefill and decode must be two places"),
        (lambda i: {"decode": i["decode"].long()}, "decode must be int32"),
        (lambda i: {"lens": i["lens"].long()}, "lens must be int32"),
    ],
)
def test_metadata_that_would_be_written_elsewhere_is_refused(change, message):
    rows = torch.full((9, 40), 77, dtype=torch.int32, device=DEVICE)
    given = {
        "visible": torch.arange(9, device=DEVICE), "table": torch.ones((3, 15), dtype=torch.int64, device=DEVICE),
        "request_rows": torch.zeros(9, dtype=torch.int64, device=DEVICE), "per_page": 2, "decode": rows[:4],
        "prefill": rows[4:], "lens": torch.zeros(9, dtype=torch.int32, device=DEVICE), "rows": rows,
    }  # fmt: skip
    given |= change(given)
    del given["rows"]
    with pytest.raises(ValueError, match=message):
        kernels.topk_metadata(**given)
    assert (rows == 77).all()


def test_metadata_reads_columns_of_a_wider_table():
    lens, rows = (torch.zeros(s, dtype=torch.int32, device=DEVICE) for s in ((2, 9), (2, 9, 40)))
    inputs = torch.stack((torch.arange(9), torch.arange(9) % 3), 1).to(DEVICE)
    table = torch.arange(1, 46, device=DEVICE).view(3, 15)
    for i, (visible, requests) in enumerate((inputs.unbind(1), inputs.t().contiguous().unbind())):
        kernels.topk_metadata(visible, table, requests, 2, rows[i, :4], rows[i, 4:], lens[i])
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(lens[0], lens[1])
