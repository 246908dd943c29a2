"""One operation for a profiler: it runs, and what cannot run is told in a line."""

import pytest

from impl.bench import one

HERE = ["--backend", "torch", "--device", "cpu", "--tokens", "3"]


@pytest.mark.parametrize("op", ["mhc_seam", "index_map", "kv_insert"])
def test_an_operation_runs_at_a_point(op, capsys):
    assert one.main(["--op", op, "--calls", "2", *HERE]) == 0
    assert f"{op}, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--form", "inplace", *HERE], "unknown form 'inplace' of mhc_seam: known are fresh, in place"),
        (["--backend", "triton", "--device", "cpu"], "triton has no mhc_seam here: needs a GPU"),
    ],
)
def test_what_cannot_run_is_told(arguments, words, capsys):
    assert one.main(["--op", "mhc_seam", *arguments]) == 2
    assert words in capsys.readouterr().err
