"""The registry of toggles (torch-free): what each one does, where its bytes live, what it needs.

An arm names its toggles in `DSBENCH_TOGGLES`, a comma list: `mhc_input_reuse,mtp_hidden_skip`.
`name=off` turns off a correctness toggle that is on by default; `name:VALUE` gives a control its argument.
"""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from impl.dims import Dims
from impl.platforms import padded_heads

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


def query_bytes(dims: Dims) -> int:
    """Bytes of the padded queries of one step in this engine: bf16 [T, padded heads, D]."""
    return dims.max_num_batched_tokens * padded_heads("cpu", dims.n_heads) * dims.head_dim * 2


def index_bytes(dims: Dims) -> int:
    """Bytes of the dense compressed indices of one step: int32 [T, W]."""
    return dims.max_num_batched_tokens * dims.index_row_width * 4


@dataclass(frozen=True)
class Argument:
    """The number a control takes, as in `name:VALUE`."""

    name: str
    summary: str
    whole: bool
    least: float
    most: float

    def read(self, toggle: str, text: str) -> float:
        """The value. ToggleError, with the mend, for what is none."""
        try:
            value: float = int(text) if self.whole else float(text)
        except ValueError:
            value = math.nan
        if not self.least <= value <= self.most:
            kind = "a whole number" if self.whole else "a number"
            raise ToggleError(
                f"toggle '{toggle}:{text}': {self.name} must be {kind} from {self.least} to {self.most}, {self.summary}"
            )
        return value


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
    argument: Argument | None = None
    """What must follow its name, behind a colon."""
    in_vllm: str = ""
    """What its outputs owe the baseline's in vLLM, where that is less than in this engine."""
    unverified_on: str = ""
    """Hardware that it is for and has not run on."""
    verified_by: str = ""
    """The one command that would verify it there."""

    @property
    def exactness_told(self) -> str:
        """`exactness` with its limits: what holds in vLLM, and where nobody has seen it hold."""
        limits = (
            self.in_vllm and f"in vLLM {self.in_vllm}",
            self.unverified_on and f"unverified on {self.unverified_on}",
        )
        return "; ".join(filter(None, (self.exactness, *limits)))


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
        engines=("embedded", "vllm"),
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
        in_vllm="the head within one rounding step",
        engines=("embedded", "vllm"),
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
        engines=("embedded", "vllm"),
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
        engines=("embedded", "vllm"),
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
        engines=("embedded", "vllm"),
    ),
    Toggle(
        name="c128a_topk_shared",
        kind="optimization",
        summary="keep the dense index rows of decodes and prefills in one buffer that they part exactly",
        phase="after profile",
        moves_line=False,
        exactness="bitwise",
        primary="kv.resident_bytes",
        reference="deepseek_v4_dspark.md 3.4",
        expected_bytes=index_bytes,
        needs="no captured graph that mixes decode and prefill rows; inert, and says so, without dense layers",
        engines=("embedded", "vllm"),
    ),
    Toggle(
        name="q_in_place",
        kind="optimization",
        summary="norm and rotate the queries in the projection's own output, without padded scratch",
        phase="serve",
        moves_line=False,
        exactness="bitwise",
        primary="kv.runtime_peak_bytes",
        reference="deepseek_v4_dspark.md 3.7",
        expected_bytes=query_bytes,
        needs="as many local heads as the platform's kernel reads",
        engines=("embedded", "vllm"),
    ),
    Toggle(
        name="c128_indices_in_place",
        kind="optimization",
        summary="map the dense index rows of prefills to global slots once a step, in place, for all layers",
        phase="serve",
        moves_line=False,
        exactness="bitwise",
        primary="kv.runtime_peak_bytes",
        reference="deepseek_v4_dspark.md 3.5",
        expected_bytes=index_bytes,
        needs="every dense layer reads global indices (in vLLM: on SM120); kv.index_maps_per_step falls to 1",
        unverified_on="SM120",
        verified_by="python -m impl.vllm_plugin.check_ops index",
        engines=("embedded", "vllm"),
    ),
    Toggle(
        name="sp_moe_config_aware",
        kind="optimization",
        summary="decide sequence-parallel MoE by the whole configuration, not by DP > 1 alone",
        phase="init",
        moves_line=False,
        exactness="truth table",
        primary="moe.sp_active",
        reference="source_pr.md 7",
        engines=("vllm",),
        needs="expert parallelism; it flips pad_shared_expert, and with it the shapes of the shared expert's weights",
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
        engines=("embedded", "vllm"),
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
        engines=("embedded", "vllm"),
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
    Toggle(
        name="c128_double_map",
        kind="control",
        summary="planted defect: map dense index rows that are global slots already",
        phase="serve",
        moves_line=False,
        exactness="wrong output",
        primary="identity.tokens",
        reference="deepseek_v4_dspark.md 3.5",
    ),
    Toggle(
        name="c128_row_corrupt",
        kind="control",
        summary="planted defect: the dense index row of every Nth position is zeroed: its first entry, again and again",
        phase="serve",
        moves_line=False,
        exactness="wrong output",
        primary="identity.tokens",
        reference="deepseek_v4_dspark.md 3.4",
        argument=Argument("N", "one row in N is wrong", whole=True, least=1, most=1 << 20),
    ),
    Toggle(
        name="slow_step",
        kind="control",
        summary="planted defect: every step takes P % longer",
        phase="serve",
        moves_line=False,
        exactness="bitwise",
        primary="decode.tps.c1",
        reference="measurement.md",
        argument=Argument("P", "per cent of a step's time", whole=False, least=0.1, most=1000),
    ),
    Toggle(
        name="leak",
        kind="control",
        summary="planted defect: every step, the profile's too, keeps BYTES for ever",
        phase="serve",
        moves_line=True,
        exactness="bitwise",
        primary="kv.resident_bytes",
        reference="measurement.md",
        argument=Argument("BYTES", "kept by every step", whole=True, least=1, most=1 << 30),
    ),
)

REGISTRY: Mapping[str, Toggle] = {toggle.name: toggle for toggle in _TOGGLES}


def find(entry: str) -> Toggle:
    """The toggle of that name, or of `name:VALUE`; ToggleError names the nearest ones otherwise."""
    name = entry.partition(":")[0]
    if name in REGISTRY:
        return REGISTRY[name]
    near = difflib.get_close_matches(name, REGISTRY, n=2, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "'dsbench toggles' lists them"
    raise ToggleError(f"unknown toggle '{name}': {hint}")


class ToggleSet:
    """The switches of one arm: immutable, with correctness toggles on unless turned off by name."""

    def __init__(self, on: Iterable[str] = (), off: Iterable[str] = ()) -> None:
        """Names, those of toggles with an argument as `name:VALUE`. Raises ToggleError."""
        on, off = list(on), list(off)
        self._arguments = _arguments([*on, *off])
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

    def argument(self, name: str) -> float:
        """The argument of a toggle that is on and takes one; KeyError otherwise."""
        return self._arguments[name]

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
        values = {name: f":{value!r}" for name, value in self._arguments.items()}
        on = [name + values.get(name, "") for name in self.names() if name not in self._default]
        return ",".join([*on, *(f"{name}=off" for name in sorted(self._default - self._on))])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToggleSet) and (self._on, self._arguments) == (other._on, other._arguments)

    def __hash__(self) -> int:
        return hash((self._on, frozenset(self._arguments.items())))

    def __repr__(self) -> str:
        return f"ToggleSet({str(self)!r})"


def _arguments(entries: Iterable[str]) -> dict[str, float]:
    """Arguments by toggle; ToggleError for one that is missing, too much, no fit, or there twice."""
    found: dict[str, float] = {}
    for entry in entries:
        toggle, (name, colon, text) = find(entry), entry.partition(":")
        if toggle.argument is None:
            if colon:
                raise ToggleError(f"toggle '{name}' takes no argument, got '{text}': leave ':{text}' out")
            continue
        what = toggle.argument
        if not text:
            raise ToggleError(f"toggle '{name}' needs its argument: write {name}:{what.name}, {what.summary}")
        value = what.read(name, text)
        if found.setdefault(name, value) != value:
            raise ToggleError(f"toggle '{name}' is there with {found[name]:g} and with {value:g}; name it once")
    return found
