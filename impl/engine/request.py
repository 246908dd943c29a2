"""One request from arrival to finish: its tokens, how far it is computed, and when to stop (torch-free)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from impl import tokenizer

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class SamplingParams:
    """How a request's tokens are drawn and when they end."""

    max_tokens: int = 16
    temperature: float = 1.0
    """0 is greedy."""
    top_k: int = 0
    """Likeliest tokens kept; 0 keeps all."""
    top_p: float = 1.0
    """Probability mass kept; 1 keeps all."""
    seed: int = 0
    """64 bits; with the position of a row it fixes that row's noise."""
    stop_ids: frozenset[int] = frozenset()
    """Tokens that end the request (the end-of-text token is one unless it is to be ignored)."""
    stop: tuple[str, ...] = ()
    """Strings that end the request; the text is cut before them."""
    show_specials: bool = False
    """Whether special tokens stand in the text; one that ends the request never does."""
    logprobs: int | None = None
    """Number of likeliest alternatives to report with each token; None reports nothing."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Natural logs of the model's own probabilities, before temperature and cuts."""

    chosen: float
    top: tuple[tuple[int, float], ...] = ()
    """(token, logprob), likeliest first."""


@dataclass(eq=False)
class Request:
    """Mutable state of one request; owned by the engine thread once it is submitted."""

    id: str
    prompt: list[int]
    sampling: SamplingParams
    outputs: list[int] = field(default_factory=list)
    text: str = ""
    """Decoded outputs, cut at a stop string."""
    computed: int = 0
    """Tokens whose cache entries are written; 0 again after a preemption."""
    row: int | None = None
    """Line of the block tables while running."""
    drafts: list[int] = field(default_factory=list)
    """Proposed tokens behind the last known one, not verified yet."""
    finish_reason: FinishReason | None = None
    n_preemptions: int = 0
    arrival_time: float = field(default_factory=time.monotonic)
    first_token_time: float | None = None
    last_token_time: float | None = None

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("prompt is empty: give at least one token")
        if self.sampling.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.sampling.max_tokens}")
        self._streamed = 0

    @property
    def n_tokens(self) -> int:
        """Tokens known so far, prompt and outputs."""
        return len(self.prompt) + len(self.outputs)

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed yet."""
        return self.n_tokens - self.computed

    @property
    def is_decode(self) -> bool:
        """Whether its next row only extends what it has generated."""
        return bool(self.outputs) and self.remaining == 1

    @property
    def most_tokens(self) -> int:
        """Positions it computes at most: the last output is never fed back."""
        return len(self.prompt) + self.sampling.max_tokens - 1

    def tokens(self, start: int, end: int) -> list[int]:
        """Known tokens of positions start to end - 1."""
        n_prompt = len(self.prompt)
        if start >= n_prompt:
            return self.outputs[start - n_prompt : end - n_prompt]
        return self.prompt[start:end] + self.outputs[: max(end - n_prompt, 0)]

    def text_of(self, ids: Sequence[int]) -> str:
        """Text of some of its tokens, as its answer shows them."""
        return tokenizer.decode(ids, specials=self.sampling.show_specials)

    def append(self, token: int, piece: str) -> None:
        """Take a sampled token, with its text, and finish if it ends the request."""
        now = time.monotonic()
        self.first_token_time = self.first_token_time or now
        self.last_token_time = now
        self.outputs.append(token)
        if token in self.sampling.stop_ids:
            self.finish_reason = "stop"
            return
        before = len(self.text)
        self.text += piece
        cut = self._stop_position(before)
        if cut is not None:
            self.text = self.text[:cut]
            self.finish_reason = "stop"
        elif len(self.outputs) >= self.sampling.max_tokens:
            self.finish_reason = "length"

    def new_text(self) -> str:
        """Text not handed out before; while running, what may turn out to be a stop string is held back."""
        end = len(self.text) if self.finish_reason else len(self.text) - self._held_back()
        piece = self.text[self._streamed : end]
        self._streamed = max(end, self._streamed)
        return piece

    def _stop_position(self, before: int) -> int | None:
        """Where the first stop string starts, looking only at matches that the text after `before` completes."""
        found = (self.text.find(stop, max(before - len(stop) + 1, 0)) for stop in self.sampling.stop)
        return min((at for at in found if at >= 0), default=None)

    def _held_back(self) -> int:
        """Length of the longest end of the text that begins a stop string."""
        longest = max(map(len, self.sampling.stop), default=1) - 1
        for length in range(min(longest, len(self.text)), 0, -1):
            if any(stop.startswith(self.text[-length:]) for stop in self.sampling.stop):
                return length
        return 0
