"""Numbers on a command line; standard library only, for it runs in the peers' environments too."""

import argparse
import math


def positive(text: str) -> int:
    """Read a number of at least 1 from a command line."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return int(text)


def positive_seconds(text: str) -> float:
    """Read a time from a command line: above 0, and finite."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return seconds
