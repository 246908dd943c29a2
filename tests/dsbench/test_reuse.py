"""Baseline boots of an earlier experiment: which may stand in, what becomes of them, and what the clock may say."""

import pytest

from dsbench import store
from dsbench.errors import InputError
from dsbench.fingerprint import Fingerprint
from dsbench.judge import judge
from dsbench.probe_settings import KvProbe, Probes
from dsbench.records import BootEnded, Run
from dsbench.reuse import ACROSS_TIME, copy_records, with_baseline_of

MACHINE = Fingerprint(cpu="c", cores=2, memory_gib=8, kernel="k", python="3", torch="2")
CLOCKS = ("decode.tps.c1", "decode.tps.c4", "prefill.tps.64", "prefill.tps.256")


def at(level):
    """Clock readings around `level`, each of its own."""
    return lambda boot, metric: level + boot.number + 0.01 * CLOCKS.index(metric) if metric in CLOCKS else None


@pytest.fixture
def stored(make_plan, make_records, tmp_path):
    """Store a judged result with the options of `make_plan`; `change` alters its plan, `records` its records."""

    def build(*toggles, change=lambda plan: plan, records=lambda lines: lines, judged=True, **options):
        plan = change(make_plan(*toggles, **options).model_copy(update={"fingerprint": MACHINE}))
        folder = store.create(plan, tmp_path / "results")
        lines = records(make_records(plan))
        with store.RecordWriter(folder) as writer:
            writer.write_all(lines)
        if judged:
            store.save_verdict(folder, judge(plan, lines))
        return folder

    return build


def plan_on(source, make_plan, *toggles, **options):
    made = make_plan(*toggles or ("mhc_residual_reuse",), **options)
    return with_baseline_of(made.model_copy(update={"fingerprint": MACHINE}), source)


def own(plan, records):
    """Records of the boots that are not taken from elsewhere."""
    taken = {boot.number for boot in plan.boots if boot.reused is not None}
    return [record for record in records if isinstance(record, Run) or record.boot not in taken]


def reused(source, make_plan, make_records, out, values=lambda boot, metric: None):
    """An experiment whose candidate runs now, judged."""
    plan = plan_on(source, make_plan)
    folder = store.create(plan, out)
    copy_records(plan, source, folder)
    with store.RecordWriter(folder) as writer:
        writer.write_all(own(plan, make_records(plan, values)))
    return plan, judge(plan, store.load_records(folder)[0])


def test_the_baseline_is_not_run_again_and_the_plan_says_whose_boots_they_are(stored, make_plan):
    source = stored()
    plan = plan_on(source, make_plan)
    kept = [boot for boot in plan.boots if boot.arm == "baseline"]
    assert [boot.phase for boot in kept] == ["measured"] * 2
    assert sorted(boot.reused for boot in kept) == sorted(
        boot.number for boot in store.load_plan(source).boots if boot.arm == "baseline" and boot.block
    )
    assert plan.reused_from == source.name
    assert any(source.name in note for note in plan.notes)


def test_bytes_and_answers_are_judged_and_the_clock_is_not(stored, make_plan, make_records, tmp_path):
    source = stored()
    plan, verdict = reused(source, make_plan, make_records, tmp_path, at(130))
    rows = {row.metric: row for row in verdict.rows}
    assert not verdict.void
    assert rows["kv.peak_activation_bytes"].word == "improved" == verdict.word
    assert rows["identity.tokens"].word == rows["smoke.correct"].word == "equivalent"
    assert {rows[key].word for key in CLOCKS} == {"inconclusive"}
    assert verdict.arms[0].unresolved_guards == [m.key for m in plan.metrics if m.clock]
    assert plan.reused_from is not None


def test_a_clock_row_that_would_be_resolved_names_the_reason(stored, make_plan, make_records, tmp_path):
    source = stored(blocks=6)
    plan = plan_on(source, make_plan, blocks=6)
    folder = store.create(plan, tmp_path)
    copy_records(plan, source, folder)
    with store.RecordWriter(folder) as writer:
        writer.write_all(own(plan, make_records(plan, at(50))))
    verdict = judge(plan, store.load_records(folder)[0])
    (row,) = [row for row in verdict.rows if row.metric == "decode.tps.c1"]
    assert (row.word, row.p) == ("inconclusive", pytest.approx(0.03125))
    assert ACROSS_TIME.format(result=source.name) in row.notes


def changed(**update):
    return lambda plan: plan.model_copy(update=update)


@pytest.mark.parametrize(
    ("change", "options", "said"),
    [
        (changed(fingerprint=MACHINE.model_copy(update={"kernel": "k2"})), {}, "another machine (kernel k2 -> k)"),
        (changed(fingerprint=None), {}, "does not say which machine it ran on"),
        (changed(seed=3), {}, "another seed (3, here 0)"),
        (changed(engine_args=["--dims", "micro", "--seed", "0"]), {}, "another build"),
        (changed(until="profile"), {}, "its boots end at profile, here at ready"),
        (changed(fingerprint=MACHINE.model_copy(update={"torch": "1"})), {}, "other versions (torch 1 -> 2)"),
        (changed(probes=Probes(kv=KvProbe())), {}, "probes are not those of suite 'small'"),
        (lambda plan: plan, {"blocks": 3}, "has 2 baseline boots, the plan needs 3: add --blocks 2"),
    ],
)
def test_boots_that_are_not_this_baselines_are_refused(stored, make_plan, change, options, said):
    source = stored(change=change)
    with pytest.raises(InputError) as error:
        plan_on(source, make_plan, **options)
    assert said in str(error.value)
    assert str(source) in str(error.value)


def test_boots_of_a_result_that_is_void_or_not_judged_are_refused(stored, make_plan):
    failed = stored(records=lambda lines: [r for r in lines if not isinstance(r, BootEnded)])
    with pytest.raises(InputError, match="is void, so its boots prove nothing"):
        plan_on(failed, make_plan)
    with pytest.raises(InputError, match="was not judged"):
        plan_on(stored("mhc_residual_reuse", judged=False), make_plan)


def test_a_copy_that_was_cut_off_is_missed_by_the_judge(stored, make_plan, make_records, tmp_path):
    source = stored()
    plan = plan_on(source, make_plan)
    assert judge(plan, own(plan, make_records(plan))).word == "void"
