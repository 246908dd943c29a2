"""OpenAI-shaped requests: parsing, limits, and errors that name the parameter, its value and the limit.

Shapes: https://platform.openai.com/docs/api-reference, with vLLM's additions (`top_k`, `ignore_eos`,
`stop_token_ids`, token-id prompts, `return_token_ids`).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from impl import tokenizer
from impl.engine.request import SamplingParams

MAX_PROMPTS = 128
MAX_STOPS = 16
MAX_LOGPROBS = 20
LEAST_TEMPERATURE = 1e-5
"""As in vLLM."""


class ApiError(Exception):
    """An answer that is an error, in OpenAI's shape."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    def body(self) -> dict[str, Any]:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Limits:
    """What a request is checked against."""

    model: str
    vocab_size: int
    max_model_len: int


def _only(neutral: object) -> AfterValidator:
    """A parameter of the API that this engine has at one value."""

    def check(value: Any) -> Any:
        if value is not None and value != neutral:
            raise ValueError(f"only {json.dumps(neutral)} is supported")
        return value

    return AfterValidator(check)


def _one_or_many(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _prompts(value: Any) -> Any:
    """A text, token ids, or a list of either, as a list of prompts."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list) or not value:
        raise ValueError("must be a text, a list of token ids, or a non-empty list of these")
    prompts = [value] if all(_is_id(item) for item in value) else value
    for prompt in prompts:
        if not isinstance(prompt, str) and not (isinstance(prompt, list) and all(_is_id(item) for item in prompt)):
            raise ValueError(f"each prompt must be a text or a list of token ids, one is {_short(prompt)}")
    return prompts


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


class StreamOptions(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    include_usage: bool = False


class GenerationBody(BaseModel):
    """What completions and chat have in common. Neutral values of what is not supported are taken."""

    model_config = ConfigDict(strict=True, extra="forbid")

    model: str
    max_tokens: Annotated[int | None, Field(ge=1)] = None
    temperature: Annotated[float | None, Field(ge=0, le=100, allow_inf_nan=False)] = None
    top_p: Annotated[float | None, Field(gt=0, le=1)] = None
    top_k: Annotated[int | None, Field(ge=-1, lt=2**31)] = None
    """0 and -1 keep all."""
    seed: Annotated[int | None, Field(ge=-(2**63), lt=2**64)] = None
    stop: Annotated[list[Annotated[str, Field(min_length=1)]] | None, BeforeValidator(_one_or_many)] = Field(
        None, max_length=MAX_STOPS
    )
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    user: str | None = None
    n: Annotated[int | None, _only(1)] = None
    min_p: Annotated[float | None, _only(0)] = None
    presence_penalty: Annotated[float | None, _only(0)] = None
    frequency_penalty: Annotated[float | None, _only(0)] = None
    repetition_penalty: Annotated[float | None, _only(1)] = None
    logit_bias: Annotated[dict[str, float] | None, _only({})] = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts), Field(max_length=MAX_PROMPTS)]
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    echo: Annotated[bool | None, _only(False)] = None
    best_of: Annotated[int | None, _only(1)] = None
    suffix: Annotated[str | None, _only(None)] = None


Body = TypeVar("Body", bound=GenerationBody)


class TextPart(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    type: Literal["text"]
    text: str


class Message(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")
    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]
    name: str | None = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatBody(GenerationBody):
    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int | None, Field(ge=1)] = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None


def parse(kind: type[Body], raw: bytes, limits: Limits) -> Body:
    """The body as `kind`; raises ApiError 400, or 404 for another model."""
    try:
        values = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    try:
        json.dumps(values, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise ApiError(400, "the body holds text that is not Unicode (half of a surrogate pair)") from None
    if not isinstance(values, dict):
        raise ApiError(400, f"the body must be a JSON object, got {_short(values)}")
    try:
        body = kind.model_validate(values)
    except ValidationError as error:
        raise _of_validation(error, kind) from error
    if body.model != limits.model:
        message = f"model '{body.model}' does not exist: this server has '{limits.model}'"
        raise ApiError(404, message, "model", "model_not_found")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream true", "stream_options")
    for token in body.stop_token_ids or ():
        _check_id(token, limits, "stop_token_ids")
    return body


def _of_validation(error: ValidationError, kind: type[GenerationBody]) -> ApiError:
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "body"
    if first["type"] == "extra_forbidden":
        near = difflib.get_close_matches(name, kind.model_fields, n=1)
        hint = f": did you mean {near[0]}?" if near and len(first["loc"]) == 1 else ""
        where = ".".join(str(part) for part in first["loc"])
        return ApiError(400, f"unknown parameter {where}{hint}", name)
    if first["type"] == "missing":
        return ApiError(400, f"{'.'.join(str(part) for part in first['loc'])} is required", name)
    what = first["msg"].removeprefix("Value error, ")
    where = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier())
    return ApiError(400, f"{where}: {what[0].lower()}{what[1:]}, got {_short(first['input'])}", name)


def _short(value: Any) -> str:
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_id(token: int, limits: Limits, param: str) -> None:
    if not 0 <= token < limits.vocab_size:
        raise ApiError(400, f"{param}: token id {token} is outside the vocabulary, 0 to {limits.vocab_size - 1}", param)


def prompt_ids(prompt: str | list[int], limits: Limits, param: str) -> list[int]:
    """Token ids of a prompt: text gets a bos in front, ids are used as they are."""
    if isinstance(prompt, str):
        ids = [tokenizer.BOS, *tokenizer.encode(prompt)]
    else:
        ids = prompt
        for token in ids:
            _check_id(token, limits, param)
    if not ids:
        raise ApiError(400, f"{param}: the list of token ids is empty, give at least one", param)
    if len(ids) >= limits.max_model_len:
        room = f"max_model_len is {limits.max_model_len} with at least one token to generate"
        raise ApiError(400, f"{param}: {len(ids)} tokens are too long, {room}", param, "context_length_exceeded")
    return ids


def chat_ids(body: ChatBody, limits: Limits) -> list[int]:
    """Token ids of a chat, in the format the model is trained on."""
    try:
        text = tokenizer.chat_prompt([{"role": m.role, "content": m.text} for m in body.messages])
    except ValueError as error:
        raise ApiError(400, f"messages: {error}", "messages") from error
    return prompt_ids(text, limits, "messages")


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
        logprobs=None if n_top is None else min(n_top, limits.vocab_size),
    )


def _temperature(asked: float | None) -> float:
    """0, greedy, for what is too small to divide logits by in fp32."""
    temperature = 1.0 if asked is None else asked
    return temperature if temperature >= LEAST_TEMPERATURE else 0.0
