"""The command line. A command's module is imported when that command is called: `--help` stays fast."""

from __future__ import annotations

import contextlib
import difflib
import errno
import importlib
import io
import os
import signal
import sys
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import click

from dsbench import __version__
from dsbench.errors import InputError, ResultsLost
from impl.toggles import ToggleError

USAGE_ERROR = 2
INTERNAL_ERROR = 70
INTERRUPTED = 130
READER_LEFT = 141
LONGEST_NAME = 300
"""Characters of a file's name in an error."""
NO_OUTPUT = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a write fails with where a standard stream is a file on a full disk."""


@dataclass(frozen=True)
class Entry:
    target: str
    """module:attribute of the click command."""
    summary: str
    """One line for the list of commands; the command's own help begins with it."""


COMMANDS: dict[str, Entry] = {
    "aa": Entry("dsbench.cli.aa:aa", "Measure how far every metric moves when nothing changes, and store it."),
    "ab": Entry("dsbench.cli.ab:ab", "Measure arms against the baseline, in fresh boots, and judge."),
    "audit": Entry("dsbench.cli.audit:audit", "Check what the toggles rest on, by running the code."),
    "bundle": Entry("dsbench.cli.bundle:bundle", "Pack a stored result, redacted, for a pull request."),
    "check": Entry("dsbench.cli.check:check", "Check readings for a known defect, or list the checks."),
    "compare": Entry("dsbench.cli.compare:compare", "Put a stored result beside another, or beside published figures."),
    "doctor": Entry("dsbench.cli.doctor:doctor", "Check whether this machine can run an experiment."),
    "gate": Entry("dsbench.cli.gate:gate", "Hold a stored result against a policy, for CI."),
    "history": Entry("dsbench.cli.history:history", "Show a metric over stored results, with change points."),
    "import": Entry("dsbench.cli.importing:import_results", "Read results of other benchmark programs."),
    "inspect": Entry("dsbench.cli.inspect:inspect", "Say what a server's log or metrics page tells."),
    "judge": Entry("dsbench.cli.judge:judge", "Judge a stored experiment again from its records."),
    "kernels": Entry("dsbench.cli.kernels:kernels", "Time or check every operation on every backend, side by side."),
    "kv": Entry("dsbench.cli.kv:kv", "Turn KV bytes into blocks, tokens and concurrency."),
    "ladder": Entry("dsbench.cli.ladder:ladder", "Show the memory ladder: projected, measured, published."),
    "plan": Entry("dsbench.cli.plan:plan", "Say what an experiment would cost and could show, before it starts."),
    "report": Entry("dsbench.cli.report:report", "Write a stored experiment as Markdown and as one HTML file."),
    "score": Entry("dsbench.cli.score:score", "Score outputs that exist already."),
    "selftest": Entry("dsbench.cli.selftest:selftest", "Plant defects in real runs; say which the verdict names."),
    "show": Entry("dsbench.cli.show:show", "Show a stored experiment's table and verdict."),
    "simulate": Entry("dsbench.cli.simulate:simulate", "Simulate experiments: how often are the verdicts wrong?"),
    "suites": Entry("dsbench.cli.suites:suites", "List the suites, or describe one."),
    "tests": Entry("dsbench.cli.tests:tests", "Compare two runs of tests by test id: new, inherited, fixed."),
    "toggles": Entry("dsbench.cli.toggles:toggles", "List the toggles, or describe one."),
}


class CommandLine(click.Group):
    """Imports commands on use, and reports every input error as one line on stderr with exit code 2."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, attribute = COMMANDS[cmd_name].target.partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            raise InputError(f"unknown command '{name}': {_nearest(name, COMMANDS) or 'see dsbench -h'}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].summary) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # the reader has left; click would exit with 1, which is a verdict's code here
            _drop_output()
            ctx.exit(READER_LEFT)
        return value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As a process: whoever presses Ctrl-C again while it ends gets no traceback of Python's own end."""
        _take_any_stream()
        try:
            return self.main(*args, **kwargs)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            sys.exit(INTERRUPTED)
        except SystemExit as end:
            if end.code == INTERRUPTED:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit. A command's integer return value is its exit code."""
        if not standalone_mode:
            return super().main(args, prog_name, complete_var, False, **extra)
        try:
            code = super().main(args, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            _refuse(_one_line(error))
        except (InputError, ResultsLost, ToggleError) as error:
            _refuse(str(error))
        except (click.Abort, KeyboardInterrupt):
            _interrupted()
        except OSError as error:
            if error.filename is None:
                if error.errno in NO_OUTPUT:
                    _tell(f"dsbench: cannot write the output: {error.strerror}")
                    _drop_output()
                    sys.exit(USAGE_ERROR)
                _internal_error()
            _refuse(f"{str(error.filename)[:LONGEST_NAME]}: {error.strerror}")
        except Exception as error:
            # Pydantic tells of Ctrl-C in the building of a model as an error of the model.
            if any(line.lstrip().startswith("KeyboardInterrupt") for line in str(error).splitlines()):
                _interrupted()
            _internal_error()
        sys.exit(code if isinstance(code, int) else 0)


def _take_any_stream() -> None:
    """A standard stream that is closed takes everything, and one that lacks a sign shows another in its place.

    A file that is opened later would get the number of a closed one.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and name == "stdout":
            stream.reconfigure(errors="replace")


def _drop_output() -> None:
    """What is left in the buffers of a stream that takes nothing would make an exit code of Python's own."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # of tests
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _tell(line: str) -> None:
    """Nobody may be there to read it; the exit code stays what it is."""
    with contextlib.suppress(OSError):
        click.echo(line, err=True)


def _interrupted() -> NoReturn:
    _tell("dsbench: interrupted")
    sys.exit(INTERRUPTED)


def _internal_error() -> NoReturn:
    """Python's own exit code for this would be 1, which is a verdict's."""
    _tell(traceback.format_exc().rstrip())
    _tell("dsbench: this is a defect of dsbench, not a verdict; please report the lines above")
    sys.exit(INTERNAL_ERROR)


def _refuse(line: str) -> NoReturn:
    _tell(f"dsbench: {line}")
    sys.exit(USAGE_ERROR)


def _one_line(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    where = context.command_path if context else "dsbench"
    if isinstance(error, click.NoSuchOption):
        known = [name for p in context.command.get_params(context) for name in p.opts] if context else []
        return f"unknown option '{error.option_name}': {_nearest(error.option_name, known) or f'see {where} -h'}"
    message = " ".join(error.format_message().split()).rstrip(".")
    return f"{message}; see {where} -h" if context else message


def _nearest(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else ""


@click.group(
    cls=CommandLine,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 improved or equivalent, 1 regressed, 2 usage, 3 inconclusive, 4 void.",
)
@click.version_option(__version__, message="dsbench %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Does this change do what its author says, on my machine, beyond the noise, and does it break nothing?"""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help(), err=True)
        ctx.exit(USAGE_ERROR)
