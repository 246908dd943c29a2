"""Run the notebooks and keep their outputs: `python notebooks/execute.py [NAME...]`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).resolve().parent
NOTEBOOKS = tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb")))
SECONDS = 180
"""Deadline of one cell."""


def executed(name: str) -> NotebookNode:
    """The notebook with the outputs of a kernel of this interpreter, which sees this checkout."""
    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        paths = [str(FOLDER.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
        spec = {
            "argv": argv,
            "display_name": "Python 3",
            "language": "python",
            "env": {"PYTHONPATH": os.pathsep.join(paths), "MPLBACKEND": "module://matplotlib_inline.backend_inline"},
        }
        place = Path(folder, "python3")
        place.mkdir()
        (place / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        specs = KernelSpecManager(kernel_dirs=[folder], ensure_native_kernel=False)
        # Sockets in this folder: nobody else on the machine can talk to the kernel.
        manager = AsyncKernelManager(
            kernel_name="python3", kernel_spec_manager=specs, transport="ipc", ip=str(Path(folder, "kernel"))
        )
        client = NotebookClient(
            notebook, timeout=SECONDS, km=manager, resources={"metadata": {"path": str(FOLDER)}}, record_timing=False
        )
        client.execute()
    # Metadata of the kernel that happened to run them is no part of the notebooks.
    notebook.metadata.language_info = {"name": "python"}
    return notebook


if __name__ == "__main__":
    for stem in sys.argv[1:] or NOTEBOOKS:
        nbformat.write(executed(Path(stem).stem), FOLDER / f"{Path(stem).stem}.ipynb")
