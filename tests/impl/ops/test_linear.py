"""Products against float64, and rows that do not change with their number."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from impl.ops.linear import grouped_linear, linear
from impl.ops.workspace import Workspace

WIDTHS = st.integers(1, 70)


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@given(st.integers(1, 40), WIDTHS, WIDTHS, st.sampled_from([torch.float32, torch.bfloat16]))
def test_linear_is_the_product_of_rows_and_weights(n, k, o, dtype):
    x, weight = random(n, k).to(dtype), random(o, k, seed=1)
    workspace = Workspace()
    with workspace.scope():
        linear(x, weight, workspace)
    workspace.lock()
    with workspace.scope():
        got = linear(x, weight, workspace)
        assert got.shape == (n, o)
        assert workspace.owns(got)
        torch.testing.assert_close(got.double(), x.double() @ weight.double().T, rtol=1e-5, atol=2e-5)


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 40), WIDTHS, WIDTHS, st.sampled_from([1, 2]))
def test_a_row_has_the_same_bits_in_any_number_of_rows(n, before, k, o, threads):
    x, weight = random(before + n, k, seed=n), random(o, k, seed=1)
    workspace = Workspace()
    with workspace.scope():
        alone = linear(x[before : before + 1], weight, workspace).clone()
        torch.set_num_threads(threads)
        together = linear(x, weight, workspace)
        torch.set_num_threads(1)
        assert torch.equal(together[before : before + 1], alone)


@pytest.mark.parametrize("n", [1, 3, 4, 6, 8])
def test_linear_into_a_given_tensor(n):
    x, weight, out = random(n, 12), random(5, 12, seed=1), torch.full((n, 5), torch.nan)
    workspace = Workspace()
    with workspace.scope():
        assert linear(x, weight, workspace, out) is out
        assert torch.equal(out, linear(x, weight, workspace))


def test_rows_may_be_strided_and_padding_never_reaches_a_row():
    x = random(8, 40)[:, 3:20]
    weight = random(9, 17, seed=1)
    workspace = Workspace()
    with workspace.scope():
        workspace.empty((4096,), torch.float32).fill_(torch.nan)
    with workspace.scope():
        got = linear(x[:5], weight, workspace)
        assert torch.equal(got, linear(x.contiguous(), weight, workspace)[:5])


@settings(deadline=None)
@given(st.integers(1, 80), st.integers(1, 8), st.integers(10, 40), st.integers(10, 40))
def test_grouped_linear_gives_each_group_its_own_matrix_and_the_same_bits_a_row(n, groups, k, o):
    x, weight = random(n, groups, k, seed=n), random(groups, o, k, seed=1)
    workspace = Workspace()
    with workspace.scope():
        got = grouped_linear(x, weight, workspace)[:n]
        wanted = torch.einsum("ngk,gok->ngo", x.double(), weight.double()).flatten(1)
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
        assert torch.equal(grouped_linear(x[-1:], weight, workspace)[:1], got[-1:])


def test_grouped_linear_refuses_matrices_too_small_for_one_kernel():
    workspace = Workspace()
    with workspace.scope(), pytest.raises(ValueError, match=r"at least 100, got 9 \* 11: raise o_lora_rank"):
        grouped_linear(random(3, 2, 11), random(2, 9, 11), workspace)
