"""Fixtures: sources of vLLM's versions, modules that stand in for vLLM's, and a plugin state of each test's own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from impl.handshake import Markers
from impl.toggles import ToggleSet
from impl.vllm_plugin import buffers, mhc_final_fused, state
from tests.impl.vllm_plugin import fetch_sources


@pytest.fixture(scope="session")
def sources() -> Callable[[str], Path]:
    """The folder that holds the package `vllm` of a version; skips where it cannot be had."""
    failed: dict[str, str] = {}

    def of(version: str) -> Path:
        if version not in failed:
            try:
                return fetch_sources.sources(version)
            except fetch_sources.Unfetched as error:
                failed[version] = str(error)
        pytest.skip(failed[version])

    return of


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Put a module of a dotted name, with these attributes, where imports find it."""

    def put(name: str, **attributes: object) -> ModuleType:
        module = ModuleType(name)
        vars(module).update(attributes)
        monkeypatch.setitem(sys.modules, name, module)
        parent, _, child = name.rpartition(".")
        if parent:
            if parent not in sys.modules:
                put(parent, __path__=[])
            monkeypatch.setattr(sys.modules[parent], child, module, raising=False)
        return module

    return put


@pytest.fixture
def arm(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Markers]:
    """Start with these toggles and nothing counted; returns the markers."""

    def start(text: str) -> Markers:
        markers = Markers()
        monkeypatch.setattr(state, "toggles", ToggleSet.parse(text))
        monkeypatch.setattr(state, "markers", markers)
        monkeypatch.setattr(buffers, "_asked", set())
        monkeypatch.setattr(mhc_final_fused, "_promised", [])
        monkeypatch.setattr(mhc_final_fused, "_looked", {})
        return markers

    return start
