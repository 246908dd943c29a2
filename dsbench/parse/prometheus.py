"""Metrics pages of vLLM's names, and what was counted between two of them.

Exporters differ: some drop the `_total` suffix, some drop the TYPE lines. Names are read without the
suffix, `_created` samples (time stamps) are left out, and what is a gauge is known by its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from impl.engine.acceptance import AcceptanceCounts

Labels = frozenset[tuple[str, str]]
Series = tuple[str, Labels]

LARGEST, SMALLEST = 1e18, 1e-18
"""Beyond these no sum, quotient or difference of samples is sure to be a number."""

MOST_CHARACTERS = 1 << 22
LONGEST_LINE = 8192
"""No page is a tenth of the one, and no line of the other."""

DIGITS_OF_A_POSITION = 3
"""No draft is a thousand tokens deep."""

FEW_DRAFTS = 20
"""Below this many drafts a rate says little."""

DRAFTS = "vllm:spec_decode_num_drafts"
DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"
ACCEPTED_TOKENS = "vllm:spec_decode_num_accepted_tokens"
ACCEPTED_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos"

COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens",
    "generation_tokens": "vllm:generation_tokens",
    "prefix_cache_queries": "vllm:prefix_cache_queries",
    "prefix_cache_hits": "vllm:prefix_cache_hits",
    "preemptions": "vllm:num_preemptions",
}

_HEADER = re.compile(r"^\ufeff?# SNAPSHOT (\S+)(?: status=(\d+))?\s*$", re.MULTILINE)


class CounterReset(ValueError):
    """A counter is lower in the later page, or one of its series gone: the server restarted or something reset it."""


@dataclass(frozen=True)
class Page:
    """One reading of /metrics: value by name (without `_total`) and labels."""

    values: Mapping[Series, float]
    time: datetime | None = None
    status: int | None = None

    def total(self, name: str) -> float | None:
        """Sum over all labels; None if the page does not have the name."""
        found = [value for (known, _), value in self.values.items() if known == name]
        return sum(found) if found else None

    def positions(self) -> int:
        """Draft positions that the page counts."""
        return max((number + 1 for series in self.values if (number := _position(series)) is not None), default=0)


def families(text: str) -> Iterator[Metric]:
    """Families of a page. ValueError if it is not in the text format, or too long to be one: the time to read a line
    grows with the square of its length."""
    if len(text) > MOST_CHARACTERS or max(map(len, text.split("\n"))) > LONGEST_LINE:
        raise ValueError(f"a page of more than {MOST_CHARACTERS:,} characters, or {LONGEST_LINE:,} in a line")
    try:
        yield from text_string_to_metric_families(text)
    except OverflowError:
        raise ValueError("a number of the page is beyond every float") from None


def usable(value: float) -> bool:
    """Whether a sample is a figure: NaN, infinities and what no server has counted are as good as absent."""
    return value == 0 or SMALLEST <= abs(value) <= LARGEST


def read_page(text: str, time: datetime | None = None, status: int | None = None) -> Page:
    """Parse one page. ValueError if it is not in the text format."""
    values: dict[Series, float] = {}
    for family in families(text.removeprefix("\ufeff")):
        for sample in family.samples:
            if not sample.name.endswith("_created") and usable(sample.value):
                series = sample.name.removesuffix("_total"), frozenset(sample.labels.items())
                values[series] = values.get(series, 0.0) + float(sample.value)
    return Page(values, time, status)


def read_snapshots(text: str) -> list[Page]:
    """Pages of a file that heads each with `# SNAPSHOT time status=200`, in order."""
    parts = _HEADER.split(text)[1:]
    return [
        read_page(body, _moment(time), int(status) if status else None)
        for time, status, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    ]


def _moment(text: str) -> datetime:
    """A time with its offset; UTC where it has none. ValueError if it is no time."""
    time = datetime.fromisoformat(text)
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def increase(before: Page, after: Page, name: str) -> float | None:
    """How much a counter rose, summed over its labels; None if the later page does not have it: absent is not 0.

    A series that appears in between began at 0. Raises CounterReset if one fell, or vanished from among others.
    """
    if after.total(name) is None:
        return None
    return sum(rise for _, rise in _rises(before, after, name))


def _rises(before: Page, after: Page, name: str) -> Iterator[tuple[Series, float]]:
    for series in sorted({s for s in (*before.values, *after.values) if s[0] == name}, key=repr):
        if series not in after.values:
            raise CounterReset(f"a series of {name} is gone: the server restarted or reset its counters")
        then, now = before.values.get(series, 0.0), after.values[series]
        if now < then:
            raise CounterReset(f"{name} fell from {then:g} to {now:g}: the server restarted or reset its counters")
        yield series, now - then


def acceptance(before: Page, after: Page) -> AcceptanceCounts | None:
    """What the drafts did between two pages; None if the later one counts no drafts."""
    totals = [increase(before, after, name) for name in (DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS)]
    if None in totals:
        return None
    drafts, drafted, accepted = (int(total or 0) for total in totals)
    if after.total(ACCEPTED_PER_POSITION) is None:
        return AcceptanceCounts(drafts, drafted, accepted, ())
    per_position = [0] * max(before.positions(), after.positions())
    for series, rise in _rises(before, after, ACCEPTED_PER_POSITION):
        position = _position(series)
        if position is not None:
            per_position[position] += int(rise)
    return AcceptanceCounts(drafts, drafted, accepted, tuple(per_position))


def _position(series: Series) -> int | None:
    name, labels = series
    text = dict(labels).get("position", "") if name == ACCEPTED_PER_POSITION else ""
    return int(text) if text.isdecimal() and len(text) <= DIGITS_OF_A_POSITION else None


@dataclass(frozen=True)
class Window:
    """What a server did between two pages; None where the pages do not say."""

    seconds: float | None
    prompt_tokens: float | None
    generation_tokens: float | None
    prefix_cache_queries: float | None
    prefix_cache_hits: float | None
    preemptions: float | None
    running_at_end: float | None
    """A gauge: as it stood in the later page."""
    kv_cache_usage_fraction_at_end: float | None
    spec: AcceptanceCounts | None
    flags: list[str] = field(default_factory=list)

    @property
    def generation_tokens_per_second(self) -> float | None:
        return _ratio(self.generation_tokens, self.seconds)

    @property
    def prefix_cache_hit_fraction(self) -> float | None:
        return _ratio(self.prefix_cache_hits, self.prefix_cache_queries)


def window(before: Page, after: Page, *, prompts_share_a_prefix: bool = False) -> Window:
    """The differences of the counters, and the later gauges.

    A prefix cache that never hits is a fault only where the workload says that prompts share a prefix.
    Raises CounterReset.
    """
    seconds = (after.time - before.time).total_seconds() if before.time and after.time else None
    spec = acceptance(before, after)
    rose = {key: increase(before, after, name) for key, name in COUNTERS.items()}
    flags = [*_lacking(before, after), *(draft_flags(spec) if spec else [])]
    if prompts_share_a_prefix and rose["prefix_cache_queries"] and rose["prefix_cache_hits"] == 0:
        flags.append("prefix cache never hits")
    return Window(
        seconds=seconds,
        **rose,
        running_at_end=after.total("vllm:num_requests_running"),
        kv_cache_usage_fraction_at_end=after.total("vllm:kv_cache_usage_perc"),
        spec=spec,
        flags=flags,
    )


def _lacking(before: Page, after: Page) -> list[str]:
    names = (*COUNTERS.values(), DRAFTS, DRAFT_TOKENS, ACCEPTED_TOKENS, ACCEPTED_PER_POSITION)
    gone = [name for name in names if before.total(name) is not None and after.total(name) is None]
    return [f"the later page does not have {', '.join(gone)}: unknown"] if gone else []


def draft_flags(counts: AcceptanceCounts) -> list[str]:
    """What limits the reading of counts."""
    flags = []
    if counts.drafts and counts.drafted % counts.drafts:
        flags.append("drafted tokens are not a multiple of the drafts: depth varies")
    if 0 < counts.drafts < FEW_DRAFTS:
        flags.append(f"only {counts.drafts} drafts: too few")
    return flags


def _ratio(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None
