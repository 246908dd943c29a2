"""Let vLLM find the plugin of a checkout that is not installed: `python -m impl.vllm_plugin.metadata FOLDER`.

Entry points are found in a distribution's metadata, and a folder in PYTHONPATH may hold one: with FOLDER and the
checkout in PYTHONPATH nothing needs to be installed into vLLM's environment.
"""

from __future__ import annotations

import sys
from pathlib import Path

from impl import __version__

GROUP = "vllm.general_plugins"
NAME = "dsbench"
VALUE = "impl.vllm_plugin:register"


def write_metadata(folder: Path) -> Path:
    """Write a dist-info folder below `folder` that names the entry point; returns it."""
    info = folder / f"dsbench_dspark_plugin-{__version__}.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: dsbench-dspark-plugin\nVersion: {__version__}\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{NAME} = {VALUE}\n")
    return info


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.stderr.write("usage: python -m impl.vllm_plugin.metadata FOLDER\n")
        raise SystemExit(2)
    print(write_metadata(Path(sys.argv[1])))
