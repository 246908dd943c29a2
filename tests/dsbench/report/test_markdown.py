"""report.md as a whole against the golden file, and what its tables do with odd texts.

After a wanted change run `UPDATE_GOLDEN=1 pytest tests/dsbench/report` and read the difference.
"""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

import dsbench
from dsbench.judge import judge
from dsbench.report.html import html
from dsbench.report.markdown import markdown, plain
from dsbench.report.page import page

GOLDEN = Path(__file__).parent / "golden"
STORED = Path(__file__).resolve().parents[3] / "results" / "h200" / "vllm-kv"


def test_stored_experiment():
    result = dsbench.load(STORED)
    text = markdown(page(result.plan, result.records, result.verdict))
    path = GOLDEN / "h200-vllm-kv.md"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def test_tables_are_the_source_documents(make_plan, make_records):
    lines = GOLDEN.joinpath("h200-vllm-kv.md").read_text().splitlines()
    head = lines.index("| State | KV memory | KV tokens | Max concurrency |")
    assert lines[head + 2] == "| base | 59.22 GiB | 12,464,660 | 95.10x |"
    assert any("**+832.00 MiB available KV and +171,014 KV tokens**" in line for line in lines)


def test_alike_cards_are_counted_and_nothing_gained_has_no_sign():
    result = dsbench.load(STORED.parent / "vllm-ladder")
    text = markdown(page(result.plan, result.records, result.verdict))
    assert "\nMeasured on a host with 2 x NVIDIA H200, 140 GiB, driver 580.159.04, vllm engine, " in text
    assert "- topk: c128a_topk_shared, net from baseline: **0 available KV and 0 KV tokens**\n" in text


def test_every_row_has_its_tables_columns(make_plan, make_records):
    plan = make_plan("mhc_residual_reuse", "mhc_input_reuse")
    text = markdown(page(plan, records := make_records(plan), judge(plan, records)))
    columns = 0
    for line in text.splitlines():
        cells = line.replace("\\|", "").count("|")
        if columns and line.startswith("|"):
            assert cells == columns, line
        columns = cells if line.startswith("|") else 0


@given(st.text())
def test_a_text_stays_one_cell_and_no_markup(text):
    cell = plain(text)
    assert "\n" not in cell
    unescaped = cell.replace("\\\\", "")
    for character in "|<`*&$":
        assert unescaped.count(character) == unescaped.count(f"\\{character}")


def test_a_reply_cannot_act_on_the_page_or_on_a_terminal(make_plan, make_records):
    plan = make_plan().model_copy(update={"notes": ["log \x00\x1b[2J\u202e end"]})
    records = make_records(plan)
    found = page(plan, records, judge(plan, records))
    for text in (markdown(found), html(found)):
        assert "log \ufffd\ufffd" in text
        assert not {"\x00", "\x1b", "\u202e"} & set(text)
