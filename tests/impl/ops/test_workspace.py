from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from impl.ops.workspace import Workspace, WorkspaceError


def test_tensors_of_one_scope_do_not_overlap_and_scopes_share_bytes():
    workspace = Workspace()
    with workspace.scope():
        workspace.empty((100,), torch.float32)
        workspace.empty((7,), torch.uint8)
    workspace.lock()
    with workspace.scope():
        a = workspace.empty((100,), torch.float32)
        b = workspace.empty((7,), torch.uint8)
        a.fill_(1.0)
        b.fill_(255)
        assert (a == 1).all()
        first = a.data_ptr()
    with workspace.scope():
        assert workspace.empty((3,), torch.int64).data_ptr() == first


@given(st.lists(st.tuples(st.integers(1, 50), st.sampled_from([torch.uint8, torch.float32, torch.int64])), max_size=9))
def test_growing_keeps_what_was_handed_out_and_locking_holds_the_same_requests(requests):
    workspace = Workspace()
    with workspace.scope():
        taken = []
        for i, (n, dtype) in enumerate(requests):
            tensor = workspace.empty((n,), dtype)
            tensor.fill_(i)
            taken.append(tensor)
        assert all((t == i).all() for i, t in enumerate(taken))
        taken.clear()
    workspace.lock()
    assert workspace.nbytes == workspace.high_water
    with workspace.scope():
        again = [workspace.empty((n,), dtype) for n, dtype in requests]
        spans = sorted((t.data_ptr(), t.data_ptr() + t.nbytes) for t in again)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
        assert all(workspace.owns(t) for t in again)


def test_a_locked_workspace_does_not_grow():
    workspace = Workspace()
    with workspace.scope():
        workspace.empty((10,), torch.uint8)
    workspace.lock()
    with workspace.scope(), pytest.raises(WorkspaceError, match="profile a larger step"):
        workspace.empty((1000,), torch.uint8)


def test_outside_a_scope_there_is_nothing():
    with pytest.raises(WorkspaceError, match="inside"):
        Workspace().empty((1,), torch.uint8)
    assert not Workspace().owns(torch.zeros(1))
