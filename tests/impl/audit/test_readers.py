"""Every dense layer gets global slots; a second map, an open gate and a local reader nobody named are found."""

from __future__ import annotations

import ast

import pytest

from impl.audit import readers, trial
from impl.audit.readers import IN_PLACE, check, local_readers
from impl.audit.report import NotRun
from impl.audit.source import Source
from impl.engine.index_rows import IndexRows


def test_the_tree_is_clean():
    outcome = check()
    assert outcome.findings == ()
    assert outcome.evidence["baseline: maps a step"] == "2"
    assert outcome.evidence[f"{IN_PLACE}: maps a step"] == "1"
    assert outcome.evidence[f"{IN_PLACE}: readings"] == outcome.evidence["baseline: readings"]


def test_the_double_map_is_found():
    found = check("c128_double_map").findings
    assert "mixed-readers" in {finding.code for finding in found}


def test_a_layer_that_forgets_the_map_is_found(monkeypatch):
    """Each layer maps in place again: the second one maps slots."""
    for_layer = IndexRows.for_layer

    def forgetful(self, step, workspace):
        self._mapped = False
        return for_layer(self, step, workspace)

    monkeypatch.setattr(IndexRows, "for_layer", forgetful)
    assert {"mixed-readers", "maps-a-step"} <= {finding.code for finding in check().findings}


def test_a_gate_that_lets_layers_go_their_own_ways_is_found(monkeypatch):
    make = IndexRows.__init__

    def open_gate(self, *args, local_readers=(), **rest):
        make(self, *args, **rest)

    monkeypatch.setattr(IndexRows, "__init__", open_gate)
    assert [finding.code for finding in readers._gate()] == ["gate-open", "silent-refusal"]


def test_global_rows_handed_to_a_local_reader_are_found(monkeypatch):
    monkeypatch.setattr(IndexRows, "local", lambda self, step: self._parts_of(step)[1])
    assert [finding.code for finding in readers._gate()] == ["local-after-map"]


def test_a_trial_without_a_full_step_is_not_run(monkeypatch):
    monkeypatch.setattr(trial, "PROMPTS", (100, 21))
    with pytest.raises(NotRun, match="no step of the trial has all 160 rows"):
        check()


LOCAL = "def attend(pages, step):\n    return pages.index_rows.local(step)\n"


@pytest.mark.parametrize(
    ("engine", "found"),
    [
        ("rows = IndexRows(dims, toggles, markers, device)\n", 1),
        ("rows = IndexRows(dims, toggles, markers, device, local_readers=())\n", 1),
        ("rows = IndexRows(dims, toggles, markers, device, local_readers=layers)\n", 0),
    ],
)
def test_a_local_reader_must_be_named(engine, found):
    tree = [Source(name, text, ast.parse(text)) for name, text in (("impl/a.py", LOCAL), ("impl/b.py", engine))]
    places = [finding.where for finding in local_readers(tree)]
    assert places == ["impl/a.py:2"] * found


@pytest.mark.parametrize("line", ["source = pages.index_rows; source.local(step)", "read = source.local; read(step)"])
def test_a_local_reader_is_found_whatever_it_calls_the_rows(line):
    text = f"def attend(pages, source, step):\n    if step.n_tokens > 4096:\n        {line}\n"
    assert [f.where for f in local_readers([Source("impl/model/a.py", text, ast.parse(text))])] == ["impl/model/a.py:3"]
