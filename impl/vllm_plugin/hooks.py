"""Run a function on a module right after its import (a meta-path finder; torch-free).

Importing vLLM's model code early, to patch it, would switch off its eager breaks (vllm_hooks.md 1.4): so nothing is
imported here, and a module that vLLM never imports is never touched.
"""

from __future__ import annotations

import importlib.machinery
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

Hook = Callable[[ModuleType], None]


class AfterImport:
    """A finder that finds nothing itself: it lets the others find, and adds the hooks to the loader they chose."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Hook]] = defaultdict(list)
        self._finding: set[str] = set()

    def add(self, module: str, hook: Hook) -> None:
        """Run `hook` after the import of `module`; at once where it has been imported already."""
        self.hooks[module].append(hook)
        there = sys.modules.get(module)
        if there is not None and not getattr(there.__spec__, "_initializing", False):
            hook(there)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self.hooks or name in self._finding:
            return None
        self._finding.add(name)
        try:
            spec = next(filter(None, (_find(finder, name, path, target) for finder in sys.meta_path)), None)
        finally:
            self._finding.discard(name)
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader, name)
        return spec

    def _wrap(self, loader: Any, name: str) -> None:
        exec_module = loader.exec_module

        def exec_then_hooks(module: ModuleType) -> None:
            exec_module(module)
            for hook in self.hooks[name]:
                hook(module)

        loader.exec_module = exec_then_hooks


def _find(
    finder: Any, name: str, path: Sequence[str] | None, target: ModuleType | None
) -> importlib.machinery.ModuleSpec | None:
    find = getattr(finder, "find_spec", None)
    return find(name, path, target) if find is not None else None


_finder = AfterImport()


def after_import(module: str, hook: Hook) -> None:
    """Patch `module` with `hook`, now or when it is imported."""
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
    _finder.add(module, hook)


__all__ = ["AfterImport", "Hook", "after_import"]
