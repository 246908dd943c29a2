"""What a terminal gets: completion, colours or none, errors on standard error, lines that fit."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from dsbench.cli import READER_LEFT

ROOT = Path(__file__).resolve().parents[3]
RESULT = "results/h200/vllm-kv"
DSBENCH = [sys.executable, "-c", "from dsbench.cli import main; main(prog_name='dsbench')"]
COLOUR = re.compile(r"\x1b\[(?:\d+;)*(?:3|4|9|10)\d(?:;\d+)*m")


def run(*args, **variables):
    environment = {**os.environ, **variables}
    return subprocess.run([*DSBENCH, *args], cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def on_a_terminal(*args, **variables):
    """Standard output of a command that writes to a terminal."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    main, side = pty.openpty()
    environment |= {"TERM": "xterm-256color", **variables}
    process = subprocess.Popen([*DSBENCH, *args], cwd=ROOT, env=environment, stdout=side, stderr=subprocess.PIPE)
    os.close(side)
    parts = []
    try:
        while part := os.read(main, 4096):
            parts.append(part)
    except OSError:  # the other side is closed
        pass
    os.close(main)
    assert process.stderr is not None
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0
    return b"".join(parts).decode()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(shell):
    done = run(_DSBENCH_COMPLETE=f"{shell}_source")
    assert done.returncode == 0, done.stderr
    assert "_DSBENCH_COMPLETE" in done.stdout
    assert "dsbench" in done.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dsbench la", {"ladder"}),
        ("dsbench ab --engine e", {"embedded", "endpoint"}),
        ("dsbench ladder --pro", {"--projected"}),
    ],
)
def test_completion_offers_commands_options_and_choices(words, offered):
    done = run(_DSBENCH_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=str(len(words.split()) - 1))
    assert done.returncode == 0, done.stderr
    assert {line.partition(",")[2] for line in done.stdout.splitlines()} == offered


def test_verdicts_have_colours_on_a_terminal_and_none_with_no_color():
    assert COLOUR.search(on_a_terminal("show", RESULT))
    assert not COLOUR.search(on_a_terminal("show", RESULT, NO_COLOR="1"))


@pytest.mark.parametrize("columns", ["60", "80", "100"])
@pytest.mark.parametrize(
    "args", [("show", RESULT), ("ladder", "--published"), ("toggles",), ("kv", "--published-table")]
)
def test_lines_fit_a_terminal(args, columns):
    text = re.sub(r"\x1b\[[\d;]*m", "", on_a_terminal(*args, COLUMNS=columns))
    broad = [line for line in text.splitlines() if len(line) > int(columns)]
    assert [line for line in broad if len(line.split()) > 1] == []
    assert "…" not in text


def test_a_reader_that_leaves_is_no_verdict():
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        done = subprocess.run([*DSBENCH, "gate", RESULT], stdout=gone, stderr=subprocess.PIPE, cwd=ROOT, check=False)
    told = done.stderr.decode().splitlines()
    assert done.returncode == READER_LEFT
    assert [line for line in told if "an older dsbench wrote them" not in line] == []


@pytest.mark.parametrize("args", [("show", "no-such-result"), ("kv", "--dims", "nonsense", "1"), ("gate", "nowhere")])
def test_errors_go_to_standard_error(args):
    done = run(*args)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("dsbench: ")
    assert done.stderr.count("\n") == 1
