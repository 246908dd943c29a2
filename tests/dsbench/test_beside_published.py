"""Our figures beside the source document's: what is measured, what is not, and which conditions differ."""

import json
from pathlib import Path

import pytest

from dsbench import arm_figures, store
from dsbench import records as r
from dsbench.beside_published import beside_published, kv_figures, published_blocks
from dsbench.cli import main
from dsbench.metrics import metric
from dsbench.published_figures import FIGURES, GB10, SM120
from dsbench.records import Observation
from dsbench.suite import load_suite, parse_suite

RESULT = Path(__file__).resolve().parents[2] / "results" / "h200" / "vllm-kv"
SOURCE = """
name = "speed"
summary = "what the source measured"
blocks = 2
warmup_boots = 0
[probes.acceptance]
prose = ["a"]
structured = ["b"]
[probes.prefill]
lengths = [1024, 256]
[probes.decode]
streams = [1]
tokens = 16
"""


def test_every_published_metric_is_one_of_ours():
    for figure in FIGURES:
        ours = metric(figure.metric)
        assert figure.unit == ("share" if ours.kind == "item" else ours.unit)
        assert figure.value <= 1 if figure.unit == "share" else figure.value > 1


def test_the_recipes_measure_what_was_published():
    """Each rig's figures are within reach of its recipe."""
    for rig, recipe in ((SM120, "sm120-pr"), (GB10, "gb10-review")):
        probes = load_suite(recipe).probes
        reported = {key for name in probes.names() for key in probes.metrics(name)}
        assert {figure.metric for figure in FIGURES if figure.rig == rig} <= reported


def test_the_source_documents_own_sums():
    by_metric = {(f.metric, f.section): f.value for f in FIGURES}
    assert by_metric["concurrency.tps.c12", "4.4"] == pytest.approx(5986 / 9.30, abs=0.5)
    assert (by_metric["accept.length", "4.4"] - 1) / by_metric["accept.rate", "4.4"] == pytest.approx(
        SM120.draft_tokens, abs=0.01
    )
    first, last = (
        [f.value for f in kv_figures() if f.note.startswith(note)] for note in ("baseline", "after MHC input")
    )
    assert (first[1:], last[1:]) == ([1_095_149, 2.09], [1_205_591, 2.3])
    assert [round(value / 2**30, 2) for value in (first[0], last[0])] == [10.54, 11.61]
    assert sum(published_blocks().values()) == 11_571 - 10_511


def test_the_h200_result_beside_the_ladder():
    plan, records = store.load_plan(RESULT), store.load_records(RESULT)[0]
    beside = beside_published(plan, records, json.loads((RESULT / "model-config.json").read_text()))
    steps = {step.arm: step for step in beside.steps}
    assert steps["mtp"].ours_bytes == 2**28
    assert steps["mtp"].published_bytes == 250 * 1_077_120
    assert steps["all"].without_row == ["c128a_topk_shared"]
    for step in beside.steps:
        assert step.ours_bytes == pytest.approx(step.published_bytes, rel=0.01)
    differ = beside.conditions
    assert differ["card"] == {"ours": "NVIDIA H200", "SM120": "RTX PRO 6000"}
    assert differ["target layers"] == {"ours": "6", "SM120": "43"}
    assert differ["tp"] == {"ours": "1", "SM120": "2"}
    assert differ["weights"] == {"ours": "random", "SM120": "trained"}
    assert differ["rejection"] == {"ours": "synthetic", "SM120": "by the target"}
    assert differ["kv_cache_dtype"]["SM120"] == "unknown", "the document does not say"
    assert not {"speculative", "draft_tokens", "max_num_batched_tokens"} & differ.keys()
    assert "decode.tps.c1" in beside.not_measured
    assert {row.figure.metric for row in beside.rows} == {"kv.available_bytes", "kv.tokens", "kv.max_concurrency"}


def test_without_the_models_config_its_depth_is_unknown():
    plan, records = store.load_plan(RESULT), store.load_records(RESULT)[0]
    assert beside_published(plan, records, {}).conditions["target layers"]["ours"] == "unknown"


@pytest.mark.parametrize("dims", ["x", [1], {"compress_ratios": 3}])
def test_a_shape_of_odd_values_is_no_depth(make_plan, make_records, dims):
    """A rank may write anything."""
    plan = make_plan()
    records = [
        record.model_copy(update={"values": {"dims": dims}}) if isinstance(record, r.Conditions) else record
        for record in make_records(plan)
    ]
    known = str(len(plan.dims["compress_ratios"]))
    assert beside_published(plan, records, {}).conditions["target layers"]["ours"] in ("unknown", known)


def test_figures_stand_beside_each_other_and_are_not_pooled(make_plan, make_records):
    plan = make_plan(suite=parse_suite(f"{SOURCE}[probes.kv]\n", "s.toml"), speculative="dspark")
    speeds = {"baseline": 100.0, "mhc_input_reuse": 110.0}

    def values(boot, key):
        clock = metric(key).clock
        return (
            speeds[boot.arm] + boot.number / 10
            if clock
            else {"p": (30, 60), "q": (10, 20)}
            if "accept" in key
            else None
        )

    beside = beside_published(plan, make_records(plan, values), {})
    decode = [row for row in beside.rows if row.figure.metric == "decode.tps.c1"]
    assert [row.figure.value for row in decode] == [297.7, 310.9, 309.2, 307.5, 307.6, 310.0]
    ours = decode[0].ours
    assert (ours["baseline"].boots, ours["baseline"].how) == (2, "median of 2 boots")
    assert ours["baseline"].value < 101 < 110 < ours["mhc_input_reuse"].value
    (rate,) = [row for row in beside.rows if row.figure.metric == "accept.rate"]
    assert rate.ours["baseline"].value == 0.5, "all counts of the arm"
    prefill = [row.figure.metric for row in beside.rows if row.figure.metric.startswith("prefill")]
    assert prefill == ["prefill.tps.1024"], "what was published, at the same length"
    assert beside.conditions["engine"] == {"ours": "embedded", "SM120": "vllm"}
    assert beside.conditions["target layers"]["ours"] == str(len(plan.dims["compress_ratios"]))


def test_of_two_ranks_the_smallest_counts_and_a_silent_one_leaves_it_unknown():
    def boot(*values):
        shared = {"boot": 1, "metric": "kv.available_bytes", "unit": "B", "phase": "measured"}
        return [Observation(**shared, value=value, rank=rank) for rank, value in enumerate(values)]

    def told(*boots):
        found = arm_figures.figure(boots, "exact", "B")
        return found and (found.value, found.boots, found.how)

    assert told(boot(9, 7), boot(9, 7)) == (7.0, 2, "median of 2 boots")
    assert told(boot(9, None), boot(9, 7)) == (7.0, 1, "median of 1 boot")
    assert told(boot(9, None), boot(None, 7)) is None


def test_the_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["compare", str(RESULT), "--published"])
    out = capsys.readouterr().out
    assert ended.value.code == 0
    assert "256.81 MiB" in out
    assert "published and not measured here: decode.tps.c1" in out
    with pytest.raises(SystemExit):
        main(["compare", str(RESULT), "--published", "--json"])
    assert json.loads(capsys.readouterr().out)["steps"][0]["arm"] == "mtp"


@pytest.mark.parametrize(
    ("args", "said"),
    [((str(RESULT),), "add --published"), (("nowhere", "--published"), "no result at 'nowhere'")],
)
def test_what_cannot_be_compared_is_one_line(capsys, args, said):
    with pytest.raises(SystemExit) as ended:
        main(["compare", *args])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert said in err
