"""report.html by its tree: sections that have data, every text escaped, nothing fetched, nothing run."""

import re
from pathlib import Path

import pytest

from dsbench.judge import judge
from dsbench.records import Finding, KvProfile, Observation, Plan, Record
from dsbench.report.html import html
from dsbench.report.page import page
from dsbench.store import load_plan, load_records
from dsbench.suite import load_suite
from tests.dsbench.report.pages import Tree

LADDER = Path(__file__).resolve().parents[3] / "results/h200/vllm-ladder"
PLANTED = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;"


def tree(plan: Plan, records: list[Record]) -> Tree:
    found = Tree(html(page(plan, records, judge(plan, records))))
    assert not found.faults
    return found


def with_replies(records: list[Record], text: str) -> list[Record]:
    return [
        r.model_copy(update={"text": text}) if isinstance(r, Observation) and r.item is not None else r for r in records
    ]


def lost(boot, metric):
    """The candidate answers one short question wrong and one text differently."""
    if boot.arm == "baseline":
        return None
    return {"smoke.correct": {"a": 0, "b": 1, "c": 1, "d": 1}, "identity.tokens": {"b": [1, 3]}}.get(metric)


def test_sections_without_data_are_left_out(make_plan, make_records):
    plan = make_plan()
    assert tree(plan, make_records(plan)).sections() == ["changes", "verdicts", "boots", "load", "conditions", "rerun"]


def test_text_of_every_kind_is_escaped(make_plan, make_records):
    plan = make_plan()
    records = with_replies(make_records(plan, lost), PLANTED)
    records.append(Finding(boot=1, code="fatal-log", text=PLANTED))
    found = tree(plan, records)
    assert not found.names() & {"script", "img", "iframe", "object", "link"}
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert found.text("flips").count(PLANTED) == 4
    assert PLANTED in found.text("conditions")


def test_names_of_arms_and_items_are_escaped_in_plots(make_plan, make_records):
    plan = make_plan()
    evil = "a<b>&\"'"
    arms = [arm if arm is plan.baseline else arm.model_copy(update={"name": evil}) for arm in plan.arms]
    boots = [b if b.arm == plan.baseline.name else b.model_copy(update={"arm": evil}) for b in plan.boots]
    plan = plan.model_copy(update={"arms": arms, "boots": boots})
    found = tree(plan, make_records(plan))
    assert "b" not in found.names()
    assert evil in found.text("boots")


def test_the_sentence_of_several_arms_is_a_list():
    plan, records = load_plan(LADDER), load_records(LADDER)[0]
    found = page(plan, records, judge(plan, records))
    assert len(found.by_arm) == len(plan.arms) - 1
    assert " ".join(found.by_arm) == found.sentence
    assert [part.split(" ")[0] for part in found.by_arm] == [arm.name for arm in plan.arms[1:]]


def test_bars_of_kv_memory_have_names_of_their_own():
    plan, records = load_plan(LADDER), load_records(LADDER)[0]
    chart = page(plan, records, judge(plan, records)).kv_chart
    names = re.findall(r'class="ink" text-anchor="start">([^<]*)<', chart)
    assert names == [arm.name for arm in plan.arms[1:]]


def test_nothing_is_fetched(make_plan, make_records):
    found = tree(make_plan(), make_records(make_plan()))
    assert not [attrs for _, attrs in found.tags if {"src", "href"} & attrs.keys()]
    policy = [attrs["content"] for tag, attrs in found.tags if tag == "meta" and "http-equiv" in attrs]
    assert policy == ["default-src 'none'; style-src 'unsafe-inline'"]


def test_flips_stand_side_by_side(make_plan, make_records):
    plan = make_plan()
    told = tree(plan, with_replies(make_records(plan, lost), "a reply")).texts["flips"]
    start = told.index("smoke.correct")
    assert " ".join(told[start + 1].split()) == ": 1 lost of 4 items"
    assert "token ids differ from token 2 on" in "\n".join(told)
    assert told.count("a reply") == 4


def test_ladder_counts_steps(make_plan, make_records):
    plan = make_plan("mhc_residual_reuse", "mhc_input_reuse", suite=load_suite("kv"), matrix="ladder")
    sizes = {arm.name: 2**30 + n * 2**28 for n, arm in enumerate(plan.arms)}

    def available(boot, metric):
        return sizes[boot.arm] if metric == "kv.available_bytes" else None

    records = [
        r.model_copy(update={"values": {"available_bytes": sizes[plan.boots[r.boot - 1].arm], "tokens": 1000 + r.boot}})
        if isinstance(r, KvProfile)
        else r
        for r in make_records(plan, available)
    ]
    told = tree(plan, records).text("kv")
    assert told.startswith("KV ladder")
    assert "after mhc_input_reuse" in told
    assert told.count("+256.00 MiB") >= 2
    assert "1.50 GiB" in told


def test_memory_names_the_tensor_that_is_gone(make_plan, make_records):
    plan = make_plan()

    def profile(arm):
        gone = [] if arm == "mhc_input_reuse" else [{"site": "here.py:1 f", "dtype": "int8", "shape": [4], "bytes": 4}]
        stays = [{"site": "there.py:2 g", "dtype": "int8", "shape": [9], "bytes": 9}] * 2
        parts = {"weights_bytes": 100, "persistent_bytes": 10, "workspace_bytes": 5, "peak_activation_bytes": 22}
        return {"rank": 0, "peak": [*gone, *stays], **parts}

    records = [
        r.model_copy(update={"values": profile(plan.boots[r.boot - 1].arm)}) if isinstance(r, KvProfile) else r
        for r in make_records(plan)
    ]
    told = tree(plan, records).texts["memory"]
    row = told.index("here.py:1 f")
    assert told[row : row + 5] == ["here.py:1 f", "int8 [4]", "1 x, 4 B", "-", "-4 B"]
    assert told.index("there.py:2 g") > row


def test_void_comes_first_with_its_mend(make_plan, make_records):
    plan = make_plan()
    records = [
        r for r in make_records(plan) if not (r.record == "markers" and plan.boots[r.boot - 1].arm != "baseline")
    ]
    verdict = judge(plan, records)
    assert verdict.word == "void"
    found = tree(plan, records)
    assert found.sections()[0] == "void"
    assert verdict.void[0].mend in found.text("void")


@pytest.mark.parametrize("suite", ["quick", "spec"])
def test_acceptance_and_load_have_plots(make_plan, make_records, suite):
    plan = make_plan("draft_logits_persistent=off", suite=load_suite(suite), controls=True)

    def drafts(boot, metric):
        if metric.startswith(("accept.per_position", "accept.conditional")):
            return {f"prose greedy k{k}": (80 - 10 * k, 100) for k in range(5)}
        return None

    found = tree(plan, make_records(plan, drafts))
    assert "acceptance" in found.sections()
    assert "prose greedy" in found.text("acceptance")
    assert "draft position" in found.text("acceptance")
