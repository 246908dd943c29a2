"""How drafts fare, under vLLM's names: counters for a scrape, and the SpecDecoding line in the log."""

from __future__ import annotations

import logging

from prometheus_client import CollectorRegistry, Counter

from impl.engine.acceptance import AcceptanceCounts

log = logging.getLogger("impl.engine.spec_metrics")

LOG_INTERVAL_S = 10.0


class SpecDecodingMetrics:
    """Counters of one engine with speculation; the engine thread calls `observe` with its running counts."""

    def __init__(self, k: int, labels: dict[str, str], registry: CollectorRegistry, now: float) -> None:
        def counter(name: str, what: str) -> Counter:
            return Counter(f"vllm:spec_decode_{name}", what, [*labels], registry=registry).labels(**labels)

        self._drafts = counter("num_drafts", "Rounds with drafts.")
        self._drafted = counter("num_draft_tokens", "Tokens drafted.")
        self._accepted = counter("num_accepted_tokens", "Drafted tokens that were accepted.")
        per_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Rounds that accepted the draft at a position.",
            [*labels, "position"],
            registry=registry,
        )
        self._positions = [per_position.labels(**labels, position=str(i)) for i in range(k)]
        self._seen = self._logged = AcceptanceCounts.zero(k)
        self._logged_at = now

    def observe(self, counts: AcceptanceCounts, now: float) -> None:
        """Bring the counters up to `counts`, and log what the last interval added."""
        new = counts.since(self._seen)
        self._seen = counts
        self._drafts.inc(new.drafts)
        self._drafted.inc(new.drafted)
        self._accepted.inc(new.accepted)
        for position, n in zip(self._positions, new.accepted_per_position, strict=True):
            position.inc(n)
        elapsed = now - self._logged_at
        if elapsed >= LOG_INTERVAL_S:
            since = counts.since(self._logged)
            if since.drafts:
                log.info("%s", spec_line(since, elapsed))
            self._logged, self._logged_at = counts, now


def spec_line(counts: AcceptanceCounts, seconds: float) -> str:
    """vLLM's line on the drafts of an interval; `counts` has at least one draft."""
    survival, rate, length = counts.survival, counts.acceptance_rate, counts.acceptance_length
    assert survival is not None
    assert rate is not None
    assert length is not None
    positions = ", ".join(f"{share:.3f}" for share in survival)
    return (
        f"SpecDecoding metrics: Mean acceptance length: {length:.2f}, "
        f"Accepted throughput: {counts.accepted / seconds:.2f} tokens/s, "
        f"Drafted throughput: {counts.drafted / seconds:.2f} tokens/s, "
        f"Accepted: {counts.accepted} tokens, Drafted: {counts.drafted} tokens, "
        f"Per-position acceptance rate: {positions}, Avg Draft acceptance rate: {100 * rate:.1f}%"
    )
