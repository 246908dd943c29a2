"""Every option of every command with values that nobody means: taken, or refused by click; and what would never end."""

import contextlib

import click
import pytest
from click.testing import CliRunner

from dsbench.cli import COMMANDS, main

VALUES = (
    "-1", "0", "1e309", "nan", "inf", "9" * 30, "9" * 5000, "", "²", "٣", "1_0", "a=b", ",", ":", "\n", "\udcff",
    "x" * 300,
)  # fmt: skip


def leaves(name, command):
    if isinstance(command, click.Group):
        context = click.Context(command)
        for inner in command.list_commands(context):
            yield from leaves(f"{name} {inner}", command.get_command(context, inner))
    else:
        yield name, command


LEAVES = dict(leaf for name in COMMANDS for leaf in leaves(name, main.get_command(click.Context(main), name)))


@pytest.mark.parametrize("name", LEAVES)
def test_every_option_takes_or_refuses_odd_values(name):
    command = LEAVES[name]
    tried = 0
    for parameter in command.params:
        given = parameter.opts[-1:] if isinstance(parameter, click.Option) else []
        if isinstance(parameter, click.Option) and parameter.is_flag:
            continue
        for value in VALUES:
            tried += 1
            with contextlib.suppress(click.ClickException, click.exceptions.Exit):
                command.make_context(name, [*given, value])
    assert tried or name in ("audit", "doctor")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["aa", "--suite", "kv", "--boots", "99999999999998"], "is not in the range 6<=x<=20000"),
        (["simulate", "--experiments", "9" * 23], "is not in the range"),
        (["simulate", "--hosts", "²"], "write numbers of hosts"),
        (["simulate", "--hosts", "9" * 5000], "write numbers of hosts"),
        (["kv", "1000000", "--draft-layers", "9" * 30], "is not in the range"),
        (["kernels", "--tokens", "²"], "is no list of whole numbers"),
        (["kernels", "--tokens", "9" * 5000], "is no list of whole numbers"),
        (["ab", "-t", "mhc_input_reuse", "--timeout", "nan"], "is not a number"),
        (["selftest", "--soak", "nan"], "is not a number"),
    ],
)  # fmt: skip
def test_what_would_never_end_or_be_too_large_is_refused(args, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, args, prog_name="dsbench")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert said in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ["ab", "--a-python", ""],
        ["ab", "--b-python", ""],
        ["aa", "--suite", "kv", "--python", ""],
        ["aa", "--from", ""],
        ["ab", "-t", "mhc_input_reuse", "--engine", "vllm", "--serve-args", "m", "--vllm-python", ""],
        ["tests", ".", ".", "--python", "", "--", "x"],
    ],
)
def test_a_name_that_is_empty_is_not_one_that_was_left_out(args, tmp_path, monkeypatch):
    """What a script gives for a variable that was never set: nothing else may run in its place."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(main, args, prog_name="dsbench")
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    assert "empty" in result.stderr or "no result at ''" in result.stderr
    assert list(tmp_path.iterdir()) == []
