"""docs/cli.md is what the commands say of themselves."""

import re
from pathlib import Path

import click
import pytest

from dsbench.cli import COMMANDS, main
from dsbench.cli.reference import reference

PAGE = Path(__file__).resolve().parents[3] / "docs" / "cli.md"


def test_the_page_is_current(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")  # the page is the same, whatever the terminal
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: python -m dsbench.cli.reference > docs/cli.md"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_on_the_page(name):
    command = main.get_command(click.Context(main), name)
    section = reference().split(f"\n## dsbench {name}\n")[1].split("\n## ")[0]
    flags = set(
        re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", " ".join(re.findall(r"^\| `(.*?)` \|", section, re.MULTILINE)))
    )
    wanted = {flag for p in command.params if isinstance(p, click.Option) for flag in (*p.opts, *p.secondary_opts)}
    assert flags == wanted
    assert COMMANDS[name].summary in section
