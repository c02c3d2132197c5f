"""`everbatch scenario`: scenario files to begin with.

Belongs here: printing packaged files. Not here: the format (workload).
"""

import click

from everbatch.workload.builtin_scenarios import builtin_text, template_text


@click.group("scenario", short_help="Print a scenario to begin with.")
def command() -> None:
    """Scenario files: what `everbatch simulate` and `everbatch compare` read."""


@command.command("new", short_help="Print a commented template that runs as it is.")
def new() -> None:
    """Print a scenario with every option, its default and what it does."""
    click.echo(template_text(), nl=False)


@command.command("show", short_help="Print a built-in scenario.")
@click.argument("name")
def show(name: str) -> None:
    """Print the built-in scenario NAME."""
    click.echo(builtin_text(name), nl=False)
