import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsbench.errors import InputError
from dsbench.suite import Suite, load_suite, parse_suite, shipped

GOOD = """name = "x"
summary = "s"
blocks = 2

[probes.decode]
streams = [1, 4]
tokens = 16

[[probes.smoke.items]]
prompt = "7*8="
answer = 56

[[probes.smoke.items]]
chat = "7*8"
answer = 56
"""


def problem(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_suite(text, "suites/x.toml")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_shipped_suites_are_valid_and_what_they_say():
    assert {"kv", "quick", "spec", "speed", "quality", "full"} <= set(shipped())
    for name in shipped():
        assert load_suite(name).name == name
    quick, kv = load_suite("quick"), load_suite("kv")
    assert (quick.blocks, quick.warmup_boots, quick.until) == (5, 1, "ready")
    assert quick.probes.names() == ["kv", "smoke", "identity", "acceptance", "output_law", "prefill", "decode"]
    assert quick.probes.decode.streams == [1, 4]
    assert len(quick.probes.prefill.lengths) == 2
    assert (kv.blocks, kv.until, kv.probes.names()) == (2, "profile", ["kv"])


def test_full_and_what_it_takes_its_parts_from():
    full, quality, speed = (load_suite(name) for name in ("full", "quality", "speed"))
    assert {full.speculative, quality.speculative, speed.speculative} == {"dspark"}
    asked = {
        name: (full.probes.items(name), quality.probes.items(name)) for name in ("gsm8k", "instruction", "toolcall")
    }
    assert all(part < every for part, every in asked.values())
    assert quality.probes.items("gsm8k") == 1319
    assert all(full.probes.table(name).blocks == 1 for name in (*asked, "coherence"))
    assert full.probes.coherence.ballots == quality.probes.coherence.ballots > 0
    assert max(speed.probes.prefill.lengths) > max(full.probes.prefill.lengths)


def test_installed_suites_come_first(tmp_path, monkeypatch):
    (tmp_path / "_suites").mkdir()
    (tmp_path / "_suites" / "mine.toml").write_text(GOOD.replace('"x"', '"mine"'))
    monkeypatch.setattr("dsbench.suite.resources.files", lambda package: tmp_path)
    assert list(shipped()) == ["mine"]
    assert load_suite("mine").name == "mine"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("streams = [1, 4]", 'streams = "four"', "suites/x.toml:6: probes.decode.streams input should be a valid list"),
        ("streams = [1, 4]", "streams = [1, 0]", "suites/x.toml:6: probes.decode.streams.1 "),
        (
            "streams = [1, 4]",
            "stream = [1]",
            "suites/x.toml:6: probes.decode.stream unknown key; did you mean streams?",
        ),
        ("tokens = 16", "tokens = 2", "suites/x.toml:7: probes.decode.tokens "),
        ("tokens = 16\n", "", "suites/x.toml:5: probes.decode.tokens is missing"),
        ("blocks = 2", "blocks = 0", "suites/x.toml:3: blocks "),
        ("blocks = 2", "blocks = 2.5", "suites/x.toml:3: blocks "),
        ("blocks = 2", "block = 2", "suites/x.toml:3: block unknown key; did you mean blocks? (and 1 more)"),
        ("[probes.decode]", "[probes.decod]", "suites/x.toml:5: probes.decod unknown key; did you mean decode?"),
        ('chat = "7*8"', 'chat = "7*8"\nprompt = "7"', "suites/x.toml:13: probes.smoke.items.1 give either"),
        ('chat = "7*8"\nanswer = 56', 'chat = "7*8"\nanswer = "x"', "suites/x.toml:15: probes.smoke.items.1.answer "),
        (
            "blocks = 2",
            'blocks = 2\nguards = ["kv.bloks"]',
            "suites/x.toml:4: guards matches no metric: 'kv.bloks'; did",
        ),
        ("blocks = 2", 'blocks = 2\nuntil = "profile"', "suites/x.toml:"),
        ("blocks = 2", "blocks = ", "suites/x.toml:3: not valid TOML: "),
        ("blocks = 2", "blocks = 2\n[timeouts]\nboot = inf", "suites/x.toml:5: timeouts.boot input should be a finite"),
        ("blocks = 2", "blocks = 2\n[timeouts]\nstop = nan", "suites/x.toml:5: timeouts.stop input should be a finite"),
        ("blocks = 2", "blocks = 2\n[timeouts]\nboot = 1e300", "suites/x.toml:5: timeouts.boot input should be less"),
        ('name = "x"', 'name = "../x"', "suites/x.toml:1: name "),
        (
            "blocks = 2",
            'blocks = 2\nguards = ["decode.tps.c4", "gsm8k.correct"]',
            "suites/x.toml:4: guards no probe of the suite measures gsm8k.correct: add its probe, or leave it out",
        ),
        (
            "blocks = 2",
            'blocks = 2\ndrift_controls = ["toolcall.*"]',
            "suites/x.toml:4: drift_controls no probe of the suite measures toolcall.*: add its probe, or leave it out",
        ),
        ("tokens = 16", 'tokens = "16"', "suites/x.toml:7: probes.decode.tokens input should be a valid integer, got"),
        ("tokens = 16", "tokens = 16.0", "suites/x.toml:7: probes.decode.tokens input should be a valid integer, got"),
        ("tokens = 16", "tokens = 16\nrepeats = true", "suites/x.toml:8: probes.decode.repeats input should be a"),
        ("blocks = 2", "blocks = 2\n[timeouts]\nboot = true", "suites/x.toml:5: timeouts.boot input should be a"),
        ('chat = "7*8"', 'chat = ""', "suites/x.toml:14: probes.smoke.items.1.chat string should have at least 1 char"),
        ('prompt = "7*8="', 'prompt = ""', "suites/x.toml:10: probes.smoke.items.0.prompt string should have at least"),
        (
            'chat = "7*8"\nanswer = 56',
            'chat = "7*8"\nexpect = ""',
            "suites/x.toml:15: probes.smoke.items.1.expect string should have at least 1 character, got ''",
        ),
        (
            "[probes.decode]",
            "[probes.gsm8k]\nn_items = 3\n[probes.decode]",
            "suites/x.toml:6: probes.gsm8k.n_items unknown key; known: blocks, source, limit, ",
        ),
        (
            'chat = "7*8"',
            'prompt = "7*8="',
            "suites/x.toml:9: probes.smoke.items asks '7*8=' more than once: ask each question once",
        ),
    ],
)
def test_errors_name_file_line_and_key(old, new, said):
    assert old in GOOD
    assert problem(GOOD.replace(old, new)).startswith(said)


@pytest.mark.parametrize(
    ("table", "key", "values"),
    [
        ("decode", "streams", [4, 1, 4]),
        ("prefill", "lengths", [64, 256, 64]),
        ("gpu_time", "streams", [2, 2]),
        ("concurrency", "streams", [1, 1]),
        ("long_context", "lengths", [512, 512]),
        ("output_law", "together", [3, 6, 3]),
        ("coherence", "concurrencies", [1, 12, 1]),
        ("coherence", "payloads", ["unique", "unique"]),
    ],
)
def test_a_value_that_would_be_read_twice_is_refused(table, key, values):
    """Two readings of one metric in a boot cannot be judged, so they are not to be taken."""
    needed = {
        "decode": "tokens = 16\n",
        "concurrency": 'prompts = ["a"]\n',
        "output_law": 'prompts = ["a"]\n',
        "coherence": 'style = "pairs"\nlines = 60\n',
    }
    head = f'name = "x"\nsummary = "s"\nblocks = 2\n[probes.{table}]\n{needed.get(table, "")}'
    first, once = values[0], list(dict.fromkeys(values))
    said = problem(f"{head}{key} = {values}\n")
    line = head.count("\n") + 1
    assert said == f"suites/x.toml:{line}: probes.{table}.{key} names {first} more than once: name each value once"
    assert parse_suite(f"{head}{key} = {once}\n", "x.toml").probes.names() == [table]


def test_a_whole_number_is_a_number_too():
    assert parse_suite(GOOD + "[timeouts]\nboot = 60\n", "x.toml").timeouts.boot == 60.0


def test_a_prompt_never_has_the_id_of_a_chat():
    given = [("prompt", "chat 7*8"), ("chat", "7*8"), ("prompt", "7*8"), ("prompt", "prompt chat 7*8")]
    items = ", ".join(f"{{ {kind} = '{text}', answer = 1 }}" for kind, text in given)
    suite = parse_suite(f"name = 'x'\nsummary = 's'\nblocks = 2\n[probes.smoke]\nitems = [{items}]\n", "x.toml")
    names = [item.name for item in suite.probes.smoke.items]
    assert names == ["prompt chat 7*8", "chat 7*8", "7*8", "prompt prompt chat 7*8"]


def test_unterminated_text_points_at_the_end():
    assert problem(GOOD + 'x = """').startswith(f"suites/x.toml:{GOOD.count(chr(10)) + 1}: not valid TOML")


def test_unknown_suite_and_missing_file():
    with pytest.raises(InputError, match="unknown suite 'quik': did you mean quick"):
        load_suite("quik")
    with pytest.raises(InputError, match=r"nowhere\.toml: No such file"):
        load_suite("nowhere.toml")


def test_a_file_that_is_not_text(tmp_path):
    (tmp_path / "x.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="is not UTF-8"):
        load_suite(str(tmp_path / "x.toml"))


def test_stopping_early_keeps_only_the_kv_probe():
    quick = load_suite("quick").with_until("profile")
    assert quick.probes.names() == ["kv"]
    assert quick.until == "profile"
    with pytest.raises(InputError, match="no kv probe"):
        parse_suite(GOOD, "x").with_until("profile")


@given(st.text(max_size=300))
def test_any_text_is_a_suite_or_one_clear_line(text):
    try:
        parse_suite(text, "f.toml")
    except InputError as error:
        assert str(error).startswith("f.toml:")  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017


LINES = GOOD.splitlines()


@given(st.integers(0, len(LINES) - 1), st.sampled_from(["", "1", '"x"', "[]", "-1", "{}", "nan", "true", "[[1]]"]))
def test_any_value_in_any_place_gives_a_suite_or_a_line_that_exists(number, value):
    key, equals, _ = LINES[number].partition("= ")
    changed = [*LINES[:number], f"{key}{equals}{value}" if equals else value, *LINES[number + 1 :]]
    text = "\n".join(changed) + "\n"
    try:
        parse_suite(text, "f.toml")
        tomllib.loads(text)
    except InputError as error:
        line = int(str(error).split(":")[1])
        assert 1 <= line <= len(changed) + 1


def numbers(schema, place=()):
    """Every number of a JSON schema with the keys that lead to it, through its references."""
    if isinstance(schema, dict):
        if schema.get("type") in ("integer", "number"):
            yield ".".join(place), schema
        for key, part in schema.items():
            yield from numbers(part, place if key in ("properties", "$defs", "items", "anyOf") else (*place, key))
    elif isinstance(schema, list):
        for part in schema:
            yield from numbers(part, place)


def test_every_number_of_a_suite_has_an_upper_bound():
    """A right answer may be any number."""
    found = list(numbers(Suite.model_json_schema()))
    assert len(found) > 60
    open_ended = {place for place, schema in found if not {"maximum", "exclusiveMaximum"} & schema.keys()}
    assert open_ended == {"SmokeItem.answer", "SmokeItem.expect"}


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("blocks = 2", "blocks = 10000000", "suites/x.toml:3: blocks input should be less than or equal to 10000"),
        ("blocks = 2", f"blocks = {'9' * 20}", "suites/x.toml:3: blocks input should be less than or equal to 10000"),
        ("blocks = 2", "blocks = 2\nwarmup_boots = 1000000000", "suites/x.toml:4: warmup_boots input should be less"),
        ("[1, 4]", "[100000000]", "suites/x.toml:6: probes.decode.streams.0 input should be less than or equal to 10"),
        ("tokens = 16", "tokens = 99999999", "suites/x.toml:7: probes.decode.tokens input should be less than or"),
        ("tokens = 16", "tokens = 16\nrepeats = 10001", "suites/x.toml:8: probes.decode.repeats input should be less"),
    ],
)
def test_a_number_that_would_never_end_is_refused(old, new, said):
    assert old in GOOD
    assert problem(GOOD.replace(old, new)).startswith(said)
