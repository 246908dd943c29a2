"""The registry of toggles (torch-free): what each one does, where its bytes live, what it needs.

An arm names its toggles in `DSBENCH_TOGGLES`, a comma list: `mhc_input_reuse,mtp_hidden_skip`.
`name=off` turns off a correctness toggle that is on by default.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from impl.dims import Dims

ENVIRONMENT = "DSBENCH_TOGGLES"

Kind = Literal["optimization", "correctness", "control"]


class ToggleError(ValueError):
    """A toggle name or combination that cannot be run; the message is one line with the mend."""


def stream_bytes(dims: Dims) -> int:
    """Bytes of the residual streams of one step: bf16 [T, hc, H]."""
    return dims.max_num_batched_tokens * dims.hc_mult * dims.hidden_size * 2


def row_bytes(dims: Dims) -> int:
    """Bytes of one layer input of one step: bf16 [T, H]."""
    return dims.max_num_batched_tokens * dims.hidden_size * 2


@dataclass(frozen=True)
class Toggle:
    name: str
    kind: Kind
    summary: str
    phase: str
    """When the bytes it saves are allocated: load, init, profile or serve."""
    moves_line: bool
    """Whether it moves the profiled "available KV memory" line."""
    exactness: str
    """What its outputs owe the baseline's."""
    primary: str
    """The one metric its claim is judged by."""
    reference: str
    expected_bytes: Callable[[Dims], int] | None = None
    """Bytes it saves at given dims; None where it saves none."""
    requires: tuple[str, ...] = ()
    """Toggles that must be on, in both arms, for this one to be a single change."""
    conflicts: tuple[str, ...] = ()
    engines: tuple[str, ...] = ("embedded",)
    default_on: bool = False
    speculative: tuple[str, ...] = ()
    """Speculative methods under which it acts; empty: with and without speculation."""
    needs: str = ""
    """Conditions in words: path, sizes, ownership."""


_TOGGLES = (
    Toggle(
        name="mtp_hidden_skip",
        kind="optimization",
        summary="do not stage the pre-head hidden states that only the MTP method reads",
        phase="load",
        moves_line=True,
        exactness="bitwise",
        primary="kv.persistent_bytes",
        reference="deepseek_v4_dspark.md 2.4",
        expected_bytes=stream_bytes,
        needs="inert, and says so, when the speculative method is mtp",
    ),
    Toggle(
        name="mhc_final_fused",
        kind="optimization",
        summary="compute the head and the aux means without materializing the final streams",
        phase="profile",
        moves_line=True,
        exactness="bitwise",
        primary="kv.peak_activation_bytes",
        reference="deepseek_v4_dspark.md 2.3",
        expected_bytes=stream_bytes,
        requires=("mtp_hidden_skip",),
        needs="no MTP buffer (it wants the streams before the head); PP=1",
    ),
    Toggle(
        name="mhc_residual_reuse",
        kind="optimization",
        summary="write a seam's new residual streams over the old ones",
        phase="profile",
        moves_line=True,
        exactness="bitwise",
        primary="kv.peak_activation_bytes",
        reference="deepseek_v4_dspark.md 2.2",
        expected_bytes=stream_bytes,
        needs="large-token path only; streams in private dense storage; PP=1",
    ),
    Toggle(
        name="mhc_input_reuse",
        kind="optimization",
        summary="write a seam's layer input over the sublayer output it has consumed",
        phase="profile",
        moves_line=True,
        exactness="bitwise",
        primary="kv.peak_activation_bytes",
        reference="deepseek_v4_dspark.md 2.2",
        expected_bytes=row_bytes,
        needs="large-token path only; the sublayer output not a workspace or all-reduce view; PP=1",
    ),
    Toggle(
        name="dflash_staging_skip",
        kind="optimization",
        summary="insert the draft's context states straight from where they are mixed, without a staging buffer",
        phase="init",
        moves_line=True,
        exactness="bitwise",
        primary="kv.persistent_bytes",
        reference="deepseek_v4_dspark.md 4",
        expected_bytes=row_bytes,
        speculative=("dspark",),
        needs="--speculative dspark; context insertion outside captured graphs; inert, and says so, otherwise",
    ),
    Toggle(
        name="draft_logits_persistent",
        kind="correctness",
        summary="keep the logits drafts were drawn from in one buffer by request slot; off: an attribute is reassigned",
        phase="serve",
        moves_line=False,
        exactness="output law",
        primary="output_law",
        reference="deepseek_v4_dspark.md 4",
        default_on=True,
        speculative=("mtp", "dspark"),
        needs="--speculative, probabilistic drafts; off shows under replay at temperature > 0 only",
    ),
    Toggle(
        name="rejection_keyword_binding",
        kind="correctness",
        summary="give the rejection sampler its optional arguments by name; off: by position, so they slip by one",
        phase="serve",
        moves_line=False,
        exactness="output law with synthetic rates",
        primary="accept.per_position",
        reference="deepseek_v4_dspark.md 4",
        default_on=True,
        speculative=("mtp", "dspark"),
        needs="--speculative with synthetic acceptance; off shows with synthetic rates only",
    ),
    Toggle(
        name="residual_reuse_small_path",
        kind="control",
        summary="planted defect: alias the residual in the small-token path, whose programs re-read it",
        phase="serve",
        moves_line=False,
        exactness="wrong output",
        primary="identity.tokens",
        reference="deepseek_v4_dspark.md 2.2",
    ),
)

REGISTRY: Mapping[str, Toggle] = {toggle.name: toggle for toggle in _TOGGLES}


def find(name: str) -> Toggle:
    """The toggle of that name; ToggleError names the nearest ones otherwise."""
    if name in REGISTRY:
        return REGISTRY[name]
    near = difflib.get_close_matches(name, REGISTRY, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "'dsbench toggles' lists them"
    raise ToggleError(f"unknown toggle '{name}': {hint}")


class ToggleSet:
    """The switches of one arm: immutable, with correctness toggles on unless turned off by name."""

    def __init__(self, on: Iterable[str] = (), off: Iterable[str] = ()) -> None:
        named_on, named_off = [find(name) for name in on], [find(name) for name in off]
        for toggle in named_off:
            if toggle.kind != "correctness":
                raise ToggleError(f"'{toggle.name}=off' says nothing: it is off unless named; leave it out")
        names_off = {toggle.name for toggle in named_off}
        for toggle in named_on:
            if toggle.name in names_off:
                raise ToggleError(f"toggle '{toggle.name}' is both on and off; name it once")
        default = {toggle.name for toggle in REGISTRY.values() if toggle.default_on}
        self._on = frozenset({toggle.name for toggle in named_on} | (default - names_off))
        self._default = frozenset(default)
        self._check()

    @classmethod
    def parse(cls, text: str) -> ToggleSet:
        """Read the environment's format: `a,b,c=off`; blanks and empty entries are ignored."""
        on: list[str] = []
        off: list[str] = []
        for entry in filter(None, (part.strip() for part in text.split(","))):
            name, _, state = entry.partition("=")
            if state not in ("", "on", "off"):
                raise ToggleError(f"toggle '{entry}': the state must be on or off, got '{state}'")
            (off if state == "off" else on).append(name.strip())
        return cls(on, off)

    @classmethod
    def from_environment(cls) -> ToggleSet:
        return cls.parse(os.environ.get(ENVIRONMENT, ""))

    def on(self, name: str) -> bool:
        """Whether a toggle is on; an unregistered name is a programming error and raises."""
        return find(name).name in self._on

    def names(self) -> tuple[str, ...]:
        """Names that are on, in registry order."""
        return tuple(name for name in REGISTRY if name in self._on)

    def controls(self) -> tuple[str, ...]:
        """Planted defects of this arm: controls that are on and correctness toggles that are off."""
        planted = [name for name in self.names() if REGISTRY[name].kind == "control"]
        return (*planted, *sorted(self._default - self._on))

    def _check(self) -> None:
        for name in self.names():
            for needed in REGISTRY[name].requires:
                if needed not in self._on:
                    raise ToggleError(f"toggle '{name}' needs '{needed}' on too: {REGISTRY[name].needs}")
            for other in REGISTRY[name].conflicts:
                if other in self._on:
                    raise ToggleError(f"toggles '{name}' and '{other}' cannot be on together; leave one out")

    def __str__(self) -> str:
        on = [name for name in self.names() if name not in self._default]
        return ",".join([*on, *(f"{name}=off" for name in sorted(self._default - self._on))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToggleSet) and self._on == other._on

    def __hash__(self) -> int:
        return hash(self._on)

    def __repr__(self) -> str:
        return f"ToggleSet({str(self)!r})"
