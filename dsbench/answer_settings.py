"""Settings of the probes that grade answers: smoke, gsm8k and instruction."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from dsbench.errors import InputError
from dsbench.probe_table import AtOnce, ProbeTable, Seed, Table, Text, Tokens
from dsbench.questions import (
    OWN,
    OWN_TEMPLATE,
    TEMPLATE,
    Question,
    digest,
    load_questions,
    own_examples,
    prompts,
)  # fmt: skip


class SmokeItem(Table):
    """One question with one right answer, asked greedily."""

    prompt: Text | None = None
    """Text to complete; or `chat` instead."""
    chat: Text | None = None
    """One user message."""
    answer: int | None = None
    """The first whole number of the reply must be this; or `expect` instead."""
    expect: Text | Annotated[list[int], Field(min_length=1)] | None = None
    """A text that the reply must hold as words of its own, in any case; or the whole numbers that it must begin with,
    in this order, where their count may come first."""
    max_tokens: Tokens = 8
    """Most tokens of the reply."""

    @model_validator(mode="after")
    def _one_question(self) -> SmokeItem:
        if (self.prompt is None) == (self.chat is None):
            raise ValueError("give either prompt or chat")
        if (self.answer is None) == (self.expect is None):
            raise ValueError("give either answer or expect")
        return self

    @property
    def name(self) -> str:
        """Its id among the items: no prompt has that of a chat."""
        if self.prompt is None:
            return f"chat {self.chat}"
        return f"prompt {self.prompt}" if self.prompt.startswith(("chat ", "prompt ")) else self.prompt


class SmokeProbe(ProbeTable):
    """Asks short questions; one item each."""

    items: list[SmokeItem] = Field(min_length=1)
    """The questions, each once: answers to one that stood twice would pass for those of two boots."""

    @field_validator("items")
    @classmethod
    def _each_once(cls, items: list[SmokeItem]) -> list[SmokeItem]:
        if twice := [name for name, times in Counter(item.name for item in items).items() if times > 1]:
            raise ValueError(f"asks {twice[0]!r} more than once: ask each question once")
        return items

    def metrics(self) -> list[str]:
        return ["smoke.correct"]

    def n_items(self) -> int:
        return len(self.items)

    def longest(self) -> int:
        return 1 + max(item.max_tokens for item in self.items)


class Gsm8kProbe(ProbeTable):
    """Asks word problems with one number as the answer."""

    in_warmup: ClassVar[bool] = False

    source: Text = "own"
    """`own`: the set that ships. Else the path of a JSONL file with question and answer, or `hf:gsm8k`."""
    limit: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Only the first so many questions; all of them by default."""
    shots: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Worked examples in front of each question; none for the own set and eight for others by default."""
    examples: Text | None = None
    """JSONL file whose first rows are the examples; ours by default."""
    mode: Literal["chat", "completion"] = "chat"
    """Whether a question is a user's message or a text to go on from."""
    template: str = ""
    """How a question, and an example before its answer, is written: a text with `{question}` in it. A chat without
    examples sends the bare question by default."""
    concurrency: AtOnce = 8
    """Questions at one time."""
    max_tokens: Tokens = 512
    """Most tokens of a reply; one that ends there counts as truncated."""
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
        bare = self.mode == "chat" and not shots and not self.template
        return questions, prompts(questions, examples[:shots], "{question}" if bare else self.form)

    def longest(self) -> int:
        return 1 + self.max_tokens

    @property
    def form(self) -> str:
        """The template, or the usual one of the source."""
        return self.template or (OWN_TEMPLATE if self.source == OWN else TEMPLATE)

    @property
    def stop(self) -> str | None:
        """What ends a completion: the beginning of another question. A chat ends by itself."""
        return self.form.partition("{question}")[0].strip() or None if self.mode == "completion" else None

    def body(self) -> dict[str, Any]:
        """What a request says beside prompt, length and stop."""
        sent = self.mode == "chat" and self.chat_template_kwargs
        return {"chat_template_kwargs": self.chat_template_kwargs} if sent else {}

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
    """Number of sentences."""
    seed: Seed = 0
    """The tasks are made from it."""
    concurrency: AtOnce = 8
    """Sentences at one time."""
    max_tokens: Tokens = 96
    """Most tokens of a reply."""
    chat_template_kwargs: dict[str, Any] = Field(default={"thinking": False, "enable_thinking": False})
    """Sent with chats; an empty table sends nothing."""

    def metrics(self) -> list[str]:
        return ["instruction.correct"]

    def n_items(self) -> int:
        return self.items

    def longest(self) -> int:
        return 1 + self.max_tokens

    def body(self) -> dict[str, Any]:
        """What a request says beside prompt and length."""
        return {"chat_template_kwargs": self.chat_template_kwargs} if self.chat_template_kwargs else {}
