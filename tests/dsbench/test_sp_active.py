"""`moe.sp_active`, the primary of sp_moe_config_aware: planned where an arm is judged by it, and judged."""

import pytest

from dsbench.builds import parse_arm
from dsbench.errors import InputError
from dsbench.judge import judge
from dsbench.records import KvProfile
from dsbench.suite import load_suite

TOGGLE, METRIC = "sp_moe_config_aware", "moe.sp_active"
EP = "args=--enable-expert-parallel"


@pytest.fixture
def kv_plan(make_plan):
    def plan(*arms, suite="kv", toggles=()):
        asked = load_suite(suite).with_until("profile")
        specs = [parse_arm(arm) for arm in arms]
        options = {"arms": specs} if specs else {}
        return make_plan(*toggles, suite=asked, engine="vllm", engine_args=["org/m"], **options)

    return plan


def ep_arms(kv_plan):
    return kv_plan(f"ep={EP}", f"sp={EP};toggles={TOGGLE}")


@pytest.mark.parametrize(
    ("without", "with_", "word"), [(0, 1, "improved"), (0, 0, "equivalent"), (1, 0, "regressed"), (0, None, "void")]
)
def test_arms_with_expert_parallelism_are_judged_by_how_their_layers_run(kv_plan, make_records, without, with_, word):
    plan = ep_arms(kv_plan)
    assert plan.arms[1].primary == [METRIC]

    def values(boot, key):
        if key != METRIC:
            return None
        return with_ if boot.arm == "sp" else without

    records = make_records(plan, values)
    if with_ is None:
        records = [x for x in records if not (getattr(x, "metric", "") == METRIC and x.boot % 2)]
    verdict = judge(plan, records)
    assert verdict.word == word
    (row,) = [row for row in verdict.rows if row.metric == METRIC]
    assert row.role == "primary"


def test_a_rank_that_cannot_tell_leaves_it_open(kv_plan, make_records):
    plan = ep_arms(kv_plan)
    verdict = judge(plan, make_records(plan, lambda boot, key: "unknown" if key == METRIC else None))
    assert verdict.word == "inconclusive"


def test_a_reading_that_is_not_the_profiles_is_void(kv_plan, make_records):
    plan = ep_arms(kv_plan)
    for told, void in ((1, []), (0, ["kv-disagrees"])):
        records = [
            x.model_copy(update={"values": x.values | {"moe_sp_active": told}}) if isinstance(x, KvProfile) else x
            for x in make_records(plan, lambda boot, key: 1 if key == METRIC else None)
        ]
        assert sorted({reason.code for reason in judge(plan, records).void}) == void


def test_the_toggle_alone_is_planned_too_and_other_toggles_do_not_ask(kv_plan, make_plan):
    assert METRIC in [m.key for m in kv_plan(toggles=(TOGGLE,)).metrics]
    assert METRIC not in [m.key for m in kv_plan(toggles=("mhc_input_reuse",)).metrics]
    assert METRIC not in [m.key for m in make_plan(suite=load_suite("kv")).metrics]


def test_the_embedded_engine_refuses_it_as_before(make_plan):
    with pytest.raises(InputError, match="does not run on the embedded engine, only on vllm"):
        make_plan(TOGGLE, suite=load_suite("kv"))
