"""The command of a report makes the plan anew."""

import pytest

from dsbench.cli.aa import aa
from dsbench.cli.ab import ab
from dsbench.cli.experiment import Asked
from dsbench.report.rerun import caveats, command


def asked(text: list[str]):
    """Options as click reads them, less those that `ab` and `aa` keep for themselves."""
    kind = ab if text[0] == "ab" else aa
    given = kind.make_context(text[0], text[1:]).params
    own = {name: given.pop(name) for name in list(given) if name not in Asked.__dataclass_fields__}
    return Asked(**given), own


def again(plan):
    options, own = asked(command(plan))
    return options.plan(blocks=own["blocks"], until_resolved=own["until_resolved"])


@pytest.mark.parametrize(
    "line",
    [
        ["-t", "mhc_input_reuse"],
        ["-t", "mhc_residual_reuse", "-t", "mhc_input_reuse", "--matrix", "ladder", "-s", "kv", "--until", "profile"],
        ["-t", "draft_logits_persistent=off", "--controls", "--seed", "7", "-T", "128"],
        ["-t", "slow_step:60", "--controls", "--blocks", "6", "--eager"],
        ["-t", "mhc_input_reuse", "--until-resolved", "12"],
        ["-t", "mhc_input_reuse", "--hidden-size", "128", "--load-format", "dummy"],
        ["-t", "mhc_input_reuse", "--speculative", "dspark", "--synthetic-acceptance-length", "3.2"],
        ["--arm", "plain=speculative=none", "--arm", "drafts=speculative=dspark;args=--eager;env=X=1,Y=a b"],
        ["--arm", "a=toggles=mhc_residual_reuse", "--arm", "b=toggles=mhc_residual_reuse,mhc_input_reuse"],
        ["--arm", "a=speculative=none", "--arm", "slow=toggles=slow_step:60", "--controls"],
    ],
    ids=lambda line: " ".join(line),
)  # fmt: skip
def test_same_plan(line):
    options, own = asked(["ab", *line])
    plan = options.plan(blocks=own["blocks"], until_resolved=own["until_resolved"])
    new = again(plan)
    for field in ("suite", "engine", "engine_args", "dims", "seed", "until", "arms", "boots", "probes", "metrics",
                  "guards", "looks", "matrix"):  # fmt: skip
        assert getattr(new, field) == getattr(plan, field), field


def test_aa_is_an_aa():
    from dsbench.builds import ArmSpec

    options, _ = asked(["aa"])
    plan = options.plan(specs=[ArmSpec("a"), ArmSpec("b")], alike=True, blocks=4)
    text = command(plan)
    assert text[:5] == ["aa", "--suite", "quick", "--boots", "8"]
    options, own = asked(text)
    assert own["boots"] == 8
    assert options.plan(specs=[ArmSpec("a"), ArmSpec("b")], alike=True, blocks=4).arms == plan.arms


def test_stored_vllm_experiment_names_its_build():
    from dsbench.store import load

    plan = load("results/h200/vllm-kv").plan
    text = command(plan)
    options, _ = asked(text)
    assert options.engine == "vllm"
    assert options.suite_name == "kv"
    from dsbench.engines.vllm import split_args

    assert split_args(options.serve_args or "") == plan.engine_args
    assert dict(pair.split("=", 1) for pair in options.env) == plan.baseline.env
    assert options.arms[3].startswith("all=toggles=mtp_hidden_skip,")


def test_a_suite_of_ones_own_is_a_caveat(make_plan):
    assert any("small" in told for told in caveats(make_plan()))
