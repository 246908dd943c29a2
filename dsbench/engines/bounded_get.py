"""One HTTP GET that ends: at most so many bytes of an answer, within so many seconds in all."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx

from dsbench.engines.client import MOST_OF_AN_ANSWER
from dsbench.engines.secrets import authorization


def get_status(url: str, seconds: float) -> int | None:
    """Status of an answer, whose body is not read; None if none came within `seconds`."""
    return find_status(url, seconds) or None


def find_status(url: str, seconds: float) -> int | None:
    """As `get_status`, and 0 where a connection was taken that brought no answer within `seconds`."""
    answer = _within(url, 0, seconds)
    return answer[0] if answer else None


def get_body(url: str, seconds: float, most_bytes: int = MOST_OF_AN_ANSWER) -> bytes | None:
    """Body of an answer of status 200; None for any other, a longer one, a compressed one, or one not whole in time."""
    answer = _within(url, most_bytes, seconds)
    return answer[1] if answer and answer[0] == 200 else None


def _within(url: str, most_bytes: int, seconds: float) -> tuple[int, bytes | None] | None:
    # httpx bounds each read, not their sum; asyncio bounds the sum. In a thread: the caller may have a loop that runs.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, _get(url, most_bytes, seconds)).result()


async def _get(url: str, most_bytes: int, seconds: float) -> tuple[int, bytes | None] | None:
    headers = {**authorization(), "accept-encoding": "identity"}
    # A connection that nobody takes must be known before the whole time is over.
    timeouts = httpx.Timeout(seconds, connect=0.8 * seconds)
    try:
        async with (
            asyncio.timeout(seconds),
            # Certificates take long to load, and plain HTTP needs none.
            httpx.AsyncClient(timeout=timeouts, trust_env=False, verify=url.startswith("https:")) as client,
            client.stream("GET", url, headers=headers) as answer,
        ):
            encoded = answer.headers.get("content-encoding", "identity") != "identity"
            if not most_bytes or encoded:
                return answer.status_code, None
            body = bytearray()
            async for piece in answer.aiter_raw():
                body += piece
                if len(body) > most_bytes:
                    return answer.status_code, None
            return answer.status_code, bytes(body)
    except (httpx.ReadTimeout, TimeoutError):
        return 0, None
    except (httpx.HTTPError, httpx.InvalidURL):
        return None
