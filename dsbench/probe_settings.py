"""Settings of every probe as a suite writes them, and what each reports: its metrics and its number of items."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]


class Table(BaseModel):
    """One table of a suite's TOML."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=False)


class ProbeTable(Table):
    """Settings of one probe."""

    timed: ClassVar[bool] = False
    """Whether a compiler at work would spoil it."""
    in_warmup: ClassVar[bool] = True
    """Whether a discarded boot runs it too; not what is counted and not timed, which a cold cache cannot change."""

    def metrics(self) -> list[str]:
        """Metric keys it reports when it has run."""
        raise NotImplementedError

    def n_items(self) -> int:
        """Number of items it asks; 0 for a probe without items."""
        return 0


class KvProbe(ProbeTable):
    """Reads the KV profile the engine wrote; sends nothing."""

    def metrics(self) -> list[str]:
        return ["kv.available_bytes", "kv.weights_bytes", "kv.persistent_bytes", "kv.workspace_bytes",
                "kv.peak_activation_bytes", "kv.runtime_peak_bytes", "kv.resident_bytes",
                "kv.index_maps_per_step", "kv.non_torch_bytes", "kv.blocks", "kv.tokens",
                "kv.max_concurrency"]  # fmt: skip


class DecodeProbe(ProbeTable):
    """Streams greedy completions of a fixed length and times them from the first token to the last."""

    timed: ClassVar[bool] = True

    streams: list[Count] = Field(min_length=1)
    """Numbers of concurrent streams; one metric `decode.tps.cN` each."""
    tokens: int = Field(ge=8)
    """Tokens generated per stream; the end token is ignored."""
    prompt_tokens: Count = 16
    repeats: Count = 3
    """Readings inside a boot; their median is the boot's value."""
    latency: bool = False
    """Whether times are reported too: `decode.ttft_ms.cN`, `decode.itl_ms.cN`, `decode.tpot_ms.cN`, and
    `decode.step_ms.cN`."""

    def metrics(self) -> list[str]:
        kinds = ["tps", *(("ttft_ms", "itl_ms", "tpot_ms", "step_ms") if self.latency else ())]
        return [f"decode.{kind}.c{streams}" for streams in self.streams for kind in kinds]


class PrefillProbe(ProbeTable):
    """Times prompts of fresh random token ids with one token of output."""

    timed: ClassVar[bool] = True

    lengths: list[Annotated[int, Field(ge=8)]] = Field(min_length=1)
    """Prompt lengths in tokens; one metric `prefill.tps.N` each."""
    repeats: Count = 3

    def metrics(self) -> list[str]:
        return [f"prefill.tps.{length}" for length in self.lengths]


class SmokeItem(Table):
    """One question with one right answer, asked greedily."""

    prompt: str | None = None
    """Text to complete; or `chat` instead."""
    chat: str | None = None
    """One user message."""
    answer: int
    """The first whole number of the reply must be this."""
    max_tokens: Count = 8

    @model_validator(mode="after")
    def _one_question(self) -> SmokeItem:
        if (self.prompt is None) == (self.chat is None):
            raise ValueError("give either prompt or chat")
        return self

    @property
    def name(self) -> str:
        return f"chat {self.chat}" if self.prompt is None else self.prompt


class SmokeProbe(ProbeTable):
    """Asks short questions; one item each."""

    items: list[SmokeItem] = Field(min_length=1)

    def metrics(self) -> list[str]:
        return ["smoke.correct"]

    def n_items(self) -> int:
        return len({item.name for item in self.items})


class IdentityProbe(ProbeTable):
    """Records the greedy token ids of fixed prompts, alone and `together` at a time."""

    prompts: list[Text] = Field(min_length=1)
    tokens: Count = 32
    together: Annotated[int, Field(ge=2)] = 4

    def metrics(self) -> list[str]:
        return ["identity.tokens"]

    def n_items(self) -> int:
        return 2 * len(self.prompts)


class AcceptanceProbe(ProbeTable):
    """Counts what the drafts did on fixed prompts, prose and structured text apart, greedy and sampled."""

    in_warmup: ClassVar[bool] = False

    prose: list[Text] = Field(min_length=1)
    structured: list[Text] = Field(min_length=1)
    tokens: Annotated[int, Field(ge=2)] = 48
    """Most tokens of a request; the first comes without a draft."""
    samples: Count = 4
    """Requests a prompt at temperature 1, each with its own seed; one at temperature 0."""
    together: Count = 4
    """Requests at one time."""

    def metrics(self) -> list[str]:
        return ["accept.rate", "accept.length", "accept.per_position", "accept.conditional"]


class OutputLawProbe(ProbeTable):
    """Compares short sampled outputs with the target's own law."""

    in_warmup: ClassVar[bool] = False

    prompts: list[Text] = Field(min_length=1)
    requests: Annotated[int, Field(ge=50)] = 2000
    """Requests in a boot, shared out over the prompts; each has its own seed."""
    tokens: Annotated[int, Field(ge=2, le=8)] = 4
    """Tokens of a request; the first comes without a draft."""
    together: list[Annotated[int, Field(ge=2)]] = Field(default=[3, 6], min_length=2)
    """Requests at one time, in parts of equal size. A stale buffer hides at the batch size captured last,
    so there are at least two sizes."""
    contexts: Count = 12
    """Beginnings of an output that are followed, the most frequent ones at each position."""

    def metrics(self) -> list[str]:
        return ["output_law"]


class Probes(Table):
    """The probes of a suite, in the order they run."""

    kv: KvProbe | None = None
    smoke: SmokeProbe | None = None
    identity: IdentityProbe | None = None
    acceptance: AcceptanceProbe | None = None
    output_law: OutputLawProbe | None = None
    prefill: PrefillProbe | None = None
    decode: DecodeProbe | None = None

    def names(self) -> list[str]:
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    def warmup_names(self) -> list[str]:
        """What a discarded boot runs."""
        return [name for name in self.names() if self.table(name).in_warmup]

    def table(self, name: str) -> ProbeTable:
        """Settings of one probe of this suite."""
        found: ProbeTable = getattr(self, name)
        return found

    def items(self, name: str) -> int:
        """Number of items that one probe of this suite asks; 0 for probes without items."""
        return self.table(name).n_items()

    def metrics(self, name: str) -> list[str]:
        """Metric keys that one probe of this suite reports when it has run."""
        return self.table(name).metrics()

    def without(self, *names: str) -> Probes:
        """The same probes, less those named."""
        return self.model_copy(update=dict.fromkeys(names))
