"""One line of the table of fidelity: a figure that was promised, beside the one measured."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Row:
    """What `make fidelity` prints; `rows(traces)` of each script gives some.

    `passed` None: nothing was promised, or the data is not there (`note` says which).
    """

    name: str
    promised: float | None
    """The largest error that is allowed, or what must come out, in `unit`."""
    measured: float | None
    unit: str
    passed: bool | None
    note: str = ""


def within(name: str, error: float, promised: float, note: str = "") -> Row:
    """Give the row of a relative error, without regard to its sign, as percent."""
    return Row(name, 100 * promised, 100 * error, "%", abs(error) <= promised, note)


def skipped(name: str, why: str) -> Row:
    """Give the row of what was not measured."""
    return Row(name, None, None, "", None, f"skipped: {why}")
