"""Indexer queries, scores and choice against plain versions of section 3.3."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.dims import PICO
from impl.ops import indexer, packed_kv
from impl.ops.workspace import Workspace


def e4m3_value(x: float) -> float:
    """Nearest e4m3 value of |x| <= 448, from the grid's definition."""
    if x == 0:
        return 0.0
    exponent = max(torch.frexp(torch.tensor(abs(x), dtype=torch.float64))[1].item() - 1, -6)
    step = 2.0 ** (exponent - 3)
    return round(x / step) * step  # Python rounds a tie to even


def quantized(vector: torch.Tensor) -> torch.Tensor:
    """float64 values of a vector after bf16 and e4m3 under one power-of-two scale."""
    rounded = vector.bfloat16().double()
    target = max(rounded.abs().max().item(), 1e-4) / 448
    scale = 2.0**-40
    while scale < target:
        scale *= 2
    return torch.tensor([e4m3_value(v / scale) * scale for v in rounded.tolist()], dtype=torch.float64)


def chosen(scores: list[float], visible: int, topk: int) -> list[int]:
    """Best visible entries, lowest index first among equals; ascending, -1 behind."""
    best = sorted(range(visible), key=lambda s: (-scores[s], s))[:topk]
    return sorted(best) + [-1] * (topk - len(best))


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 4), st.integers(2, 6), st.integers(1, 3))
def test_scores_are_the_weighted_relu_of_quantized_queries_and_keys(n, heads, half, per_page, n_pages):
    d = 4 * half
    dims = PICO.with_changes(index_dim=d)
    gen = torch.Generator().manual_seed(n)
    q = torch.randn(n, heads, d, generator=gen) * torch.exp2(torch.randint(-6, 6, (n, heads, 1), generator=gen))
    padded = torch.zeros(n, -(-heads // 4) * 4, d)
    padded[:, :heads] = q
    weight = torch.zeros(n, padded.shape[1])
    weight[:, :heads] = torch.randn(n, heads, generator=gen)
    blocks = 1 + torch.randint(0, 5, (n, n_pages), generator=gen)
    keys = torch.randn(6 * per_page, d, generator=gen)
    packing = packed_kv.key_packing(dims, per_page)
    pages = torch.zeros(6, per_page * (d + 4) + 12, dtype=torch.uint8)
    workspace = Workspace()
    with workspace.scope():
        codes, scale = torch.empty(keys.shape, dtype=torch.uint8), torch.empty(len(keys))
        packed_kv.quantize_(packed_kv.round_bf16_(keys.clone(), workspace), scale, codes)
        packed_kv.store(pages, torch.arange(len(keys)), packing, codes, scale.view(-1, 1).view(torch.uint8), workspace)
        q_codes, folded = torch.empty(padded.shape, dtype=torch.uint8), torch.empty(weight.shape)
        indexer.quantize_query(padded, weight, heads, q_codes, folded, workspace)
        out = torch.empty(n, n_pages * per_page)
        query = q_codes.view(torch.float8_e4m3fn).float()
        indexer.score_chunk(query, folded, pages, blocks, packing, out, workspace)
    for t in range(n):
        for s in range(n_pages * per_page):
            key = quantized(keys[blocks[t, s // per_page] * per_page + s % per_page])
            wanted = sum(
                weight[t, h].item() * d**-0.5 * heads**-0.5 * max(0.0, (quantized(q[t, h]) @ key).item())
                for h in range(heads)
            )
            assert abs(out[t, s].item() - wanted) <= 1e-5 * (abs(wanted) + 1 + q[t].abs().max().item())


SCORES = st.sampled_from([-1.5, -0.0, 0.0, 0.0, 1e-30, -1e-30, 2.0, 2.0, 3.5])


@settings(max_examples=100)
@given(st.data())
def test_the_best_visible_entries_win_and_of_equals_the_lowest(data):
    width = data.draw(st.integers(1, 40))
    topk = data.draw(st.integers(1, width))
    rows = data.draw(st.lists(st.lists(SCORES, min_size=width, max_size=width), min_size=1, max_size=4))
    visible = data.draw(st.lists(st.integers(0, width), min_size=len(rows), max_size=len(rows)))
    out = torch.empty(len(rows), topk, dtype=torch.int64)
    indexer.top_entries(torch.tensor(rows), torch.arange(width), torch.tensor(visible), out, Workspace())
    assert out.tolist() == [chosen(r, v, topk) for r, v in zip(rows, visible, strict=True)]


@given(st.integers(1, 60), st.data())
def test_when_all_visible_entries_fit_both_routes_give_one_list(width, data):
    topk = data.draw(st.integers(1, width))
    visible = torch.tensor(data.draw(st.lists(st.integers(0, topk), min_size=1, max_size=5)))
    scores = torch.randn(len(visible), width, generator=torch.Generator().manual_seed(width))
    scores[:, width // 2 :] = torch.nan  # what lies behind the visible entries may be anything
    hidden = torch.arange(width) >= visible[:, None]
    scores = torch.where(hidden, scores, 0.5)
    scored, all_taken = (torch.empty(len(visible), topk, dtype=torch.int64) for _ in range(2))
    indexer.top_entries(scores, torch.arange(width), visible, scored, Workspace())
    indexer.first_entries(torch.arange(width), visible, all_taken, Workspace())
    assert torch.equal(scored, all_taken)
    assert all_taken.tolist() == [[*range(v)] + [-1] * (topk - v) for v in visible.tolist()]


def test_dense_rows_hold_all_visible_entries_then_minus_one():
    out = torch.empty(3, 6, dtype=torch.int32)
    indexer.first_entries(torch.arange(9, dtype=torch.int32), torch.tensor([0, 2, 6]), out, Workspace())
    assert out.tolist() == [[-1] * 6, [0, 1, -1, -1, -1, -1], [0, 1, 2, 3, 4, 5]]
