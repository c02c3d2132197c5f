"""The command line's entry: which commands there are, and how errors reach people.

Belongs here: names and one line about each command. A command's module is imported when it is
called, so `--help` and the tools without a model start at once.
"""

import sys
from importlib import import_module

import click

from everbatch import __version__
from everbatch.base.errors import EverbatchError

COMMANDS = {
    "serve": "Serve a model through an OpenAI-compatible HTTP API.",
    "chat": "Talk to a running server in the terminal.",
    "generate": "Answer a file of prompts and write JSON Lines.",
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
    """Run the command line; an error of ours or of the user's is a message and exit status 2."""
    try:
        cli(standalone_mode=True)
    except EverbatchError as error:
        click.echo(f"everbatch: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
