"""Defects that several checks must see."""

from __future__ import annotations

import pytest

from impl.audit import trial
from impl.engine import index_rows


@pytest.fixture(scope="session", autouse=True)
def _baseline():
    """What the tree computes, before any test plants a defect in it."""
    trial.baseline()


@pytest.fixture
def leave_tails(monkeypatch: pytest.MonkeyPatch) -> None:
    """Index rows whose entries behind the visible ones are left as they were."""
    fill = index_rows.fill_local

    def visible_only(columns, visible, rows, lens, workspace):
        before = rows.clone()
        fill(columns, visible, rows, lens, workspace)
        behind = columns >= visible[:, None]
        rows[behind] = before[behind]

    monkeypatch.setattr(index_rows, "fill_local", visible_only)
