"""Takes a part of a trace: a window of time, a sample, a number of rows; faster or slower.

In this order: rows without tokens are set aside, then window, sample, limit, speed. Time 0 is the
first row's arrival, or the window's start. Which rows a sample has depends on seed and row alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_S, counted
from everbatch.workload.random_draws import stream
from everbatch.workload.traces.formats import Trace
from everbatch.workload.traces.rows import TraceRow

NO_PROMPT = "left out: no prompt tokens"
NO_OUTPUT = "left out: no output tokens"
ONE_TOKEN = "taken as one token: no prompt or no output tokens"


@dataclass(frozen=True, slots=True)
class Selection:
    """What is taken of a trace. `start_ns` and `duration_ns` are times of the trace, before speed.

    `zeros_are_ones`: a prompt or an output of no tokens counts as one; else such rows are left out.
    """

    start_ns: int = 0
    duration_ns: int | None = None
    sample: float = 1.0
    limit: int | None = None
    speed: float = 1.0
    seed: int = 0
    zeros_are_ones: bool = False
    prefixes: bool = True
    """Whether prompts begin alike where the trace says so."""

    def rows(self, trace: Trace) -> Iterator[tuple[int, TraceRow]]:
        """Give (row of the file from 0, row), with times from 0 in nanoseconds of the run.

        ConfigError if nothing is left.
        """
        if not trace.has_arrivals:
            raise ConfigError(
                f"{trace.file.path} has lengths only, no arrivals: take it as empirical lengths of "
                "synthetic arrivals"
            )
        num_given = 0
        for number, row in self._window(trace):
            yield number, row
            num_given += 1
            if num_given == self.limit:
                return
        if not num_given:
            raise ConfigError(
                f"{trace.file.path}: no row is left of what is asked for: {self._told()}"
            )

    def _window(self, trace: Trace) -> Iterator[tuple[int, TraceRow]]:
        """Give the rows of the window that are in the sample."""
        draw = stream(self.seed, "sample of a trace").random
        origin: int | None = None
        end = None if self.duration_ns is None else self.start_ns + self.duration_ns
        takes_all, sample, start = self.sample == 1, self.sample, self.start_ns
        for number, row in trace.rows():
            time = row.arrival_ns
            assert time is not None
            if origin is None:
                origin = time
            time -= origin
            if end is not None and time >= end:
                return
            # Drawn for each row, so that the window does not shift what is drawn for the others.
            is_in_sample = takes_all or draw() < sample
            if time < start or not is_in_sample:
                continue
            if not (row.prompt_tokens and row.output_tokens) and not self._mend(row, trace.remarks):
                continue
            row.arrival_ns = self._scaled(time - start)
            if row.extras.abort_ns is not None or row.extras.deadline_ns is not None:
                self._move_ends(row, origin + start)
            if not self.prefixes and row.extras.prefix:
                row.extras = replace(row.extras, prefix=())
            yield number, row

    def _mend(self, row: TraceRow, remarks: dict[str, int]) -> bool:
        """Decide on a row without tokens: whether it is taken, with one token."""
        remark = NO_OUTPUT if row.prompt_tokens else NO_PROMPT
        if self.zeros_are_ones:
            remark = ONE_TOKEN
            row.prompt_tokens = row.prompt_tokens or 1
            row.output_tokens = row.output_tokens or 1
        remarks[remark] = remarks.get(remark, 0) + 1
        return self.zeros_are_ones

    def _move_ends(self, row: TraceRow, origin: int) -> None:
        abort, deadline = row.extras.abort_ns, row.extras.deadline_ns
        row.extras = replace(
            row.extras,
            abort_ns=None if abort is None else self._scaled(max(abort - origin, 0)),
            deadline_ns=None if deadline is None else self._scaled(deadline),
        )

    def _scaled(self, time: int) -> int:
        if self.speed == 1:
            return time
        # In integers: the speed is a fraction exactly, and halves round up.
        over, under = self.speed.as_integer_ratio()
        return (2 * time * under + over) // (2 * over)

    def _told(self) -> str:
        window = f"from {self.start_ns / NS_PER_S:,g} s"
        if self.duration_ns is not None:
            window += f" for {self.duration_ns / NS_PER_S:,g} s"
        parts = [window]
        if self.sample != 1:
            parts.append(f"a sample of {self.sample:g}")
        if self.limit is not None:
            parts.append(f"at most {counted(self.limit, 'row')}")
        return ", ".join(parts)


def told(remarks: dict[str, int]) -> list[str]:
    """Write remarks as sentences for people."""
    return [
        f"{count:,} {'row' if count == 1 else 'rows'} {what}" for what, count in remarks.items()
    ]
