"""vLLM's names and line for speculation: counters follow the engine's counts, and dsbench reads the line back."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from impl.engine.acceptance import AcceptanceCounts
from impl.engine.metrics import EngineMetrics
from impl.engine.spec_metrics import LOG_INTERVAL_S, SpecDecodingMetrics, spec_line
from tests.impl.engine.engines import make_request

COUNTS = AcceptanceCounts(65, 195, 78, (40, 27, 11))


def test_the_line_is_vllms_to_the_character() -> None:
    """As logged by a server whose figures these are (an interval of 78 / 15.6 s)."""
    assert spec_line(COUNTS, 5.0012) == (
        "SpecDecoding metrics: Mean acceptance length: 2.20, Accepted throughput: 15.60 tokens/s, "
        "Drafted throughput: 38.99 tokens/s, Accepted: 78 tokens, Drafted: 195 tokens, "
        "Per-position acceptance rate: 0.615, 0.415, 0.169, Avg Draft acceptance rate: 40.0%"
    )


def test_counters_rise_by_what_is_new_and_the_log_tells_each_interval_once(caplog: pytest.LogCaptureFixture) -> None:
    registry = CollectorRegistry()
    metrics = SpecDecodingMetrics(3, {"model_name": "pico", "engine": "0"}, registry, now=0.0)
    caplog.set_level(logging.INFO)
    metrics.observe(COUNTS, now=1.0)
    assert not caplog.records
    twice = AcceptanceCounts(130, 390, 156, (80, 54, 22))
    metrics.observe(twice, now=LOG_INTERVAL_S + 1)
    metrics.observe(twice, now=3 * LOG_INTERVAL_S)
    assert [record.message.split(":")[0] for record in caplog.records] == ["SpecDecoding metrics"]
    assert "Accepted: 156 tokens, Drafted: 390 tokens" in caplog.records[0].message
    text = generate_latest(registry).decode()
    labels = 'engine="0",model_name="pico"'
    for name, value in (("drafts", 130), ("draft_tokens", 390), ("accepted_tokens", 156)):
        assert f"vllm:spec_decode_num_{name}_total{{{labels}}} {value}.0" in text
    for position, value in enumerate((80, 54, 22)):
        line = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{position}"}} {value}.0'
        assert line in text


def test_accepted_drafts_have_no_inter_token_interval_of_their_own() -> None:
    metrics = EngineMetrics("pico")
    request = make_request([1], max_tokens=9)
    for token, (previous, follows) in enumerate([(None, False), (1.0, False), (2.0, True), (2.0, True), (2.5, False)]):
        request.append(token, "")
        metrics.token(request, previous, follows)
    text = metrics.text().decode()
    assert 'vllm:generation_tokens_total{engine="0",model_name="pico"} 5.0' in text
    assert 'vllm:inter_token_latency_seconds_count{engine="0",model_name="pico"} 2.0' in text
