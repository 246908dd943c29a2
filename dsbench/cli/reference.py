"""`python -m dsbench.cli.reference`: docs/cli.md, made of the commands' own help."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from dsbench.cli import COMMANDS, main

HEAD = """\
# Command line

<!-- made by `python -m dsbench.cli.reference > docs/cli.md`; a test holds it current -->

`dsbench COMMAND -h` (or `--help`) prints the same. Results go to standard output; errors, notices and progress to
standard error. Exit codes: 0 improved or equivalent, 1 regressed, 2 usage, 3 inconclusive, 4 void; a command that has
others says so.
"""

TAIL = """\
## Shell completion

Commands, options and the choices of options are completed. Write the script once, and have your shell read it:

| shell | the script | read by |
|---|---|---|
| bash 4.4 or later | `_DSBENCH_COMPLETE=bash_source dsbench > ~/.dsbench.bash` | `. ~/.dsbench.bash` in `~/.bashrc` |
| zsh | `_DSBENCH_COMPLETE=zsh_source dsbench > ~/.dsbench.zsh` | `. ~/.dsbench.zsh` in `~/.zshrc`, after `compinit` |
| fish | `_DSBENCH_COMPLETE=fish_source dsbench > ~/.config/fish/completions/dsbench.fish` | fish itself |

## Terminals

| variable | what it does |
|---|---|
| `NO_COLOR` | set to anything: no colours |
| `COLUMNS` | how wide the output is, on a terminal and in a pipe. A pipe that is not told gets whole lines |

A table that is too wide is told row by row; no figure and no word is cut. `dsbench suites`, which is prose, takes 120
columns in a pipe that is not told.
"""


def reference() -> str:
    """The page, in Markdown."""
    context = click.Context(main, info_name="dsbench", **main.context_settings)
    index = [f"| [`{name}`](#dsbench-{name}) | {entry.summary} |" for name, entry in sorted(COMMANDS.items())]
    parts = [HEAD, "\n".join(["| command | what it does |", "|---|---|", *index]) + "\n"]
    for name in main.list_commands(context):
        command = main.get_command(context, name)
        assert command is not None
        parts.append("\n".join(_section(command, click.Context(command, parent=context, info_name=name))))
    return "\n".join([*parts, TAIL])


def _section(command: click.Command, context: click.Context) -> Iterator[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    yield f"## {context.command_path}\n"
    yield f"    {context.command_path} {pieces}\n"
    yield from _paragraphs(inspect.cleandoc(command.help or ""))
    options = [record for parameter in command.params if (record := _record(parameter, context))]
    if options:
        yield from ["| option | what it says |", "|---|---|", *options, ""]


def _paragraphs(text: str) -> Iterator[str]:
    """Help as click reads it: a paragraph that begins with a line of \\b alone keeps its lines."""
    for paragraph in text.split("\f")[0].split("\n\n"):
        first, *lines = paragraph.strip("\n").split("\n")
        if first.strip() == "\b":
            yield "\n".join(f"    {line}".rstrip() for line in lines) + "\n"
        else:
            yield _escaped("\n".join([first, *lines])) + "\n"


def _record(parameter: click.Parameter, context: click.Context) -> str:
    found = parameter.get_help_record(context)
    if found is None:
        return ""
    flags, says = (" ".join(part.split()) for part in found)
    return f"| `{flags.replace('|', chr(92) + '|')}` | {_escaped(says).replace('|', chr(92) + '|')} |"


def _escaped(text: str) -> str:
    """Text in which Markdown finds no markup: stars, underscores and angle brackets stand as they are."""
    parts = text.split("`")
    for i in range(0, len(parts), 2):
        for sign in "*_<":
            parts[i] = parts[i].replace(sign, f"\\{sign}")
    return "`".join(parts)


if __name__ == "__main__":
    click.echo(reference(), nl=False)
