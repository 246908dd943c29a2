"""Rejection sampling, rule by rule: the definition in float64, greedy, plain rows, bad input, batches."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from impl.ops.rejection import TAG_ACCEPT, RejectionOutput, draft_tag, rejection_sample
from impl.ops.sampling import TAG_DRAFT, TAG_VERIFY, SamplingRows, gumbel, sample
from impl.ops.workspace import Workspace

WORKSPACE = Workspace()
NAN = float("nan")


def case(n: int, k: int, width: int, seed: int, temperature: list[float] | float = 1.0) -> dict[str, Any]:
    """Random arguments; drafts are drawn from their logits, greedy ones by argmax of the target half of the time."""
    g = torch.Generator().manual_seed(seed)
    target = torch.randn(n, k + 1, width, generator=g) * 2
    draft = target[:, :k] + torch.randn(n, k, width, generator=g)
    arguments = {
        "target_logits": target,
        "draft_logits": draft,
        "temperature": torch.as_tensor(temperature, dtype=torch.float32).expand(n).contiguous(),
        "seeds": torch.randint(-(2**62), 2**62, (n,), generator=g),
        "positions": torch.randint(0, 5000, (n,), generator=g),
        "n_drafted": torch.full((n,), k),
    }
    arguments["draft_tokens"] = drawn_drafts(arguments)
    return arguments


def rows(arguments: dict[str, Any], offset: int = 0) -> SamplingRows:
    n = arguments["seeds"].shape[0]
    keep = torch.zeros(n, dtype=torch.int64)
    at = arguments["positions"] + offset
    return SamplingRows(arguments["temperature"], keep, torch.ones(n), arguments["seeds"], at, False, False)


def drawn_drafts(arguments: dict[str, Any]) -> Tensor:
    logits = arguments["draft_logits"]
    k_max = logits.shape[1]
    tokens = [sample(logits[:, k], rows(arguments), WORKSPACE, draft_tag(k)) for k in range(k_max)]
    return torch.stack(tokens, 1) if tokens else torch.empty(logits.shape[0], 0, dtype=torch.int64)


def verify(arguments: dict[str, Any], **more: Any) -> RejectionOutput:
    return rejection_sample(**{**arguments, **more}, workspace=WORKSPACE)


def noise_of(seed: Tensor, position: Tensor, k: int, width: int) -> tuple[list[float], list[list[float]]]:
    with WORKSPACE.scope():
        u = [math.exp(-math.exp(-g)) for g in gumbel(seed, position, TAG_ACCEPT, k, WORKSPACE)[0].tolist()]
        extra = [gumbel(seed, position + j, TAG_VERIFY, width, WORKSPACE)[0].tolist() for j in range(k + 1)]
    return u, extra


def by_definition(arguments: dict[str, Any], r: int, block: bool) -> list[int]:
    """Section 5 for request r of a sampled batch, in Python floats."""
    p = (arguments["target_logits"][r].double() / arguments["temperature"][r]).softmax(-1).tolist()
    x = arguments["draft_tokens"][r].tolist()
    width, n = len(p[0]), int(arguments["n_drafted"][r])
    if arguments["draft_logits"] is None:
        q = [[float(v == token) for v in range(width)] for token in x]
    else:
        q = (arguments["draft_logits"][r].double() / arguments["temperature"][r]).softmax(-1).tolist()
    at = slice(r, r + 1)
    u, noise = noise_of(arguments["seeds"][at], arguments["positions"][at], len(x), width)
    kept, n_accepted = [1.0], 0
    for k in range(n):
        kept.append(min(kept[-1] * p[k][x[k]] / q[k][x[k]], 1.0))
    if block:
        for k in range(1, n + 1):
            left = sum(max(kept[k] * a - b, 0) for a, b in zip(p[k], q[k], strict=True)) if k < n else 0.0
            inside = left / (left + 1 - kept[k]) if left + 1 - kept[k] > 0 else 1.0
            if u[k - 1] <= (inside if k < n else kept[n]):
                n_accepted = k
    else:
        while n_accepted < n and p[n_accepted][x[n_accepted]] > u[n_accepted] * q[n_accepted][x[n_accepted]]:
            n_accepted += 1
    mass = p[n_accepted]
    if n_accepted < n:
        scale = kept[n_accepted] if block else 1.0
        mass = [max(scale * a - b, 0) for a, b in zip(mass, q[n_accepted], strict=True)]
    score = [math.log(m) + g if m > 0 else -math.inf for m, g in zip(mass, noise[n_accepted], strict=True)]
    return [*x[:n_accepted], score.index(max(score))]


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(1, 6),
    width=st.integers(2, 40),
    temperature=st.sampled_from([0.5, 1.0, 1.6]),
    block=st.booleans(),
    one_hot=st.booleans(),
    data=st.data(),
)
def test_a_round_is_the_definition(
    seed: int, k: int, width: int, temperature: float, block: bool, one_hot: bool, data: st.DataObject
) -> None:
    arguments = case(6, k, width, seed, temperature)
    arguments["n_drafted"] = torch.tensor(data.draw(st.lists(st.integers(0, k), min_size=6, max_size=6)))
    if one_hot:
        arguments["draft_logits"] = None
    out = verify(arguments, block_verification=block)
    for r in range(6):
        expected = by_definition(arguments, r, block)
        assert out.tokens[r].tolist() == expected + [-1] * (k + 1 - len(expected))
        assert (out.n_sampled[r], out.n_accepted[r]) == (len(expected), len(expected) - 1)


@settings(max_examples=50, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(0, 6),
    width=st.integers(2, 12),
    agree=st.floats(0, 1),
    block=st.booleans(),
    known=st.booleans(),
)
def test_greedy_tokens_are_the_greedy_continuation_whatever_is_drafted(
    seed: int, k: int, width: int, agree: float, block: bool, known: bool
) -> None:
    """A model whose logits depend on the previous token; ties are common."""
    g = torch.Generator().manual_seed(seed)
    table = torch.randint(0, 4, (width, width), generator=g).float()
    following = table.argmax(-1)
    anchor = torch.randint(0, width, (8,), generator=g)
    drafts, previous = torch.empty(8, k, dtype=torch.int64), anchor
    for j in range(k):
        lucky = torch.rand(8, generator=g) < agree
        drafts[:, j] = torch.where(lucky, following[previous], torch.randint(-1, width, (8,), generator=g))
        previous = drafts[:, j].clamp_min(0)
    arguments = case(8, k, width, seed, 0.0)
    arguments["target_logits"] = table[torch.cat((anchor[:, None], drafts.clamp_min(0)), 1)]
    out = verify(arguments | {"draft_tokens": drafts}, block_verification=block, all_greedy=known)
    for r in range(8):
        token = int(anchor[r])
        emitted = out.tokens[r, : out.n_sampled[r]].tolist()
        for got in emitted:
            token = int(following[token])
            assert got == token
        assert out.tokens[r, out.n_sampled[r] :].eq(-1).all()
        n = len(emitted) - 1
        assert n == k or drafts[r, n] != emitted[n]  # it stops only where the draft is wrong


def test_greedy_reads_no_draft_logits() -> None:
    arguments = case(16, 4, 9, 0, 0.0)
    poisoned = arguments | {"draft_logits": torch.full((16, 4, 9), NAN)}
    assert torch.equal(verify(arguments).tokens, verify(poisoned).tokens)
    assert verify(arguments).n_accepted.sum() > 0


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    k=st.integers(0, 5),
    width=st.integers(1, 70),
    block=st.booleans(),
    missing=st.booleans(),
)
def test_a_row_without_drafts_draws_what_a_plain_step_draws(
    seed: int, k: int, width: int, block: bool, missing: bool
) -> None:
    arguments = case(5, k, width, seed, [0.0, 0.3, 1.0, 1.7, 1.0])
    if missing:
        arguments["draft_tokens"] = torch.full((5, k), -1)
    else:
        arguments["n_drafted"] = torch.zeros(5, dtype=torch.int64)
    out = verify(arguments, block_verification=block)
    plain = sample(arguments["target_logits"][:, 0], rows(arguments), WORKSPACE)
    assert torch.equal(out.tokens[:, 0], plain)
    assert out.tokens[:, 1:].eq(-1).all()
    assert out.n_accepted.eq(0).all()


def test_the_bonus_token_is_what_a_plain_step_draws() -> None:
    arguments = case(400, 2, 5, 1)
    out = verify(arguments)
    whole = out.n_accepted == 2
    plain = sample(arguments["target_logits"][:, 2], rows(arguments, 2), WORKSPACE)
    assert 50 < whole.sum() < 350
    assert torch.equal(out.tokens[whole, 2], plain[whole])


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("bad", [-2, 7, 2**40, -(2**63)])
def test_an_id_outside_the_vocabulary_is_as_no_draft(bad: int, block: bool) -> None:
    arguments = case(64, 3, 7, 2, [0.0, 1.0] * 32)
    drafts = arguments["draft_tokens"]
    drafts[:, 1] = -1
    none = verify(arguments, block_verification=block)
    drafts[:, 1] = bad
    assert torch.equal(verify(arguments, block_verification=block).tokens, none.tokens)
    assert none.n_accepted.max() == 1
    one = verify(arguments | {"n_drafted": torch.ones(64, dtype=torch.int64)}, block_verification=block)
    assert torch.equal(one.tokens, none.tokens)


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    ("row", "token"),
    [
        ([NAN, 1.0, 3.0, 3.0], 2),
        ([5.0, 1.0, NAN, 3.0], 0),
        ([NAN] * 4, 0),
        ([-math.inf] * 4, 0),
        ([1.0, math.inf, 2.0, math.inf], 1),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_target_row_that_cannot_be_a_law_rejects_and_emits_its_argmax(
    row: list[float], token: int, place: int, temperature: float, block: bool
) -> None:
    arguments = case(1, 2, 4, 3, temperature)
    arguments["target_logits"] = torch.zeros(1, 3, 4)
    arguments["target_logits"][0, :, token] = 80.0  # everything before is accepted
    arguments["draft_logits"] = torch.zeros(1, 2, 4)
    arguments["draft_logits"][0, :, token] = 80.0
    arguments["draft_tokens"] = torch.full((1, 2), token)
    arguments["target_logits"][0, place] = torch.tensor(row)
    out = verify(arguments, block_verification=block)
    assert out.tokens[0].tolist() == [token] * (place + 1) + [-1] * (2 - place)
    if temperature == 0.0:
        assert torch.equal(verify(arguments, all_greedy=True).tokens, out.tokens)
    synthetic = verify(arguments, synthetic_conditional_rates=torch.ones(2))
    assert synthetic.tokens[0].tolist() == out.tokens[0].tolist()


@pytest.mark.parametrize("block", [False, True])
@pytest.mark.parametrize("poison", [NAN, math.inf])
def test_unreadable_draft_logits_are_as_no_draft(poison: float, block: bool) -> None:
    arguments = case(64, 3, 7, 4)
    arguments["draft_logits"][:, 1, 3] = poison
    out = verify(arguments, block_verification=block)
    one = verify(arguments | {"n_drafted": torch.ones(64, dtype=torch.int64)}, block_verification=block)
    assert torch.equal(out.tokens, one.tokens)


def test_tokens_cut_from_the_target_are_never_emitted() -> None:
    arguments = case(4000, 3, 6, 5)
    arguments["target_logits"][:, :, [1, 4]] = -math.inf
    for block in (False, True):
        out = verify(arguments, block_verification=block)
        assert set(out.tokens.unique().tolist()) == {-1, 0, 2, 3, 5}


def sliced(arguments: dict[str, Any], r: int) -> dict[str, Any]:
    return {name: None if value is None else value[r : r + 1] for name, value in arguments.items()}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32), k=st.integers(1, 5), pad=st.integers(0, 4), mode=st.integers(0, 3), data=st.data())
def test_a_row_does_not_depend_on_its_batch_or_on_padding(
    seed: int, k: int, pad: int, mode: int, data: st.DataObject
) -> None:
    n, width = 6, 33
    arguments = case(n, k, width, seed, [0.0, 1.0, 0.4, 1.0, 1.5, 1.0])
    arguments["n_drafted"] = torch.tensor(data.draw(st.lists(st.integers(0, k), min_size=n, max_size=n)))
    arguments["draft_tokens"][1, 0] = -1
    arguments["target_logits"][2, 0, 5] = NAN
    if mode == 2:
        arguments["draft_logits"] = None
    padded = dict(arguments)
    junk = torch.Generator().manual_seed(seed + 1)
    for name in ("target_logits", "draft_logits"):
        if arguments[name] is not None:
            padded[name] = torch.cat((arguments[name], torch.randn(n, pad, width, generator=junk)), 1)
    padded["draft_tokens"] = torch.cat((arguments["draft_tokens"], torch.randint(0, width, (n, pad))), 1)
    more = {"block_verification": mode == 1}
    if mode == 3:
        more["synthetic_conditional_rates"] = torch.full((k + pad,), 0.7)
    together = verify(padded, **more)
    assert together.tokens[:, k + 1 :].eq(-1).all()
    for r in range(n):
        alone = verify(sliced(arguments, r), **more)
        assert together.tokens[r, : k + 1].tolist() == alone.tokens[0].tolist()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_dense_and_state_indexed_draft_logits_agree(dtype: torch.dtype) -> None:
    arguments = case(5, 3, 11, 6)
    slots = torch.tensor([6, 0, 3, 7, 2], dtype=dtype)
    by_slot = torch.full((8, 4, 11), NAN)
    by_slot[slots.long(), :3] = arguments["draft_logits"]
    indexed = verify(arguments | {"draft_logits": by_slot}, draft_logits_index_mapping=slots)
    assert torch.equal(indexed.tokens, verify(arguments).tokens)
    inert = verify(arguments | {"draft_logits": by_slot}, draft_logits_index_mapping=torch.full((5,), -1, dtype=dtype))
    assert not torch.equal(inert.tokens, verify(arguments).tokens)


@pytest.mark.parametrize("block", [False, True])
def test_a_draft_as_good_as_the_target_is_always_accepted(block: bool) -> None:
    arguments = case(500, 4, 9, 10)
    arguments["draft_logits"] = arguments["target_logits"][:, :4].clone()
    arguments["draft_tokens"] = drawn_drafts(arguments)
    assert verify(arguments, block_verification=block).n_accepted.eq(4).all()
    # Rejected all the same, nothing is left of max(p - q, 0): the token is a plain step's.
    forced = verify(arguments, synthetic_conditional_rates=torch.zeros(4))
    assert torch.equal(forced.tokens[:, 0], sample(arguments["target_logits"][:, 0], rows(arguments), WORKSPACE))


def test_draft_logits_of_a_narrow_type_are_read_as_their_values() -> None:
    arguments = case(300, 3, 11, 7)
    narrow = arguments["draft_logits"].bfloat16()
    out = verify(arguments | {"draft_logits": narrow})
    assert torch.equal(out.tokens, verify(arguments | {"draft_logits": narrow.float()}).tokens)


def test_shapes_that_do_not_fit_are_refused() -> None:
    arguments = case(3, 2, 5, 8)
    for change, message in [
        ({"draft_tokens": torch.zeros(3, 3, dtype=torch.int64)}, "target_logits asks for"),
        ({"draft_logits": torch.zeros(2, 2, 5)}, "or a mapping"),
        ({"draft_logits": torch.zeros(3, 2, 4)}, "draft_logits is"),
        ({"synthetic_conditional_rates": torch.ones(1)}, "need one for each of 2"),
        ({"synthetic_conditional_rates": torch.ones(2), "block_verification": True}, "excludes synthetic"),
    ]:
        with pytest.raises(ValueError, match=message):
            verify(arguments, **change)


class WaitsForTheDevice(TorchDispatchMode):
    """Refuses operations that read values on the host or whose result's shape depends on values."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "repeat_interleave", "equal")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, name
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", ["plain", "block", "synthetic", "one-hot", "greedy", "misbound"])
def test_nothing_waits_for_the_device(mode: str) -> None:
    arguments = case(4, 3, 9, 9, 0.0 if mode == "greedy" else 1.0)
    if mode == "one-hot":
        arguments["draft_logits"] = None
    rates = torch.tensor([1.0, 0.5, 0.0])
    more = {
        "block": {"block_verification": True},
        "synthetic": {"synthetic_conditional_rates": rates},
        "misbound": {"draft_logits_index_mapping": rates},
        "greedy": {"all_greedy": True},
    }
    with WaitsForTheDevice():
        verify(arguments, **more.get(mode, {}))


def test_the_three_streams_never_meet() -> None:
    tags = {TAG_VERIFY, TAG_ACCEPT, *(draft_tag(k) for k in range(64))}
    assert len(tags) == 66
    assert draft_tag(0) == TAG_DRAFT
