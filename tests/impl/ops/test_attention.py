"""Attention with sinks against a float64 loop (section 3.1), and against garbage where nothing may be seen."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.ops.attention import padded_columns, sink_attention
from impl.ops.workspace import Workspace


def case(n: int, heads: int, d: int, entries: int, seed: int) -> tuple[torch.Tensor, ...]:
    gen = torch.Generator().manual_seed(seed)
    columns = padded_columns(entries)
    q = torch.randn(n, heads, d, generator=gen).bfloat16()
    states = torch.randn(n, columns, d, generator=gen)
    hidden = torch.rand(n, columns, generator=gen) < 0.4
    hidden[:, entries:] = True
    return q, states, hidden, torch.randn(heads, generator=gen)


def attend(q, states, hidden, sink) -> torch.Tensor:
    out = torch.empty(q.shape)
    sink_attention(q, states.clone(), hidden, sink, out, Workspace())
    return out


def plain(q: torch.Tensor, states: torch.Tensor, hidden: torch.Tensor, sink: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(q.shape, dtype=torch.float64)
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            seen = [s for s in range(states.shape[1]) if not hidden[t, s]]
            logits = [(q[t, h].double() @ states[t, s].double()).item() / math.sqrt(q.shape[2]) for s in seen]
            total = sum(math.exp(x) for x in logits) + math.exp(sink[h].item())
            for s, logit in zip(seen, logits, strict=True):
                out[t, h] += math.exp(logit) / total * states[t, s].double()
    return out


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.sampled_from([4, 8]), st.integers(1, 20), st.integers(1, 30), st.integers(0, 99))
def test_attention_is_the_softmax_over_seen_entries_and_the_sink(n, heads, d, entries, seed):
    q, states, hidden, sink = case(n, heads, d, entries, seed)
    wanted = plain(q, states, hidden, sink)
    torch.testing.assert_close(attend(q, states, hidden, sink).double(), wanted, rtol=1e-5, atol=1e-5)


@given(st.sampled_from([math.nan, math.inf, -math.inf, 3e38]), st.integers(0, 99))
def test_what_is_hidden_does_not_leak_whatever_it_is(garbage, seed):
    q, states, hidden, sink = case(3, 4, 8, 12, seed)
    clean = attend(q, states, hidden, sink)
    assert torch.equal(attend(q, states.masked_fill(hidden[..., None], garbage), hidden, sink), clean)


def test_a_token_that_sees_nothing_gives_zeros_and_a_sink_of_minus_infinity_counts_nothing():
    q, states, hidden, sink = case(2, 4, 8, 12, 1)
    assert not attend(q, states, torch.ones_like(hidden), sink).any()
    wanted = plain(q, states, hidden, torch.full((4,), -1e30))
    without = attend(q, states, hidden, torch.full((4,), -math.inf))
    torch.testing.assert_close(without.double(), wanted, rtol=1e-5, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(1, 64),
    st.sampled_from([4, 8]),
    st.sampled_from([16, 32, 64]),
    st.integers(5, 170),
    st.sampled_from([1, 2]),
)
def test_a_token_has_the_same_bits_in_any_batch(n, heads, d, entries, threads):
    q, states, hidden, sink = case(n, heads, d, entries, n)
    alone = [attend(q[i : i + 1], states[i : i + 1], hidden[i : i + 1], sink) for i in (0, n // 2, n - 1)]
    torch.set_num_threads(threads)
    together = attend(q, states, hidden, sink)
    torch.set_num_threads(1)
    assert torch.equal(torch.cat(alone), together[[0, n // 2, n - 1]])
