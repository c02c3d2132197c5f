"""`make fidelity`: predictions beside recorded runs and published figures, as one table.

    PYTHONPATH=benchmarks python -m fidelity.table [TRACES] [--json]

TRACES is the folder of recorded data, ../shared/traces if it is not given; what is not there is
skipped, and the table says so. Status 1: a promised error was exceeded. docs/fidelity.md explains.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

from fidelity import published, vllm_log, vtc_runs
from fidelity.row import Row

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"
PARTS: Sequence[Callable[[Path], list[Row]]] = (vllm_log.rows, vtc_runs.rows, published.rows)
VERDICTS = {True: "ok", False: "MISSED", None: ""}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; gives the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", type=Path, nargs="?", default=TRACES)
    parser.add_argument("--json", action="store_true", help="rows for programs")
    options = parser.parse_args(arguments)
    found = [row for part in PARTS for row in part(options.traces)]
    if options.json:
        print(json.dumps([asdict(row) for row in found], indent=2))
    else:
        print(table(found))
    return status(found)


def table(found: Sequence[Row]) -> str:
    """Give the rows as lines: what, promised, measured, verdict, remark."""
    cells = [("", "promised", "measured", "", "")]
    cells += [
        (row.name, _written(row.promised, row), _measured(row), VERDICTS[row.passed], row.note)
        for row in found
    ]
    widths = [max(len(line[column]) for line in cells) for column in range(4)]
    missed = sum(row.passed is False for row in found)
    kept = sum(row.passed is True for row in found)
    lines = [
        f"{name:<{widths[0]}}  {promised:>{widths[1]}}  {measured:>{widths[2]}}  "
        f"{verdict:<{widths[3]}}  {note}".rstrip()
        for name, promised, measured, verdict, note in cells
    ]
    return "\n".join(
        [*lines, "", f"{kept} kept, {missed} missed, {len(found) - kept - missed} told"]
    )


def status(found: Sequence[Row]) -> int:
    """Give 1 if a promise was missed, else 0."""
    return int(any(row.passed is False for row in found))


def _written(value: float | None, row: Row) -> str:
    return (
        "" if value is None else f"{value:,.4g}{' ' if row.unit != '%' else ''}{row.unit}".strip()
    )


def _measured(row: Row) -> str:
    if row.measured is None or row.unit != "%":
        return _written(row.measured, row)
    return f"{row.measured:+.2f}%"


if __name__ == "__main__":
    sys.exit(main())
