"""Shows people how far loading a model is. Used by the commands that load one."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from everbatch.assemble.model_source import Progress as Tell


@contextmanager
def loading_bar(console: Console) -> Iterator[Tell | None]:
    """Give a progress callback that draws bars, or None where nobody looks (a pipe, a file)."""
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True) as bars:
        tasks: dict[str, int] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)  # type: ignore[arg-type]

        yield tell
