"""Every toggle's operation allocates on real tensors exactly what it does on fake ones."""

import json

import pytest
import torch

from impl.dims import PICO
from impl.projection import allocations
from impl.projection.allocations import LIMIT, Allocation, compare, main
from impl.projection.cases import CASES

SMALL = PICO.with_changes(max_num_batched_tokens=40, sinkhorn_iters=2)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.toggle)
def test_real_and_fake_tensors_allocate_the_same(case):
    found = compare(case, SMALL, "cpu", torch.device("cpu"))
    assert (found.device_off, found.device_on) == (found.projected_off, found.projected_on)
    assert found.taken
    assert found.saved > 0


def test_the_record_holds_what_was_measured_and_a_refusal(tmp_path, capsys):
    file = tmp_path / "record.json"
    assert main(["--device", "cpu", "--dims", "pico", "-T", "40", "-t", "q_in_place", "--json", str(file)]) == 0
    record = json.loads(file.read_text())
    (row,) = record["operations"]
    assert (record["source"], row["taken"], row["saved"]) == ("live-bytes", False, 0)
    assert row["refused"].startswith("4 local heads, the kernel reads 64")
    assert "not taken: 4 local heads" in capsys.readouterr().out


def test_a_disagreement_fails(monkeypatch, capsys):
    def off_by(case, dims, platform, device):
        return Allocation(case.toggle, case.operation, case.figure, LIMIT + 1, 0, 0, 0, True, "")

    monkeypatch.setattr(allocations, "compare", off_by)
    assert main(["--device", "cpu", "-t", "mhc_input_reuse"]) == 1


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--device", "tpu9"], "tpu9"),
        (["--device", "cpu", "-t", "mhc"], "no operation of toggle 'mhc' is measured: one of mtp_hidden_skip"),
    ],
)
def test_bad_input_is_one_line(args, line, capsys):
    assert main(args) == 2
    assert line in capsys.readouterr().err
