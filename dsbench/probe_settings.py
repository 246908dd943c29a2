"""Settings of every probe as a suite writes them, and what each reports: its metrics and its number of items."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from dsbench.tool_scenarios import Scenario, battery

Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]

PAIR_KEYS = 26 * 26
"""Keys of two lower-case letters."""


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

    def longest(self) -> int:
        """Tokens of its longest request, output included; 0 where only the engine's tokenizer can say."""
        return 0

    def pinned(self) -> Self:
        """The settings as a plan keeps them: what they point to is read, counted and digested."""
        return self


class KvProbe(ProbeTable):
    """Reads the KV profile the engine wrote; sends nothing."""

    def metrics(self) -> list[str]:
        return ["kv.available_bytes", "kv.weights_bytes", "kv.persistent_bytes", "kv.workspace_bytes",
                "kv.peak_activation_bytes", "kv.runtime_peak_bytes", "kv.resident_bytes",
                "kv.index_maps_per_step", "kv.non_torch_bytes", "kv.blocks", "kv.tokens",
                "kv.max_concurrency"]  # fmt: skip


class WarmProbe(ProbeTable):
    """Sends what the timed probes send, with other prompts, before the clock runs."""

    in_warmup: ClassVar[bool] = False

    rounds: Count = 1

    def metrics(self) -> list[str]:
        return []


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

    def longest(self) -> int:
        return self.prompt_tokens + self.tokens


class PrefillProbe(ProbeTable):
    """Times prompts of fresh random token ids with one token of output."""

    timed: ClassVar[bool] = True

    lengths: list[Annotated[int, Field(ge=8)]] = Field(min_length=1)
    """Prompt lengths in tokens; one metric `prefill.tps.N` each."""
    repeats: Count = 3

    def metrics(self) -> list[str]:
        return [f"prefill.tps.{length}" for length in self.lengths]

    def longest(self) -> int:
        return max(self.lengths) + 1


class GpuTimeProbe(ProbeTable):
    """Reads the GPU's own time of decode steps from a profiler trace that the server writes."""

    timed: ClassVar[bool] = True

    streams: list[Count] = Field(min_length=1)
    """Numbers of concurrent streams; one metric `decode.gpu_ms.cN` each."""
    tokens: Annotated[int, Field(ge=16)] = 96
    """Tokens generated per stream, once untraced and once traced."""
    prompt_tokens: Count = 16

    def metrics(self) -> list[str]:
        return [f"decode.gpu_ms.c{streams}" for streams in self.streams]


class SmokeItem(Table):
    """One question with one right answer, asked greedily."""

    prompt: str | None = None
    """Text to complete; or `chat` instead."""
    chat: str | None = None
    """One user message."""
    answer: int | None = None
    """The first whole number of the reply must be this; or `expect` instead."""
    expect: Text | Annotated[list[int], Field(min_length=1)] | None = None
    """A text that the reply must hold as words of its own, in any case; or the whole numbers that it must begin with,
    in this order, where their count may come first."""
    max_tokens: Count = 8

    @model_validator(mode="after")
    def _one_question(self) -> SmokeItem:
        if (self.prompt is None) == (self.chat is None):
            raise ValueError("give either prompt or chat")
        if (self.answer is None) == (self.expect is None):
            raise ValueError("give either answer or expect")
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

    prompts: list[Text] = Field(default=[])
    lengths: list[Count] = Field(default=[])
    """Prompts of so many fixed random token ids, for engines without a tokenizer."""
    tokens: Count = 32
    together: Annotated[int, Field(ge=0)] = 4
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


class CoherenceProbe(ProbeTable):
    """Hides needles in long prompts, and asks for all of them at once."""

    in_warmup: ClassVar[bool] = False

    style: Literal["report", "pairs"]
    """report: a log in plain English that a chat is asked about. pairs: `kx=42` lines, for our small model."""
    lines: Annotated[int, Field(ge=8)]
    """Lines of a prompt, needles and distractors apart."""
    needles: Annotated[int, Field(ge=1, le=12)] = 3
    distractors: Annotated[int, Field(ge=0, le=12)] = 3
    """Lines that look like needles and are none."""
    concurrencies: list[Count] = Field(default=[1, 12], min_length=1)
    seeds: Count = 2
    """Times that each concurrency and payload is asked, each with prompts of its own."""
    payloads: list[Literal["unique", "identical"]] = Field(default=["unique", "identical"], min_length=1)
    """unique: every request has a prompt of its own. identical: all requests of a seed send one prompt."""
    max_tokens: Count = 384
    chat_template_kwargs: dict[str, Any] = Field(default={})
    """For chat templates that think unless told not to, such as `{ thinking = false }`."""

    @model_validator(mode="after")
    def _room(self) -> CoherenceProbe:
        if self.style == "pairs" and self.lines + self.distractors > PAIR_KEYS:
            raise ValueError(f"lines: there are {PAIR_KEYS} keys of two letters, distractors included")
        if self.lines < (least := 4 * (self.needles + self.distractors)):
            raise ValueError(f"lines: {self.needles} needles and {self.distractors} distractors need {least} lines")
        return self

    def metrics(self) -> list[str]:
        return ["coherence.recall", "coherence.clean", "coherence.finished", "coherence.prefix_reuse"]

    def parts(self) -> list[tuple[int, str]]:
        """Concurrency and payload, in the order they are asked."""
        return [(streams, payload) for streams in self.concurrencies for payload in self.payloads]

    def n_items(self) -> int:
        requests = self.seeds * len(self.payloads) * sum(self.concurrencies)
        return requests * (1 + self.needles) + len(self.parts())

    def longest(self) -> int:
        asked = len("\n?") + len("kx,") * self.needles
        pairs = 1 + len("kx=42\n") * (self.lines + self.distractors) + asked + self.max_tokens
        return pairs if self.style == "pairs" else 0


class Gsm8kProbe(ProbeTable):
    """Asks word problems with one number as the answer."""

    in_warmup: ClassVar[bool] = False

    source: Text = "own"
    """`own`: the set that ships. Else the path of a JSONL file with question and answer, or `hf:gsm8k`."""
    limit: Count | None = None
    """Only the first so many questions; all of them by default."""
    shots: Annotated[int, Field(ge=0)] | None = None
    """Worked examples in front of each question; none for the own set and eight for others by default."""
    examples: Text | None = None
    """JSONL file whose first rows are the examples; ours by default."""
    mode: Literal["chat", "completion"] = "chat"
    template: str = ""
    """How a question, and an example before its answer, is written: a text with `{question}` in it. A chat without
    examples sends the bare question by default."""
    concurrency: Count = 8
    max_tokens: Count = 512
    chat_template_kwargs: dict[str, Any] = Field(default={"thinking": False, "enable_thinking": False})
    """Sent with chats; an empty table sends nothing."""
    filters: bool = False
    """Whether lm-eval's strict and flexible filters are reported too."""
    digest: str = ""
    """Of prompts and gold answers. A plan fills it in; a suite that gives it refuses any other questions."""

    @model_validator(mode="after")
    def _place_for_the_question(self) -> Gsm8kProbe:
        if self.template and "{question}" not in self.template:
            raise ValueError("template: has no {question} in it")
        return self

    def metrics(self) -> list[str]:
        return ["gsm8k.correct", "gsm8k.truncated", *(["gsm8k.strict", "gsm8k.flexible"] if self.filters else [])]

    def n_items(self) -> int:
        return self.limit if self.limit is not None else len(self.load()[0])

    def load(self) -> tuple[list[Question], list[str]]:
        """The questions, and what is sent for each. InputError for a file that is none of questions, or too short."""
        questions = load_questions(self.source)
        if self.limit and self.limit > len(questions):
            raise InputError(f"gsm8k: limit is {self.limit}, and '{self.source}' has {len(questions)} questions")
        questions = questions[: self.limit]
        shots = self.shots if self.shots is not None else 0 if self.source == OWN else 8
        examples = load_questions(self.examples) if self.examples else own_examples()
        if shots > len(examples):
            raise InputError(f"gsm8k: shots is {shots}, and there are {len(examples)} examples: give a longer file")
        bare = self.mode == "chat" and not shots
        usual = "{question}" if bare else OWN_TEMPLATE if self.source == OWN else TEMPLATE
        return questions, prompts(questions, examples[:shots], self.template or usual)

    def pinned(self) -> Gsm8kProbe:
        questions, texts = self.load()
        found = digest(texts, questions)
        if self.digest not in ("", found):
            raise InputError(f"gsm8k: the questions have the digest {found}, the suite asks for {self.digest}")
        return self.model_copy(update={"limit": len(questions), "digest": found})


class InstructionProbe(ProbeTable):
    """Asks for JSON and nothing else."""

    in_warmup: ClassVar[bool] = False

    items: Annotated[int, Field(ge=1, le=5000)] = 50
    seed: int = 0
    """The tasks are made from it."""
    concurrency: Count = 8
    max_tokens: Count = 96
    chat_template_kwargs: dict[str, Any] = Field(default={"thinking": False, "enable_thinking": False})
    """Sent with chats; an empty table sends nothing."""

    def metrics(self) -> list[str]:
        return ["instruction.correct"]

    def n_items(self) -> int:
        return self.items


class ConcurrencyProbe(ProbeTable):
    """Greedy streams of one length on fixed texts, at several concurrencies."""

    timed: ClassVar[bool] = True

    prompts: list[Text] = Field(min_length=1)
    """Shared out over the streams."""
    streams: list[Count] = Field(default=[1, 2, 4, 8, 12], min_length=1)
    max_tokens: Annotated[int, Field(ge=8)] = 500
    """Tokens of every stream; the end token is ignored."""
    repeats: Count = 2
    """Readings inside a boot; their median is the boot's value."""
    acceptance: bool = True
    """Whether drafts are counted; taken out of plans without speculation in every arm."""

    def metrics(self) -> list[str]:
        kinds = ["tps", "request_tps", *(["accept"] if self.acceptance else [])]
        return [f"concurrency.{kind}.c{streams}" for streams in self.streams for kind in kinds]


class LongContextProbe(ProbeTable):
    """Times sampled tokens after long prompts, from the first token on."""

    timed: ClassVar[bool] = True

    lengths: list[Annotated[int, Field(ge=8)]] = Field(default=[32_768, 65_536], min_length=1)
    """Prompt lengths in tokens; one metric `long_context.tps.N` each."""
    tokens: Annotated[int, Field(ge=8)] = 2048
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
    rounds: Count = 1
    temperature: Annotated[float, Field(ge=0)] = 0.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: int = 1
    """Of the first round; each round adds one, so that arms and boots draw alike."""
    max_tokens: Count = 2048
    """Most tokens of a turn, thought included."""
    together: Count = 1
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

    def n_items(self) -> int:
        return len(self.chosen()) * len(self.thinking) * self.rounds


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

    def pinned(self) -> Probes:
        """The same probes, each as a plan keeps it."""
        return self.model_copy(update={name: self.table(name).pinned() for name in self.names()})

    def without(self, *names: str) -> Probes:
        """The same probes, less those named."""
        return self.model_copy(update=dict.fromkeys(names))
