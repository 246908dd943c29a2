"""`--reuse-baseline` by `ab` and `plan`, as processes, on the fake engine."""

import re

from tests.dsbench.cli.test_ab import KV, dsbench, one_result

__all__ = ["dsbench"]


def test_only_the_candidate_runs_and_the_table_is_the_same(dsbench):
    first = dsbench("ab", "--toggle", "mhc_input_reuse", *KV)
    source = one_result()
    again = dsbench("ab", "--toggle", "mhc_input_reuse", *KV, "--reuse-baseline", str(source), "-o", "new")
    folder = one_result(folder=source.parent.parent / "new")
    assert {path.name[3:] for path in (folder / "boots").iterdir()} == {"mhc_input_reuse"}
    assert f"baseline boots: 2 of {source.name}" in again.stderr
    row = re.compile(r"kv\.peak_activation_bytes .*")
    assert row.search(again.stdout)[0] == row.search(first.stdout)[0]
    judged = dsbench("judge", str(folder))
    assert "improved" in judged.stdout


def test_plan_counts_only_boots_that_run(dsbench):
    dsbench("ab", "--toggle", "mhc_input_reuse", *KV)
    planned = dsbench("plan", "--toggle", "mhc_residual_reuse", *KV, "--reuse-baseline", one_result().name)
    assert re.search(r"^ +2 +2 ", planned.stdout, re.MULTILINE)
    assert "none runs now" in planned.stdout


def test_it_fits_no_experiment_that_stops_at_a_look(dsbench):
    options = "--reuse-baseline", "x", "--until-resolved", "8"
    refused = dsbench("ab", "--toggle", "mhc_input_reuse", *KV, *options, code=2)
    assert "--reuse-baseline and --until-resolved" in refused.stderr
