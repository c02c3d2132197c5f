"""Lines that are folded between words where a terminal is narrower than they are.

Belongs here: printing one. What goes into a pipe or a file is never folded.
"""

import sys
from shutil import get_terminal_size
from textwrap import fill

import click


def echo_folded(line: str, hanging: int = 2) -> None:
    """Print a line; what does not fit stands below, `hanging` columns further in than it began."""
    width = get_terminal_size().columns
    if sys.stdout.isatty() and len(line) > width:
        begins_at = len(line) - len(line.lstrip())
        line = fill(
            line,
            width,
            subsequent_indent=" " * (begins_at + hanging),
            break_long_words=False,
            break_on_hyphens=False,
        )
    click.echo(line)
