"""The data of a report: intervals in margins, which arms are plotted, conditions by where they were read."""

import pytest

from dsbench.evidence import gather
from dsbench.floors import Floor
from dsbench.judge import judge
from dsbench.records import BootStarted, Conditions, KvProfile, Observation, Verdict
from dsbench.report import charts
from dsbench.report.conditions import conditions
from dsbench.report.flips import flips
from dsbench.report.memory import kv_rows
from dsbench.report.page import interval, page
from dsbench.report.readings import by_boot, shown_arms
from dsbench.report.units import gain, short, size
from dsbench.suite import load_suite


def row(**fields):
    known = {"arm": "x", "metric": "decode.tps.c1", "unit": "tok/s", "better": "up", "rank": None, "role": "guard"}
    return Verdict.model_validate({**known, "kind": "sample", "word": "inconclusive", "margin": 0.02, **fields})


def floor(**fields):
    known = {"metric": "decode.tps.c1", "unit": "tok/s", "rank": None, "probe": "", "boots": 8, "blocks": 4}
    known |= {"centre": 100.0, "relative": True, "between": 0.01, "drift": 0.0, "paired": 0.02}
    return Floor.model_validate({**known, **fields})


def test_interval_in_margins(make_plan):
    plan = make_plan()
    found = interval(plan, row(baseline=100.0, delta=1.0, relative=0.01, interval=(-0.02, 0.04)))
    assert (found.low, found.mid, found.high, found.floor) == pytest.approx((-1, 0.5, 2, None))


def test_interval_of_a_difference_in_the_unit(make_plan):
    given = row(baseline=200.0, delta=4.0, relative=0.02, interval=(-4.0, 8.0), interval_of="difference")
    found = interval(make_plan(), given)
    assert (found.low, found.mid, found.high) == pytest.approx((-1, 1, 2))


def test_interval_of_a_share_in_points(make_plan):
    given = row(
        kind="item", unit="items", margin=0.01, baseline=0.9, delta=-0.01, relative=-0.011, interval=(-0.03, 0.01)
    )
    found = interval(make_plan(), given)
    assert (found.low, found.mid, found.high) == pytest.approx((-3, -1, 1))


def test_rows_without_a_margin_or_an_interval_have_no_place(make_plan):
    assert interval(make_plan(), row(margin=0.0, interval=(-1.0, 1.0))) is None
    assert interval(make_plan(), row()) is None


def test_floors_stand_beside_intervals(make_plan):
    plan = make_plan().model_copy(update={"floors": [floor()]})
    given = row(blocks=4, baseline=100.0, delta=1.0, relative=0.01, interval=(-0.02, 0.04))
    noise = plan.floors[0].noise(4)
    assert interval(plan, given).floor == pytest.approx(noise / 0.02)
    absolute = plan.model_copy(update={"floors": [floor(relative=False, paired=2.0)]})
    assert interval(absolute, given).floor == pytest.approx(absolute.floors[0].noise(4) / 100 / 0.02)
    assert 'class="floor"' in charts.intervals([interval(plan, given)])


def test_an_interval_beyond_the_plot_ends_in_an_arrow(make_plan):
    far = interval(make_plan(), row(baseline=1.0, delta=-0.5, relative=-0.5, interval=(-0.6, -0.4)))
    near = interval(make_plan(), row(baseline=1.0, delta=0.0, relative=0.0, interval=(-0.01, 0.01)))
    assert 'class="tip' in charts.intervals([far])
    assert 'class="tip' not in charts.intervals([near])


def test_arms_with_news_are_plotted(make_plan, make_records):
    names = ["mhc_input_reuse", "mhc_residual_reuse", "mhc_final_fused", "q_in_place", "mtp_hidden_skip"]
    plan = make_plan(*names, suite=load_suite("kv"), speculative="dspark")
    verdict = judge(plan, make_records(plan))
    told = [arm if arm.arm != "all" else arm.model_copy(update={"word": "regressed"}) for arm in verdict.arms]
    shown = shown_arms(plan, verdict.model_copy(update={"arms": told}))
    assert shown[0] == "baseline"
    assert shown[-1] == "all"
    assert len(shown) == 5


def test_only_what_varies_is_plotted_by_boot(make_plan, make_records):
    plan = make_plan()
    series, steady = by_boot(plan, gather(plan, make_records(plan)), ["decode.tps.c4"])
    assert series[0].metric == "decode.tps.c4"
    assert "kv.available_bytes" in steady
    assert len(series[0].points) == sum(1 for boot in plan.boots if "decode" in plan.probes.due(boot.block))


def test_conditions_tell_declared_from_undeclared(make_plan, make_records):
    plan = make_plan()
    records = [
        r.model_copy(update={"values": {**r.values, "cache_state": "warm", "other": None}})
        if isinstance(r, Conditions) and r.boot == 3
        else r.model_copy(update={"values": {**r.values, "other": None}}) if isinstance(r, Conditions) else r
        for r in make_records(plan)
    ]  # fmt: skip
    read = conditions(plan, gather(plan, records))
    differing = {fact.name: fact for fact in read.differing}
    assert list(differing) == ["cache_state"]
    assert not differing["cache_state"].declared
    assert any(where.startswith("boot 3 ") for _, where in differing["cache_state"].values)
    assert read.unknown == ["other"]
    assert ("seed", "0") in read.same


def test_what_differs_by_host_is_no_undeclared_difference(make_plan, make_records):
    plan = make_plan(blocks=4)
    hosts = {boot.number: "host1" if boot.block is None or boot.block % 2 else "host2" for boot in plan.boots}

    def read(card):
        records = []
        for x in make_records(plan):
            if isinstance(x, BootStarted):
                x = x.model_copy(update={"host": hosts[x.boot]})
            if isinstance(x, Conditions):
                x = x.model_copy(update={"values": {**x.values, "device": card(x.boot)}})
            records.append(x)
        (fact,) = conditions(plan, gather(plan, records)).differing
        return fact

    fact = read(lambda boot: {"host1": "NVIDIA H200", "host2": "NVIDIA L4"}[hosts[boot]])
    assert (fact.how, fact.values) == ("differs by host", [("NVIDIA H200", "host1"), ("NVIDIA L4", "host2")])
    fact = read(lambda boot: "NVIDIA L4" if boot == plan.boots[-1].number else "NVIDIA H200")
    assert fact.how == "differs, undeclared"


def test_flips_where_better_is_down(make_plan, make_records):
    plan = make_plan()
    key = next(i for i, m in enumerate(plan.metrics) if m.key == "smoke.correct")
    worse = plan.metrics[key].model_copy(update={"better": "down"})
    plan = plan.model_copy(update={"metrics": [*plan.metrics[:key], worse, *plan.metrics[key + 1 :]]})

    def fewer(boot, metric):
        return {"a": 0} if metric == "smoke.correct" and boot.arm != "baseline" else None

    found = flips(plan, gather(plan, make_records(plan, fewer)))
    assert [(f.metric, f.counts) for f in found] == [("smoke.correct", {"gained": 1})]


def test_same_records_give_the_same_page(make_plan, make_records):
    plan = make_plan()
    records = make_records(plan)
    verdict = judge(plan, records)
    assert page(plan, records, verdict) == page(plan, records, verdict)


@pytest.mark.parametrize(
    ("value", "text"), [(11317339914, "10.54 GiB"), (-32768, "-32.00 KiB"), (0, "0 B"), (60591604, "57.78 MiB")]
)
def test_sizes(value, text):
    assert size(value) == text


def test_changes_have_their_sign():
    assert (gain(268435456), gain(-32768), gain(0)) == ("+256.00 MiB", "-32.00 KiB", "0")
    assert short(0.4683, "share") == "46.8 %"
    assert short(1095149, "tokens") == "1,095,149 tokens"


def test_the_tightest_rank_speaks_for_an_arm(make_plan, make_records):
    plan = make_plan()
    ranks = [KvProfile(boot=b.number, rank=n, values={"available_bytes": 900 - n}) for b in plan.boots for n in (0, 1)]
    rows = kv_rows(plan, gather(plan, [*make_records(plan), *ranks]))
    assert [row.available_bytes for row in rows] == [899, 899]


def test_ranks_are_plotted_apart(make_plan, make_records):
    plan = make_plan()

    def other_rank(record):
        if isinstance(record, Observation) and record.metric == "kv.blocks":
            return [record, record.model_copy(update={"rank": 1, "value": record.boot})]
        return [record]

    records = [found for record in make_records(plan) for found in other_rank(record)]
    series, steady = by_boot(plan, gather(plan, records), [])
    assert "kv.blocks" in steady
    assert "kv.blocks rank 1" in [found.metric for found in series]


def test_long_names_leave_room_for_figures():
    """Checked in Chromium, too; here by the letters that fit."""
    name = "mtp_hidden_skip+c128a_topk_shared+q_in_place+mhc_final_fused+mhc_residual_reuse"
    drawn = charts.gains([(name, "+256.00 KiB", 2.0**18), ("x" * 80, "-1.00 KiB", -(2.0**10))])
    assert ">…+mhc_residual_reuse</text>" in drawn
    assert name not in drawn
    assert max(len(part.partition("<")[0]) for part in drawn.split(">")) < 60
