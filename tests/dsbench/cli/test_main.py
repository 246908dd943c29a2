"""The command line as a whole: help, refusals in one line, and what it does not import."""

import os
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner
from pydantic_core import SchemaError, SchemaValidator, core_schema

import dsbench
from dsbench.cli import COMMANDS, Entry, main
from dsbench.errors import InputError
from impl.toggles import ToggleError

HEAVY = ("torch", "vllm", "pandas", "scipy", "numpy", "statsmodels", "matplotlib", "pydantic", "rich", "httpx")


def python(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *args], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_every_command_has_help(name, flag):
    result = CliRunner().invoke(main, [name, flag], prog_name="dsbench")
    assert result.exit_code == 0
    assert result.stdout.startswith(f"Usage: dsbench {name}")
    assert COMMANDS[name].summary in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_has_help(name):
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    assert command.get_short_help_str(limit=200) == COMMANDS[name].summary
    options = [p for p in command.params if isinstance(p, click.Option)]
    assert [option.opts for option in options if not option.help] == []


def test_module_and_version():
    done = python("-m", "dsbench", "--version")
    assert (done.returncode, done.stdout) == (0, f"dsbench {dsbench.__version__}\n")


def test_help_lists_every_command_and_imports_nothing_heavy():
    code = (
        "import sys\n"
        "from dsbench.cli import main\n"
        "try: main(['--help'], prog_name='dsbench')\n"
        "except SystemExit as exit: assert not exit.code\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = python("-c", code)
    assert done.stdout.splitlines()[-1] == "[]"
    assert all(f"  {name} " in done.stdout for name in COMMANDS)


@pytest.mark.parametrize("module", ["dsbench", "dsbench.cli", "impl.toggles", "impl.dims", "impl.handshake"])
def test_imports_stay_light(module):
    done = python("-c", f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


def test_nothing_said_is_a_usage_error():
    result = CliRunner().invoke(main, [])
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Commands:" in result.stderr


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["toogles"], "dsbench: unknown command 'toogles': did you mean toggles?"),
        (["xyzzy"], "dsbench: unknown command 'xyzzy': see dsbench -h"),
        (["--verson"], "dsbench: unknown option '--verson': did you mean --version?"),
        (["kv", "--max-modl-len", "1"], "dsbench: unknown option '--max-modl-len': did you mean --max-model-len?"),
        (["kv", "--zzz"], "dsbench: unknown option '--zzz': see dsbench kv -h"),
        (["toggles", "mtp_hiden_skip"], "dsbench: unknown toggle 'mtp_hiden_skip': did you mean mtp_hidden_skip?"),
        (["kv", "1", "2"], "dsbench: Got unexpected extra argument (2); see dsbench kv -h"),
    ],
)
def test_refusals_are_one_line_on_stderr(args, line):
    result = CliRunner().invoke(main, args, prog_name="dsbench")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", line + "\n")


@pytest.fixture
def planted(monkeypatch):
    """Adds a command `planted` that does what the test says."""

    def plant(action):
        command = click.Command("planted", callback=action)
        monkeypatch.setitem(COMMANDS, "planted", Entry(f"{__name__}:planted_command", "Planted."))
        monkeypatch.setattr(sys.modules[__name__], "planted_command", command, raising=False)
        return CliRunner().invoke(main, ["planted"], prog_name="dsbench")

    return plant


def _raise(error):
    def action():
        raise error

    return action


@pytest.mark.parametrize("error", [InputError("suite 'x': no such suite"), ToggleError("suite 'x': no such suite")])
def test_input_errors_are_the_users_to_mend(planted, error):
    result = planted(_raise(error))
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", "dsbench: suite 'x': no such suite\n")


def test_interruption(planted):
    result = planted(_raise(KeyboardInterrupt()))
    assert result.exit_code == 130
    assert "dsbench: interrupted" in result.stderr


def test_interruption_while_pydantic_builds_a_model(planted):
    """It tells of what its callbacks raise, Ctrl-C among it, as an error of the schema."""

    class Interrupted:
        def __repr__(self):
            raise KeyboardInterrupt

    def build():
        SchemaValidator(core_schema.list_schema(core_schema.literal_schema([Interrupted()])))

    with pytest.raises(SchemaError):
        build()
    result = planted(build)
    assert (result.exit_code, result.stderr) == (130, "dsbench: interrupted\n")


def test_defects_are_not_dressed_as_input_errors(planted):
    result = planted(_raise(ValueError("a bug")))
    assert result.exit_code == 70, "1 would read as regressed"
    assert "ValueError: a bug" in result.stderr
    assert "a defect of dsbench, not a verdict" in result.stderr


def test_what_the_machine_refuses_is_one_line_with_the_files_name(planted):
    result = planted(_raise(PermissionError(13, "Permission denied", "/x" * 3000)))
    assert result.exit_code == 2
    assert result.stderr == f"dsbench: {'/x' * 150}: Permission denied\n"
    nameless = planted(_raise(OSError(5, "Input/output error")))
    assert nameless.exit_code == 70


@pytest.mark.parametrize("option", ["--resume", "--reuse-baseline"])
def test_an_empty_name_of_a_result_is_no_result(option, tmp_path, monkeypatch):
    """What a variable of a script gives that was never set; nothing may run then."""
    monkeypatch.chdir(tmp_path)
    toggle = [] if option == "--resume" else ["-t", "mhc_input_reuse"]
    result = CliRunner().invoke(main, ["ab", *toggle, option, ""], prog_name="dsbench")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no result at ''" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (3, 3), (4, 4)])
def test_the_return_value_is_the_exit_code(planted, value, code):
    assert planted(lambda: value).exit_code == code


def test_a_reader_that_leaves_early_gets_no_traceback_and_no_verdict():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "dsbench", "toggles", "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_load_is_lazy_and_unknown_names_are_refused():
    done = python("-c", "import sys, dsbench; 'dsbench.store' in sys.modules and exit(3); print(dsbench.load.__name__)")
    assert (done.returncode, done.stdout) == (0, "load\n")
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        dsbench.lode  # noqa: B018
