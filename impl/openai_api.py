"""OpenAI-shaped requests: parsing, limits, and errors that name the parameter, its value and the limit.

Shapes: https://platform.openai.com/docs/api-reference, with vLLM's additions (`top_k`, `ignore_eos`,
`stop_token_ids`, `skip_special_tokens`, token-id prompts, `return_token_ids`).
"""

from __future__ import annotations

import difflib
import json
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from impl import tokenizer

MAX_PROMPTS = 128
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_KEYS = 1024
"""Of any one object in a body."""
MAX_OBJECTS = 16384
"""Of a whole body: its checks hold the interpreter for microseconds an object, also in a thread."""


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

    @property
    def most_body_bytes(self) -> int:
        """A character is a token and up to 12 bytes of escapes; the room is for tools and several prompts."""
        return (1 << 20) + 32 * self.max_model_len


def only(neutral: object) -> AfterValidator:
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
    skip_special_tokens: bool = True
    """False: special tokens stand in the text, `<|bos|>`. As in vLLM, the token that ends an answer never does."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    user: str | None = None
    n: Annotated[int | None, only(1)] = None
    min_p: Annotated[float | None, only(0)] = None
    presence_penalty: Annotated[float | None, only(0)] = None
    frequency_penalty: Annotated[float | None, only(0)] = None
    repetition_penalty: Annotated[float | None, only(1)] = None
    logit_bias: Annotated[dict[str, float] | None, only({})] = None

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionBody(GenerationBody):
    prompt: Annotated[list[str | list[int]], BeforeValidator(_prompts), Field(max_length=MAX_PROMPTS)]
    logprobs: Annotated[int | None, Field(ge=0, le=MAX_LOGPROBS)] = None
    echo: Annotated[bool | None, only(False)] = None
    best_of: Annotated[int | None, only(1)] = None
    suffix: Annotated[str | None, only(None)] = None


Body = TypeVar("Body", bound=GenerationBody)


def parse(kind: type[Body], raw: bytes, limits: Limits) -> Body:
    """The body as `kind`; raises ApiError 400, or 404 for another model."""
    try:
        values = json.loads(raw.decode(), object_pairs_hook=_Objects())
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is not JSON: {error}") from error
    try:
        if b"\\ud" in raw.lower():  # only an escape can be half a pair
            json.dumps(values, ensure_ascii=False).encode()
    except (UnicodeEncodeError, RecursionError):
        raise ApiError(400, "the body holds text that is not Unicode (half of a surrogate pair)") from None
    if not isinstance(values, dict):
        raise ApiError(400, f"the body must be a JSON object, got {_short(values)}")
    _check_lengths(values.get("prompt"), limits)
    try:
        body = kind.model_validate(values)
    except ValidationError as error:
        raise _of_validation(error, kind) from error
    if body.model != limits.model:
        name = body.model if len(body.model) <= 60 else f"{body.model[:57]}..."
        message = f"model '{name}' does not exist: this server has '{limits.model}'"
        raise ApiError(404, message, "model", "model_not_found")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream true", "stream_options")
    for token in body.stop_token_ids or ():
        _check_id(token, limits, "stop_token_ids")
    return body


class _Objects:
    """Makes the objects of one body, up to so many."""

    def __init__(self) -> None:
        self._made = 0

    def __call__(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        self._made += 1
        if len(pairs) > MAX_KEYS:
            raise ApiError(400, f"an object of the body has {len(pairs)} keys, at most {MAX_KEYS} are taken")
        if self._made > MAX_OBJECTS:
            raise ApiError(400, f"the body has more than {MAX_OBJECTS} objects")
        return dict(pairs)


def _check_lengths(prompt: Any, limits: Limits) -> None:
    """Refuse too many token ids by their number, before each is looked at."""
    for ids in [prompt, *prompt[:MAX_PROMPTS]] if isinstance(prompt, list) else ():
        if isinstance(ids, list) and ids and _is_id(ids[0]) and len(ids) >= max(limits.max_model_len, MAX_PROMPTS + 1):
            message = f"prompt: {len(ids)} tokens are too long, max_model_len is {limits.max_model_len}"
            message += " with at least one token to generate"
            raise ApiError(400, message, "prompt", "context_length_exceeded")


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
