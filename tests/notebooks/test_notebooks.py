"""The notebooks run on committed results, and what they show is what they say now."""

import json
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("nbclient", reason="the dev extra brings nbclient")

import nbformat

from dsbench import published
from impl.dims import FLASH

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "notebooks"
EXECUTE = runpy.run_path(str(FOLDER / "execute.py"))
AGAIN = "run: python notebooks/execute.py"


def shown(notebook):
    """What every cell printed or returned, in text; of figures, that there is one."""
    return [
        [output.text if output.output_type == "stream" else output.data["text/plain"] for output in cell.outputs]
        for cell in notebook.cells
        if cell.cell_type == "code"
    ]


def test_there_are_four():
    assert [name[:2] for name in EXECUTE["NOTEBOOKS"]] == ["01", "02", "03", "04"]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXECUTE["NOTEBOOKS"])
def test_it_runs_and_its_outputs_are_current(name):
    stored = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    executed = EXECUTE["executed"](name)
    outputs = [output for cell in executed.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [output.text for output in outputs if output.get("name") == "stderr"] == []
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 2
    assert shown(executed) == shown(stored), AGAIN


ABSOLUTE = re.compile(r"(?<![\w.:/>)\]-])/\w[\w.-]*/\w")
"""A path from the root of some machine; not part of an address, a relative path or a fraction."""


@pytest.mark.parametrize("name", EXECUTE["NOTEBOOKS"])
def test_it_is_small_and_names_no_machine(name):
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 300_000
    texts = [part for cell in json.loads(path.read_text())["cells"] for part in cell["source"]]
    assert [text for text in texts if ABSOLUTE.search(text)] == []


def test_links_of_the_notebooks_lead_somewhere():
    for name in EXECUTE["NOTEBOOKS"]:
        for cell in nbformat.read(FOLDER / f"{name}.ipynb", as_version=4).cells:
            for target in cell.source.split("](")[1:] if cell.cell_type == "markdown" else ():
                assert (FOLDER / target.partition(")")[0]).exists(), target


@pytest.mark.parametrize(("name", "tp"), [("flash-sm120-tp2", 2), ("flash-sm90-tp1", 1)])
def test_the_stored_projection_is_of_the_registry_as_it_is(name, tp):
    content = json.loads((ROOT / "results" / "projection" / f"{name}.json").read_text())
    assert content["dims"]["max_num_batched_tokens"] == FLASH.max_num_batched_tokens
    for row in content["rows"]:
        share = published.SOURCE_TP / tp if row["toggle"] == "q_in_place" else 1
        assert row["step_bytes"] == published.profile_bytes(row["toggle"], FLASH) * share
