"""Runs a study in this process as the only one on the machine, and tells what came of it.

For benchmarks without a harness that promise something. Not here: what is measured and promised.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from harness import LOCK_PATH, BenchmarkError, machine_lock
from provenance import Watch

from everbatch.base.errors import EverbatchError

Figures = dict[str, Any]


def exit_status(
    study: Callable[[], Figures],
    show: Callable[[Figures], None],
    shortfalls: Callable[[Figures], Sequence[str]],
    json_path: Path | None,
    *,
    lock_path: Path = LOCK_PATH,
) -> int:
    """Measure, print, and write all figures where asked to; 1 below a promise, 2 with an error."""
    try:
        with machine_lock(lock_path):
            watch = Watch()
            found = study()
            told = {**watch.facts(), **found}
    except (BenchmarkError, EverbatchError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"others used {told['other_cores']:.2f} cores meanwhile")
    show(found)
    if json_path is not None:
        json_path.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    failures = shortfalls(found)
    for failure in failures:
        print(failure)
    return 1 if failures else 0
