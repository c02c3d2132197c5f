"""`--perfetto`: a run as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.

One track a slot, with a span for each stretch of prefill or decode, named by its request; counters
for blocks, tokens of a step and the queue. Written while the run goes by, so memory stays bounded.
Format: "Trace Event Format", Google, JSON object form. Called by the run loop; the command line
opens the file and calls `close`.
"""

import json
from collections.abc import Iterable
from math import inf, nextafter
from typing import Any, TextIO

from everbatch.base.events import Event, StepFailed, StepRan
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.slot_phases import Phase, SlotPhases
from everbatch.workload.times import TimeUnit

NS_PER_US = 1000
US_PER_STEP = 1000
"""On the clock of steps a step is shown as a millisecond."""
_PID = 1
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True)
_COLOURS = {
    Phase.PREFILL: "thread_state_iowait",
    Phase.DECODE: "thread_state_running",
    Phase.HELD: "yellow",
    Phase.MASKED: "grey",
    Phase.PREEMPTED: "terrible",
}
"""chrome://tracing's own names; Perfetto chooses by itself."""


class PerfettoTrace:
    """Writes the trace of one run."""

    def __init__(
        self, file: TextIO, max_num_seqs: int, unit: TimeUnit, name: str = "everbatch simulate"
    ) -> None:
        """`name` stands over the tracks."""
        self._file = file
        self._is_steps = unit.is_steps
        self._open: list[tuple[int, Phase, str | None]] = [(0, Phase.IDLE, None)] * max_num_seqs
        """Each slot's span that has not ended: since when, which."""
        self._phases = SlotPhases(max_num_seqs, self._change)
        self._now = 0
        self._counts: dict[str, dict[str, int]] = {}
        self._file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        self._file.write(_ENCODER.encode(_metadata("process_name", 0, name)))
        self._named = 0
        """Slots below have a track."""

    def planned(self, plan: StepPlan, step: int) -> None:
        """Step `step` begins: spans end and begin, the tokens of the step are known."""
        self._now = plan.start_ns
        self._phases.planned(plan)
        num_decodes = plan.num_decodes
        tokens = {"decode": num_decodes, "prefill": plan.num_tokens - num_decodes}
        self._count("step tokens", tokens)

    def happened(self, events: Iterable[Event]) -> None:
        """A pass has ended."""
        for event in events:
            if isinstance(event, StepRan | StepFailed):
                self._now = event.t

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """The boundary behind a pass: counts as whoever ended has left them."""
        pool = scheduler.state.pool
        blocks = {"used": pool.num_used, "cached": pool.num_cached, "free": pool.num_free}
        self._count("KV blocks", blocks)
        self._count("queue", {"waiting": scheduler.state.num_waiting})

    def idled(self, step: int) -> None:
        """Nothing runs for a while."""
        self._phases.idled()
        self._count("step tokens", {"decode": 0, "prefill": 0})

    def close(self) -> None:
        """End all spans and the file's JSON."""
        self._phases.idled()
        self._file.write("\n]}\n")

    def _change(self, slot: int, phase: Phase, request_id: str | None) -> None:
        since, old, old_id = self._open[slot]
        if (old, old_id) == (phase, request_id):
            return
        if old is not Phase.IDLE and since < self._now:
            self._write_span(slot, since, old, old_id)
        self._open[slot] = (self._now, phase, request_id)

    def _write_span(self, slot: int, since: int, phase: Phase, request_id: str | None) -> None:
        for new in range(self._named, slot + 1):
            # Numbered from 1, as people count.
            self._write(_metadata("thread_name", new + 1, f"slot {new + 1}"))
            # By name, slot 10 would come before slot 2.
            self._write(_metadata("thread_sort_index", new + 1, new + 1, "sort_index"))
        self._named = max(self._named, slot + 1)
        self._write(
            {
                "name": request_id or phase.value,
                "cat": phase.value,
                "ph": "X",
                "pid": _PID,
                "tid": slot + 1,
                "ts": self._us(since),
                "dur": self._us(self._now - since),
                "cname": _COLOURS[phase],
                "args": {"phase": phase.value},
            }
        )

    def _count(self, name: str, values: dict[str, int]) -> None:
        """Write a counter where it changes."""
        if self._counts.get(name) != values:
            self._counts[name] = values
            ts = self._us(self._now)
            self._write({"name": name, "ph": "C", "pid": _PID, "ts": ts, "args": values})

    def _us(self, time: int) -> float:
        return time * US_PER_STEP if self._is_steps else microseconds(time)

    def _write(self, event: dict[str, Any]) -> None:
        self._file.write(",\n" + _ENCODER.encode(event))


def microseconds(time_ns: int) -> float:
    """Give a time of up to eleven days in microseconds, of which a reader makes the same again.

    Readers multiply by 1,000 and cut or round. Cutting would lose a nanosecond where the number is
    a little too small; then a span begins before the last one ended, and Perfetto drops it
    (`slice_drop_overlapping_complete_event`).
    """
    time_us = time_ns / NS_PER_US
    return time_us if int(time_us * NS_PER_US) == time_ns else nextafter(time_us, inf)


def _metadata(name: str, track: int, value: object, key: str = "name") -> dict[str, Any]:
    return {"name": name, "ph": "M", "pid": _PID, "tid": track, "args": {key: value}}
