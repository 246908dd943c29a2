"""The bench on a CPU: bytes, timing, checks that must be able to fail, and the command."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from impl.bench import check, race, timing
from impl.bench.__main__ import main
from impl.bench.backends import Way, ways
from impl.bench.case import Case, pristine, restore
from impl.bench.cases import CASES
from impl.dims import FLASH, PICO
from impl.ops.dispatch import REFERENCES

CPU = torch.device("cpu")


def case_of(op, form=None):
    return next(case for case in CASES if case.op == op and form in (None, case.form))


def test_every_operation_has_a_case():
    assert {case.op for case in CASES} == set(REFERENCES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_cases_run_the_reference_and_change_what_they_say(case):
    inputs = case.build(PICO, 17, CPU, 3)
    before = {name: value.clone() for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    (way,) = ways(case, ["torch"], CPU, PICO, 17, False)
    outputs = way.compute(inputs)
    assert outputs
    assert all(isinstance(tensor, torch.Tensor) for tensor in outputs)
    changed = {name for name, value in before.items() if not torch.equal(value, inputs[name])}
    scratch = {"lens", "pages", "kept"}
    assert changed - scratch == set(case.changed)
    assert case.nbytes(inputs) > 0


def test_inputs_depend_on_the_seed_alone():
    case = case_of("mhc_seam")
    first, again, other = (case.build(PICO, 5, CPU, seed) for seed in (1, 1, 2))
    assert torch.equal(first["residual"], again["residual"])
    assert not torch.equal(first["residual"], other["residual"])


def test_restore_brings_back_what_a_call_changed():
    case = case_of("index_map", "in place")
    inputs = case.build(PICO, 9, CPU, 1)
    kept = pristine(case, inputs)
    before = inputs["local"].clone()
    next(ways(case, ["torch"], CPU, PICO, 9, False)).compute(inputs)
    assert not torch.equal(inputs["local"], before)
    restore(inputs, kept)
    assert torch.equal(inputs["local"], before)


def test_bytes_of_the_seam_are_those_of_the_reference_document():
    """643 MiB at 8,192 tokens: streams and layer vector in and out, gates, and the projection."""
    tensors = {
        "residual": (8192, 4, 4096), "y": (8192, 4096), "post": (8192, 4), "comb": (8192, 4, 4)
    }  # fmt: skip
    with torch.device("meta"):
        inputs = {
            name: torch.empty(size, dtype=torch.bfloat16 if name in ("residual", "y") else torch.float32)
            for name, size in tensors.items()
        }
        from impl.ops.mhc import SeamWeights

        inputs["weights"] = SeamWeights(
            torch.empty(24, 4 * 4096), torch.empty(3), torch.empty(24), torch.empty(4096), 0, 0, 20
        )
    assert case_of("mhc_seam").nbytes(inputs) / 2**20 == pytest.approx(643, abs=1)


def test_sets_rotate_over_more_than_a_cache():
    assert timing.sets_for(1 << 30) == timing.LEAST_SETS
    assert timing.sets_for(8 << 20) == 16
    assert timing.sets_for(1) == timing.MOST_SETS


def test_times_are_medians_of_rounds():
    turns = []
    found = timing.measure([lambda: turns.append(1)] * 3, lambda: turns.append(0), 0.0, CPU)
    assert found.graph_ms is None
    assert found.rounds == timing.LEAST_ROUNDS
    assert turns.count(1) == 3 * (found.rounds + 1)
    assert found.low_ms <= found.ms <= found.high_ms


def test_a_backend_that_fails_costs_only_its_own_row(monkeypatch):
    case = case_of("index_map", "fresh")
    real = race.ways

    def with_a_broken_one(*args):
        yield Way("triton", lambda inputs: 1 / 0)
        yield from real(*args)

    monkeypatch.setattr(race, "ways", with_a_broken_one)
    rows = [e for e in race.compare([case], ["torch"], [2], 0.0, CPU, None) if e["event"] == "row"]
    assert [row["backend"] for row in rows] == ["triton", "torch"]
    assert rows[0]["error"] == "ZeroDivisionError: division by zero"
    assert rows[1]["kind"] == "no GPU figure"


def test_skipped_cells_are_left_out():
    case = case_of("index_map", "fresh")
    events = list(race.compare([case], ["torch"], [2, 4], 0.0, CPU, None, skip=["index_map/fresh/torch/2/"]))
    assert [event["tokens"] for event in events if event["event"] == "row"] == [4]


def test_the_small_seam_in_place_is_caught():
    """The reference's small-token path races on purpose: the same comparison passes with one token more."""
    case = case_of("mhc_seam", "in place")
    (way,) = ways(case, ["torch"], CPU, PICO, 16, False)
    caught = check._in_place(case, way, 16, CPU)
    assert (caught["check"], caught["equal"], caught["ok"]) == ("forced race", 0, True)
    fine = check._in_place(case, way, 17, CPU)
    assert (fine["check"], fine["equal"], fine["ok"]) == ("in place", check.INPUTS, True)


def test_a_kernel_that_does_not_write_in_place_fails():
    case = case_of("index_map", "in place")
    fresh = case_of("index_map", "fresh")
    (way,) = ways(fresh, ["torch"], CPU, PICO, 8, False)
    assert check._in_place(case, way, 8, CPU)["ok"] is False


def test_runs_that_differ_are_counted():
    runs = iter([1.0, 2.0, 1.0, 3.0])
    assert check.count_wrong(lambda: (torch.tensor([next(runs)]),), lambda: None, [torch.tensor([1.0])], 4) == 2


@pytest.mark.parametrize(
    ("found", "wanted", "exact", "ok"),
    [
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.0]), (0,), True),
        (torch.tensor([1.0, 2.0001]), torch.tensor([1.0, 2.0]), (0,), False),
        (torch.tensor([1.0, 2.0001]), torch.tensor([1.0, 2.0]), (), True),
        (torch.tensor([1.0, 2.1]), torch.tensor([1.0, 2.0]), (), False),
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, 2.0]), (), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), (), False),
    ],
)
def test_differences_are_held_against_their_bound(found, wanted, exact, ok):
    assert check.difference([found], [wanted], exact)["ok"] is ok


def test_one_output_may_have_to_be_the_same_to_the_bit_and_another_near():
    near, wanted = torch.tensor([1.0, 2.0001]), torch.tensor([1.0, 2.0])
    fine = check.difference([wanted, near], [wanted, wanted], (0,))
    assert (fine["ok"], fine["bitwise"], fine["differ"]) == (True, False, 0.25)
    wrong = check.difference([wanted, near], [wanted, wanted], (1,))
    assert (wrong["ok"], wrong["bitwise"]) == (False, True)


def test_a_wrong_backend_fails_the_reference_check(monkeypatch):
    case = case_of("index_map", "fresh")
    real = check.ways

    def wrong(case: Case, names, *rest):
        if names == ["triton"]:
            (way,) = real(case, ["torch"], *rest)
            return iter([Way("triton", lambda inputs: tuple(t + 1 for t in way.compute(inputs)))])
        return real(case, names, *rest)

    monkeypatch.setattr(check, "ways", wrong)
    events = list(check._against(case, ("torch", "triton"), 5, CPU))
    assert [event["ok"] for event in events] == [False]


def test_the_command_appends_what_it_says(tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    arguments = ["--op", "topk_metadata", "--tokens", "1", "--seconds", "0", "--out", str(out)]
    assert main([*arguments, "--json"]) == 0
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [json.loads(line) for line in out.read_text().splitlines()] == said
    assert [event["event"] for event in said if event["event"] not in ("absent", "start")] == ["machine", "row", "end"]
    assert main([*arguments, "--check"]) == 0


def test_unknown_names_are_one_line():
    done = subprocess.run(
        [sys.executable, "-m", "impl.bench", "--op", "seam"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("impl.bench: --op 'seam' is none of mhc_pre, ")
    assert done.stderr.count("\n") == 1


def test_full_size_is_for_gpus():
    from impl.bench.cases import shape

    assert (shape("cuda"), shape("cpu")) == (FLASH, PICO)
