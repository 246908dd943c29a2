"""Speculative-decoding and throughput lines of vLLM's logs, in the forms of its versions.

Every record is one window of the server, and a share of tokens over idle time says little: combine
records by their counts, never by the mean of their rates.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from dsbench.parse.lines import Line, read_lines
from dsbench.parse.prometheus import FEW_DRAFTS

COLLAPSED_LENGTH = 1.5
"""A mean acceptance length below this is a draft that does not work."""

RECORD_LINES = 8
"""Lines that one record may be wrapped over."""

RECORD_CHARACTERS = 4_000
"""Longest record; one at the depth of 99 is shorter."""

_RECORD = re.compile(r"(SpecDecoding metrics|Speculative metrics):")
_NUMBER = r"\s*(\d{1,15}(?:\.\d{1,15})?)(?![\d])"
_RATE = re.compile(rf"[Dd]raft acceptance rate:{_NUMBER}(\s*%)?")
_POSITIONS = re.compile(r"Per-position acceptance rate:\s*(\d\.\d+(?:,\s*\d\.\d+)*)")
_ENGINE = re.compile(
    rf"(?:(\d\d-\d\d \d\d:\d\d:\d\d) \S+ )?Engine \d+: Avg prompt throughput:{_NUMBER} tokens/s,"
    rf" Avg generation throughput:{_NUMBER} tokens/s, Running:{_NUMBER} reqs, Waiting:{_NUMBER} reqs(.*)"
)


@dataclass(frozen=True)
class SpecRecord:
    """One printed record; None where it was not printed and does not follow from what was."""

    num_speculative_tokens: int | None
    accepted_tokens: int | None
    drafted_tokens: int | None
    mean_acceptance_length: float | None
    """As printed: 1 + accepted / drafts."""
    draft_acceptance_rate: float | None
    """A share, whatever was printed."""
    per_position: tuple[float, ...] | None
    accepted_tokens_per_second: float | None
    drafted_tokens_per_second: float | None
    system_efficiency: float | None = None
    emitted_tokens: int | None = None
    """These two in the V0 form only."""
    flags: list[str] = field(default_factory=list)

    @property
    def num_drafts(self) -> int | None:
        if self.drafted_tokens is None or not self.num_speculative_tokens:
            return None
        return self.drafted_tokens // self.num_speculative_tokens

    @property
    def mean_acceptance_length_recomputed(self) -> float | None:
        """From the counts, or from the positions if there are none."""
        if self.num_drafts and self.accepted_tokens is not None:
            return 1 + self.accepted_tokens / self.num_drafts
        return 1 + sum(self.per_position) if self.per_position else None

    @property
    def per_position_conditional(self) -> tuple[float | None, ...] | None:
        """Ratio of neighbours; None at a position that no draft got to."""
        if self.per_position is None:
            return None
        return tuple(rate / before if before else None for before, rate in pairwise((1.0, *self.per_position)))

    @property
    def trailing_zero_positions(self) -> int | None:
        if self.per_position is None:
            return None
        return len(self.per_position) - max((k for k, rate in enumerate(self.per_position, 1) if rate), default=0)

    @property
    def window_seconds_estimate(self) -> float | None:
        """Counts over printed throughput."""
        pairs = (
            (self.accepted_tokens, self.accepted_tokens_per_second),
            (self.drafted_tokens, self.drafted_tokens_per_second),
        )
        return next((count / rate for count, rate in pairs if count and rate), None)

    @property
    def system_efficiency_recomputed(self) -> float | None:
        """Emitted tokens over the most that the drafts could have emitted."""
        if self.emitted_tokens is None or not self.num_drafts or not self.num_speculative_tokens:
            return None
        return self.emitted_tokens / (self.num_drafts * (self.num_speculative_tokens + 1))


@dataclass(frozen=True)
class SpecTotals:
    """Several records as one, by their counts."""

    num_drafts: int
    accepted_tokens: int
    drafted_tokens: int

    @property
    def draft_acceptance_rate(self) -> float | None:
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        return 1 + self.accepted_tokens / self.num_drafts if self.num_drafts else None


@dataclass(frozen=True)
class EngineWindow:
    """One throughput line: averages over the window it closes, gauges at its end."""

    time: str | None
    """As the log prints it, month-day and clock time."""
    prompt_tokens_per_second: float
    generation_tokens_per_second: float
    running: int
    waiting: int
    kv_cache_usage_fraction: float | None
    prefix_cache_hit_fraction: float | None
    mm_cache_hit_fraction: float | None


def _record_texts(lines: Iterable[Line]) -> Iterator[str]:
    """The text of every record: from its name to the next record, in the few lines that it can fill."""
    open_record: list[str] = []
    for line in lines:
        starts = [found.start() for found in _RECORD.finditer(line.text)] if " metrics:" in line.text else []
        if starts and open_record:
            yield " ".join([*open_record, line.text[: starts[0]]])[:RECORD_CHARACTERS]
            open_record = []
        for start, end in pairwise(starts):
            yield line.text[start:end][:RECORD_CHARACTERS]
        if starts:
            open_record = [line.text[starts[-1] :]]
        elif open_record and len(open_record) < RECORD_LINES:
            open_record.append(line.text)
    if open_record:
        yield " ".join(open_record)[:RECORD_CHARACTERS]


def spec_records(log: str | Sequence[Line]) -> list[SpecRecord]:
    """Every speculative record, in order; a record may be wrapped over several lines."""
    return [_spec_record(part) for part in _record_texts(_lines(log))]


def combine(records: Iterable[SpecRecord]) -> SpecTotals | None:
    """Totals over the records that print counts; None if none does."""
    counted = [r for r in records if r.num_drafts is not None and r.accepted_tokens is not None]
    if not counted:
        return None
    return SpecTotals(
        num_drafts=sum(r.num_drafts or 0 for r in counted),
        accepted_tokens=sum(r.accepted_tokens or 0 for r in counted),
        drafted_tokens=sum(r.drafted_tokens or 0 for r in counted),
    )


def engine_windows(log: str | Sequence[Line]) -> list[EngineWindow]:
    """Every throughput line, in order."""
    return [
        EngineWindow(
            time=found[1],
            prompt_tokens_per_second=float(found[2]),
            generation_tokens_per_second=float(found[3]),
            running=int(float(found[4])),
            waiting=int(float(found[5])),
            kv_cache_usage_fraction=_percent("KV cache usage", found[6]),
            prefix_cache_hit_fraction=_percent("Prefix cache hit rate", found[6]),
            mm_cache_hit_fraction=_percent("MM cache hit rate", found[6]),
        )
        for line in _lines(log)
        if "Avg prompt throughput" in line.text
        for found in _ENGINE.finditer(line.text)
    ]


def _lines(log: str | Sequence[Line]) -> Iterable[Line]:
    """The lines of a text, or those that were read before."""
    return read_lines(log) if isinstance(log, str) else log


def _spec_record(text: str) -> SpecRecord:
    rate, positions = _RATE.search(text), _POSITIONS.search(text)
    per_position = tuple(float(part) for part in positions[1].split(",")) if positions else None
    depth = _field("Number of speculative tokens", text)
    record = SpecRecord(
        num_speculative_tokens=len(per_position) if per_position else _whole(depth),
        accepted_tokens=_whole(_field("(?:Accepted|Number of accepted tokens)", text)),
        drafted_tokens=_whole(_field("(?:Drafted|Number of draft tokens)", text)),
        mean_acceptance_length=_field("Mean acceptance length", text),
        draft_acceptance_rate=float(rate[1]) / (100 if rate[2] else 1) if rate else None,
        per_position=per_position,
        accepted_tokens_per_second=_field("Accepted throughput", text),
        drafted_tokens_per_second=_field("Drafted throughput", text),
        system_efficiency=_field("System efficiency", text),
        emitted_tokens=_whole(_field("Number of emitted tokens", text)),
    )
    record.flags.extend(_flags(record))
    return record


def _flags(record: SpecRecord) -> list[str]:
    """What a person should look at. With few drafts neither a collapse nor a missing position can be told."""
    if record.num_drafts is not None and record.num_drafts < FEW_DRAFTS:
        return [f"only {record.num_drafts} drafts: too few"]
    flags = []
    length = record.mean_acceptance_length_recomputed
    if length is not None and length < COLLAPSED_LENGTH:
        flags.append("acceptance collapse")
    if zeros := record.trailing_zero_positions:
        drafted = record.num_speculative_tokens or 0
        flags.append(f"trailing zero positions: {drafted} drafted tokens against a block size of {drafted - zeros}")
    return flags


def _field(name: str, text: str) -> float | None:
    found = re.search(rf"{name}:{_NUMBER}", text)
    return float(found[1]) if found else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def _percent(name: str, text: str) -> float | None:
    value = _field(name, text)
    return None if value is None else value / 100
