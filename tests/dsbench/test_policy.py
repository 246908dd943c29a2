"""Policies: what their TOML may say, and the one line that tells what is wrong with it."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dsbench.errors import InputError
from dsbench.policy import Amount, Policy, Rule, load_policy


def rule(**fields):
    return Rule.model_validate({"metric": "kv.blocks", "must": "improve", **fields})


@pytest.mark.parametrize(
    ("text", "value", "of", "unit", "shown"),
    [
        ("2 %", 0.02, "baseline", "", "2 %"),
        ("0.5%", 0.005, "baseline", "", "0.5 %"),
        ("1 point", 0.01, "share", "", "1 point"),
        ("2 points", 0.02, "share", "", "2 points"),
        ("16 KiB", 16384, "unit", "B", "16,384 B"),
        ("1.5 MiB", 1.5 * 2**20, "unit", "B", "1,572,864 B"),
        ("32,768 B", 32768, "unit", "B", "32,768 B"),
        (3, 3, "unit", "", "3"),
        (0.25, 0.25, "unit", "", "0.25"),
        (0, 0, "unit", "", "0"),
        (1e-5, 1e-5, "unit", "", "1e-05"),
        (1e16, 1e16, "unit", "", "10,000,000,000,000,000"),
    ],
)
def test_sizes(text, value, of, unit, shown):
    by = rule(by=text).by
    assert (by.value, by.of, by.unit, str(by)) == (pytest.approx(value), of, unit, shown)


@given(
    st.floats(min_value=0, max_value=1e12, allow_nan=False),
    st.sampled_from(["baseline", "share", "unit"]),
    st.sampled_from(["", "B", "ms"]),
)
def test_a_stored_policy_is_the_one_that_was_read(value, of, unit):
    policy = Policy(rule=[rule(by=Amount(value=value, of=of, unit=unit))])
    assert Policy.model_validate_json(policy.model_dump_json()) == policy


@given(st.text(max_size=12))
def test_any_text_is_a_size_or_refused(text):
    with suppress(ValidationError):
        assert rule(by=text).by.value >= 0


def test_the_first_rule_that_names_metric_and_arm_holds():
    some = Rule.model_validate({"metric": "decode.tps.c1", "arm": "mhc*", "must": "nothing"})
    every = Rule.model_validate({"metric": "decode.tps.*", "margin": "5 %"})
    policy = Policy(rule=[some, every])
    assert policy.rule_for("mhc_input_reuse", "decode.tps.c1") == some
    assert policy.rule_for("other", "decode.tps.c1") == every
    assert policy.rule_for("other", "kv.blocks") is None
    assert policy.margin_of("decode.tps.c1").value == 0.05


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("inconclusive = 'maybe'", 1, "inconclusive"),
        ("[[rule]]\nmetric = 'kv.block'", 2, "did you mean kv.blocks"),
        ("[[rule]]\nmetric = 'kv.blocks'\nmargn = 1", 3, "did you mean margin"),
        ("[[rule]]\nmetric = 'kv.blocks'\nby = '2 %'", 1, 'add must = "improve"'),
        ("[[rule]]\nmetric = 'kv.blocks'\nmargin = 'much'", 3, "is no size"),
        ("[[rule]]\nmetric = 'kv.blocks'\nmargin = -1", 3, "is no size"),
        ("[[rule]]\nmetric = 'kv.blocks'\narm = 'a'\nmargin = 1", 1, "leave out arm"),
        ("[[rule]]\nmetric = 'kv.blocks'\nmust = 'nothing'\ninconclusive = 'fail'", 1, "asks for no answer"),
        ("[[rule]\n", None, "not valid TOML"),
        ("[[rule]]\nmetric = 'kv.blocks'\nmargin = true", 3, "true is no size"),
        ("[[rule]]\nmetric = 'kv.*'\n[[rule]]\nmetric = 'kv.blocks'\nmust = 'improve'", 4, "never holds"),
        ("[[rule]]\nmetric = '*'\nmust = 'nothing'\n[[rule]]\nmetric = 'kv.*'\narm = 'a'", 5, "never holds"),
    ],
)
def test_a_bad_policy_is_one_line_with_its_place(tmp_path, text, line, said):
    path = tmp_path / "gate.toml"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        load_policy(path)
    assert said in str(error.value)
    assert "\n" not in str(error.value)
    if line is not None:
        assert f"gate.toml:{line}: " in str(error.value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("metric = 'kv.blocks'\narm = 'a'", "metric = 'kv.blocks'"),
        ("metric = 'kv.blocks'", "metric = 'kv.*'"),
        ("metric = 'kv.blocks'\narm = 'a?'", "metric = 'kv.blocks'\narm = 'a*'"),
        ("metric = 'kv.blocks'\narm = 'a*'", "metric = 'kv.blocks'\narm = 'b'"),
    ],
)
def test_rules_of_which_each_can_hold_are_read(tmp_path, first, second):
    path = tmp_path / "gate.toml"
    path.write_text(f"[[rule]]\n{first}\n[[rule]]\n{second}\n")
    assert len(load_policy(path).rule) == 2


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="No such file"):
        load_policy(tmp_path / "no.toml")


@pytest.mark.parametrize("size", [f'"{"9" * 300} %"', "1e300", f'"{"9" * 30} points"', f'"{"9" * 17} KiB"'])
@pytest.mark.parametrize("key", ["margin", "by"])
def test_a_size_beyond_every_metric_is_refused(key, size, tmp_path):
    must = '\nmust = "improve"' if key == "by" else ""
    (tmp_path / "p.toml").write_text(f'[[rule]]\nmetric = "kv.available_bytes"\n{key} = {size}{must}\n')
    with pytest.raises(InputError, match=rf"p\.toml:3: rule\.0\.{key}"):
        load_policy(tmp_path / "p.toml")
