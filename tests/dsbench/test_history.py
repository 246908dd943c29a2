"""Histories: which results count, why others do not, and what changed with a change."""

import sys

import pytest

from dsbench.errors import InputError
from dsbench.fingerprint import Fingerprint
from dsbench.history import NO_LIBRARY, history
from dsbench.records import RECORD
from dsbench.store import create

MACHINE = Fingerprint(cpu="c", cores=2, memory_gib=4, kernel="k", python="3.11", torch="2.13")


@pytest.fixture
def stored(tmp_path, make_plan, make_records):
    def build(day, values=lambda boot, metric: None, machine=MACHINE, toggles=("mhc_input_reuse",), **changes):
        settings = {"id": f"day{day:02d}", "created": f"2025-05-{day:02d}T10:00:00+00:00", "fingerprint": machine}
        plan = make_plan(*toggles).model_copy(update=settings | changes)
        folder = create(plan, tmp_path)
        lines = [RECORD.dump_json(record) for record in make_records(plan, values)]
        (folder / "records.jsonl").write_bytes(b"\n".join(lines) + b"\n")

    return build


def byte(value):
    return lambda boot, metric: value if metric == "kv.blocks" else None


def test_exact_values_change_with_the_version_that_changed_them(stored, tmp_path):
    for day, (value, version) in enumerate([(100, "1"), (100, "1"), (90, "2"), (90, "2")], start=1):
        stored(day, byte(value), harness_version=version)
    found = history("kv.blocks", tmp_path)
    assert [point.value for point in found.points] == [100, 100, 90, 90]
    (change,) = found.change_points
    assert (change.id, change.before, change.after, change.relative) == ("day03", 100, 90, pytest.approx(-0.1))
    assert change.changed == {"dsbench": ["1", "2"]}
    assert found.left_out == {}


def test_baselines_of_different_experiments_are_one_history(stored, tmp_path):
    stored(1, toggles=("mhc_residual_reuse",))
    stored(2)
    found = history("kv.blocks", tmp_path)
    assert [(point.id, point.arms) for point in found.points] == [("day01", ["baseline"]), ("day02", ["baseline"])]
    assert [point.id for point in history("kv.blocks", tmp_path, arm="mhc_input_reuse").points] == ["day02"]


def test_who_is_left_out_and_why(stored, tmp_path, small):
    stored(1, machine=MACHINE.model_copy(update={"kernel": "k2"}))
    stored(2, machine=None)
    stored(3, engine_args=["--dims", "pico", "--eager"])
    stored(4, seed=3)
    decode = small.probes.decode.model_copy(update={"tokens": 11})
    stored(5, probes=small.probes.model_copy(update={"decode": decode}).pinned())
    stored(6, lambda b, m: 5 if m == "kv.weights_bytes" and b.arm != "baseline" else None)
    stored(7, machine=MACHINE.model_copy(update={"torch": "2.14"}))
    stored(8)
    found = history("decode.tps.c1", tmp_path)
    assert [point.id for point in found.points] == ["day04", "day07", "day08"]
    assert [point.changed.get("seed") for point in found.points] == [None, ["3", "0"], None]
    assert found.left_out == {
        "day01": "another machine (kernel k2 -> k)",
        "day02": "day02 does not say which machine it ran on",
        "day03": "another build (args)",
        "day05": "its probe has other settings",
        "day06": "it is void (drift)",
    }
    assert "kv.blocks" not in found.left_out
    assert history("kv.blocks", tmp_path, like="day03").left_out["day08"] == "another build (args)"


def test_a_damaged_result_is_left_out_and_the_others_stay(stored, tmp_path):
    stored(1)
    stored(2)
    with (tmp_path / "day01" / "records.jsonl").open("a") as file:
        file.write("no record\n")
    found = history("kv.blocks", tmp_path)
    assert [point.id for point in found.points] == ["day02"]
    assert "not a record" in found.left_out["day01"]


def test_noisy_figures_get_change_points_but_no_verdict(stored, tmp_path):
    for day in range(1, 13):
        wobble = (-1) ** day * 0.3 + day % 3 * 0.2
        slow = 10 if day > 6 else 0
        stored(day, lambda b, m, v=100 + wobble - slow: v + b.number / 1000 if m == "decode.tps.c1" else None)
    found = history("decode.tps.c1", tmp_path)
    assert [change.id for change in found.change_points] == ["day07"]
    assert found.change_points[0].relative == pytest.approx(-0.1, abs=0.01)
    assert any("no verdict" in note for note in found.notes)


def test_without_the_library_the_history_is_there_all_the_same(stored, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ruptures", None)
    stored(1)
    stored(2)
    found = history("decode.tps.c1", tmp_path)
    assert (len(found.points), found.change_points) == (2, [])
    assert NO_LIBRARY in found.notes
    assert NO_LIBRARY not in history("kv.blocks", tmp_path).notes


def test_items_are_shares_and_their_boots_the_range(stored, tmp_path):
    stored(1, lambda b, m: {"a": 0, "b": b.number % 2} if m == "smoke.correct" else None)
    (point,) = history("smoke.correct", tmp_path).points
    assert (point.low, point.value, point.high) == (0.0, 0.25, 0.5)


def test_what_cannot_be_followed(stored, tmp_path):
    with pytest.raises(InputError, match=r"has gsm8k\.correct"):
        history("gsm8k.correct", tmp_path)
    stored(1)
    with pytest.raises(InputError, match="day01 has baseline, mhc_input_reuse"):
        history("kv.blocks", tmp_path, arm="other")
    with pytest.raises(InputError, match="whose id has 'x'"):
        history("kv.blocks", tmp_path, like="x")
