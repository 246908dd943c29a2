"""What looks like a secret is taken out and refused, and what only looks a little like one is not."""

import json
from itertools import count
from urllib.parse import quote

import pytest

from dsbench.engines.secret_shapes import SHAPES, is_secret, literal_in
from dsbench.engines.secrets import redact, redact_files, redact_object, refuse_in_line, refuse_secret, refuse_variable
from dsbench.errors import InputError

SECRET = "hunter2/secret+9"


@pytest.mark.parametrize(
    "name",
    ["PGPASSWORD", "MYSQL_PWD", "HFTOKEN", "ACCESSTOKEN", "SECRETKEY", "GITLAB_TOKENS", "OPENAI_API_KEYS", "MY_TOKEN_2",
     "DB_PASS", "SSH_PASSPHRASE", "GITHUB_PAT", "AWS_ACCESS_KEY_ID", "AUTH_HEADER", "BEARER", "SESSION_COOKIE",
     "X-Api-Key", "accessToken", "clientSecret", "PASSWORD1"],
)  # fmt: skip
def test_names_that_hold_a_secret(name):
    assert is_secret(name)
    assert redact(f"a {SECRET} b", {name: SECRET}) == "a [redacted] b"
    with pytest.raises(InputError, match="would be stored with the plan") as told:
        refuse_variable("--env", name, SECRET)
    assert "hunter2" not in str(told.value)


@pytest.mark.parametrize(
    "name",
    ["TOKENIZERS_PARALLELISM", "PASSED", "PATH", "KEYBOARD", "PWD", "OLDPWD", "BYPASS", "MONKEY", "VLLM_EOS_TOKEN",
     "MAX_NUM_BATCHED_TOKENS", "tokens", "num_speculative_tokens", "NUM_KEYS", "SSH_AUTH_SOCK", "COMPASS"],
)  # fmt: skip
def test_names_that_hold_none(name):
    assert not is_secret(name)
    assert redact("a /some/value b", {name: "/some/value"}) == "a /some/value b"
    refuse_variable("--env", name, "/some/value")


@pytest.mark.parametrize(
    ("name", "value"),
    [("VLLM_X_TOKENS", "131072"), ("CAPTURE_TOKENS", "1,2,4,8,16"), ("USE_TOKEN", "true"), ("MY_KEY", "default"),
     ("FIRST_PASS", "1000000"), ("A_COOKIES", "-1.5"), ("ALLOW_CREDENTIALS", "disabled")],
)  # fmt: skip
def test_values_that_are_none(name, value):
    assert is_secret(name)
    assert redact(f"a {value} b", {name: value}) == f"a {value} b"
    refuse_variable("--env", name, value)


def test_a_password_of_digits_is_a_secret():
    assert redact("84729164", {"DB_PASSWORD": "84729164"}) == "[redacted]"


@pytest.mark.parametrize("scheme", ["Basic", "bearer", "TOKEN", "Digest"])
@pytest.mark.parametrize("name", ["AUTHORIZATION", "PROXY_AUTHORIZATION", "AUTH_HEADER"])
def test_what_stands_behind_a_scheme_is_a_secret_of_its_own(name, scheme):
    for value in (f"{scheme} {SECRET}", f"Authorization: {scheme} {SECRET}"):
        for text in (SECRET, f"basic {SECRET}", value):
            assert "hunter2" not in redact(f"got {text}.", {name: value})


def test_an_authorization_is_a_secret_in_any_variable():
    headers = {"OTEL_EXPORTER_OTLP_HEADERS": f"x=1,authorization=Basic {SECRET}"}
    assert redact(f"got {SECRET}.", headers) == "got [redacted]."
    assert redact("an Authentication", {"TITLE": "Basic Authentication"}) == "an Authentication"


def test_passwords_within_urls_are_secrets_in_any_variable():
    held = {"DATABASE_URL": f"postgres://me:{quote(SECRET, safe='')}@db:5432/x", "http_proxy": "http://u:p4ss-word@h:1"}
    told = redact(f"{SECRET} {quote(SECRET, safe='')} p4ss-word db:5432", held)
    assert told == "[redacted] [redacted] [redacted] db:5432"
    assert redact("postgres", {"DATABASE_URL": "postgres://postgres:postgres@db"}) == "postgres"
    assert redact("ghx_0123456789", {"REPO": "https://ghx_0123456789@host/x"}) == "[redacted]"


SPELT = [quote(SECRET), quote(SECRET, safe=""), quote(SECRET, safe="").lower(), SECRET.replace("/", "\\/")]


@pytest.mark.parametrize("form", SPELT, ids=count())
def test_a_secret_is_known_as_urls_and_other_writers_of_json_spell_it(form, tmp_path, monkeypatch):
    held = {"SOME_TOKEN": SECRET}
    assert redact(f"GET /?q={form}&x", held) == "GET /?q=[redacted]&x"
    clean = redact_object(json.dumps({"text": form}).encode(), held)
    assert json.loads(clean) == {"text": "[redacted]"}
    (tmp_path / "log").write_text(f"q={form}.")
    redact_files(tmp_path, held)
    assert (tmp_path / "log").read_text() == "q=[redacted]."
    monkeypatch.setenv("SOME_TOKEN", SECRET)
    with pytest.raises(InputError, match="holds the value of SOME_TOKEN"):
        refuse_secret("here", f"x {form} y")


HELD = "s3cr3t-of-mine"
HANDED_OUT = ["ghp_" + "a1" * 18, "hf_" + "b2" * 17, "AKIA" + "C3" * 8, "glpat-" + "d4" * 10, "sk-" + "e5" * 16]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"http://{HELD}@h:80/", "holds a token as the user of a URL"),
        (f"authorization bearer {HELD}", "holds an Authorization of the kind Bearer"),
        (f'{{"Authorization":"Token {HELD}"}}', "holds an Authorization of the kind Token"),
        (f'{{\\"Authorization\\": \\"Token {HELD}\\"}}', "holds an Authorization of the kind Token"),
        (f"Authorization: {HELD}", "gives Authorization a value"),
        (f"X-Api-Key: {HELD}", "gives X-Api-Key a value"),
        (f'{{"api_key": "{HELD}"}}', "gives api_key a value"),
        *((f"{name}={HELD}", f"gives {name} a value") for name in ("PGPASSWORD", "DB_PASS", "MY_TOKEN_2")),
        *((f"{flag} {HELD}", f": {flag} would be") for flag in
          ("--api-keys", "--ssl-keyfile-password", "--auth-token", "--secret", "--api_key", "--admin-api-key")),
        (f"--secret={HELD}", ": --secret would be"),
        (f"exec serve --ssl-keyfile-password '{HELD}'", ": --ssl-keyfile-password would be"),
        *((f"x {key} y", f"hands out as a key ({key[:3]}") for key in HANDED_OUT),
    ],
    ids=count(),
)  # fmt: skip
def test_a_literal_secret_is_refused(text, said):
    with pytest.raises(InputError) as told:
        refuse_secret("--arm b: args", text)
    assert str(told.value).startswith("--arm b: args")
    assert said in str(told.value)
    assert "stored with the plan" in str(told.value)
    assert "\n" not in str(told.value)
    assert not any(secret in str(told.value) for secret in (HELD, *HANDED_OUT))
    refuse_secret("suite s: prompts.0", text, prose=True)


FLAGS = ["--api-keys", "--ssl-keyfile-password", "--auth-token", "--secret", "--api_key", "--db-pass", "--github-pat"]


@pytest.mark.parametrize("flag", FLAGS)
def test_a_secret_behind_its_flag_is_refused(flag):
    with pytest.raises(InputError, match=rf"^here: {flag} would be stored with the plan") as told:
        refuse_in_line("here", ["serve", flag, HELD, "--port", "1"])
    assert HELD not in str(told.value)


@pytest.mark.parametrize(
    "line",
    [
        "--max-num-batched-tokens 8192", "--tokenizer org/model-v2", "--num-speculative-tokens 3",
        "--allow-credentials x",
        "--kv-cache-dtype fp8_e4m3",
        "--stop-token endoftext", "--max-total-tokens 400000", "--ssl-keyfile /etc/key.pem",
        "--secret id=hf,src=/run/hf", "--secret $NAME", "--auth-token {token}",
        "--cache-key model-v2-name",
        "--tokenizer-mode mistral", "--enable-prompt-tokens-details --port", "--eos-token-id 100257",
        "-v tokens:/data/x",
        "-v secrets:/run/secrets", "--ssl-private-key ./key.pem", "--capture-tokens 1,2,4", "--client-secret --port",
    ],
)  # fmt: skip
def test_flags_that_hold_none(line):
    refuse_in_line("here", line.split())
    refuse_secret("here", line)


@pytest.mark.parametrize(
    "text",
    [
        '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}', "X-Api-Key: $KEY", "token: auto",
        '{"cache_key": "model-v2-name"}', '{"kv_role": "kv_both", "stop_token": "endoftext"}', "http://admin@host:80/",
        "Authorization: Bearer {key}", '{"Authorization": "Token ${T}"}', "git+https://git@host/org/x",
        "task-level-batch",
        "MAX_TOKENS=8k", "USE_TOKEN=true", "risk-assessment-of-the-model", "org/token-classifier:latest",
        "PASSED=everything",
    ],
)  # fmt: skip
def test_texts_that_hold_none(text):
    assert literal_in(text) == ""
    refuse_secret("here", text)


def test_shapes_are_found_in_plans_and_in_bundles_alike():
    from dsbench.redact import Redaction

    for key in HANDED_OUT:
        assert SHAPES.fullmatch(key)
        assert Redaction(environment={}).text(f"got {key}") == "got [redacted]"
