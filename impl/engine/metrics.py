"""Prometheus metrics under vLLM's names, in a registry of their own."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from impl.engine.request import Request
from impl.engine.spec_metrics import SpecDecodingMetrics

CONTENT_TYPE = CONTENT_TYPE_LATEST
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class EngineMetrics:
    """Counters and histograms of one engine; the engine thread writes, a scrape reads."""

    def __init__(self, model: str) -> None:
        self.registry = CollectorRegistry()
        labels = {"model_name": model, "engine": "0"}

        def counter(name: str, what: str) -> Counter:
            return Counter(f"vllm:{name}", what, [*labels], registry=self.registry).labels(**labels)

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"vllm:{name}", what, [*labels], registry=self.registry).labels(**labels)

        def histogram(name: str, what: str) -> Histogram:
            made = Histogram(f"vllm:{name}", what, [*labels], buckets=_SECONDS, registry=self.registry)
            return made.labels(**labels)

        self.prompt_tokens = counter("prompt_tokens", "Prompt tokens of requests that started to generate.")
        self.generation_tokens = counter("generation_tokens", "Tokens generated.")
        self.preemptions = counter("num_preemptions", "Requests put back to waiting for want of KV blocks.")
        self.running = gauge("num_requests_running", "Requests in the running batch.")
        self.waiting = gauge("num_requests_waiting", "Requests waiting for blocks or a row.")
        self.kv_usage = gauge("kv_cache_usage_perc", "Part of the KV blocks in use; 1 is all.")
        self.first_token = histogram("time_to_first_token_seconds", "Arrival to first token.")
        self.inter_token = histogram("inter_token_latency_seconds", "Time between two tokens of one request.")
        self.e2e = histogram("e2e_request_latency_seconds", "Arrival to finish.")
        self._success = Counter(
            "vllm:request_success", "Requests finished.", [*labels, "finished_reason"], registry=self.registry
        )
        self._labels = labels
        self.spec: SpecDecodingMetrics | None = None
        """Only with speculation, as in vLLM."""

    def speculation(self, draft_tokens: int, now: float) -> None:
        """The engine drafts up to `draft_tokens` a round."""
        self.spec = SpecDecodingMetrics(draft_tokens, self._labels, self.registry, now)

    def cache_config(self, num_gpu_blocks: int, block_size: int, cache_dtype: str) -> None:
        """The KV cache's facts as labels of one gauge of value 1, as vLLM gives them."""
        facts = {"num_gpu_blocks": str(num_gpu_blocks), "block_size": str(block_size), "cache_dtype": cache_dtype}
        info = Gauge("vllm:cache_config_info", "KV cache.", [*self._labels, *facts], registry=self.registry)
        info.labels(**self._labels, **facts).set(1)

    def token(self, request: Request, previous: float | None, follows: bool = False) -> None:
        """A token was appended; `previous` is the time of the one before it.

        As in vLLM, a step's tokens of one request are one interval: those that follow in it have none of their own.
        """
        assert request.last_token_time is not None
        self.generation_tokens.inc()
        if previous is None:
            self.prompt_tokens.inc(len(request.prompt))
            self.first_token.observe(request.last_token_time - request.arrival_time)
        elif not follows:
            self.inter_token.observe(request.last_token_time - previous)

    def finished(self, request: Request, now: float) -> None:
        self._success.labels(**self._labels, finished_reason=request.finish_reason).inc()
        self.e2e.observe(now - request.arrival_time)

    def text(self) -> bytes:
        return generate_latest(self.registry)
