"""What a path leads to, where the path is what a user wrote.

pathlib asks the system and raises what it does not know of: a name that is too long, a folder that
may not be entered. Whoever asks here is told no, and says then that there is no such file.
"""

from pathlib import Path


def exists(path: Path) -> bool:
    """Whether there is something at a path that can be looked at."""
    try:
        return path.exists()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Whether a path leads to a file."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """Whether a path leads to a folder."""
    try:
        return path.is_dir()
    except OSError:
        return False
