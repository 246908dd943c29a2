"""Arms that are builds: how they are written, what they may differ in, and what a suite has left for them."""

import shlex
import sys
from datetime import UTC, datetime

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dsbench.builds import (
    FOLLOWS,
    SHARED_FLAGS,
    SOURCES,
    ArmSpec,
    declared_differences,
    parse_arm,
    two_environments,
)
from dsbench.engines import embedded
from dsbench.errors import InputError
from dsbench.judge import judge
from dsbench.plan import plan_experiment
from dsbench.suite import load_suite
from impl.dims import PICO

NOW = datetime(2025, 5, 1, 10, 11, 12, tzinfo=UTC)


def make(*arms, suite="quick", toggles=(), **options):
    specs = [parse_arm(text) for text in arms]
    return plan_experiment(toggles, load_suite(suite), PICO, arms=specs, now=NOW, **options)


def test_every_key():
    spec = parse_arm(
        "fast=speculative=dspark; toggles=mhc_input_reuse, mtp_hidden_skip;args=--eager --x 'a b';env=A=1,B=c=d"
    )
    assert spec == ArmSpec(
        name="fast",
        speculative="dspark",
        toggles=("mhc_input_reuse", "mtp_hidden_skip"),
        args=("--eager", "--x", "a b"),
        env={"A": "1", "B": "c=d"},
    )
    assert parse_arm("plain=") == ArmSpec(name="plain")


CONFIG = '{"method": "dspark", "num_speculative_tokens": 5}'


@pytest.mark.parametrize("text", [
    f"b=args=--speculative-config '{CONFIG}'",
    f'b="args=--speculative-config \'{CONFIG}\'"',
    f"b='args=--speculative-config \'{CONFIG}\''",
    "b=args=" + shlex.join(["--speculative-config", CONFIG]),
])  # fmt: skip
def test_quotes_around_a_value_are_its_own(text):
    assert parse_arm(text) == ArmSpec(name="b", args=("--speculative-config", CONFIG))


def test_a_quote_that_is_not_closed_is_said():
    with pytest.raises(InputError, match="unknown key ''args'"):
        parse_arm("b='args=--x 1")


@given(st.lists(st.text(st.characters(exclude_characters=";", exclude_categories=["Cs", "Cc"]), min_size=1)))
def test_any_arguments_survive_the_way_to_an_arm_and_back(values):
    assume(not any(value.partition("=")[0] in {*SHARED_FLAGS, "--speculative"} for value in values))
    args = tuple(part for value in values for part in ("--x", value))
    assert parse_arm(f"b=args={shlex.join(args)}" if args else "b=").args == args


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("plain", "write NAME="),
        ("a/b=speculative=none", "write NAME="),
        ("a=speculativ=none", "unknown key 'speculativ': did you mean speculative?"),
        ("a=x=1", "unknown key 'x': known: python, speculative, args, toggles, env"),
        ("a=speculative=dspork", "unknown speculative method 'dspork': did you mean dspark?"),
        ("a=speculative=", "'speculative' has no value"),
        ("a=speculative", "'speculative' has no value"),
        ("a=args=--x;args=--y", "'args' stands there twice"),
        ("a=args=eager", "begin with 'eager', which is no flag"),
        ("a=args=--x 'y", "No closing quotation"),
        ("a=args=--speculative mtp", "give speculative=METHOD as a key"),
        ("a=args=--max-model-len=9", "--max-model-len must be the same in every arm"),
        ("a=env=1X=2", "env '1X=2' is no assignment"),
        ("a=env=DSBENCH_TOGGLES=x", "DSBENCH_TOGGLES is set by dsbench"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text, said):
    with pytest.raises(InputError) as caught:
        parse_arm(text)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=60))
def test_any_text_is_an_arm_or_one_clear_line(text):
    try:
        parse_arm(text)
    except InputError as error:
        assert str(error).startswith("--arm")  # noqa: PT017


@pytest.mark.parametrize(
    ("baseline", "arm", "declared"),
    [
        ("a=", "b=", []),
        ("a=args=--eager", "b=args=--eager", []),
        ("a=args=--x 1", "b=args=--x=1", []),
        ("a=", "b=args=--eager", ["graph_mode", "capture"]),
        ("a=args=--eager", "b=", ["graph_mode", "capture"]),
        ("a=args=--capture draft", "b=args=--capture steps", ["capture", "graph_mode"]),
        ("a=args=--threads 1", "b=args=--threads 2", ["threads"]),
        ("a=args=--max_num_seqs 1", "b=args=--max_num_seqs 2", ["max_num_seqs"]),
        *(
            (f"a=args={flag} 1", f"b=args={flag} 2", list(FOLLOWS["--speculative-config"]))
            for flag in ("--speculative-config", "--speculative_config", "--speculative-config.method")
        ),
        ("a=env=A=1", "b=env=A=2,B=3", ["env.A", "env.B"]),
    ],
)
def test_what_differs_is_declared(baseline, arm, declared):
    assert declared_differences(parse_arm(baseline), parse_arm(arm)) == declared


def test_a_method_declares_what_follows_from_it_and_no_more():
    declared = declared_differences(parse_arm("a=speculative=none"), parse_arm("b=speculative=dspark"))
    assert {"speculative", "draft_weights", "draft_tokens"} <= set(declared)
    assert not {"seed", "threads", "weights", "dims"} & set(declared)


PLAIN, DSPARK = "plain=speculative=none", "dspark=speculative=dspark"


def test_spec_on_and_off():
    plan = make(PLAIN, DSPARK)
    assert [(arm.name, arm.speculative) for arm in plan.arms] == [("plain", "none"), ("dspark", "dspark")]
    assert plan.baseline.name == "plain"
    assert plan.arms[1].primary == ["decode.tps.c1"]
    assert plan.arms[0].declared == []
    assert plan.probes.acceptance is None
    assert plan.probes.output_law is not None
    assert plan.drift_controls == []
    assert not [key for key in plan.guards if key.startswith("kv.")]
    assert "identity.tokens" in plan.guards
    assert plan.notes == [
        "acceptance: not-run, plain has no speculation, so there is nothing to compare with",
        "the arms are different builds, which may need different memory: kv.* is shown, not guarded",
    ]
    assert "plain+dspark" in plan.id
    flags = [embedded.command(plan, arm)[-2:] for arm in plan.arms]
    assert flags == [["--speculative", "none"], ["--speculative", "dspark"]]


def test_toggles_of_an_arm_are_factors_with_their_metric_and_bytes():
    plan = make("a=", "b=toggles=mhc_input_reuse")
    assert plan.arms[1].toggles == ["mhc_input_reuse"]
    assert plan.arms[1].primary == ["kv.peak_activation_bytes"]
    assert plan.arms[1].expected == {"kv.peak_activation_bytes": -PICO.max_num_batched_tokens * PICO.hidden_size * 2}
    assert plan.arms[1].declared == ["toggles"]
    assert plan.drift_controls == ["kv.weights_bytes"]


def test_a_build_that_differs_too_has_no_expected_bytes():
    assert make("a=", "b=toggles=mhc_input_reuse;args=--eager").arms[1].expected == {}
    assert make("a=toggles=mhc_input_reuse", "b=").arms[1].expected == {}


def test_a_toggle_that_needs_a_draft_gets_one_in_every_arm():
    plan = make(suite="quick", toggles=["draft_logits_persistent=off"], controls=True)
    assert {arm.speculative for arm in plan.arms} == {"dspark"}
    assert plan.notes == ["speculative is dspark in every arm: draft_logits_persistent acts only with a draft"]
    assert plan.arms[1].primary == ["output_law"]
    assert {m.key for m in plan.metrics} >= {"accept.rate", "accept.length", "accept.per_position", "output_law"}
    assert {arm.speculative for arm in make(toggles=["mhc_input_reuse"]).arms} == {None}
    assert {arm.speculative for arm in make(toggles=["mhc_input_reuse"], speculative="mtp").arms} == {"mtp"}


def test_the_suite_of_drafts_has_them_in_every_arm():
    plan = make(suite="spec", toggles=["c128_row_corrupt:10"], controls=True)
    assert {arm.speculative for arm in plan.arms} == {"dspark"}
    assert plan.notes == ["speculative is dspark in every arm, as the suite says"]
    assert "output_law" in {m.key for m in plan.metrics}


RATES = ["--synthetic-acceptance-rates", "1,0.8,0.6,0.4,0.2"]


def test_synthetic_acceptance_runs_no_quality_test_and_takes_any_change_as_a_fault():
    plan = make(suite="spec", toggles=["rejection_keyword_binding=off"], controls=True, engine_args=RATES)
    assert plan.probes.names() == ["identity", "acceptance"]
    assert {m.better for m in plan.metrics if m.key.startswith("accept.")} == {"same"}
    assert "smoke, output_law: not-run, with synthetic acceptance the output is not the target's" in plan.notes
    unverified = "identity: with synthetic acceptance many of its tokens are drafts that no target has verified"
    assert unverified in plan.notes
    assert unverified not in make(suite="spec", toggles=["draft_logits_persistent=off"], controls=True).notes


@pytest.mark.parametrize(
    ("arms", "options", "said"),
    [
        ([PLAIN], {}, "one arm compares with nothing"),
        ([PLAIN, "plain=speculative=mtp"], {}, "is there twice"),
        ([PLAIN, "b="], {}, "b is the same as plain"),
        ([PLAIN, DSPARK], {"toggles": ["mhc_input_reuse"]}, "--arm and --toggle mhc_input_reuse"),
        ([PLAIN, "b=toggles=mhc_inputreuse"], {}, "did you mean mhc_input_reuse"),
        ([PLAIN, "b=toggles=draft_logits_persistent=off"], {}, "add --controls"),
        ([], {"toggles": ["dflash_staging_skip"], "speculative": "mtp"}, "does nothing with --speculative mtp"),
        (
            [],
            {"toggles": ["draft_logits_persistent=off"], "controls": True, "engine_args": RATES},
            "output_law, the primary metric of draft_logits_persistent-off, cannot be measured: with synthetic",
        ),
    ],
)
def test_what_cannot_run(arms, options, said):
    with pytest.raises(InputError) as caught:
        make(*arms, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def changed_conditions(records, number, **values):
    return [
        r.model_copy(update={"values": {**r.values, **values}}) if r.record == "conditions" and r.boot == number else r
        for r in records
    ]


def test_exactly_what_is_declared_may_differ(make_records):
    plan = make("a=", "b=args=--eager", "c=env=X=1", blocks=2)
    records = make_records(plan)
    assert judge(plan, records).void == []
    boot = {arm: next(b.number for b in plan.boots if b.arm == arm and b.block == 1) for arm in "abc"}
    for arm, values in (("c", {"graph_mode": "eager"}), ("b", {"seed": 9}), ("b", {"graph_mode": "replay"})):
        void = judge(plan, changed_conditions(records, boot[arm], **values)).void
        assert [reason.code for reason in void] == ["condition-differs"], (arm, values)


def test_a_method_that_is_not_in_effect_is_void(make_records):
    plan = make(PLAIN, DSPARK, blocks=2)
    records = make_records(plan)
    verdict = judge(plan, records)
    assert verdict.void == []
    assert "declared differences of dspark: speculative none -> dspark" in verdict.notes
    number = next(b.number for b in plan.boots if b.arm == "dspark" and b.block == 1)
    void = judge(plan, changed_conditions(records, number, speculative="none")).void
    assert "reads back speculative none, planned dspark" in " ".join(reason.text for reason in void)


def test_an_interpreter_of_its_own(tmp_path):
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.symlink_to(sys.executable)
    folder, itself = (parse_arm(f"a=python={path}") for path in (tmp_path / "venv", python))
    assert folder == itself
    assert folder.python == str(python), "a venv's link is not followed"
    a, b = two_environments(None, str(tmp_path / "venv"))
    assert (a.name, a.python, b.name, b.python) == ("a", None, "b", str(python))
    assert declared_differences(a, b) == list(SOURCES)


def test_another_tree_on_the_path_explains_other_sources():
    a, b = parse_arm("a="), parse_arm("b=env=PYTHONPATH=/before")
    assert declared_differences(a, b) == ["env.PYTHONPATH", *SOURCES]


def test_an_arm_with_its_own_interpreter_runs_under_it_and_sees_nothing_of_this_one():
    specs = [ArmSpec("a"), ArmSpec("b", python="/venv/bin/python")]
    plan = plan_experiment((), load_suite("kv"), PICO, arms=specs)
    a, b = plan.arms
    assert embedded.command(plan, b)[0] == "/venv/bin/python"
    assert embedded.command(plan, a)[0] == sys.executable
    assert embedded.command(plan, a)[1:] == embedded.command(plan, b)[1:]
    assert embedded.environment(b) == {"PYTHONPATH": ""}
    assert embedded.environment(a)["PYTHONPATH"]
    assert b.declared == list(SOURCES)
    assert plan.guards == [], "kv of different builds is shown, not guarded"
