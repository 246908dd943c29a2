"""The draft against a float64 version that knows nothing of it, and what its rows may and may not see."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from impl.dims import Dims
from impl.train.draft_forward import Context, block_rows, draft, target_context
from impl.train.forward import forward
from tests.impl.train import plain_draft, plain_model
from tests.impl.train.test_forward import as_numpy, random_ids

Weights = dict[str, torch.Tensor]


def two_sizes(seed: int = 0) -> list[torch.Tensor]:
    return [torch.tensor(random_ids(46, seed)).view(2, 23), torch.tensor([random_ids(31, seed + 1)])]


@pytest.fixture(scope="module")
def context(tiny: Dims, tiny_weights: Weights) -> Context:
    """Three sequences, rows 0-22, 23-45 and 46-76, without rounding."""
    return target_context(tiny_weights, two_sizes(), tiny, quantize=False)


def test_aux_means_equal_float64(tiny: Dims, tiny_weights: Weights) -> None:
    ids = random_ids(21)
    wanted: list[np.ndarray] = []
    plain_model.logits(as_numpy(tiny_weights), ids, tiny, wanted)
    got: list[torch.Tensor] = []
    forward(tiny_weights, torch.tensor([ids]), tiny, quantize=False, aux=got)
    assert len(got) == len(wanted) == 2
    for mean, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mean[0].numpy(), want, atol=1e-4)


def test_context_lays_sequences_end_to_end(context: Context, tiny: Dims, tiny_weights: Weights) -> None:
    alone = target_context(tiny_weights, two_sizes()[1:], tiny, quantize=False)
    assert context.positions.tolist() == [*range(23), *range(23), *range(31)]
    assert (context.longest, alone.longest) == (31, 31)
    assert torch.equal(context.ids[46:], alone.ids)
    torch.testing.assert_close(context.aux[46:], alone.aux)
    torch.testing.assert_close(context.logits[46:], alone.logits)


@pytest.mark.parametrize(("first", "anchor"), [(0, 1), (0, 7), (0, 17), (23, 3), (46, 8), (46, 25)])
def test_block_equals_float64(
    context: Context, tiny: Dims, tiny_weights: Weights, tiny_draft: Weights, first: int, anchor: int
) -> None:
    ids = context.ids[first:].tolist()
    aux = context.aux[first:].double().numpy()
    wanted = plain_draft.block(as_numpy(tiny_draft), as_numpy(tiny_weights), ids, aux, anchor, tiny)
    # A neighbour in the batch must not matter.
    got = draft(tiny_draft, tiny_weights, context, torch.tensor([first + anchor, 30]), tiny, quantize=False)
    assert np.abs(wanted[0]).max() > 1.0
    for tensor, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(tensor[0].numpy(), want, atol=2e-4)


def changed(context: Context, row: int) -> Context:
    aux = context.aux.clone()
    aux[row] += 1.0
    return Context(context.ids, context.positions, aux, context.logits, context.longest)


@pytest.mark.parametrize(("back", "seen"), [(-1, False), (0, False), (1, True), (8, True), (9, False)])
def test_block_sees_the_window_strictly_before_its_anchor(
    context: Context, tiny: Dims, tiny_weights: Weights, tiny_draft: Weights, back: int, seen: bool
) -> None:
    anchors = torch.tensor([46 + 15])
    before = draft(tiny_draft, tiny_weights, context, anchors, tiny).logits
    after = draft(tiny_draft, tiny_weights, changed(context, 46 + 15 - back), anchors, tiny).logits
    assert bool((before != after).any()) == seen


def test_rows_see_the_whole_block_and_text_only_through_the_markov_head(
    context: Context, tiny: Dims, tiny_weights: Weights, tiny_draft: Weights
) -> None:
    anchors = torch.tensor([10])
    ids = context.ids.clone()
    ids[12] = (ids[12] + 1) % 90
    other = Context(ids, context.positions, context.aux, context.logits, context.longest)
    before, after = (draft(tiny_draft, tiny_weights, c, anchors, tiny) for c in (context, other))
    assert torch.equal(before.hidden, after.hidden)
    moved = (before.logits != after.logits).any(-1)[0].tolist()
    assert moved == [False, False, True, False, False]
    # Non-causal: the first row's h follows from the number of noise rows behind it.
    shorter = draft(tiny_draft, tiny_weights, context, anchors, tiny.with_changes(draft_tokens=4))
    assert not torch.allclose(before.hidden[:, 0], shorter.hidden[:, 0], atol=1e-3)


def test_rounding_is_on_by_default_and_small(
    context: Context, tiny: Dims, tiny_weights: Weights, tiny_draft: Weights
) -> None:
    anchors = torch.arange(4, 20)
    exact = draft(tiny_draft, tiny_weights, context, anchors, tiny, quantize=False)
    served = draft(tiny_draft, tiny_weights, context, anchors, tiny)
    assert torch.equal(served.hidden, served.hidden.bfloat16().float())
    assert not torch.equal(served.logits, exact.logits)
    assert (served.logits - exact.logits).abs().mean() < 0.1 * exact.logits.std()


def test_gradient_reaches_every_parameter_of_the_draft_and_none_of_the_target(
    context: Context, tiny: Dims, tiny_weights: Weights, tiny_draft: Weights
) -> None:
    own = {name: t.clone().requires_grad_(not name.endswith("bias")) for name, t in tiny_draft.items()}
    target = {n: t.clone().requires_grad_() if t.is_floating_point() else t for n, t in tiny_weights.items()}
    drafted = draft(own, target, context, torch.arange(2, 70), tiny)
    (drafted.logits.square().mean() + drafted.confidence.square().mean()).backward()
    assert all(t.grad is None for t in target.values())
    for name, tensor in own.items():
        if not name.endswith("bias"):
            assert tensor.grad is not None, name
            assert tensor.grad.abs().max() > 0, name


def test_block_rows_stop_at_the_sequence(context: Context) -> None:
    rows, inside = block_rows(context, torch.tensor([3, 20, 76]), 6)
    assert rows[0].tolist() == [3, 4, 5, 6, 7, 8]
    assert inside.sum(1).tolist() == [6, 3, 1]
    assert int(rows.max()) <= 76
