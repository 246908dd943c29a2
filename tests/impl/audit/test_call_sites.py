"""Positional optional arguments at call sites of the sampler: the tree is clean, and each planted one is found."""

import ast

import pytest

from impl.audit.call_sites import MODULE, check
from impl.audit.report import NotRun
from impl.audit.source import Source, sources

SIX = "logits, drafts, values, temperature, seeds, positions, n_drafted"


def planted(text: str, name: str = "impl/engine/planted.py") -> list[Source]:
    return [source for source in sources() if source.name == MODULE] + [Source(name, text, ast.parse(text))]


def test_the_tree_is_clean_but_for_the_declared_control():
    outcome = check()
    assert outcome.findings == ()
    assert outcome.evidence["positional, declared as control"] == 1
    assert outcome.evidence["call sites"] >= 2
    assert (
        "draft_logits_index_mapping | synthetic_conditional_rates" in outcome.evidence["adjacent optional parameters"]
    )


@pytest.mark.parametrize(
    "text",
    [
        f"def judge():\n    return rejection_sample({SIX}, rates, workspace=w)\n",
        f"def judge():\n    return rejection_sample({SIX}, mapping, rates, workspace=w)\n",
        f"from impl.ops.rejection import rejection_sample as verify\nx = verify({SIX}, rates, workspace=w)\n",
        f"from impl.ops import rejection\nx = rejection.rejection_sample({SIX}, rates, workspace=w)\n",
        f"x = partial(rejection_sample, {SIX}, rates)\n",
        "x = rejection_sample(*arguments, workspace=w)\n",
        f"judge = rejection_sample\nx = judge({SIX}, rates, workspace=w)\n",
        f"def f(self):\n    judge = self.verify = rejection_sample\n    return judge({SIX}, rates)\n",
        f"self.judge = rejection_sample\nother.judge({SIX}, rates, workspace=w)\n",
        f"def f(judge=rejection_sample):\n    return judge({SIX}, rates)\n",
        f"judge = sample if greedy else rejection_sample\nx = judge({SIX}, rates)\n",
        f"import impl.ops.rejection as r\nfirst = r.rejection_sample\nlast = first\nx = last({SIX}, rates)\n",
        f"judge = functools.partial(rejection_sample, {SIX})\nx = judge(rates, workspace=w)\n",
        f"x = partial(rejection_sample, {SIX})(rates)\n",
    ],
    ids=[
        "one",
        "two",
        "alias",
        "attribute",
        "partial",
        "unpacked",
        "assigned",
        "in a function",
        "own attribute",
        "default",
        "either",
        "twice assigned",
        "assigned partial",
        "called partial",
    ],
)
def test_a_planted_positional_argument_is_found(text):
    (finding,) = check(planted(text)).findings
    assert finding.code == "optional-by-position"
    assert finding.where == f"impl/engine/planted.py:{text.count(chr(10))}"


def test_a_name_of_another_module_is_followed():
    tree = planted("from impl.ops.rejection import rejection_sample as first\njudge = first\n")
    text = f"from impl.engine.planted import judge as last\nx = last({SIX}, rates)\n"
    (finding,) = check([*tree, Source("impl/engine/caller.py", text, ast.parse(text))]).findings
    assert finding.where == "impl/engine/caller.py:2"


@pytest.mark.parametrize("text", ["judges = [rejection_sample]", "judge = rejection_sample\nx = run(judge)"])
def test_a_sampler_whose_calls_cannot_be_read_is_found(text):
    known = f"\nx = rejection_sample({SIX})\n"
    assert [finding.code for finding in check(planted(text + known)).findings] == ["sampler-escapes"]


def test_keywords_are_fine():
    text = f"x = rejection_sample({SIX}, synthetic_conditional_rates=rates, workspace=w)\n"
    outcome = check(planted(text))
    assert outcome.findings == ()
    assert outcome.evidence["call sites"] == 1


@pytest.mark.parametrize(
    ("branch", "found"),
    [
        ("    if self.keyword_binding:\n        return None\n", 0),
        ("    if self.keyword_binding:\n        self.count += 1\n", 1),
        ("    if self.other:\n        return None\n", 1),
        ("", 1),
    ],
    ids=["off branch", "falls through", "another switch", "always"],
)
def test_the_control_is_known_only_in_the_off_branch(branch, found):
    text = f"def judge(self):\n{branch}    return rejection_sample({SIX}, rates, workspace=w)\n"
    assert len(check(planted(text, "impl/engine/rounds.py")).findings) == found


def test_a_tree_without_the_sampler_is_not_clean():
    with pytest.raises(NotRun, match=MODULE):
        check([])
    with pytest.raises(NotRun, match="nothing calls"):
        check(planted("x = 1\n"))
