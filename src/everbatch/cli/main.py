"""The command line's entry: which commands there are, and how errors reach people.

Belongs here: names and one line about each command. A command's module is imported when it is
called, so `--help` and the tools without a model start at once.

Exit status: 0 done, 1 not all was done, 2 an error of the user's or of a file's, 3 a simulated run
that could make no progress, 130 interrupted.
"""

import errno
import os
import sys
from importlib import import_module

import click

from everbatch import __version__
from everbatch.base.errors import EverbatchError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130

_NOT_WRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)

COMMANDS = {
    "serve": "Serve a model through an OpenAI-compatible HTTP API.",
    "chat": "Talk to a running server in the terminal.",
    "bench": "Measure a running server under load.",
    "generate": "Answer a file of prompts and write JSON Lines.",
    "simulate": "Run a scenario on a virtual clock, without a model.",
    "explain": "Say why a request waited, from an event log or a running server.",
    "compare": "Put two simulated runs side by side.",
    "replay": "Replay an event log, perhaps under another configuration.",
    "roofline": "Estimate a step's time on a device, from data sheets.",
    "scenario": "Print a scenario to begin with.",
    "calibrate": "Fit a model of step time to event logs.",
    "trace": "Look at a trace of requests, or convert it.",
}

WELCOME = f"""everbatch {__version__}: LLM serving with continuous batching

Try:
  everbatch serve                     serve the default model at http://127.0.0.1:8000
  everbatch chat                      talk to it, in another terminal
  echo "Once upon a time" | everbatch generate --prompts - --max-tokens 40

`everbatch COMMAND --help` tells the options of a command, `everbatch --help` lists all commands.
"""


class LazyGroup(click.Group):
    """Imports the module of a command when the command is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"everbatch.cli.{cmd_name}")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, invoke_without_command=True)
@click.version_option(__version__, prog_name="everbatch")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """LLM serving with continuous batching."""
    if ctx.invoked_subcommand is None:
        click.echo(WELCOME, nl=False)


def main() -> None:
    """Run the command line; an error of ours or of the user's is one line and an exit status."""
    try:
        # A reader that left (`| head`) ends it inside, quietly, with status 1.
        status = cli.main(prog_name="everbatch", standalone_mode=False)
    except EverbatchError as error:
        _tell(str(error))
        status = EXIT_ERROR
    except click.exceptions.NoArgsIsHelpError as error:
        # A group without its command: the message is its help.
        click.echo(error.format_message(), err=True)
        status = EXIT_ERROR
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx is not None else "everbatch"
        _tell(f"{_usage_problem(error)} (`{where} --help` tells the options)")
        status = EXIT_ERROR
    except click.ClickException as error:
        _tell(error.format_message())
        status = EXIT_ERROR
    except (click.Abort, KeyboardInterrupt):
        _tell("interrupted")
        status = EXIT_INTERRUPTED
    except OSError as error:
        if error.errno not in _NOT_WRITTEN:
            raise
        status = _tell_unwritten(error)
    sys.exit(_flushed(status))


def _usage_problem(error: click.UsageError) -> str:
    """Say what is wrong with a command line; of another engine's flag what takes its place."""
    if isinstance(error, click.NoSuchOption):
        from everbatch.cli.foreign_flags import hint

        told = hint(error.option_name, "" if error.ctx is None else error.ctx.command_path)
        if told is not None:
            return f"No such option: {error.option_name}: {told}"
    return error.format_message()


def _flushed(status: int) -> int:
    """Write what standard output still holds; gives the exit status."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # A reader that left is no error to be told.
        return status or 1 if isinstance(error, BrokenPipeError) else _tell_unwritten(error)
    return status


def _tell_unwritten(error: OSError) -> int:
    """Say that the disk, or whatever takes the output, is full; gives the exit status."""
    # Python's own flush at the end shall have nothing to fail at.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    _tell(f"cannot write the output ({error.strerror}): what was written is not whole")
    return EXIT_ERROR


def _tell(message: str) -> None:
    click.echo(f"everbatch: {message}", err=True)


if __name__ == "__main__":
    main()
