"""What the streams of a soak ask for: good requests of every kind, ones that are left in the middle, and bad ones."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["right", "greedy", "sampled", "growing", "long", "several", "chat", "tools", "invalid"]
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
MODEL = "pico"
WORDS = ("old", "boat", "helps", "the", "bridge", "teacher", "bright", "bird", "hill", "small", "house", "by", "river")
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {key: {}}}}}
    for name, key in (("get_weather", "city"), ("calculate", "expression"))
]


@dataclass(frozen=True)
class Ask:
    """One request, and what must come of it: for a good one its own answer when it runs alone."""

    kind: Kind
    path: str
    body: dict[str, Any]
    status: int = 200
    param: str | None = None
    """Parameter that a refusal must name."""
    begins: str = ""
    """What a right answer begins with."""


def good_asks(seed: int) -> list[Ask]:
    """Requests with one answer each: greedy, or sampled with a seed."""
    rng = random.Random(seed)
    found = [_right(*pair) for pair in ((7, 8), (3, 9), (6, 6), (12, 11), (4, 7), (9, 9))]
    found += [_completion("greedy", rng, rng.randint(2, 80), rng.randint(4, 60)) for _ in range(10)]
    found += [_completion("sampled", rng, rng.randint(2, 80), rng.randint(4, 60)) for _ in range(10)]
    found += [_completion("growing", rng, rng.randint(1, 5), rng.randint(60, 110)) for _ in range(8)]
    found += [_completion("long", rng, rng.randint(300, 1500), rng.randint(8, 32)) for _ in range(5)]
    found += [_several(rng) for _ in range(3)]
    found += [_chat("chat", rng) for _ in range(5)] + [_chat("tools", rng) for _ in range(5)]
    return found


def _right(a: int, b: int) -> Ask:
    return Ask("right", COMPLETIONS, _body(prompt=f"{a}*{b}=", max_tokens=8, temperature=0), begins=f"{a * b}\n")


def _completion(kind: Kind, rng: random.Random, n_prompt: int, n_out: int) -> Ask:
    drawn = (
        _drawn(rng) if kind == "sampled" or (kind in ("growing", "long") and rng.random() < 0.5) else {"temperature": 0}
    )
    logs = {"logprobs": 3} if rng.random() < 0.2 else {}
    body = _body(prompt=_text(rng, n_prompt), max_tokens=n_out, ignore_eos=True, **drawn, **logs)
    return Ask(kind, COMPLETIONS, body)


def _several(rng: random.Random) -> Ask:
    prompts = [_text(rng, rng.randint(2, 40)) for _ in range(4)]
    return Ask("several", COMPLETIONS, _body(prompt=prompts, max_tokens=12, ignore_eos=True, temperature=0))


def _chat(kind: Kind, rng: random.Random) -> Ask:
    messages: list[dict[str, Any]] = [{"role": "user", "content": _text(rng, rng.randint(5, 60))}]
    if kind == "tools":
        call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": '{"sky": "clear"}'},
        ]
    tools = {"tools": TOOLS} if kind == "tools" else {"chat_template_kwargs": {"thinking": rng.random() < 0.5}}
    drawn = _drawn(rng) if rng.random() < 0.5 else {"temperature": 0}
    return Ask(kind, CHATS, _body(messages=messages, max_tokens=40, **tools, **drawn))


def _drawn(rng: random.Random) -> dict[str, Any]:
    return {"temperature": 0.9, "top_p": 0.95, "top_k": rng.choice((0, 20)), "seed": rng.getrandbits(60)}


def _body(**fields: Any) -> dict[str, Any]:
    return {"model": MODEL, "return_token_ids": True, **fields}


def _text(rng: random.Random, length: int) -> str:
    text = ""
    while len(text) < length:
        text += f"{rng.choice(WORDS)} "
    return text[:length]


def bad_asks(max_model_len: int) -> list[Ask]:
    """Requests that must be refused, each with the status and the parameter that the refusal names."""
    long = "a" * max_model_len
    user = [{"role": "user", "content": "a"}]
    return [
        Ask("invalid", COMPLETIONS, _body(prompt=long), 400, "prompt"),
        Ask("invalid", CHATS, _body(messages=[{"role": "user", "content": long}]), 400, "messages"),
        Ask("invalid", COMPLETIONS, _body(prompt="a", max_tokens=max_model_len), 400, "max_tokens"),
        Ask("invalid", COMPLETIONS, _body(prompt="a", max_tokens=0), 400, "max_tokens"),
        Ask("invalid", COMPLETIONS, _body(prompt="a", temperature=-1), 400, "temperature"),
        Ask("invalid", COMPLETIONS, _body(prompt="a", top_p=0), 400, "top_p"),
        Ask("invalid", COMPLETIONS, _body(prompt=[1, 10**9]), 400, "prompt"),
        Ask("invalid", COMPLETIONS, _body(prompt="a", n=2), 400, "n"),
        Ask("invalid", COMPLETIONS, {**_body(prompt="a"), "model": "gpt-x"}, 404, "model"),
        Ask("invalid", COMPLETIONS, _body(prompt="a", temprature=1), 400, "temprature"),
        Ask("invalid", COMPLETIONS, _body(), 400, "prompt"),
        Ask("invalid", CHATS, _body(messages=user, tools=[{"type": "function"}]), 400, "tools"),
        Ask("invalid", CHATS, _body(messages=user, tool_choice="auto"), 400, "tool_choice"),
        Ask("invalid", CHATS, _body(messages=[{"role": "critic", "content": "a"}]), 400, "messages"),
        Ask("invalid", "/v1/nothing", _body(prompt="a"), 404, None),
        Ask("invalid", COMPLETIONS, _body(prompt="a" * (9 << 20)), 413, None),
    ]
