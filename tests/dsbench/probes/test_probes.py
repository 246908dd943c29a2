"""What the probes send and how they reduce it, against a server that is a function of the request."""

import asyncio
import json

import httpx
import pytest

from dsbench.engines.client import BadAnswer, Client
from dsbench.probe_settings import IdentityProbe, KvProbe, WarmProbe
from dsbench.probes import decode, identity, kv, prefill, smoke, warm
from dsbench.probes.boot import Boot, ProbeFailed
from dsbench.probes.smoke import first_number
from tests.dsbench.probes.serving import streamed


@pytest.fixture
def probe(make_plan):
    """Run one probe in one boot; gives its readings and the bodies of the requests."""

    def run(module, number=3, answer=None, profiles=None, latency=False, metrics=(), change=lambda plan: plan):
        plan = change(make_plan())
        if latency:
            plan = plan.model_copy(update={"probes": with_latency(plan.probes)})
        seen, pages = [], iter(metrics)

        def serve(request):
            if request.url.path == "/metrics":
                return httpx.Response(200, text=next(pages, ""))
            body = json.loads(request.content)
            seen.append(body)
            return (answer or usual)(body)

        client = Client("http://engine", "pico", 5)
        client._http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(serve))
        boot = Boot(plan, plan.boots[number - 1], client, {0: {"dims": {"vocab_size": 100}}}, profiles or {})

        async def collect():
            return [reading async for reading in module.run(boot)]

        return asyncio.run(collect()), seen

    return run


def usual(body):
    """Echoes the prompt's length as usage; streams one token a piece."""
    tokens = body["max_tokens"]
    usage = {"prompt_tokens": len(body.get("prompt", "")), "completion_tokens": tokens}
    if body.get("stream"):
        pieces = [{"choices": [{"text": "x", "token_ids": [1]}]} for _ in range(tokens)]
        events = [*pieces, {"choices": [], "usage": usage}]
        return streamed(events)
    if "messages" in body:
        return httpx.Response(200, json={"choices": [{"message": {"content": "42."}}]})
    return httpx.Response(
        200, json={"choices": [{"text": " 56, of course", "token_ids": [1] * tokens}], "usage": usage}
    )


def with_latency(probes):
    return probes.model_copy(update={"decode": probes.decode.model_copy(update={"latency": True})})


def test_decode_gives_times_where_the_suite_asks_for_them(probe):
    readings, _ = probe(decode, latency=True)
    found = {reading.metric: reading.value for reading in readings}
    kinds = ("tps", "ttft_ms", "itl_ms", "tpot_ms", "step_ms")
    assert list(found) == [f"decode.{kind}.c{streams}" for streams in (1, 4) for kind in kinds]
    assert all(value > 0 for value in found.values())
    # One token a piece: a step's time is a token's.
    assert found["decode.tpot_ms.c1"] == pytest.approx(found["decode.step_ms.c1"])


def test_decode_of_tokens_that_came_in_one_piece_is_no_reading(probe):
    def collected(body):
        pieces = [{"choices": [{"text": "x", "token_ids": [1]}]} for _ in range(body["max_tokens"])]
        events = [*pieces, {"choices": [], "usage": {"completion_tokens": body["max_tokens"]}}]
        return httpx.Response(200, text="".join(f"data: {json.dumps(event)}\n\n" for event in events))

    with pytest.raises(BadAnswer, match="all 10 tokens came in one piece; a decode time cannot be read"):
        probe(decode, answer=collected)

    asked = []

    def collected_twice(body):
        asked.append(body["prompt"])
        return collected(body) if len(asked) <= decode.AGAIN else usual(body)

    readings, _ = probe(decode, answer=collected_twice)
    assert [reading.metric for reading in readings] == ["decode.tps.c1", "decode.tps.c4"]
    assert asked[0] == asked[1] == asked[2] != asked[3]


def test_prefill_that_a_prefix_cache_answered_is_no_reading(probe):
    page = "# TYPE vllm:prefix_cache_hits counter\nvllm:prefix_cache_hits_total {}.0\n"
    probe(prefill, metrics=[page.format(7), page.format(7)])
    with pytest.raises(ProbeFailed, match="prefix cache gave 128 tokens"):
        probe(prefill, metrics=[page.format(7), page.format(135)])


def test_prefill_sends_fresh_tokens_every_time(probe):
    readings, sent = probe(prefill)
    prompts = [tuple(body["prompt"]) for body in sent]
    assert [len(prompt) for prompt in prompts] == [64, 64, 256, 256]
    assert len({prompt[:8] for prompt in prompts}) == 4  # no common beginning that a prefix cache could hold
    assert all(0 <= token < 100 for prompt in prompts for token in prompt)
    assert {body["max_tokens"] for body in sent} == {1}
    assert [reading.metric for reading in readings] == ["prefill.tps.64", "prefill.tps.256"]
    assert all(len(reading.raw) == 2 and min(reading.raw) <= reading.value <= max(reading.raw) for reading in readings)


def test_boots_of_one_block_get_the_same_prompts_and_other_blocks_others(probe):
    for module in (prefill, decode):
        third, fourth, fifth = (sorted(str(b["prompt"]) for b in probe(module, number)[1]) for number in (3, 4, 5))
        assert third == fourth != fifth


def test_prefill_needs_the_engine_to_count_what_was_sent(probe):
    def cached(body):
        usage = {"prompt_tokens": 1, "completion_tokens": 1}
        return httpx.Response(200, json={"choices": [{"text": "", "token_ids": [1]}], "usage": usage})

    with pytest.raises(ProbeFailed, match="sent 64 prompt tokens, the engine counted 1"):
        probe(prefill, answer=cached)


def test_decode_streams_fixed_lengths_together(probe):
    readings, sent = probe(decode)
    assert [reading.metric for reading in readings] == ["decode.tps.c1", "decode.tps.c4"]
    assert len(sent) == 2 * (1 + 4)
    assert {(body["max_tokens"], body["ignore_eos"], body["stream"]) for body in sent} == {(10, True, True)}
    assert len({str(body["prompt"]) for body in sent}) == len(sent)


def test_decode_goes_on_from_the_texts_of_the_suite_by_turns(probe):
    def texts(plan):
        table = plan.probes.decode.model_copy(update={"prompts": ["a", "b", "c"]})
        return plan.model_copy(update={"probes": plan.probes.model_copy(update={"decode": table})})

    readings, sent = probe(decode, change=texts)
    assert [reading.metric for reading in readings] == ["decode.tps.c1", "decode.tps.c4"]
    prompts = [body["prompt"] for body in sent]
    assert (prompts[:2], sorted(prompts[2:6]), sorted(prompts[6:])) == (["a", "b"], [*"aabc"], [*"abbc"])


def test_identity_asks_alone_then_in_full_groups(probe):
    readings, sent = probe(identity)
    assert [reading.item for reading in readings] == ["alone/1", "alone/2", "together/1", "together/2"]
    assert [body["prompt"] for body in sent[:2]] == ["a b c", "7*8="]
    assert sorted(body["prompt"] for body in sent[2:]) == ["7*8=", "7*8=", "a b c", "a b c"]
    assert readings[0].value == [1] * 6


def test_identity_needs_token_ids(probe):
    def silent(body):
        usage = {"prompt_tokens": 1, "completion_tokens": 6}
        return httpx.Response(200, json={"choices": [{"text": "abc"}], "usage": usage})

    with pytest.raises(ProbeFailed, match="returned no token_ids"):
        probe(identity, answer=silent)


def test_smoke_grades_by_item_and_keeps_the_reply(probe):
    readings, _ = probe(smoke)
    assert [(r.item, r.value, r.text) for r in readings] == [("7*8=", 1, " 56, of course"), ("chat 17+25", 1, "42.")]
    wrong, _ = probe(smoke, answer=lambda body: usual({**body, "prompt": "x"}) if "prompt" in body else
                     httpx.Response(200, json={"choices": [{"message": {"content": "I think 41 or 42"}}]}))  # fmt: skip
    assert [r.value for r in wrong] == [1, 0]


@pytest.mark.parametrize(
    ("text", "number"),
    [("56", 56), (" 56\n7*9=63", 56), ("-3", -3), ("", None), ("no", None), ("5.6", None), ("560", 560), ("is 4 2", 4)],
)
def test_the_first_whole_number(text, number):
    assert first_number(text) == number


PROFILE = dict.fromkeys(
    ("available_bytes", "weights_bytes", "persistent_bytes", "workspace_bytes", "peak_activation_bytes",
     "runtime_peak_bytes", "resident_bytes", "index_maps_per_step", "blocks", "tokens", "max_concurrency"), 5,
) | {"non_torch_bytes": None}  # fmt: skip


def test_kv_reads_every_rank_and_keeps_unknown_unknown(probe):
    readings, sent = probe(kv, profiles={0: PROFILE, 1: PROFILE})
    assert sent == []
    assert len(readings) == 24
    assert {reading.rank for reading in readings} == {0, 1}
    assert {r.value for r in readings if r.metric == "kv.non_torch_bytes"} == {None}


def test_kv_reads_how_moe_layers_run_where_that_is_asked(probe):
    def asking(plan):
        return plan.model_copy(
            update={"probes": plan.probes.model_copy(update={"kv": KvProbe(sequence_parallel=True)})}
        )

    readings, _ = probe(kv, profiles={0: PROFILE | {"moe_sp_active": 1}}, change=asking)
    assert [r.value for r in readings if r.metric == "moe.sp_active"] == [1]
    with pytest.raises(ProbeFailed, match="kv_profile of rank 0 has no 'moe_sp_active'"):
        probe(kv, profiles={0: PROFILE}, change=asking)


def test_kv_without_a_profile_or_with_half_of_one(probe):
    with pytest.raises(ProbeFailed, match="no rank wrote"):
        probe(kv)
    with pytest.raises(ProbeFailed, match="kv_profile of rank 0 has no 'available_bytes'"):
        probe(kv, profiles={0: {}})
    for odd in ("x", True, [1], {}):
        with pytest.raises(ProbeFailed, match=r"kv_profile of rank 0 says .* for 'blocks', which is no number"):
            probe(kv, profiles={0: PROFILE | {"blocks": odd}})


def test_identity_by_lengths_asks_in_token_ids_that_never_change_and_can_leave_out_batches(probe):
    config = IdentityProbe(lengths=[5, 9], tokens=3, together=0)
    assert config.n_items() == 2

    def with_lengths(plan):
        return plan.model_copy(update={"probes": plan.probes.model_copy(update={"identity": config})})

    (first, sent), (again, sent_again) = (probe(identity, change=with_lengths, number=number) for number in (3, 4))
    assert [r.item for r in first] == ["alone/1", "alone/2"] == [r.item for r in again]
    assert [len(body["prompt"]) for body in sent] == [5, 9]
    assert [body["prompt"] for body in sent] == [body["prompt"] for body in sent_again]


@pytest.mark.parametrize("settings", [{}, {"prompts": ["x"], "together": 1}])
def test_identity_needs_prompts_and_a_batch_is_none_or_several(settings):
    with pytest.raises(ValueError, match=r"give prompts or lengths|at least 2"):
        IdentityProbe(**settings)


def test_warming_sends_the_timed_requests_with_other_prompts_and_reports_nothing(probe):
    def with_warm(plan):
        return plan.model_copy(update={"probes": plan.probes.model_copy(update={"warm": WarmProbe(rounds=2)})})

    readings, sent = probe(warm, change=with_warm)
    timed = [*probe(prefill)[1], *probe(decode)[1]]
    assert readings == []
    assert [len(body["prompt"]) for body in sent] == 2 * [len(body["prompt"]) for body in timed]
    assert not {str(body["prompt"]) for body in sent} & {str(body["prompt"]) for body in timed}


@pytest.mark.parametrize("dims", ["x", 7, [1], *({"vocab_size": odd} for odd in (float("inf"), -5, "many"))])
def test_a_shape_of_odd_values_is_the_plans_or_fails_the_probe(make_plan, dims):
    """A rank may write anything, and nothing of it may end the run."""
    plan = make_plan()
    boot = Boot(plan, plan.boots[0], None, {0: {"dims": dims}}, {})
    assert boot.max_model_len in (None, plan.dims["max_model_len"])
    if isinstance(dims, dict):
        with pytest.raises(ProbeFailed, match="vocab_size"):
            _ = boot.vocab_size
    else:
        assert boot.vocab_size == plan.dims["vocab_size"]
