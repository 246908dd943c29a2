"""Secrets stay in the environment."""

import json
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsbench.engines.secret_shapes import is_secret
from dsbench.engines.secrets import (
    authorization,
    redact,
    redact_files,
    redact_object,
    redacted_end,
    refuse_secret,
    refuse_secrets,
)
from dsbench.errors import InputError


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET", "DB_PASSWORD", "apikey", "AUTHORIZATION",
                                  "PROXY_AUTHORIZATION", "Authorization"])  # fmt: skip
def test_names_that_may_hold_a_secret(name):
    assert is_secret(name)


@pytest.mark.parametrize(
    "name", ["CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "KEYBOARD", "X", "AUTHORIZATION_MODE"]
)
def test_names_that_hold_none(name):
    assert not is_secret(name)


def test_values_are_taken_out_of_a_text():
    environment = {"HF_TOKEN": "hf_abcdef", "SHORT_KEY": "ab", "PATH": "hf"}
    assert redact("token hf_abcdef, ab, hf", environment) == "token [redacted], ab, hf"


@pytest.mark.parametrize(
    ("args", "env"),
    [
        (["--api-key", "x"], {}), (["--hf-token=x"], {}), ([], {"VLLM_API_KEY": "secret"}),
        ([], {"AUTHORIZATION": "Basic dXNlcjpwYXNz"}), ([], {"PROXY_AUTHORIZATION": "x"}),
        ([], {"OTEL_HEADERS": "Basic dXNlcjpwYXNz"}), ([], {"X": "bearer abc.def"}),
        ([], {"OTEL_HEADERS": "authorization=Basic dXNlcjpwYXNz"}),
    ],
)  # fmt: skip
def test_a_secret_that_would_be_stored_is_refused(args, env):
    with pytest.raises(InputError, match="would be stored with the plan"):
        refuse_secrets(args, env)
    refuse_secrets(["--port", "1"], {"X": "1"})


def test_the_key_is_read_from_the_environment(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert authorization() == {}
    monkeypatch.setenv("VLLM_API_KEY", "abc")
    assert authorization() == {"Authorization": "Bearer abc"}


LONG = {"A_TOKEN": "longsecret-PREFIX", "B_TOKEN": "longsecret-PREFIX-and-more-TAILTAIL"}


def test_a_secret_that_begins_as_another_is_taken_out_whole():
    assert redact(LONG["B_TOKEN"], LONG) == "[redacted]"
    assert redact_object(json.dumps({"text": LONG["B_TOKEN"]}).encode(), LONG) == b'{"text":"[redacted]"}'


def test_a_secret_is_known_as_json_has_it_too():
    value = 'two "words" \\ ä'
    for text in (value, json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert redact(text, {"A_KEY": value}).strip('"') == "[redacted]"


@given(before=st.integers(0, 300), size=st.integers(0, 200), secret=st.sampled_from(["0123456789", "äöüß€-0123456789"]))
@example(before=30, size=5, secret="0123456789")
def test_the_end_of_a_file_begins_with_no_part_of_a_secret(before, size, secret):
    with TemporaryDirectory() as folder:
        (log := Path(folder) / "log").write_text("x" * before + secret + "y" * 40)
        told = redacted_end(log, size, {"MY_KEY": secret})
    assert not set(told) & set(secret), told
    assert told[-40:] == "y" * min(size, 40)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://u:hunter2secret@127.0.0.1:8000", "holds user:password@ in a URL"),
        ("x=http://u:hunter2secret@proxy:3128/", "holds user:password@ in a URL"),
        ("http://u:hunter2@secret@h/", "holds user:password@ in a URL"),
        ("http://h/?api_key=hunter2secret", "gives api_key a value"),
        ("http://h/?a=1&token=hunter2secret", "gives token a value"),
        ("HF_TOKEN=hunter2secret", "gives HF_TOKEN a value"),
        ("--env=HF_TOKEN=hunter2secret", "gives HF_TOKEN a value"),
        ("exec env MY_PASSWORD='hunter2secret' serve", "gives MY_PASSWORD a value"),
        ("exec serve --api-key hunter2secret", "--api-key would be stored"),
        ("--password=hunter2secret", "--password would be stored"),
        ("AUTHORIZATION=Basic hunter2secret", "holds an Authorization of the kind Basic"),
        ("PROXY_AUTHORIZATION=hunter2secret", "gives PROXY_AUTHORIZATION a value"),
        ("Bearer hunter2secret", "holds an Authorization of the kind Bearer"),
        ("--header=Authorization: bearer hunter2secret", "holds an Authorization of the kind Bearer"),
        ('{"Authorization": "Basic hunter2secret"}', "holds an Authorization of the kind Basic"),
    ],
    ids=count(),  # pytest puts them into the environment, where a URL's password is a secret
)
def test_a_literal_secret_is_refused_but_not_in_prose(text, said):
    with pytest.raises(InputError) as told:
        refuse_secret("--rig: start.0", text)
    assert str(told.value).startswith("--rig: start.0")
    assert said in str(told.value)
    assert "stored with the plan" in str(told.value)
    assert "hunter2" not in str(told.value)
    refuse_secret("suite s: prompts.0", text, prose=True)


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/a@b", "http://[::1]:8000", "ssh://git@host/x", "http://user@host", "--max-tokens=5",
        "HF_TOKEN=$HF_TOKEN", 'sh -c "API_KEY=$(cat key) serve --api-key $API_KEY"', "cache_key=7 x", "-e HF_TOKEN",
        "http://u:$PASS@proxy", "--kv-cache-dtype=fp8", "MODEL=/models/token", "--tokenizer=x", "--stop-token=y",
        "Authorization: Bearer $VLLM_API_KEY", "Bearer {key}", "basic", "Basic", "a basic set", "bearer-x y",
        "http://h/v1?session=3", "{args}", "HF_TOKEN={args}", "--token-embedding=z",
    ],
)  # fmt: skip
def test_what_holds_no_secret_is_taken(text):
    refuse_secret("--rig", text)


@pytest.mark.parametrize("secret", ["ab-1234", "baseline", "hello world", "hello-world", "20250501", "EMPTY"])
def test_a_short_or_plain_value_keeps_no_prompt_out(secret, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", secret)
    refuse_secret("suite s", f"Say {secret} again", prose=True)


@pytest.mark.parametrize("prose", [True, False])
@pytest.mark.parametrize("form", ["{}", "say {} again", "http://h/?x={}"])
def test_a_value_of_the_environment_is_refused_by_its_name_alone(form, prose, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "abc/123+xyz")
    for value in ("abc/123+xyz", "abc%2F123%2Bxyz"):
        with pytest.raises(InputError, match=r"^here holds the value of SOME_TOKEN: .*VLLM_API_KEY") as told:
            refuse_secret("here", form.format(value), prose=prose)
        assert "123" not in str(told.value)


def test_an_error_shows_no_secret_nor_a_part_of_one(monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "0123456789" * 5)
    for before in (0, 655, 680, 950):
        told = str(InputError("x" * before + "0123456789" * 5 + "y" * 600))
        assert not set("0123456789") & set(told)


KEY_LINES = ("b3BlbnNzaC1rZXktdjEAAAAA", "QyNTUxOQAAACDzxyzabcdef")


def test_a_key_of_several_lines_is_taken_out_line_by_line():
    """What puts a time before every line of a log breaks it up."""
    key = "\n".join(("-----BEGIN OPENSSH PRIVATE KEY-----", *KEY_LINES, "-----END OPENSSH PRIVATE KEY-----"))
    told = redact(f"INFO {KEY_LINES[0]}\nINFO {KEY_LINES[1]}\n-----BEGIN OPENSSH", {"DEPLOY_KEY": key})
    assert told == "INFO [redacted]\nINFO [redacted]\n-----BEGIN OPENSSH"
    assert redact(f"x {key} y", {"DEPLOY_KEY": key}) == "x [redacted] y"


@pytest.mark.parametrize("show", [repr, ascii])
def test_values_are_taken_out_as_python_shows_them(show):
    value = "tö'k\"x\\y"
    told = redact(f"environ: {show({'MY_TOKEN': value, 'A': 'b'})}", {"MY_TOKEN": value})
    assert told == "environ: {'MY_TOKEN': '[redacted]', 'A': 'b'}"


def test_a_value_that_is_no_text_is_taken_out_too(tmp_path):
    """A variable may have any bytes; a log is read with signs in their place."""
    raw = b"abc\xffdefgh"
    environment = {"MY_TOKEN": raw.decode("utf-8", "surrogateescape")}
    assert redact(f"key {raw.decode('utf-8', 'replace')}", environment) == "key [redacted]"
    assert redact_object(b'{"text": "plain"}', environment) == b'{"text": "plain"}'
    (tmp_path / "engine.log").write_bytes(b"key " + raw)
    assert redacted_end(tmp_path / "engine.log", 100, environment) == "key [redacted]"
    redact_files(tmp_path, environment)
    assert (tmp_path / "engine.log").read_bytes() == b"key [redacted]"
