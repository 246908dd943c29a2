import asyncio
import json
import math
import socket
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsbench.engines.client import BadAnswer, Client, Stream, bounded_lines, read_counters


def client_of(answer):
    """A client whose server is a function of the request."""
    client = Client("http://engine", "pico", 5)
    client._http = httpx.AsyncClient(base_url="http://engine", transport=httpx.MockTransport(answer))
    return client


def events(*pieces, usage=3, ids=True):
    lines = []
    for text, tokens in pieces:
        choice = {"text": text} | ({"token_ids": tokens} if ids else {})
        lines.append(f"data: {json.dumps({'choices': [choice]})}\n\n")
    lines.append(f"data: {json.dumps({'choices': [], 'usage': {'completion_tokens': usage}})}\n\ndata: [DONE]\n\n")
    return httpx.Response(200, content=apart(lines))


async def apart(pieces):
    """Each in a read of its own."""
    for piece in pieces:
        await asyncio.sleep(0)
        yield piece.encode()


def stream(response, tokens=3):
    return asyncio.run(client_of(lambda request: response).stream([1, 2], tokens))


def test_a_stream_is_counted_by_usage_and_token_ids():
    timed = stream(events(("", [7, 8]), ("x", [9])))
    assert (timed.tokens, timed.first_tokens) == (3, 2)
    assert timed.last_at > timed.first_at


def test_tokens_of_the_first_read_are_none_that_were_timed():
    timed = asyncio.run(talk([token(1) + token(2), token(3) + end(3)], 3))
    assert (timed.tokens, timed.first_tokens, len(timed.arrivals)) == (3, 2, 3)
    assert timed.arrivals[0] == timed.arrivals[1] < timed.arrivals[2]
    took = timed.last_at - timed.first_at
    assert timed.decode_tps == 1 / took
    assert (timed.gaps, timed.step) == ([took], took)


def test_without_token_ids_pieces_with_text_are_timed():
    timed = stream(events(("xy", None), ("", None), ("z", None), ids=False))
    assert (timed.tokens, timed.first_tokens) == (3, 1)


def test_decode_tps_leaves_the_first_piece_out():
    assert Stream(tokens=11, first_tokens=1, sent_at=1.5, arrivals=(2.0, 2.5, 4.0)).decode_tps == 5.0
    stream = Stream(tokens=11, first_tokens=6, sent_at=1.5, arrivals=(2.0, 2.5, 4.0))
    assert (stream.decode_tps, stream.ttft, stream.tpot, stream.step, stream.gaps) == (2.5, 0.5, 0.4, 1.0, [0.5, 1.5])


@pytest.mark.parametrize(
    ("response", "said"),
    [
        (events(("x", [1]), ("y", [2]), usage=2), "asked for 3 tokens, the stream's usage says 2"),
        (events(("", []), usage=3), "asked for 3 tokens, no event of the stream carries any"),
        (httpx.Response(200, text="data: [DONE]\n\n"), "usage says None"),
        (httpx.Response(429, text="slow down"), "/v1/completions answered 429: slow down"),
    ],
)
def test_streams_that_are_no_measurement(response, said):
    with pytest.raises(BadAnswer, match=said):
        stream(response)


def token(*ids):
    return f"data: {json.dumps({'choices': [{'text': 'x', 'token_ids': list(ids)}]})}\n\n"


def end(tokens):
    usage = {"choices": [], "usage": {"completion_tokens": tokens}}
    return f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n"


async def talk(writes, tokens, chunked=True):
    """The stream of a server on a socket, which sends each of `writes` at once and waits until it must have come."""
    head = "transfer-encoding: chunked" if chunked else "connection: close"

    async def serve(reader, writer):
        await reader.readuntil(b"}")
        writer.write(f"HTTP/1.1 200 OK\r\n{head}\r\n\r\n".encode())
        for text in writes:
            await asyncio.sleep(0.01)
            events = [f"{event}\n\n".encode() for event in text.split("\n\n")[:-1]]
            parts = [b"%x\r\n%s\r\n" % (len(event), event) for event in events] if chunked else events
            writer.write(b"".join(parts))
            await writer.drain()
        writer.write(b"0\r\n\r\n" if chunked else b"")
        writer.close()

    async with (
        await asyncio.start_server(serve, "127.0.0.1", 0) as server,
        Client(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", "m", 5) as client,
    ):
        return await client.stream("x", tokens)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_stream_that_was_collected_and_sent_at_once_gives_no_speed(chunked):
    """A proxy that buffers, or Nagle's algorithm: chunks of one read lie microseconds apart, which is no decoding."""
    whole = "".join(token(i) for i in range(16)) + end(16)
    timed = asyncio.run(talk([whole], 16, chunked))
    assert len(set(timed.arrivals)) == 1
    with pytest.raises(BadAnswer, match="all 16 tokens came in one piece; a decode time cannot be read"):
        _ = timed.decode_tps


def test_a_collected_stream_of_several_reads_gives_no_speed_either():
    """What is longer than a read, 64 KiB here, takes several."""
    whole = "".join(token(*range(9)) for _ in range(2000)) + end(18000)
    timed = asyncio.run(talk([whole], 18000))
    assert len(set(timed.arrivals)) > 1
    with pytest.raises(BadAnswer, match="18000 tokens came in 2000 events but only"):
        _ = timed.decode_tps


@settings(max_examples=25, deadline=None)
@given(
    reads=st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=5), min_size=2, max_size=6), chunked=st.booleans()
)
def test_arrivals_are_as_many_times_as_there_were_reads(reads, chunked):
    """Events of one read share its time, those of another have another; speculation gives several tokens an event."""
    total = sum(map(sum, reads))
    writes = ["".join(token(*range(tokens)) for tokens in read) for read in reads]
    writes[-1] += end(total)
    timed = asyncio.run(talk(writes, total, chunked))
    place, times = 0, []
    for read in reads:
        share = set(timed.arrivals[place : place + len(read)])
        assert len(share) == 1
        times += share
        place += len(read)
    assert place == len(timed.arrivals)
    assert times == sorted(set(times))
    assert timed.first_tokens == sum(reads[0])
    if place >= 16 and len(reads) - 1 < (place - 1) / 8:
        with pytest.raises(BadAnswer, match=f"came in {place} events but only {len(reads)} reads of the network"):
            _ = timed.decode_tps
    else:
        assert timed.decode_tps == pytest.approx(sum(map(sum, reads[1:])) / (times[-1] - times[0]))


def test_requests_are_greedy_and_ask_for_ids():
    seen = {}

    def answer(request):
        seen.update(json.loads(request.content))
        usage = {"prompt_tokens": 2, "completion_tokens": 1}
        return httpx.Response(200, json={"choices": [{"text": "x", "token_ids": [5]}], "usage": usage})

    done = asyncio.run(client_of(answer).complete([1, 2], 1))
    assert (done.token_ids, done.prompt_tokens, done.text) == ([5], 2, "x")
    assert done.seconds > 0
    assert seen["temperature"] == 0
    assert (seen["prompt"], seen["return_token_ids"], seen["ignore_eos"], seen["model"]) == ([1, 2], True, True, "pico")


@pytest.mark.parametrize("content", [{}, {"choices": []}, {"choices": [{"text": "x"}]}, [], "x", 3])
def test_answers_of_another_shape(content):
    client = client_of(lambda request: httpx.Response(200, json=content))
    with pytest.raises(BadAnswer, match="/v1/completions answered without"):
        asyncio.run(client.complete("x", 1))
    with pytest.raises(BadAnswer, match="/v1/chat/completions answered without"):
        asyncio.run(client.chat("x", 1))


KNOWN = (
    "choices", "usage", "text", "token_ids", "message", "content", "tool_calls", "function", "arguments", "logprobs",
    "tokens", "top_logprobs", "prompt_tokens", "completion_tokens", "finish_reason", "data", "id",
)  # fmt: skip
ANSWERS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KNOWN), inner, max_size=5),
    max_leaves=25,
)


def shaped(inner):
    """Answers that are nearly right, with one odd value or another at every place."""
    choice = st.fixed_dictionaries({"text": inner, "token_ids": inner, "message": inner, "logprobs": inner})
    usage = st.fixed_dictionaries({"prompt_tokens": inner, "completion_tokens": inner})
    return st.fixed_dictionaries({"choices": st.lists(choice, min_size=1, max_size=2), "usage": usage})


@settings(max_examples=300, deadline=None)
@given(content=ANSWERS | shaped(ANSWERS), ask=st.sampled_from(["complete", "chat", "messages", "write", "stream"]))
def test_any_answer_at_all_is_taken_or_refused(content, ask):
    """Nothing else is raised, and what is taken can be printed and stored."""
    text = json.dumps(content)
    body = f"data: {text}\n\ndata: [DONE]\n\n" if ask == "stream" else text
    client = client_of(lambda request: httpx.Response(200, text=body))
    asked = {
        "complete": lambda: client.complete("x", 1, logprobs=2),
        "chat": lambda: client.chat("x", 1),
        "messages": lambda: client.chat_messages([{"role": "user", "content": "x"}], 1),
        "write": lambda: client.write("x", 1, chat=True),
        "stream": lambda: client.stream("x", 3),
    }[ask]
    try:
        taken = asyncio.run(asked())
    except BadAnswer as error:
        told = str(error)
        assert len(told) < 400, told
        told.encode()
    else:
        texts = {"chat": lambda: taken, "write": lambda: taken.text, "complete": lambda: taken.text}
        texts.get(ask, str)().encode()


def test_an_answer_that_is_not_json():
    with pytest.raises(BadAnswer, match="not JSON"):
        asyncio.run(client_of(lambda request: httpx.Response(200, text="<html>")).complete("x", 1))


def test_counters_are_summed_over_labels_and_gauges_left_out():
    page = """# TYPE vllm:prompt_tokens_total counter
vllm:prompt_tokens_total{model_name="a"} 5
vllm:prompt_tokens_total{model_name="b"} 2.5
vllm:prompt_tokens_created{model_name="a"} 1e9
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1234.5
"""
    assert read_counters(page) == {"vllm:prompt_tokens_total": 7.5, "process_start_time_seconds": 1234.5}
    assert not any(map(math.isnan, read_counters(page).values()))


def test_written_text_is_a_reply_to_a_message_or_what_follows_a_text():
    seen = []

    def answer(request):
        seen.append((request.url.path, json.loads(request.content)))
        choice = {"text": "b", "message": {"content": None}, "finish_reason": "length"}
        return httpx.Response(200, json={"choices": [choice]})

    client = client_of(answer)
    line = asyncio.run(client.write("a", 5, stop="\n"))
    client = client_of(answer)
    chat = asyncio.run(client.write("a", 5, chat=True, chat_template_kwargs={"thinking": False}))
    assert (line.text, line.finish_reason, chat.text) == ("b", "length", "")
    usual = {"model": "pico", "temperature": 0.0, "max_tokens": 5}
    assert seen == [
        ("/v1/completions", {**usual, "prompt": "a", "stop": "\n"}),
        ("/v1/chat/completions",
         {**usual, "messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"thinking": False}}),
    ]  # fmt: skip


@pytest.mark.parametrize("content", [{}, {"choices": []}, {"choices": [{}]}, [], "x", 3])
def test_writing_needs_an_answer_of_its_shape(content):
    for chat in (False, True):
        with pytest.raises(BadAnswer, match="answered without"):
            asyncio.run(client_of(lambda request: httpx.Response(200, json=content)).write("a", 5, chat=chat))


def test_a_stream_may_be_sampled_from_a_text():
    seen = {}

    def answer(request):
        seen.update(json.loads(request.content))
        return events(("", [7]), ("x", [8, 9]))

    asyncio.run(client_of(answer).stream("abc", 3, temperature=1.0, seed=5))
    assert (seen["prompt"], seen["temperature"], seen["seed"], seen["ignore_eos"]) == ("abc", 1.0, 5, True)


def test_a_connection_that_the_server_may_be_dropping_is_not_used_again():
    """uvicorn, and so vLLM, drops one that was idle for 5 s."""
    closes = threading.Event()

    async def ask_twice(port):
        async with Client(f"http://127.0.0.1:{port}", "m", 5) as client:
            await client.tell("/first")
            await asyncio.sleep(1.2)
            closes.set()
            await client.tell("/second")

    with dropping_server(closes) as port:
        asyncio.run(ask_twice(port))


@contextmanager
def dropping_server(closes):
    """Answers, keeps the connection, and once `closes` is set drops a request that comes on an old one."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        answered = 0

        def do_POST(self):
            if self.answered and closes.is_set():
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.answered += 1
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def flood(head, piece):
    """A server that answers without end, and how many bytes it got rid of."""
    sent = [0]

    class Handler(BaseHTTPRequestHandler):
        def _answer(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(200)
            for name, value in head.items():
                self.send_header(name, value)
            self.end_headers()
            try:
                while sent[0] < 400 << 20:
                    self.wfile.write(piece)
                    sent[0] += len(piece)
            except OSError:
                pass

        do_GET = do_POST = _answer

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", sent
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("ask", "head", "piece", "said", "most"),
    [
        (lambda c: c.stream("x", 3), {}, b"x" * (1 << 16), "streamed a line of more than 1,048,576 bytes", 24 << 20),
        (lambda c: c.stream("x", 3), {}, b": x\n" * 9999, "streamed more than 67,108,864 bytes", 90 << 20),
        (lambda c: c.complete("x", 3), {}, b"x" * (1 << 16), "answered more than 67,108,864 bytes", 90 << 20),
        (lambda c: c.counters(), {}, b"x" * (1 << 16), "/metrics answered more than 67,108,864 bytes", 90 << 20),
        (lambda c: c.complete("x", 3), {"content-encoding": "gzip"}, b"x" * 99, "in the encoding 'gzip'", 24 << 20),
    ],
)
def test_an_answer_without_end_is_left_after_a_bounded_part(ask, head, piece, said, most):
    async def run(url):
        async with Client(url, "pico", 20) as client:
            await ask(client)

    with flood(head, piece) as (url, sent):
        with pytest.raises(BadAnswer, match=said):
            asyncio.run(run(url))
        assert sent[0] < most


def test_lines_of_a_stream_are_those_of_its_bytes():
    async def lines(*pieces):
        async def body():
            for piece in pieces:
                yield piece

        async with (
            httpx.AsyncClient(
                transport=httpx.MockTransport(lambda request: httpx.Response(200, content=body()))
            ) as http,
            http.stream("GET", "http://engine/x") as response,
        ):
            return [line async for _, line in bounded_lines(response)]

    whole = 'data: {"a": "\u2028ü"}\r\n\ndata: [DONE]'.encode()
    for cut in range(len(whole)):
        assert asyncio.run(lines(whole[:cut], whole[cut:])) == ['data: {"a": "\u2028ü"}', "", "data: [DONE]"]
