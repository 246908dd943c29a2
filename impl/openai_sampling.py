"""From a request's parameters to how its tokens are drawn and when they end."""

from __future__ import annotations

from impl import tokenizer
from impl.engine.request import SamplingParams
from impl.openai_api import ApiError, CompletionBody, GenerationBody, Limits
from impl.openai_chat import ChatBody

LEAST_TEMPERATURE = 1e-5
"""As in vLLM."""


def sampling_params(
    body: GenerationBody, n_prompt: int, limits: Limits, *, default_seed: int, default_max_tokens: int | None
) -> SamplingParams:
    """Sampling of one prompt; without a limit of its own a request may fill the context."""
    param, most = "max_tokens", body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        param, most = "max_completion_tokens", body.max_completion_tokens
    room = limits.max_model_len - n_prompt
    if most is not None and most > room:
        message = f"{param} {most} with a prompt of {n_prompt} tokens exceeds max_model_len {limits.max_model_len}"
        raise ApiError(400, f"{message}: at most {room}", param, "context_length_exceeded")
    if isinstance(body, ChatBody):
        if body.top_logprobs is not None and not body.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs true", "top_logprobs")
        n_top = (body.top_logprobs or 0) if body.logprobs else None
    else:
        assert isinstance(body, CompletionBody)
        n_top = body.logprobs
    ends = set() if body.ignore_eos else {tokenizer.EOS}
    if isinstance(body, ChatBody) and not body.ignore_eos:
        ends.add(tokenizer.NEWLINE)  # it ends an answer in the chat format
    seed = default_seed if body.seed is None else body.seed
    return SamplingParams(
        max_tokens=min(most or default_max_tokens or room, room),
        temperature=_temperature(body.temperature),
        top_k=max(body.top_k or 0, 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        seed=seed % (1 << 64),
        stop_ids=frozenset(ends | set(body.stop_token_ids or ())),
        stop=tuple(body.stop or ()),
        show_specials=not body.skip_special_tokens,
        logprobs=None if n_top is None else min(n_top, limits.vocab_size),
    )


def _temperature(asked: float | None) -> float:
    """0, greedy, for what is too small to divide logits by in fp32."""
    temperature = 1.0 if asked is None else asked
    return temperature if temperature >= LEAST_TEMPERATURE else 0.0
