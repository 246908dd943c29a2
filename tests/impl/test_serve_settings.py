"""What the server is started with: settings that cannot work end it with one line, before anything is written."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from impl.dims import MICRO, PICO
from impl.model.weights import random_weights, save_weights
from impl.serve import main, parser, read_config
from tests.impl.serving import run


def test_until_profile_writes_the_files_and_exits(tmp_path: Path) -> None:
    flags = ("--load-format", "dummy", "--until", "profile", "--hidden-size", "128", "--max-num-batched-tokens", "48")
    done = run(*flags, boot=tmp_path)
    assert done.returncode == 0, done.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"conditions.rank0.json", "kv_profile.rank0.json", "markers.rank0.json"}
    conditions = json.loads((tmp_path / "conditions.rank0.json").read_text())
    assert (conditions["dims"]["hidden_size"], conditions["max_num_batched_tokens"]) == (128, 48)


REFUSED = [
    (("--hidden-size", "0"), "", "--hidden-size: must be at least 1, got 0"),
    (("--dims", "huge"), "", "invalid choice: 'huge'"),
    (("--dims", "flash", "--load-format", "dummy"), "", "has no default memory"),
    (("--load-format", "dummy", "--memory-budget", "1000"), "", "does not hold the weights alone"),
    (("--load-format", "dummy", "--memory-budget", "3000000", "--until", "profile"), "", "give at least"),
    (("--weights", "/nowhere.safetensors"), "", "no weights at /nowhere.safetensors"),
    (("--load-format", "dummy", "--port", "70000"), "", "--port must be 0 to 65535"),
    (("--load-format", "dummy"), "mhc_input_reus", "did you mean mhc_input_reuse"),
    (("--load-format", "dummy"), "mhc_final_fused", "needs 'mtp_hidden_skip'"),
]


@pytest.mark.parametrize(("flags", "toggles", "text"), REFUSED)
def test_settings_that_cannot_work_are_one_line_and_exit_2(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    flags: tuple[str, ...],
    toggles: str,
    text: str,
) -> None:
    monkeypatch.setenv("DSBENCH_TOGGLES", toggles)
    monkeypatch.setenv("DSBENCH_BOOT_DIR", str(tmp_path))
    try:
        status: object = main(["--dims", "pico", *flags])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert text in line
    assert not {"kv_profile.rank0.json", "ready.json"} & {path.name for path in tmp_path.iterdir()}


def test_widths_that_the_weights_lack_are_refused_before_anything_is_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    boot, weights = tmp_path / "boot", tmp_path / "pico.safetensors"
    boot.mkdir()
    save_weights(weights, random_weights(PICO), PICO)
    monkeypatch.setenv("DSBENCH_BOOT_DIR", str(boot))
    monkeypatch.delenv("DSBENCH_TOGGLES", raising=False)
    flags = ["--dims", "pico", "--weights", str(weights), "--until", "profile"]
    assert main([*flags, "--hidden-size", "128"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "hidden_size is 128, but the weights pico.safetensors have 64: use --load-format dummy" in line
    assert not list(boot.iterdir())
    assert main([*flags, "--max-num-batched-tokens", "40"]) == 0
    conditions = json.loads((boot / "conditions.rank0.json").read_text())
    assert conditions["weights"] == hashlib.sha256(weights.read_bytes()).hexdigest()
    assert conditions["max_num_batched_tokens"] == 40


def test_a_boot_that_fails_behind_the_port_is_one_line_and_exit_2(tmp_path: Path) -> None:
    done = run("--load-format", "dummy", "--port", "0", "--memory-budget", "3000000", boot=tmp_path)
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("INFO ")]
    assert "bytes for KV pages, one token needs" in line
    assert not (tmp_path / "ready.json").exists()


def test_micro_is_served_where_no_shape_is_named() -> None:
    assert read_config(parser().parse_args([])).dims == MICRO
