"""Settings of every probe as a suite writes them, and what each reports: its metrics and its number of items."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from dsbench.answer_settings import Gsm8kProbe, InstructionProbe, SmokeProbe
from dsbench.probe_table import MOST_AT_ONCE, MOST_TOKENS, AtOnce, Count, Once, ProbeTable, Seed, Table, Text, Tokens
from dsbench.probes.needles import BALLOT, MORE_BALLOTS
from dsbench.pytest_settings import KernelsProbe, UnitProbe
from dsbench.tool_scenarios import Scenario, battery

PAIR_KEYS = 26 * 26
"""Keys of two lower-case letters."""
LEAST_BALLOTS = 20
SP_ACTIVE, INDEX_MAPS = "moe.sp_active", "kv.index_maps_per_step"


class KvProbe(ProbeTable):
    """Reads the KV profile the engine wrote; sends nothing."""

    sequence_parallel: bool = False
    """Whether it reads how the MoE layers were built, too: `moe.sp_active`. Plans ask where an arm is judged by it."""
    index_maps: bool = True
    """Whether it reads `kv.index_maps_per_step`; taken out of plans for vLLM, where nobody counts them."""

    def metrics(self) -> list[str]:
        return ["kv.available_bytes", "kv.weights_bytes", "kv.persistent_bytes", "kv.workspace_bytes",
                "kv.peak_activation_bytes", "kv.runtime_peak_bytes", "kv.resident_bytes",
                *([INDEX_MAPS] if self.index_maps else []), "kv.non_torch_bytes", "kv.blocks", "kv.tokens",
                "kv.max_concurrency", *([SP_ACTIVE] if self.sequence_parallel else [])]  # fmt: skip


class WarmProbe(ProbeTable):
    """Sends what the timed probes send, with other prompts, before the clock runs."""

    in_warmup: ClassVar[bool] = False

    rounds: Count = 1
    """Times that everything is sent."""

    def metrics(self) -> list[str]:
        return []


class DecodeProbe(ProbeTable):
    """Streams greedy completions of a fixed length and times them from the first token to the last."""

    timed: ClassVar[bool] = True

    streams: Annotated[list[AtOnce], Once] = Field(min_length=1)
    """Numbers of concurrent streams; one metric `decode.tps.cN` each."""
    tokens: int = Field(ge=8, le=MOST_TOKENS)
    """Tokens generated per stream; the end token is ignored."""
    prompts: list[Text] = Field(default=[])
    """Texts that the streams go on from, by turns; without them each begins with random token ids, after which a draft
    foresees little of what follows."""
    prompt_tokens: Tokens = 16
    """Random token ids, where no texts are given."""
    repeats: Count = 3
    """Readings inside a boot; their median is the boot's value."""
    latency: bool = False
    """Whether times are reported too: `decode.ttft_ms.cN`, `decode.itl_ms.cN`, `decode.tpot_ms.cN`, and
    `decode.step_ms.cN`."""

    def metrics(self) -> list[str]:
        kinds = ["tps", *(("ttft_ms", "itl_ms", "tpot_ms", "step_ms") if self.latency else ())]
        return [f"decode.{kind}.c{streams}" for streams in self.streams for kind in kinds]

    def longest(self) -> int:
        return (1 if self.prompts else self.prompt_tokens) + self.tokens


class PrefillProbe(ProbeTable):
    """Times prompts of fresh random token ids with one token of output."""

    timed: ClassVar[bool] = True

    lengths: Annotated[list[Annotated[int, Field(ge=8, le=MOST_TOKENS)]], Once] = Field(min_length=1)
    """Prompt lengths in tokens; one metric `prefill.tps.N` each."""
    repeats: Count = 3
    """Readings inside a boot; their median is the boot's value."""

    def metrics(self) -> list[str]:
        return [f"prefill.tps.{length}" for length in self.lengths]

    def longest(self) -> int:
        return max(self.lengths) + 1


class GpuTimeProbe(ProbeTable):
    """Reads the GPU's own time of decode steps from a profiler trace that the server writes."""

    timed: ClassVar[bool] = True

    streams: Annotated[list[AtOnce], Once] = Field(min_length=1)
    """Numbers of concurrent streams; one metric `decode.gpu_ms.cN` each."""
    tokens: Annotated[int, Field(ge=16, le=MOST_TOKENS)] = 96
    """Tokens generated per stream, once untraced and once traced."""
    prompt_tokens: Tokens = 16
    """Random token ids of a prompt."""

    def metrics(self) -> list[str]:
        return [f"decode.gpu_ms.c{streams}" for streams in self.streams]

    def longest(self) -> int:
        return self.prompt_tokens + self.tokens


class IdentityProbe(ProbeTable):
    """Records the greedy token ids of fixed prompts, alone and `together` at a time."""

    prompts: list[Text] = Field(default=[])
    """Texts that are gone on from."""
    lengths: list[Tokens] = Field(default=[])
    """Prompts of so many fixed random token ids, for engines without a tokenizer."""
    tokens: Tokens = 32
    """Tokens of every answer; the end token is ignored."""
    together: Annotated[int, Field(ge=0, le=MOST_AT_ONCE)] = 4
    """0: alone only, for engines whose numbers depend on what else is in the batch."""

    @model_validator(mode="after")
    def _prompts_and_batch(self) -> IdentityProbe:
        if not self.prompts and not self.lengths:
            raise ValueError("give prompts or lengths")
        if self.together == 1:
            raise ValueError("together must be 0 or at least 2")
        return self

    def metrics(self) -> list[str]:
        return ["identity.tokens"]

    def n_items(self) -> int:
        return (len(self.prompts) + len(self.lengths)) * (2 if self.together else 1)

    def longest(self) -> int:
        return max(self.lengths, default=1) + self.tokens


class AcceptanceProbe(ProbeTable):
    """Counts what the drafts did on fixed prompts, prose, structured text and random ids apart, greedy and sampled."""

    in_warmup: ClassVar[bool] = False

    prose: list[Text] = Field(default=[])
    """Prompts whose text goes on as prose."""
    structured: list[Text] = Field(default=[])
    """Prompts whose text goes on in a form: code, tables, questions and answers."""
    lengths: list[Tokens] = Field(default=[])
    """Prompts of so many random token ids, drawn by the plan's seed, for engines without a tokenizer."""
    tokens: Annotated[int, Field(ge=2, le=MOST_TOKENS)] = 48
    """Most tokens of a request; the first comes without a draft."""
    samples: Count = 4
    """Requests a prompt at temperature 1, each with its own seed; one at temperature 0."""
    together: AtOnce = 4
    """Requests at one time."""

    @model_validator(mode="after")
    def _prompts(self) -> AcceptanceProbe:
        if not (self.prose and self.structured) and (self.prose or self.structured or not self.lengths):
            raise ValueError("give prose and structured, or lengths")
        return self

    def longest(self) -> int:
        return max(self.lengths, default=1) + self.tokens

    def metrics(self) -> list[str]:
        return ["accept.rate", "accept.length", "accept.per_position", "accept.conditional"]


class OutputLawProbe(ProbeTable):
    """Compares short sampled outputs with the target's own law."""

    in_warmup: ClassVar[bool] = False

    prompts: list[Text] = Field(min_length=1)
    """Texts that are gone on from."""
    requests: Annotated[int, Field(ge=50, le=1_000_000)] = 2000
    """Requests in a boot, shared out over the prompts; each has its own seed."""
    tokens: Annotated[int, Field(ge=2, le=8)] = 4
    """Tokens of a request; the first comes without a draft."""
    together: Annotated[list[Annotated[int, Field(ge=2, le=MOST_AT_ONCE)]], Once] = Field(default=[3, 6], min_length=2)
    """Requests at one time, in parts of equal size. A stale buffer hides at the batch size captured last,
    so there are at least two sizes."""
    contexts: Count = 12
    """Beginnings of an output that are followed, the most frequent ones at each position."""

    def metrics(self) -> list[str]:
        return ["output_law"]


class CoherenceProbe(ProbeTable):
    """Hides needles in long prompts, and asks for all of them at once."""

    in_warmup: ClassVar[bool] = False

    style: Literal["report", "pairs"]
    """report: a log in plain English that a chat is asked about. pairs: `kx=42` lines, for our small model."""
    lines: Annotated[int, Field(ge=8, le=100_000)]
    """Lines of a prompt, needles and distractors apart."""
    needles: Annotated[int, Field(ge=1, le=12)] = 3
    """Facts of a prompt that are asked for."""
    distractors: Annotated[int, Field(ge=0, le=12)] = 3
    """Lines that look like needles and are none."""
    ballots: Annotated[int, Field(ge=0, le=400)] = 0
    """Ballots among the lines of `pairs`, at least; their tally is asked for behind the keys. 0: neither."""
    concurrencies: Annotated[list[AtOnce], Once] = Field(default=[1, 12], min_length=1)
    """Numbers of requests at one time."""
    seeds: Count = 2
    """Times that each concurrency and payload is asked, each with prompts of its own."""
    payloads: Annotated[list[Literal["unique", "identical"]], Once] = Field(
        default=["unique", "identical"], min_length=1
    )
    """unique: every request has a prompt of its own. identical: all requests of a seed send one prompt."""
    max_tokens: Tokens = 384
    """Most tokens of a reply."""
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """For chat templates that think unless told not to, such as `{ thinking = false }`."""

    @model_validator(mode="after")
    def _room(self) -> CoherenceProbe:
        if self.style == "pairs" and self.lines + self.distractors > PAIR_KEYS:
            raise ValueError(f"lines: there are {PAIR_KEYS} keys of two letters, distractors included")
        if self.ballots and self.style != "pairs":
            raise ValueError("ballots: only pairs has them")
        if self.ballots and self.ballots < LEAST_BALLOTS:
            raise ValueError(f"ballots: a tally needs {LEAST_BALLOTS}, 0 is none, got {self.ballots}")
        if self.lines < (least := 4 * (self.needles + self.distractors)):
            raise ValueError(f"lines: {self.needles} needles and {self.distractors} distractors need {least} lines")
        return self

    def metrics(self) -> list[str]:
        return ["coherence.recall", "coherence.clean", "coherence.finished", "coherence.prefix_reuse"]

    def parts(self) -> list[tuple[int, str]]:
        """Concurrency and payload, in the order they are asked."""
        return [(streams, payload) for streams in self.concurrencies for payload in self.payloads]

    def n_requests(self) -> int:
        return self.seeds * len(self.payloads) * sum(self.concurrencies)

    def n_items(self) -> int:
        return self.n_requests() + self.n_items_of("coherence.recall") + len(self.parts())

    def n_items_of(self, metric: str) -> int:
        return self.n_requests() * (self.needles + (self.ballots > 0) if metric == "coherence.recall" else 1)

    def longest(self) -> int:
        asked = len("?") + len("kx,") * self.needles
        pairs = 1 + len("kx=42\n") * (self.lines + self.distractors) + asked + self.max_tokens
        if self.ballots:
            pairs += BALLOT * (self.ballots + MORE_BALLOTS) + len(",*")
        return pairs if self.style == "pairs" else 1 + self.max_tokens


class ConcurrencyProbe(ProbeTable):
    """Greedy streams of one length on fixed texts, at several concurrencies."""

    timed: ClassVar[bool] = True

    prompts: list[Text] = Field(min_length=1)
    """Shared out over the streams."""
    streams: Annotated[list[AtOnce], Once] = Field(default=[1, 2, 4, 8, 12], min_length=1)
    """Numbers of streams at one time; `concurrency.tps.cN` and others, each."""
    max_tokens: Annotated[int, Field(ge=8, le=MOST_TOKENS)] = 500
    """Tokens of every stream; the end token is ignored."""
    repeats: Count = 2
    """Readings inside a boot; their median is the boot's value."""
    acceptance: bool = True
    """Whether drafts are counted; taken out of plans without speculation in every arm."""

    def metrics(self) -> list[str]:
        kinds = ["tps", "request_tps", *(["accept"] if self.acceptance else [])]
        return [f"concurrency.{kind}.c{streams}" for streams in self.streams for kind in kinds]

    def longest(self) -> int:
        return 1 + self.max_tokens


class LongContextProbe(ProbeTable):
    """Times sampled tokens after long prompts, from the first token on."""

    timed: ClassVar[bool] = True

    lengths: Annotated[list[Annotated[int, Field(ge=8, le=MOST_TOKENS)]], Once] = Field(
        default=[32_768, 65_536], min_length=1
    )
    """Prompt lengths in tokens; one metric `long_context.tps.N` each."""
    tokens: Annotated[int, Field(ge=8, le=MOST_TOKENS)] = 2048
    """Tokens of output; the end token is ignored."""
    repeats: Count = 1
    """Readings of each length, each with a prompt and a seed of its own; their median is the boot's value."""

    def metrics(self) -> list[str]:
        return [f"long_context.tps.{length}" for length in self.lengths]

    def longest(self) -> int:
        return max(self.lengths) + self.tokens


class ToolcallProbe(ProbeTable):
    """Holds conversations with mocked tools; an item is a scenario, a way of thinking and a round."""

    in_warmup: ClassVar[bool] = False

    scenarios: list[Text] = Field(default=[])
    """Ids such as A1; all fifteen where none is named."""
    thinking: list[Literal["off", "high", "max"]] = Field(default=["off", "high", "max"], min_length=1)
    """Ways in which the model is told to think."""
    rounds: Count = 1
    """Times that every conversation is held."""
    temperature: Annotated[float, Field(ge=0, le=100)] = 0.0
    """Of every turn; 0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of every turn."""
    seed: Seed = 1
    """Of the first round; each round adds one, so that arms and boots draw alike."""
    max_tokens: Tokens = 2048
    """Most tokens of a turn, thought included."""
    together: AtOnce = 1
    """Conversations at one time."""

    @model_validator(mode="after")
    def _known_and_once(self) -> ToolcallProbe:
        for names in (self.scenarios, self.thinking):
            if len({*names}) < len(names):
                raise ValueError(f"each only once, got {', '.join(names)}")
        self.chosen()
        return self

    def chosen(self) -> list[Scenario]:
        """Scenarios in the order they are played."""
        data = battery()
        return [data.scenario(name) for name in self.scenarios or data.ids]

    def metrics(self) -> list[str]:
        return ["toolcall.points", *dict.fromkeys(f"toolcall.{scenario.category}" for scenario in self.chosen())]

    def longest(self) -> int:
        return 1 + self.max_tokens

    def n_items(self) -> int:
        return len(self.chosen()) * len(self.thinking) * self.rounds

    def n_items_of(self, metric: str) -> int:
        mine = [s for s in self.chosen() if metric in ("toolcall.points", f"toolcall.{s.category}")]
        return len(mine) * len(self.thinking) * self.rounds


class Probes(Table):
    """The probes of a suite, in the order they run."""

    kv: KvProbe | None = None
    smoke: SmokeProbe | None = None
    gsm8k: Gsm8kProbe | None = None
    instruction: InstructionProbe | None = None
    identity: IdentityProbe | None = None
    acceptance: AcceptanceProbe | None = None
    output_law: OutputLawProbe | None = None
    coherence: CoherenceProbe | None = None
    warm: WarmProbe | None = None
    toolcall: ToolcallProbe | None = None
    prefill: PrefillProbe | None = None
    decode: DecodeProbe | None = None
    concurrency: ConcurrencyProbe | None = None
    long_context: LongContextProbe | None = None
    gpu_time: GpuTimeProbe | None = None
    kernels: KernelsProbe | None = None
    unit: UnitProbe | None = None

    def names(self) -> list[str]:
        return [name for name in type(self).model_fields if getattr(self, name) is not None]

    def due(self, block: int | None) -> list[str]:
        """What a boot of this block runs; None is a discarded boot's."""
        tables = {name: self.table(name) for name in self.names()}
        if block is None:
            return [name for name, table in tables.items() if table.in_warmup]
        return [name for name, table in tables.items() if table.blocks is None or block <= table.blocks]

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

    def pinned(self) -> Probes:
        """The same probes, each as a plan keeps it."""
        return self.model_copy(update={name: self.table(name).pinned() for name in self.names()})

    def without(self, *names: str) -> Probes:
        """The same probes, less those named."""
        return self.model_copy(update=dict.fromkeys(names))
