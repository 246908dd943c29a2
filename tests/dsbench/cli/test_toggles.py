import json

import pytest
from click.testing import CliRunner

from dsbench.cli import main
from impl.dims import FLASH, PICO
from impl.toggles import REGISTRY


def run(*args: str):
    result = CliRunner().invoke(main, ["toggles", *args], prog_name="dsbench")
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_list_names_every_toggle_with_its_facts():
    lines = {line.split()[0]: line for line in run().splitlines() if line.strip()}
    for name, toggle in REGISTRY.items():
        for fact in (toggle.kind, toggle.phase, toggle.exactness_told, toggle.primary, *toggle.requires):
            assert fact in lines[name]
        assert ("moves" in lines[name]) == toggle.moves_line


def test_bytes_follow_shape_and_batched_tokens():
    assert json.loads(run("mhc_input_reuse", "--json"))["expected_bytes"] == 64 * 2**20
    content = {t["name"]: t["expected_bytes"] for t in json.loads(run("--json", "--dims", "pico", "-T", "48"))}
    dims = PICO.with_changes(max_num_batched_tokens=48)
    assert content == {name: t.expected_bytes(dims) if t.expected_bytes else None for name, t in REGISTRY.items()}
    assert content["mhc_input_reuse"] == 48 * PICO.hidden_size * 2


@pytest.mark.parametrize("name", REGISTRY)
def test_each_is_described(name):
    toggle = REGISTRY[name]
    text = run(name)
    for fact in (toggle.summary, toggle.needs, toggle.reference, toggle.primary, *toggle.requires, *toggle.conflicts):
        assert fact in text
    if toggle.unverified_on:
        assert f"on {toggle.unverified_on}; one command on such a card checks it: {toggle.verified_by}" in text
    if toggle.expected_bytes:
        assert f"{toggle.expected_bytes(FLASH) // 2**20} MiB" in text
