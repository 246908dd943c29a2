"""A GET ends, whatever the server does: a body without end, one that drips, headers that drip, a compressed one."""

from __future__ import annotations

import contextlib
import gzip
import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator

import pytest

from dsbench.engines.bounded_get import get_body, get_status
from dsbench.engines.endpoint import alive
from dsbench.engines.read_back import ask

HEAD = b"HTTP/1.1 200 OK\r\n"


@contextlib.contextmanager
def serving(pieces: Iterable[bytes], pause_s: float = 0.0) -> Iterator[str]:
    """The URL of a real server that sends `pieces` to each client until it leaves."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def answer() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.recv(65536)
                for piece in pieces:
                    if over.is_set():
                        break
                    connection.sendall(piece)
                    time.sleep(pause_s)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        with contextlib.suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


class Endless:
    """A head, and then the same piece for ever; each client has it from the start."""

    def __init__(self, head: bytes, piece: bytes) -> None:
        self.head, self.piece = head, piece

    def __iter__(self) -> Iterator[bytes]:
        return itertools.chain([self.head], itertools.repeat(self.piece))


def test_a_body_without_end_is_left_and_its_status_known() -> None:
    with serving(Endless(HEAD + b"\r\n", b"x" * 65536)) as url:
        assert alive(url)
        assert get_body(url, 60.0, most_bytes=1 << 20) is None


@pytest.mark.parametrize("head", [HEAD + b"\r\n", HEAD + b"x-drip: "])
def test_what_drips_ends_with_the_deadline(head: bytes) -> None:
    with serving(Endless(head, b"x"), pause_s=0.05) as url:
        assert get_body(url, 0.5) is None
        assert get_status(url, 0.5) == (200 if head.endswith(b"\r\n\r\n") else None)


def test_a_compressed_body_is_not_unpacked() -> None:
    packed = gzip.compress(b'{"version": "1"}')
    head = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    with serving([head + packed]) as url:
        assert get_body(url, 10.0) is None
        assert get_status(url, 10.0) == 200
        assert ask(url) == {}


def test_a_body_of_just_the_bound_is_read_whole() -> None:
    with serving([HEAD + b"content-length: 4\r\n\r\n", b"abcd"]) as url:
        assert get_body(url, 10.0, most_bytes=4) == b"abcd"
        assert get_body(url, 10.0, most_bytes=3) is None


def test_nobody_and_no_url_are_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    assert get_status(f"http://127.0.0.1:{port}", 5.0) is None
    assert get_status("http://[", 5.0) is None
