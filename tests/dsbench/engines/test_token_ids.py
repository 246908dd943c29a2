"""Token ids are whole numbers, or the answer is none."""

import asyncio
import json

import httpx
import pytest

from dsbench.engines.client import BadAnswer, Client

USAGE = {"prompt_tokens": 2, "completion_tokens": 2}


def complete(ids):
    body = json.dumps({"choices": [{"text": "x", "token_ids": ids}], "usage": USAGE})
    client = Client("http://engine", "pico", 5)
    client._http = httpx.AsyncClient(
        base_url="http://engine", transport=httpx.MockTransport(lambda request: httpx.Response(200, text=body))
    )
    return asyncio.run(client.complete("a", 2)).token_ids


@pytest.mark.parametrize("ids", [[1, 2], [0, -1], [], None])
def test_ids_are_taken_as_they_came(ids):
    assert complete(ids) == ids


@pytest.mark.parametrize(
    ("ids", "odd"),
    [([1.5, 2], "1.5"), ([1, 2.0], "2.0"), ([1, "2"], "'2'"), ([True, 2], "True"), ([1, None], "None"),
     ([1, float("nan")], "nan"), ("12", "'12'"), ({"1": 2}, "{'1': 2}")],
)  # fmt: skip
def test_what_is_no_id_is_refused_and_not_cut_to_one(ids, odd):
    with pytest.raises(BadAnswer) as refused:
        complete(ids)
    assert str(refused.value) == f"/v1/completions answered without token_ids that are whole numbers, but with {odd}"
