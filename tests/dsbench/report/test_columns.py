"""Columns in a terminal of any width: nothing is cut, no figure is broken, and lines stay inside where words allow."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from dsbench.cli import table
from dsbench.report.columns import GAP, PIPE_WIDTH, TALLEST, console, widths, wrapped

WORDS = st.lists(st.text("abcdefgh_.", min_size=1, max_size=14), min_size=1, max_size=8).map(" ".join)
FIGURES = st.integers(-(10**9), 10**9)
ROWS = st.lists(st.tuples(WORDS, FIGURES, WORDS, FIGURES), min_size=1, max_size=5)
NAMES = ("state", "KV tokens", "where the bytes live", "step")


@pytest.fixture
def printed(monkeypatch):
    def show(width, rows, columns=NAMES, title="title"):
        out = io.StringIO()
        monkeypatch.setattr(table, "console", lambda piped=0: Console(file=out, width=width, highlight=False))
        table.print_table(title, columns, rows)
        return out.getvalue()

    return show


def test_a_table_without_rows_is_its_head(printed):
    assert printed(80, [], columns=("result", "")).split() == ["title", "result", "─" * 6 + "─" * 3]


def test_texts_of_others_do_not_act_on_the_terminal(printed):
    text = printed(80, [("a\x1b[31mb\ud800c", 1)], columns=("name", "n"), title="t\x07\u202e")
    assert "a\ufffd[31mb\ufffdc" in text
    assert "t\ufffd\ufffd" in text
    assert wrapped("a\x1bb", 80) == ["a\ufffdb"]


@given(rows=ROWS, width=st.integers(20, 160))
def test_widths_fit_and_break_no_word(rows, width):
    cells = [[table.cell_text(cell) for cell in row] for row in rows]
    found = widths(NAMES, cells, [False, True, False, True], width)
    if not found:
        return
    assert sum(found) + GAP * (len(found) - 1) <= width
    for row in cells:
        for cell, wide, figure in zip(row, found, [False, True, False, True], strict=True):
            assert max(map(len, cell.split())) <= wide
            assert len(cell) <= wide or not figure
            assert len(wrapped(cell, wide, "")) <= TALLEST


@given(text=WORDS, width=st.integers(4, 60))
def test_wrapped_keeps_every_word(text, width):
    lines = wrapped(text, width)
    assert " ".join(lines).split() == text.split()
    longest = max(map(len, text.split()))
    assert all(len(line) <= max(width, longest + 2) for line in lines)


@given(rows=ROWS, width=st.integers(20, 200))
def test_a_table_tells_every_word_at_any_width(rows, width):
    with pytest.MonkeyPatch.context() as patch:
        out = io.StringIO()
        patch.setattr(table, "console", lambda piped=0: Console(file=out, width=width, highlight=False))
        table.print_table("title", NAMES, rows)
    text = out.getvalue()
    assert "…" not in text
    told = set(text.replace(";", " ").split())
    assert {word for row in rows for cell in row for word in table.cell_text(cell).split()} <= told


def test_figures_stand_right_and_empty_columns_are_left_out(printed):
    text = printed(80, [("a", 1, "-", ""), ("bb", 1000, "-", "")], ("name", "n", "where", "note"))
    assert text.splitlines()[1:3] == ["name       n", "────────────"]
    assert "1,000" in text


def test_what_does_not_fit_is_a_paragraph_a_row(printed):
    row = ("after_an_operation_in_place", 10_511, "a_word_that_is_too_long_for_a_column here", 7)
    lines = printed(50, [row]).splitlines()
    assert lines[:2] == ["title", "after_an_operation_in_place"]
    assert lines[2].startswith("  KV tokens 10,511; where the bytes live")
    assert all(len(line) <= 50 for line in lines)


def test_a_pipe_is_as_wide_as_columns_says(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == PIPE_WIDTH
    monkeypatch.setenv("COLUMNS", "72")
    assert console().width == 72
