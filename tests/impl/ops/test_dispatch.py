"""Which backend is taken: the table, what is forced, what is not here, and names that are none."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from impl.dims import PICO
from impl.ops import dispatch
from impl.ops.dispatch import Card, DispatchError, Row

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("op", dispatch.REFERENCES)
def test_a_cpu_takes_the_reference(op, monkeypatch):
    monkeypatch.delenv(dispatch.FORCE, raising=False)
    chosen = dispatch.backend(op, "cpu", PICO, 8)
    assert chosen.backend == "torch"
    assert f"{chosen.function.__module__}:{chosen.function.__name__}" == dispatch.REFERENCES[op]


@pytest.mark.parametrize("name", [name for name in dispatch.BACKENDS if name != "torch"])
def test_backends_have_the_references_signature(name):
    """The reference's parameters come first, in its order and by its names; what is added has defaults."""
    if dispatch.missing(name):
        pytest.skip(f"{name}: {dispatch.missing(name)}")
    for op, function in dispatch.operations(name).items():
        wanted = list(inspect.signature(dispatch.operations("torch")[op]).parameters)
        found = inspect.signature(function).parameters
        shared = [parameter for parameter in found if parameter in wanted]
        left_out = [parameter for parameter in wanted if parameter not in found]
        assert shared == [p for p in wanted if p in shared], op
        assert set(left_out) <= {"workspace"}, op
        for parameter in found.values():
            if parameter.name not in wanted and parameter.kind is not parameter.VAR_KEYWORD:
                assert parameter.default is not parameter.empty, (op, parameter.name)
        for point in dispatch.variants(name).get(op, ()):
            takes_any = any(p.kind is p.VAR_KEYWORD for p in found.values())
            assert takes_any or point.keys() <= found.keys(), (op, point)


@pytest.mark.parametrize(
    ("value", "op", "wanted"),
    [
        ("torch", "mhc_seam", "torch"),
        ("triton", "mhc_seam", "triton"),
        ("mhc_seam=cuda,index_map=torch", "mhc_seam", "cuda"),
        ("mhc_seam=cuda,index_map=torch", "index_map", "torch"),
        ("mhc_seam=cuda", "index_map", None),
        ("torch, mhc_seam=cuda", "mhc_seam", "cuda"),
        ("mhc_seam=cuda, torch", "mhc_seam", "cuda"),
        ("", "mhc_seam", None),
    ],
)
def test_backends_are_forced_by_the_environment(value, op, wanted, monkeypatch):
    monkeypatch.setenv(dispatch.FORCE, value)
    assert dispatch.forced(op) == wanted


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("tritom", "unknown backend in DSBENCH_OPS 'tritom': did you mean triton?"),
        ("mhc_seem=torch", "unknown operation in DSBENCH_OPS 'mhc_seem': did you mean mhc_seam?"),
        ("mhc_seam=", "unknown backend in DSBENCH_OPS '': known: torch"),
    ],
)
def test_a_wrong_name_is_one_clear_error(value, words, monkeypatch):
    monkeypatch.setenv(dispatch.FORCE, value)
    with pytest.raises(DispatchError) as error:
        dispatch.backend("mhc_seam", "cpu", "pico", 8)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_an_unknown_operation_is_one_clear_error():
    with pytest.raises(DispatchError, match="unknown operation 'index_mop': did you mean index_map"):
        dispatch.backend("index_mop", "cpu", PICO, 8)


def test_a_forced_backend_that_is_not_here_is_an_error(monkeypatch):
    monkeypatch.setenv(dispatch.FORCE, "cuda")
    with pytest.raises(DispatchError, match="backend 'cuda' has no operation 'rejection' here: "):
        dispatch.backend("rejection", "cpu", PICO, 8)


def test_rows_fit_by_card_shape_and_tokens():
    row = Row("NVIDIA H200", "mhc_seam", "cuda", "flash", (17, 8192))
    h200, other = Card("NVIDIA H200", (9, 0), 132), Card("NVIDIA H100", (9, 0), 132)
    assert row.fits("mhc_seam", h200, "flash", 17)
    assert not row.fits("mhc_seam", h200, "flash", 16)
    assert not row.fits("mhc_seam", h200, "pico", 17)
    assert not row.fits("mhc_seam", other, "flash", 17)
    assert not row.fits("mhc_pre", h200, "flash", 17)
    assert Row("*", "mhc_seam", "cuda").fits("mhc_seam", other, "pico", 1)
    assert not Row("*", "mhc_seam", "", note="not written").fits("mhc_seam", other, "pico", 1)


HOPPERS = ["NVIDIA GH200 480GB", "NVIDIA H100 80GB HBM3", "NVIDIA H200 NVL", "NVIDIA H200"]


@pytest.mark.parametrize("name", HOPPERS)
@pytest.mark.parametrize("op", dispatch.REFERENCES)
@pytest.mark.parametrize("tokens", [1, 64, 8192])
def test_every_hopper_card_takes_what_was_measured_on_one(monkeypatch, name, op, tokens):
    monkeypatch.delenv(dispatch.FORCE, raising=False)
    monkeypatch.setattr(dispatch, "operations", lambda _backend: dict.fromkeys(dispatch.REFERENCES, print))
    found = []
    for card in (Card(name, (9, 0), 132), Card("NVIDIA H200", (9, 0), 132)):
        monkeypatch.setattr(dispatch, "card_of", lambda _device, card=card: card)
        found.append(dispatch.backend(op, "cuda:0", "flash", tokens))
    assert found[0] == found[1]
    if op.startswith("mhc"):
        assert found[0].backend == "cuda"


@pytest.mark.parametrize("card", [Card("NVIDIA H20", (9, 0), 78), Card("NVIDIA B200", (10, 0), 148), Card("cpu")])
def test_other_cards_do_not(card):
    """A point that keeps 112 multiprocessors for one kernel needs the rest for the other."""
    measured = [row for row in dispatch.table() if row.ms is not None]
    assert measured
    assert all(row.capability == (9, 0) and row.processors == 132 for row in measured if row.card == "NVIDIA H200")
    assert not any(row.fits(row.op, card, row.dims, row.tokens[0]) for row in measured)


def test_the_first_fitting_row_whose_backend_is_here_is_taken(monkeypatch):
    rows = (Row("*", "index_map", "cuda"), Row("*", "index_map", "torch", parameters={"a": 1}))
    monkeypatch.setattr(dispatch, "table", lambda: rows)
    monkeypatch.setattr(dispatch, "card_of", lambda device: Card("some card"))
    monkeypatch.delenv(dispatch.FORCE, raising=False)
    chosen = dispatch.backend("index_map", "cuda:0", PICO, 8)
    assert (chosen.backend, chosen.parameters) == ("torch", {"a": 1})
    monkeypatch.setattr(dispatch, "table", lambda: rows[:1])
    assert dispatch.backend("index_map", "cuda:0", PICO, 8).backend == "torch"


def test_what_may_compute_is_told_without_a_card(monkeypatch):
    """The same backends as with one, for a card with as many multiprocessors as were measured."""
    monkeypatch.delenv(dispatch.FORCE, raising=False)
    monkeypatch.setattr(dispatch, "card_of", lambda _device: Card("NVIDIA H200", (9, 0), 132))
    for op in dispatch.REFERENCES:
        for dims in ("flash", "micro", "a shape without a row"):
            usable = [name for name, why in dispatch.usable(op, (9, 0), dims).items() if not why]
            chosen = {dispatch.backend(op, "cuda:0", dims, n).backend for n in (1, 64, 8192)}
            assert chosen <= {*usable, "torch"}, (op, dims)
            assert usable or chosen == {"torch"}, (op, dims)
    monkeypatch.setenv(dispatch.FORCE, "cuda")
    assert "no row of it for flash" in dispatch.usable("mhc_seam", (12, 0), "flash")["cuda"]
    with pytest.raises(DispatchError, match="unknown operation"):
        dispatch.usable("mhc_seem", (9, 0), "flash")


def recorded(record):
    return map(json.loads, (ROOT / record).read_text().splitlines())


def figure_of(line, row, tokens):
    """Whether a record's line is a time of what the row says; its ms is a mean over forms."""
    same = line.get("op") == row.op and line.get("backend") == row.backend and line.get("tokens") == tokens
    point = line.get("parameters", line.get("variant"))
    return same and point == row.parameters and line.get("ms", 0) == pytest.approx(row.ms, rel=0.2)


def test_the_committed_table_names_what_there_is():
    """Every measured row names a record that holds its figure; every row that is not written says why."""
    for row in dispatch.table():
        assert row.tokens[0] <= row.tokens[1]
        assert (row.ms is None) == (row.record == ""), row
        if row.record:
            at = re.fullmatch(r"ms at (\d+) tokens", row.note)
            assert at, row
            assert any(figure_of(line, row, int(at[1])) for line in recorded(row.record)), row
        assert bool(row.backend) != bool(row.note) or row.backend, row
        if row.backend and not dispatch.missing(row.backend):
            assert row.op in dispatch.operations(row.backend), row


def test_without_a_compiler_or_what_it_built_another_backend_is_taken(monkeypatch, tmp_path):
    """The libraries are looked for by the hash of their sources."""
    from impl.ops.cuda import build

    monkeypatch.setattr(build, "compiler", lambda: None)
    monkeypatch.setenv("DSBENCH_KERNEL_CACHE", str(tmp_path))
    monkeypatch.delenv(dispatch.FORCE, raising=False)
    monkeypatch.setattr(dispatch, "card_of", lambda _device: Card("a card"))
    rows = (Row("a card", "mhc_post", "cuda"), Row("a card", "mhc_post", "torch"))
    monkeypatch.setattr(dispatch, "table", lambda: rows)
    forgotten = dispatch.missing, dispatch.operations
    for function in forgotten:
        function.cache_clear()
    assert "nvcc was not found" in dispatch.missing("cuda")
    assert dispatch.backend("mhc_post", "cuda:0", PICO, 8).backend == "torch"
    for name in ("mhc_few", "mhc_heads", "mhc_many", "mhc_post"):
        build.built(name).touch()
    for function in forgotten:
        function.cache_clear()
    assert dispatch.missing("cuda") == ""
    assert dispatch.backend("mhc_post", "cuda:0", PICO, 8).backend == "cuda"
    monkeypatch.undo()
    for function in forgotten:
        function.cache_clear()


def test_a_table_with_an_unknown_backend_is_refused(tmp_path):
    file = tmp_path / "tuning.json"
    file.write_text(json.dumps({"rows": [{"card": "*", "op": "index_map", "backend": "rust"}]}))
    with pytest.raises(DispatchError, match="unknown backend 'rust'"):
        dispatch.table(file)


def test_the_command_prints_the_table_in_force():
    done = subprocess.run([sys.executable, "-m", "impl.ops.dispatch"], capture_output=True, text=True, check=True)
    for op, reference in dispatch.REFERENCES.items():
        assert f"{op}  (reference {reference})" in done.stdout
    assert "not written" in done.stdout
