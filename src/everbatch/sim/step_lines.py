"""`--steps`: one JSON object a step, saying who was scheduled, who waited, and why.

Follows plans as an executor does, so it knows who stands in which slot. It is the one part of a run
that costs something for every request and step; without `--steps` it is not there. The format is
public (docs/simulate.md).
"""

import json
from collections.abc import Iterable
from typing import Any, TextIO

from everbatch.base.events import Admitted, Event, Finished, Preempted
from everbatch.scheduler.plan import StepPlan
from everbatch.scheduler.scheduler import Scheduler


class StepLines:
    """Writes the lines of one run."""

    def __init__(self, file: TextIO, max_num_seqs: int) -> None:
        self._file = file
        self._slots: list[str | None] = [None] * max_num_seqs
        self._admission_of: dict[int, int] = {}
        """A slot's place in the order of admission."""
        self._decodes: dict[int, None] = {}
        self._num_admitted = 0
        self._events: list[Event] = []
        """Since the last line: a preemption without a pass stands in the next line."""

    def planned(self, plan: StepPlan, step: int) -> None:
        """Step `step` begins: follow what the plan changes."""
        for slot in plan.released:
            if slot not in plan.masked:
                self._slots[slot] = None
            self._decodes.pop(slot, None)
        for slot in plan.left:
            self._decodes.pop(slot, None)
        for admission in plan.admitted:
            self._slots[admission.slot] = admission.request_id
            self._admission_of[admission.slot] = self._num_admitted
            self._num_admitted += 1
        self._decodes.update(dict.fromkeys(plan.joined))

    def happened(self, events: Iterable[Event]) -> None:
        """Something happened, in a pass or between two."""
        self._events.extend(events)

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """A pass has ended at boundary `step`: write its line."""
        line = json.dumps(
            {"step": step, "t": step, **self._scheduled(plan), **self._changes()}
            | self._counts(plan, scheduler),
            separators=(",", ":"),
            ensure_ascii=False,
        )
        self._file.write(line + "\n")
        self._events.clear()

    def idled(self, step: int) -> None:
        """An idle tick has no line."""

    def _scheduled(self, plan: StepPlan) -> dict[str, Any]:
        """Name who got tokens: decodes in order of admission, then chunks in the plan's order."""
        decoding = sorted(self._decodes, key=self._admission_of.__getitem__)
        decode = [self._name(slot) for slot in decoding]
        prefill = {self._name(chunk.slot): chunk.count for chunk in plan.chunks}
        first_tokens = [self._name(chunk.slot) for chunk in plan.chunks if chunk.emits]
        return {
            "scheduled": dict.fromkeys(decode, 1) | prefill,
            "prefill": list(prefill),
            "decode": decode,
            "masked": [self._name(slot) for slot in plan.masked],
            "emitted": dict.fromkeys([*decode, *first_tokens], 1),
        }

    def _changes(self) -> dict[str, list[str]]:
        """Name whom something happened to since the last line."""
        admitted = [event for event in self._events if isinstance(event, Admitted)]
        return {
            "admitted": [event.id for event in admitted if not event.resumed],
            "resumed": [event.id for event in admitted if event.resumed],
            "preempted": [event.id for event in self._events if isinstance(event, Preempted)],
            "swapped_out": [],
            "swapped_in": [],
            "finished": [event.id for event in self._events if isinstance(event, Finished)],
        }

    def _counts(self, plan: StepPlan, scheduler: Scheduler) -> dict[str, Any]:
        """Count as of the step's end, after whoever ended has left; slots are those of the step."""
        state = scheduler.state
        deferred = sorted(scheduler.deferrals.current.items(), key=_by_arrival)
        return {
            "deferred": {request.id: deferral.reason.value for request, deferral in deferred},
            "tokens": plan.num_tokens,
            "waiting": len(state.requests) - state.num_running,
            "running": state.num_running,
            "slots": self._slots,
            "free_blocks": state.pool.num_free,
            "cached_blocks": state.pool.num_cached,
            "used_blocks": state.pool.num_used,
        }

    def _name(self, slot: int) -> str:
        name = self._slots[slot]
        assert name is not None, "a plan names an empty slot"
        return name


def _by_arrival(item: tuple[Any, Any]) -> int:
    number = item[0].arrival_number
    assert isinstance(number, int)
    return number
