"""The command line of the projection: figures as text and as JSON, and one line for bad input."""

import json

import pytest

from impl.dims import PICO
from impl.projection.__main__ import main

SMALL = ["--dims", "pico", "--platform", "sm90", "--tp", "1", "-T", "40"]


def test_one_toggle_in_text_and_in_json(capsys):
    assert main([*SMALL, "-t", "mhc_input_reuse", "--progress"]) == 0
    told = capsys.readouterr()
    assert told.out.startswith("projected: pico, 4 + 2 layers, sm90, TP=1, T=40; 4 local heads, 64 padded")
    assert "impl/ops/mhc.py" in told.out, "the peak is named by its site"
    assert told.err.splitlines() == ["1/2", "2/2"]
    assert main([*SMALL, "-t", "mhc_input_reuse", "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    (step,) = content["cumulative"]
    assert (content["kind"], step["line_bytes"]) == ("projected", 40 * PICO.hidden_size * 2)
    assert {line["name"] for line in content["weights"]} >= {"moe.w13", "attn.wq_b", "embed"}


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["-T", "0"], "--max-num-batched-tokens must be at least 1, got 0"),
        (["--workers", "0"], "--workers must be at least 1, got 0"),
        (["-t", "mhc_input_reus"], "unknown toggle 'mhc_input_reus': did you mean mhc_input_reuse"),
    ],
)
def test_bad_input_is_one_line(args, line, capsys):
    assert main(args) == 2
    (told,) = capsys.readouterr().err.splitlines()
    assert line in told
