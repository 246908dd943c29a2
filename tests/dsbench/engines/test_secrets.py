"""Secrets stay in the environment."""

import pytest

from dsbench.engines.secrets import authorization, is_secret, redact, refuse_secrets
from dsbench.errors import InputError


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "AWS_SECRET", "DB_PASSWORD", "apikey"])
def test_names_that_may_hold_a_secret(name):
    assert is_secret(name)


@pytest.mark.parametrize("name", ["CUDA_VISIBLE_DEVICES", "TOKENIZERS_PARALLELISM", "KEYBOARD", "X"])
def test_names_that_hold_none(name):
    assert not is_secret(name)


def test_values_are_taken_out_of_a_text():
    environment = {"HF_TOKEN": "hf_abcdef", "SHORT_KEY": "ab", "PATH": "hf"}
    assert redact("token hf_abcdef, ab, hf", environment) == "token [redacted], ab, hf"


@pytest.mark.parametrize(
    ("args", "env"), [(["--api-key", "x"], {}), (["--hf-token=x"], {}), ([], {"VLLM_API_KEY": "secret"})]
)
def test_a_secret_that_would_be_stored_is_refused(args, env):
    with pytest.raises(InputError, match="would be stored with the plan"):
        refuse_secrets(args, env)
    refuse_secrets(["--port", "1"], {"X": "1"})


def test_the_key_is_read_from_the_environment(monkeypatch):
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    assert authorization() == {}
    monkeypatch.setenv("VLLM_API_KEY", "abc")
    assert authorization() == {"Authorization": "Bearer abc"}
