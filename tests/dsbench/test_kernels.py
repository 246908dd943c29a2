"""The bench as a subprocess: records as they come, processes that end, and what is shown of them."""

from __future__ import annotations

import json
import sys
import textwrap

import pytest
from click.testing import CliRunner

from dsbench import kernel_plot, kernels
from dsbench.cli import main
from dsbench.errors import InputError

GPU = {"event": "machine", "device": "cuda", "card": "a card", "driver": "1.2", "copy_bytes_per_second": 4e12}


def row(backend, ms, tokens=8, op="index_map", **more):
    cell = {"event": "row", "op": op, "form": "fresh", "backend": backend, "tokens": tokens, "parameters": {}}
    return {**cell, "dims": "flash", "bytes": 4_000_000, "ms": ms, "eager_ms": 2 * ms, "of_copy": 0.5, **more}


def stored(tmp_path, *events):
    (tmp_path / kernels.FILE).write_text("".join(json.dumps(event) + "\n" for event in events))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(main, ["kernels", *map(str, arguments)])


@pytest.fixture
def fake_bench(tmp_path):
    """An interpreter that runs a script in place of the bench; the script sees what it was asked to skip."""

    def make(script):
        file = tmp_path / "python"
        body = textwrap.dedent(script)
        head = f"#!{sys.executable}\nimport json, os, sys\nskip = [a for a in sys.argv if '--skip=' in a]\n"
        file.write_text(head + body)
        file.chmod(0o755)
        return str(file)

    return make


SAY = """
def say(**event):
    print(json.dumps(event), flush=True)
cell = {"op": "index_map", "form": "fresh", "parameters": {}, "tokens": 8}
"""


def test_a_real_run_is_kept_line_by_line_and_drawn(tmp_path):
    pytest.importorskip("torch", reason="the bench needs torch")
    out = tmp_path / "kernels"
    done = run("--op", "topk_metadata", "--tokens", "1,4", "--seconds", "0", "-o", out)
    assert done.exit_code == 0, done.output
    assert "no GPU figures" in done.stdout
    events = [json.loads(line)["event"] for line in (out / kernels.FILE).read_text().splitlines()]
    assert events[:2] == ["command", "machine"]
    assert events.count("row") == 2
    assert events[-1] == "end"
    if "no plot" not in done.stderr:
        assert (out / "kernels.svg").stat().st_size > 1000
        assert (out / "kernels.png").stat().st_size > 1000


def test_a_process_that_a_kernel_ends_is_started_again_without_that_cell(fake_bench, tmp_path):
    python = fake_bench(
        SAY
        + """
for backend in ("torch", "cuda", "triton"):
    if any(f"index_map/fresh/{backend}/8/" in s for s in skip):
        continue
    say(event="start", backend=backend, **cell)
    if backend == "cuda":
        sys.exit("illegal memory access")
    say(event="row", backend=backend, ms=1.0, **cell)
say(event="end")
"""
    )
    out = tmp_path / "out.jsonl"
    events = list(kernels.measure(python, [], out))
    told = [(event["backend"], event.get("ms")) for event in events]
    assert told == [("torch", 1.0), ("cuda", None), ("triton", 1.0)]
    assert events[1]["error"] == "the bench ended with code 1: illegal memory access"
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert [event["event"] for event in kept] == ["command", "row", "row", "row", "end"]


def test_a_bench_that_stops_is_told(fake_bench):
    python = fake_bench(SAY + "say(event='machine', card='x')\nprint('not an event')\nsys.exit('out of memory')\n")
    events = list(kernels.measure(python, [], None))
    assert [event["event"] for event in events] == ["machine", "stopped"]
    assert events[-1]["reason"] == "the bench ended with code 1: out of memory"


def test_an_interpreter_without_torch_is_refused(fake_bench, tmp_path):
    with pytest.raises(InputError, match="name an interpreter that has torch"):
        list(kernels.measure(fake_bench("sys.exit(\"ModuleNotFoundError: No module named 'torch'\")"), [], None))
    with pytest.raises(InputError, match="cannot be started"):
        list(kernels.measure(str(tmp_path / "nothing"), [], None))


def test_the_fastest_point_stands_for_a_backend_and_vllm_for_one():
    rows = kernels.best_rows(
        [row("triton", 3.0, parameters={"warps": 4}), row("triton", 2.0, parameters={"warps": 8}), row("vllm", 5.0)]
    )
    assert [(r["backend"], r["ms"], r["vs_vllm"]) for r in rows] == [("triton", 2.0, 2.5), ("vllm", 5.0, 1.0)]


def test_a_later_row_of_the_same_point_replaces_an_earlier_one():
    assert [r["ms"] for r in kernels.best_rows([row("triton", 1.0), row("triton", 2.0)])] == [2.0]


def test_without_vllms_time_there_is_no_ratio():
    failed = {key: value for key, value in row("vllm", 1.0).items() if key != "ms"} | {"error": "no"}
    assert [r["vs_vllm"] for r in kernels.best_rows([row("triton", 1.0), failed])] == [None, None]


def test_stored_records_are_shown(tmp_path):
    folder = stored(tmp_path, GPU, row("triton", 0.25), row("vllm", 0.5), {"event": "end"})
    done = run("--read", folder)
    assert done.exit_code == 0, done.output
    assert "kernel results; an eager device copy of 4 GiB moves 4,000 GB/s" in done.stdout
    line = next(line for line in done.stdout.splitlines() if "triton" in line)
    assert line.split() == ["index_map", "fresh", "8", "triton", "0.2500", "0.500", "2.00x", "0.5000"]
    as_json = json.loads(run("--read", folder, "--json").stdout)
    assert [r["vs_vllm"] for r in as_json["rows"]] == [2.0, 1.0]


@pytest.mark.parametrize(("ok", "code", "word"), [(True, 0, "passed"), (False, 1, "FAILED"), (None, 0, "told")])
def test_a_difference_found_is_exit_code_1(tmp_path, ok, code, word):
    check = {
        "event": "check",
        "check": "race",
        "op": "mhc_seam",
        "backend": "cuda",
        "tokens": 6,
        "runs": 1000,
        "wrong": 2,
    }
    done = run("--read", stored(tmp_path, GPU, {**check, "ok": ok}))
    assert done.exit_code == code
    assert word in done.stdout
    assert "2 of 1,000 runs differ" in done.stdout


def test_what_has_not_run_is_exit_code_4(tmp_path):
    failed = {**row("cuda", 1.0), "error": "RuntimeError: no nvcc"}
    del failed["ms"]
    done = run("--read", stored(tmp_path, GPU, failed))
    assert done.exit_code == 4
    assert "RuntimeError: no nvcc" in done.stdout


def test_toggles_are_told_as_kernel_results(tmp_path):
    side = {
        "event": "toggle", "toggle": "q_in_place", "what": "two sides", "off_ms": 0.4, "on_ms": 0.2, "off_over_on": 2.0,
        "low": 1.9, "high": 2.1,
    }  # fmt: skip
    done = run("--read", stored(tmp_path, GPU, side))
    assert "Toggles by turns (kernel results)" in done.stdout
    assert "1.900 to 2.100" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--op", "mhc_seem"], "--op 'mhc_seem': did you mean mhc_seam?"),
        (["--backend", "tritn"], "--backend 'tritn': did you mean triton?"),
        (["--tokens", "0,8"], "'0,8' is no list of whole numbers from 1"),
        (["--read", "nowhere"], "--read nowhere: not readable"),
    ],
)
def test_bad_input_is_one_line(arguments, words):
    done = run(*arguments)
    assert done.exit_code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_without_events_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("hello\n{}\n")
    done = run("--read", tmp_path / "notes.txt")
    assert (done.exit_code, "no line of it is an event" in done.stderr) == (2, True)


def test_a_plot_has_a_panel_an_operation(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    rows = [row("triton", 0.2), row("triton", 0.9, 64), row("vllm", 0.4), row("cuda", 0.3, op="mhc_seam")]
    files = kernel_plot.plot(rows, GPU, tmp_path / "plots")
    assert [file.name for file in files] == ["kernels.svg", "kernels.png"]
    text = files[0].read_text()
    for word in ("index_map, fresh", "mhc_seam, fresh", "bytes at copy rate", "kernel results"):
        assert f"<!-- {word}" in text or word in text


def test_nothing_to_plot_is_told(tmp_path):
    pytest.importorskip("matplotlib", reason="the plot needs matplotlib")
    with pytest.raises(InputError, match="no row has a time"):
        kernel_plot.plot([], GPU, tmp_path)
