"""dsbench: does this change do what its author says, on my machine, beyond the noise, and does it break nothing?

In a notebook, `dsbench.load(path)` opens a stored experiment. Nothing heavy is imported before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dsbench.store import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> Any:
    if name == "load":
        from dsbench.store import load

        return load
    raise AttributeError(f"module 'dsbench' has no attribute {name!r}")
