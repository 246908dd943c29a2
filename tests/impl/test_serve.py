"""The server as its clients see it: one real process with untrained weights, over HTTP."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from impl import tokenizer
from impl.serve import main
from tests.impl.serving import Server, start


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = start(tmp_path_factory.mktemp("boot"), toggles="mhc_input_reuse")
    yield server
    server.client.close()
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == -signal.SIGTERM


def test_it_says_what_it_serves_and_that_it_is_well(server: Server) -> None:
    assert server.client.get("/health").status_code == 200
    (model,) = server.client.get("/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("pico", "model", 2048)


def test_a_completion_has_text_tokens_and_usage(server: Server) -> None:
    body = server.complete(prompt="Q: 2+2\nA:", max_tokens=7, temperature=0, return_token_ids=True, ignore_eos=True)
    (choice,) = body["choices"]
    assert body["object"] == "text_completion"
    assert choice["finish_reason"] == "length"
    assert len(choice["token_ids"]) == 7
    assert body["usage"] == {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
    assert "token_ids" not in server.complete(prompt="a", max_tokens=1)["choices"][0]


def test_text_is_its_ids_with_a_bos_in_front(server: Server) -> None:
    ids = [97, ord("h") - 32, ord("i") - 32]
    answers = [
        server.complete(prompt=p, max_tokens=9, temperature=0, ignore_eos=True, return_token_ids=True)
        for p in ("hi", ids)
    ]
    assert answers[0]["choices"][0]["token_ids"] == answers[1]["choices"][0]["token_ids"]


SPECIALS = {"prompt": "x", "temperature": 2, "ignore_eos": True, "max_tokens": 150, "return_token_ids": True}
"""Untrained and sampled so hot that specials are among the tokens."""


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_specials_stand_in_the_text_where_they_are_asked_for(server: Server, seed: int) -> None:
    (hidden,) = server.complete(**SPECIALS, seed=seed)["choices"]
    (shown,) = server.complete(**SPECIALS, seed=seed, skip_special_tokens=False, logprobs=0)["choices"]
    assert hidden["token_ids"] == shown["token_ids"]
    assert set(shown["token_ids"]) & set(tokenizer.SPECIALS)
    assert hidden["text"] == tokenizer.decode(shown["token_ids"])
    assert shown["text"] == tokenizer.decode(shown["token_ids"], specials=True) == "".join(shown["logprobs"]["tokens"])
    starts = shown["logprobs"]["text_offset"]
    for at, name in zip(starts, shown["logprobs"]["tokens"], strict=True):
        assert shown["text"][at : at + len(name)] == name
    chunks = server.stream("/v1/completions", **SPECIALS, seed=seed, skip_special_tokens=False, logprobs=0)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == shown["text"]
    assert [chunk["choices"][0]["logprobs"]["text_offset"][0] for chunk in chunks] == starts


def test_the_token_that_ends_an_answer_is_never_in_its_text(server: Server) -> None:
    """As in vLLM, whose detokenizer leaves out the token that stopped a request."""
    (whole,) = server.complete(**SPECIALS, seed=1)["choices"]
    end = next(token for token in whole["token_ids"] if token in tokenizer.SPECIALS)
    (cut,) = server.complete(**SPECIALS, seed=1, skip_special_tokens=False, stop_token_ids=[end])["choices"]
    assert cut["finish_reason"] == "stop"
    assert cut["token_ids"] == whole["token_ids"][: whole["token_ids"].index(end) + 1]
    assert cut["text"] == tokenizer.decode(cut["token_ids"][:-1], specials=True)


def test_several_prompts_of_one_call_come_in_order(server: Server) -> None:
    prompts = ["abc", "x", "a longer prompt than the others"]
    params = {"max_tokens": 6, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    together = server.complete(prompt=prompts, **params)
    assert [choice["index"] for choice in together["choices"]] == [0, 1, 2]
    alone = [server.complete(prompt=prompt, **params)["choices"][0]["token_ids"] for prompt in prompts]
    assert [choice["token_ids"] for choice in together["choices"]] == alone
    assert together["usage"]["completion_tokens"] == 18
    chunks = server.stream("/v1/completions", prompt=prompts, **params)
    streamed: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for chunk in chunks:
        streamed[chunk["choices"][0]["index"]] += chunk["choices"][0]["token_ids"]
    assert [*streamed.values()] == alone


SAMPLED = {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "seed": 7, "max_tokens": 20, "ignore_eos": True}


@pytest.mark.parametrize("params", [{"temperature": 0, "max_tokens": 20}, SAMPLED, {**SAMPLED, "stop": ["e", "Zq"]}])
def test_a_stream_adds_up_to_the_whole_answer(server: Server, params: dict[str, Any]) -> None:
    common = {"prompt": "The quick brown", "logprobs": 2, "return_token_ids": True, **params}
    (whole,) = (answer := server.complete(**common))["choices"]
    *chunks, last = server.stream("/v1/completions", **common, stream_options={"include_usage": True})
    parts = [chunk["choices"][0] for chunk in chunks]
    assert "".join(part["text"] for part in parts) == whole["text"]
    assert [token for part in parts for token in part["token_ids"]] == whole["token_ids"]
    for key in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [x for part in parts for x in part["logprobs"][key]] == whole["logprobs"][key]
    assert [part["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["finish_reason"] == whole["finish_reason"]
    assert last["choices"] == []
    assert last["usage"] == answer["usage"]
    assert all(chunk["usage"] is None for chunk in chunks)


def test_a_chat_streams_what_it_answers_at_once(server: Server) -> None:
    chat = {"messages": [{"role": "user", "content": "7*8"}], "seed": 5, "max_tokens": 12, "ignore_eos": True}
    chat |= {"logprobs": True, "top_logprobs": 2}
    whole = server.client.post("/v1/chat/completions", json={"model": "pico", **chat}).json()
    message = whole["choices"][0]["message"]
    first, *chunks = server.stream("/v1/chat/completions", **chat)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert message["role"] == "assistant"
    assert "".join(chunk["choices"][0]["delta"]["content"] for chunk in chunks) == message["content"]
    content = whole["choices"][0]["logprobs"]["content"]
    assert len(content) == whole["usage"]["completion_tokens"] == 12
    assert [c for chunk in chunks for c in chunk["choices"][0]["logprobs"]["content"]] == content
    assert all(len(entry["top_logprobs"]) == 2 and entry["bytes"] for entry in content)


WEATHER = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}
USED = [
    {"role": "user", "content": "Is it warm in Oslo?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "left out of the prompt",
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "9 C"},
]
CHATS = [
    (
        {
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "1+1"}]},
                {"role": "assistant", "content": "2"},
                {"role": "user", "content": "2+2"},
            ]
        },
        "Be brief.\nQ: 1+1\nA: 2\nQ: 2+2\nA:",
    ),
    (
        {"messages": USED, "tools": [WEATHER], "tool_choice": "auto"},
        "T: get_weather(city)\nQ: Is it warm in Oslo?\nA: !get_weather {}\nR: 9 C\nA:",
    ),
    (
        {"messages": USED, "tools": [WEATHER], "tool_choice": "none", "chat_template_kwargs": {"thinking": True}},
        "Q: Is it warm in Oslo?\nA: !get_weather {}\nR: 9 C\nH:",
    ),
    (
        {"messages": USED[:1], "tools": [WEATHER], "reasoning_effort": "max"},
        "T: get_weather(city)\nThink hard.\nQ: Is it warm in Oslo?\nH:",
    ),
]


@pytest.mark.parametrize(("chat", "text"), CHATS)
def test_a_chat_is_the_completion_of_its_prompt(server: Server, chat: dict[str, Any], text: str) -> None:
    params = {"temperature": 0, "max_tokens": 8, "return_token_ids": True}
    answer = server.client.post("/v1/chat/completions", json={"model": "pico", **chat, **params})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    completion = server.complete(prompt=text, stop_token_ids=[95], **params)
    assert choice["token_ids"] == completion["choices"][0]["token_ids"]
    message = choice["message"]
    said = message["reasoning_content"] if text.endswith("H:") else message["content"]
    assert said == completion["choices"][0]["text"].removeprefix(" ")


def test_concurrent_clients_get_the_tokens_they_get_alone(server: Server) -> None:
    calls = [
        {"prompt": "once upon a time", "temperature": 0, "max_tokens": 40},
        {"prompt": "x" * 300, "temperature": 1.0, "seed": 1, "max_tokens": 40},
        {"prompt": "17+25=", "temperature": 0.8, "top_p": 0.9, "seed": 2, "max_tokens": 30},
        {"prompt": [1, 2, 3], "temperature": 0, "max_tokens": 35},
    ]

    def tokens(call: dict[str, Any]) -> list[int]:
        return server.complete(**call, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"]

    alone = [tokens(call) for call in calls]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(tokens, calls)) == alone
        assert list(pool.map(tokens, calls[::-1])) == alone[::-1]


def test_seeds_repeat_and_differ(server: Server) -> None:
    params = {"prompt": "a", "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}

    def tokens(**more: Any) -> list[int]:
        return server.complete(**params, **more)["choices"][0]["token_ids"]

    assert tokens(seed=3) == tokens(seed=3)
    assert tokens(seed=3) != tokens(seed=4)
    assert tokens() != tokens()


def test_stop_ids_end_and_are_reported_but_not_shown(server: Server) -> None:
    params = {"prompt": "abc", "temperature": 0, "max_tokens": 30, "return_token_ids": True, "ignore_eos": True}
    free = server.complete(**params)["choices"][0]["token_ids"]
    stop = free[4]
    choice = server.complete(**params, stop_token_ids=[stop])["choices"][0]
    assert choice["token_ids"] == free[: free.index(stop) + 1]
    assert choice["finish_reason"] == "stop"
    assert len(choice["text"]) <= free.index(stop)


BAD = [
    ({"prompt": "a", "model": "gpt-4"}, 404, "model", "model 'gpt-4' does not exist: this server has 'pico'"),
    ({}, 400, "prompt", "prompt is required"),
    ({"prompt": 5}, 400, "prompt", "prompt: must be a text, a list of token ids"),
    ({"prompt": []}, 400, "prompt", "non-empty"),
    ({"prompt": [[]]}, 400, "prompt", "empty, give at least one"),
    ({"prompt": ["a", 3]}, 400, "prompt", "one is 3"),
    ({"prompt": [1, 2.5]}, 400, "prompt", "each prompt must be a text or a list of token ids, one is 1"),
    ({"prompt": [1, 100]}, 400, "prompt", "token id 100 is outside the vocabulary, 0 to 99"),
    ({"prompt": [-1]}, 400, "prompt", "token id -1 is outside"),
    ({"prompt": ["a"] * 200}, 400, "prompt", "at most 128"),
    ({"prompt": [1] * 2048}, 400, "prompt", "2048 tokens are too long, max_model_len is 2048"),
    ({"prompt": [1] * 2000, "max_tokens": 49}, 400, "max_tokens", "max_tokens 49 with a prompt of 2000 tokens"),
    ({"prompt": "a", "max_tokens": -3}, 400, "max_tokens", "got -3"),
    ({"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "got 0"),
    ({"prompt": "a", "max_tokens": "7"}, 400, "max_tokens", 'got "7"'),
    ({"prompt": "a", "max_tokens": True}, 400, "max_tokens", "got true"),
    ({"prompt": "a", "max_tokens": 1.5}, 400, "max_tokens", "got 1.5"),
    ({"prompt": "a", "n": 2}, 400, "n", "n: only 1 is supported, got 2"),
    ({"prompt": "a", "echo": True}, 400, "echo", "only false is supported, got true"),
    ({"prompt": "a", "best_of": 3}, 400, "best_of", "got 3"),
    ({"prompt": "a", "presence_penalty": 0.5}, 400, "presence_penalty", "only 0 is supported, got 0.5"),
    ({"prompt": "a", "temperature": -0.1}, 400, "temperature", "got -0.1"),
    ({"prompt": "a", "temperature": "hot"}, 400, "temperature", 'got "hot"'),
    ({"prompt": "a", "top_p": 0}, 400, "top_p", "greater than 0, got 0"),
    ({"prompt": "a", "top_p": 1.1}, 400, "top_p", "less than or equal to 1, got 1.1"),
    ({"prompt": "a", "top_k": -2}, 400, "top_k", "got -2"),
    ({"prompt": "a", "logprobs": 21}, 400, "logprobs", "less than or equal to 20, got 21"),
    ({"prompt": "a", "stop": [""]}, 400, "stop", 'got ""'),
    ({"prompt": "a", "stop": ["a"] * 17}, 400, "stop", "at most 16"),
    ({"prompt": "a", "stop_token_ids": [100]}, 400, "stop_token_ids", "outside the vocabulary"),
    ({"prompt": "a", "seed": 2**64}, 400, "seed", "got 18446744073709551616"),
    ({"prompt": "a", "stream": "yes"}, 400, "stream", 'got "yes"'),
    ({"prompt": "a", "stream_options": {"include_usage": True}}, 400, "stream_options", "needs stream true"),
    ({"prompt": "a", "temprature": 1}, 400, "temprature", "unknown parameter temprature: did you mean temperature?"),
]


@pytest.mark.parametrize(("body", "status", "param", "text"), BAD, ids=[f"{row[2]}-{i}" for i, row in enumerate(BAD)])
def test_bad_completions_are_refused_by_name_value_and_limit(
    server: Server, body: dict[str, Any], status: int, param: str, text: str
) -> None:
    response = server.client.post("/v1/completions", json={"model": "pico", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (status, param)
    assert text in error["message"]
    assert "\n" not in error["message"]
    assert error["type"] == "invalid_request_error"


BAD_CHATS = [
    ({}, "messages", "messages is required"),
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": [{"role": "critic", "content": "x"}]}, "messages", "messages.0.role"),
    ({"messages": [{"role": "user"}]}, "messages", "messages.0.content is required"),
    ({"messages": [{"role": "assistant", "content": "x"}]}, "messages", "the last message must be a user turn"),
    ({"messages": [{"role": "user", "content": "x" * 2050}]}, "messages", "tokens are too long, max_model_len is 2048"),
    ({"messages": [{"role": "user", "content": "x"}], "top_logprobs": 2}, "top_logprobs", "needs logprobs true"),
    (
        {"messages": [{"role": "user", "content": "x"}], "tool": []},
        "tool",
        "unknown parameter tool: did you mean tools?",
    ),
    (
        {"messages": [{"role": "user", "content": "x"}], "max_completion_tokens": 2048},
        "max_completion_tokens",
        "at most",
    ),
]


@pytest.mark.parametrize(("body", "param", "text"), BAD_CHATS)
def test_bad_chats_are_refused(server: Server, body: dict[str, Any], param: str, text: str) -> None:
    response = server.client.post("/v1/chat/completions", json={"model": "pico", **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param), error
    assert text in error["message"]


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
def test_bodies_that_are_no_json_object_are_refused(server: Server, raw: bytes) -> None:
    response = server.client.post("/v1/completions", content=raw)
    assert response.status_code == 400
    assert "body" in response.json()["error"]["message"]


def test_wrong_paths_methods_and_sizes_have_the_same_shape(server: Server) -> None:
    assert server.client.get("/v1/nothing").json()["error"]["message"] == "GET /v1/nothing: Not Found"
    assert server.client.get("/v1/completions").status_code == 405
    response = server.client.post("/v1/completions", content=b"x" * ((8 << 20) + 1))
    assert response.status_code == 413
    assert "1114112" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (json.dumps({"model": "pico", "prompt": [{}] * 200_000}), 400),
        (json.dumps({"model": "pico", "prompt": [[1]] * 180_000}), 400),
        (json.dumps({f"k{i}": 0 for i in range(500_000)}), 413),
        (json.dumps({f"k{i}": 0 for i in range(50_000)}), 400),
        (json.dumps({"model": "pico", "prompt": [1] * 3_000_000}), 413),
        (json.dumps({"model": "pico", "prompt": [1] * 300_000}), 400),
        (json.dumps({"model": "pico", "prompt": [[1] * 300_000]}), 400),
        (json.dumps({"model": "pico", "prompt": "x" * 7_000_000}), 413),
        (json.dumps({"model": "pico", "prompt": "x" * 1_000_000}), 400),
        (json.dumps({"model": "x" * 1_000_000, "prompt": "a"}), 404),
    ],
)
def test_large_bodies_are_refused_in_a_few_words(server: Server, raw: str, status: int) -> None:
    response = server.client.post("/v1/completions", content=raw)
    assert response.status_code == status
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert len(response.content) < 400


def test_the_longest_prompts_are_taken_in_any_characters(server: Server) -> None:
    for prompt in ("x" * 2046, "\N{GRINNING FACE}" * 511):
        assert server.complete(prompt=prompt, max_tokens=1)["usage"]["completion_tokens"] == 1


def test_metrics_count_what_was_asked_for(server: Server) -> None:
    names = ("vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total")
    latencies = ("time_to_first_token", "inter_token_latency", "e2e_request_latency")
    counts = (*names, *(f"vllm:{name}_seconds_count" for name in latencies))
    before = [server.metric(name) for name in counts]
    server.complete(prompt=[1, 2, 3, 4], max_tokens=6, temperature=0, ignore_eos=True)
    assert [server.metric(name) - old for name, old in zip(counts, before, strict=True)] == [4, 6, 1, 1, 5, 1]
    assert server.metric("vllm:num_requests_running") == server.metric("vllm:num_requests_waiting") == 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    profile = json.loads((server.boot / "kv_profile.rank0.json").read_text())
    assert f'num_gpu_blocks="{profile["blocks"]}"' in server.client.get("/metrics").text


def test_a_client_that_leaves_is_dropped(server: Server) -> None:
    body = {"model": "pico", "prompt": "a", "max_tokens": 2000, "ignore_eos": True}
    before = aborted_requests(server)
    with server.client.stream("POST", "/v1/completions", json={**body, "stream": True}) as response:
        next(response.iter_lines())
    wait_for(lambda: aborted_requests(server) == before + 1)
    with pytest.raises(httpx.ReadTimeout):
        server.client.post("/v1/completions", json=body, timeout=0.3)
    wait_for(lambda: aborted_requests(server) == before + 2)
    assert server.metric("vllm:num_requests_running") == 0
    assert server.metric("vllm:kv_cache_usage_perc") == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.05)


def aborted_requests(server: Server) -> float:
    lines = server.client.get("/metrics").text.splitlines()
    return sum(float(x.rsplit(" ", 1)[1]) for x in lines if x.startswith("vllm:request_success_total") and "abort" in x)


def test_markers_follow_the_work(server: Server) -> None:
    def taken() -> int:
        markers = json.loads((server.boot / "markers.rank0.json").read_text())
        return markers["toggles"]["mhc_input_reuse"]["taken"]

    before = taken()
    server.complete(prompt="x" * 100, max_tokens=1)
    wait_for(lambda: taken() > before)


def test_logs_say_what_vllm_would(server: Server) -> None:
    log = (server.boot / "log").read_text()
    profile = json.loads((server.boot / "kv_profile.rank0.json").read_text())
    assert f"CPU KV cache size: {profile['tokens']:,} tokens" in log
    assert f"Maximum concurrency for 2,048 tokens per request: {profile['max_concurrency']:.2f}x" in log
    assert "Available KV cache memory: 0.01 GiB" in log
    assert "Model loading took 0.00 GiB and " in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly_in_the_middle_of_work(tmp_path: Path, number: signal.Signals) -> None:
    server = start(tmp_path, toggles="mtp_hidden_skip")
    body = {"model": "pico", "prompt": "a", "max_tokens": 2000, "ignore_eos": True, "stream": True}
    with server.client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_lines())
        (tmp_path / "markers.rank0.json").unlink()
        server.process.send_signal(number)
        assert server.process.wait(30) == -number, "it looks as if it had ended by itself"
    markers = json.loads((tmp_path / "markers.rank0.json").read_text())
    assert markers["toggles"]["mtp_hidden_skip"]["taken"] > 2
    assert "Traceback" not in (tmp_path / "log").read_text()


def test_a_taken_port_is_refused(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    port = str(server.client.base_url.port)
    assert main(["--dims", "pico", "--load-format", "dummy", "--port", port]) == 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in capsys.readouterr().err
