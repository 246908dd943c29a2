"""Two results side by side: what is compared, what is not, and why."""

import pytest

from dsbench.against import against
from dsbench.errors import InputError
from dsbench.fingerprint import Fingerprint
from dsbench.records import RECORD
from dsbench.store import Result, create
from dsbench.two_results import compare_results

MACHINE = Fingerprint(cpu="c", cores=2, memory_gib=4, kernel="k", python="3.11", torch="2.13")


@pytest.fixture
def stored(tmp_path, make_plan, make_records):
    """A result on the disk, as `ab` leaves it."""

    def build(
        name, values=lambda boot, metric: None, toggles=("mhc_input_reuse",), machine=MACHINE, blocks=2, **changes
    ):
        plan = make_plan(*toggles, blocks=blocks).model_copy(update={"id": name, "fingerprint": machine, **changes})
        folder = create(plan, tmp_path)
        lines = [RECORD.dump_json(record) for record in make_records(plan, values)]
        (folder / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        return Result(folder)

    return build


def row(pair, metric):
    (found,) = [row for row in pair.rows if row.metric == metric]
    return found


def test_the_same_twice_is_equivalent_and_the_clock_says_nothing(stored):
    found = compare_results(stored("one"), stored("two", lambda b, m: 150.0 + b.number if ".tps." in m else None))
    assert [(pair.first, pair.second, pair.apart) for pair in found.pairs] == [
        ("baseline", "baseline", []),
        ("mhc_input_reuse", "mhc_input_reuse", []),
    ]
    words = {r.metric: r.word for pair in found.pairs for r in pair.rows}
    assert {m for m, word in words.items() if word != "equivalent"} == {m for m in words if ".tps." in m}
    speed = row(found.pairs[0], "decode.tps.c1")
    assert (speed.word, speed.blocks) == ("inconclusive", 0)
    assert speed.relative > 0.4
    assert "ran at another time than one" in speed.notes[-1]
    assert found.unpaired == []
    assert found.conditions == {}


def test_bytes_tokens_and_answers_are_judged(stored):
    def values(boot, metric):
        if metric == "kv.available_bytes":
            return 999_999
        if metric == "smoke.correct":
            return {"a": 0}
        return {"a": [9, 9]} if metric == "identity.tokens" else None

    found = compare_results(stored("one"), stored("two", values))
    words = {metric: row(found.pairs[0], metric).word for metric in ("kv.available_bytes", "smoke.correct")}
    assert words == {"kv.available_bytes": "regressed", "smoke.correct": "regressed"}
    assert row(found.pairs[0], "identity.tokens").word == "regressed"
    figures = next(entry for entry in found.figures if entry.metric == "kv.available_bytes")
    assert (figures.first["baseline"].value, figures.second["baseline"].value) == (1_000_000, 999_999)


@pytest.mark.parametrize(
    ("lost", "word"), [(["smoke.correct"], "regressed"), (["smoke.correct", "identity.tokens"], "inconclusive")]
)
def test_losses_have_to_stand_among_the_guards_as_in_an_experiment(stored, small, make_plan, lost, word):
    """6 of 40 items lost: p = 0.03 alone is at most 4 %, but not among two tested guards."""
    metrics = [m.model_copy(update={"margin": 0.02 if m.kind == "item" else m.margin}) for m in make_plan().metrics]

    def values(boot, metric, moved):
        if metric not in ("smoke.correct", "identity.tokens"):
            return None
        right, wrong = (1, 0) if metric == "smoke.correct" else ([1, 2], [9, 9])
        return {f"i{n:02}": wrong if metric in moved and n < 6 else right for n in range(40)}

    first = stored("one", lambda b, m: values(b, m, []), blocks=4, metrics=metrics)
    second = stored("two", lambda b, m: values(b, m, lost), blocks=4, metrics=metrics)
    rows = [row(compare_results(first, second).pairs[0], metric) for metric in lost]
    assert [(r.word, r.p <= 0.04, r.p_holm > 0.04) for r in rows] == [(word, True, len(lost) > 1)] * len(lost)
    assert all("tested guards of this arm" in r.notes[-1] for r in rows) == (len(lost) > 1)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"machine": MACHINE.model_copy(update={"cpu": "d"})}, "another machine (cpu c -> d)"),
        ({"machine": None}, "two does not say which machine it ran on"),
        ({"engine_args": ["--dims", "pico", "--eager"]}, "another build (args)"),
        ({"seed": 5}, "another seed (0, here 5)"),
        ({"until": "profile"}, "its boots end at ready, here at profile"),
    ],
)
def test_what_is_not_comparable_says_why_and_has_no_rows(stored, changes, why):
    pair = compare_results(stored("one"), stored("two", **changes)).pairs[0]
    assert why in "; ".join(pair.apart)
    assert pair.rows == []


def test_versions_may_differ_and_are_told(stored):
    newer = MACHINE.model_copy(update={"torch": "2.14", "python": "3.12"})
    found = compare_results(stored("one"), stored("two", machine=newer, harness_version="9.9"))
    assert found.pairs[0].rows
    assert found.conditions["dsbench"][1] == "9.9"


def test_a_metric_with_other_settings_is_left_out(stored, small):
    probes = small.probes.model_copy(update={"decode": small.probes.decode.model_copy(update={"tokens": 11})})
    found = compare_results(stored("one"), stored("two", probes=probes.pinned()))
    assert found.pairs[0].left_out["decode.tps.c1"] == "its probe has other settings"
    assert "prefill.tps.64" in [r.metric for r in found.pairs[0].rows]


def test_arms_are_paired_by_what_they_are_and_the_rest_is_named(stored):
    found = compare_results(stored("one"), stored("two", toggles=("mhc_residual_reuse",)))
    assert [(pair.first, pair.second) for pair in found.pairs] == [("baseline", "baseline")]
    assert found.unpaired == ["one: mhc_input_reuse", "two: mhc_residual_reuse"]


def test_a_void_result_compares_with_nothing(stored):
    def more(boot, metric):
        return 1_000_512 if metric == "kv.weights_bytes" and boot.arm != "baseline" else None

    assert "two is void" in compare_results(stored("one"), stored("two", more)).pairs[0].apart


def test_the_newest_comparable_arm_is_taken(stored, tmp_path):
    result = stored("now", created="2025-06-09T00:00:00+00:00")
    stored("older", lambda b, m: 1 if m == "kv.blocks" else None, created="2025-06-01T00:00:00+00:00")
    stored("newer", lambda b, m: 2 if m == "kv.blocks" else None, created="2025-06-03T00:00:00+00:00")
    stored("elsewhere", machine=MACHINE.model_copy(update={"cores": 3}), created="2025-06-05T00:00:00+00:00")
    found = against(result, tmp_path)
    blocks = [r for r in found.rows if r.metric == "kv.blocks"]
    assert [(r.arm, r.baseline, r.word) for r in blocks] == [
        ("baseline", 2, "improved"),
        ("mhc_input_reuse", 2, "improved"),
    ]
    assert found.left_out == {}


def test_an_empty_folder_is_no_baseline(stored, tmp_path):
    with pytest.raises(InputError, match="no stored result is there"):
        against(stored("now"), tmp_path)
