"""Settings of the probes that run pytest: what they select, where, for how long, and what inherits from what."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import Field, field_validator

from dsbench.errors import InputError
from dsbench.probe_table import ProbeTable, Text
from dsbench.score.pytest_map import parse_map
from dsbench.toml_text import text_of

ENDING_S = 10.0
"""Time to end a run that is over its deadline, and to say in which test it was."""


class PytestProbe(ProbeTable):
    """Runs a selection of tests under the arm's interpreter, with the arm's variables, in the arm's checkout."""

    in_warmup: ClassVar[bool] = False
    needs_engine: ClassVar[bool] = False
    name: ClassVar[str]
    own: ClassVar[tuple[str, ...]]
    """What the embedded engine's checkout is asked if the suite selects nothing."""

    selection: list[Text] = Field(default=[])
    """Arguments of pytest: files, ids, `-k` and `-m`. Other engines than ours need one."""
    checkout: Text | None = None
    """Folder with the tests; `{arm}` in it is the arm's name. By default the folder around the engine's package, as
    the arm's interpreter imports it."""
    timeout: Annotated[float, Field(gt=0, le=1e6)] = 600.0
    """Deadline in seconds, in place of `timeouts.probe`."""
    map_file: Text | None = None
    """TOML file of parents by test id; a plan keeps its content in `inherits`."""
    inherits: dict[str, str] = Field(default={})
    """Ids of one arm alone, and the ids that they stand or fall with; `*` stands for anything."""

    @field_validator("selection")
    @classmethod
    def _has_a_place(cls, selection: list[str]) -> list[str]:
        from dsbench.pytest_run import places

        if selection and not places(selection):
            raise ValueError("names no file or folder of tests")
        return selection

    def metrics(self) -> list[str]:
        return [f"{self.name}.passed"]

    def deadline(self) -> float:
        return self.timeout + ENDING_S

    def folder(self, arm: str) -> Path | None:
        """The checkout of an arm as it is named; None where the arm's interpreter tells."""
        return None if self.checkout is None else Path(self.checkout.replace("{arm}", arm))

    def chosen(self, engine: str) -> Sequence[str]:
        """What is run; empty for an engine of others if the suite selects nothing."""
        return self.selection or (self.own if engine == "embedded" else ())

    def pinned(self) -> Self:
        if self.map_file is None:
            return self
        try:
            text = text_of(Path(self.map_file))
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{self.name}: map_file {self.map_file}: {error}") from None
        return self.model_copy(update={"inherits": {**parse_map(text, self.map_file), **self.inherits}})


class KernelsProbe(PytestProbe):
    """Tests of the kernels."""

    name: ClassVar[str] = "kernels"
    # Kernels for a GPU that an interpreter or an emulator runs here take minutes, and say nothing of an arm.
    own: ClassVar[tuple[str, ...]] = (
        "tests/impl/ops",
        "--ignore=tests/impl/ops/test_by_interpreter.py",
        "--ignore=tests/impl/ops/test_triton_compiles.py",
        "--ignore=tests/impl/ops/cuda/test_on_emulator.py",
    )


class UnitProbe(PytestProbe):
    """Tests of what is around the kernels: scheduler, pages, sampler."""

    name: ClassVar[str] = "unit"
    own: ClassVar[tuple[str, ...]] = (
        "tests/impl/test_kv_geometry.py",
        "tests/impl/test_toggles.py",
        "tests/impl/engine/test_blocks.py",
        "tests/impl/engine/test_pages.py",
        "tests/impl/engine/test_scheduler.py",
        "tests/impl/engine/test_acceptance.py",
        "tests/impl/engine/test_request.py",
    )
