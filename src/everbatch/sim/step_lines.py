"""`--steps`: one JSON object a step, saying who was scheduled, who waited, and why.

Follows plans as an executor does, so it knows who stands in which slot. It is the one part of a run
that costs something for every request and step; without `--steps` it is not there. The format is
public (docs/simulate.md).
"""

import json
from collections.abc import Iterable
from typing import Any, TextIO

from everbatch.base.events import Admitted, Event, Finished, Preempted, SampleFinished, StepRan
from everbatch.scheduler.plan import Deferral, StepPlan
from everbatch.scheduler.request import Request
from everbatch.scheduler.scheduler import Scheduler
from everbatch.sim.accounts import DROPPING
from everbatch.workload.times import STEPS, TimeUnit

_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


class StepLines:
    """Writes the lines of one run."""

    def __init__(self, file: TextIO, max_num_seqs: int, unit: TimeUnit = STEPS) -> None:
        self._file = file
        self._unit = unit
        self._slots: list[str | None] = [None] * max_num_seqs
        self._admission_of: dict[int, int] = {}
        """A slot's place in the order of admission."""
        self._decodes: dict[int, None] = {}
        self._num_admitted = 0
        self._end = 0
        """When the last pass ended."""
        self._preempted: list[str] = []
        self._swapped: dict[str, None] = {}
        """Who is in the host tier."""
        self._events: list[Event] = []
        """Since the last line: a preemption without a pass stands in the next line."""

    def planned(self, plan: StepPlan, step: int) -> None:
        """Step `step` begins: follow what the plan changes."""
        self._preempted = [self._name(slot) for slot in plan.preempted]
        for slot in plan.released:
            if slot not in plan.masked:
                self._slots[slot] = None
            self._decodes.pop(slot, None)
        for admission in plan.restated:
            self._slots[admission.slot] = admission.request_id
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
        for event in events:
            if isinstance(event, StepRan):
                self._end = event.t

    def ran(self, plan: StepPlan, step: int, scheduler: Scheduler) -> None:
        """A pass has ended: write its line."""
        end = step if self._unit.is_steps else self._unit.written(self._end)
        line = _ENCODER.encode(
            {"step": step, "t": end, **self._scheduled(plan), **self._changes()}
            | self._counts(plan, scheduler)
        )
        self._file.write(line + "\n")
        self._events.clear()

    def idled(self, step: int) -> None:
        """An idle tick has no line; nobody holds a slot."""
        self._slots = [None] * len(self._slots)
        self._decodes.clear()

    def _scheduled(self, plan: StepPlan) -> dict[str, Any]:
        """Name who got tokens: decodes in order of admission, prompts begun, then the queue.

        Samples that share a prompt get none of their own while one of them computes it, but each a
        first output.
        """
        came = dict.fromkeys(admission.slot for admission in plan.admitted)
        decoding = sorted(self._decodes, key=self._admission_of.__getitem__)
        tokens = dict.fromkeys((slot for slot in decoding if slot not in came), 1)
        chunks = {chunk.slot: chunk.count for chunk in plan.chunks}
        tokens.update((slot, count) for slot, count in chunks.items() if slot not in came)
        # Who was swapped in may decode at once.
        tokens.update(
            (slot, chunks.get(slot, 1)) for slot in came if slot in chunks or slot in self._decodes
        )
        dropped = self._dropped()
        first_tokens = [
            slot for chunk in plan.chunks if chunk.emits for slot in (chunk.slot, *chunk.followers)
        ]
        return {
            "scheduled": {self._name(slot): count for slot, count in tokens.items()},
            "prefill": self._names(chunks),
            "decode": self._names(decoding),
            "masked": self._names(plan.masked),
            "emitted": dict.fromkeys(
                (name for name in self._names([*decoding, *first_tokens]) if name not in dropped), 1
            ),
        }

    def _dropped(self) -> set[str]:
        """Name who ended while the pass ran without what it sampled: after the pass's own event."""
        dropped: set[str] = set()
        for event in reversed(self._events):
            if isinstance(event, StepRan):
                break
            if isinstance(event, Finished | SampleFinished) and event.reason in DROPPING:
                dropped.add(event.id)
        return dropped

    def _changes(self) -> dict[str, list[str]]:
        """Name whom something happened to since the last line."""
        changes: dict[str, list[str]] = {
            "admitted": [],
            "resumed": [],
            "preempted": self._preempted,
            "swapped_out": [],
            "swapped_in": [],
            "finished": [],
        }
        for event in self._events:
            match event:
                case Admitted():
                    changes["resumed" if event.resumed else "admitted"].append(event.id)
                    if event.id in self._swapped:
                        changes["swapped_in"].append(event.id)
                        del self._swapped[event.id]
                case Preempted(way="swap"):
                    changes["swapped_out"].append(event.id)
                    self._swapped[event.id] = None
                case Finished() | SampleFinished():
                    changes["finished"].append(event.id)
                    self._swapped.pop(event.id, None)
                case _:
                    pass
        return changes

    def _counts(self, plan: StepPlan, scheduler: Scheduler) -> dict[str, Any]:
        """Count as of the step's end, after whoever ended has left; slots are those of the step."""
        state = scheduler.state
        deferred = sorted(scheduler.deferrals.current.items(), key=_by_arrival)
        return {
            "deferred": {request.label: deferral.reason.value for request, deferral in deferred},
            "tokens": plan.num_tokens,
            "waiting": state.num_waiting,
            "running": state.num_running,
            "slots": self._slots,
            "free_blocks": state.pool.num_free,
            "cached_blocks": state.pool.num_cached,
            "used_blocks": state.pool.num_used,
        }

    def _names(self, slots: Iterable[int]) -> list[str]:
        return [self._name(slot) for slot in slots]

    def _name(self, slot: int) -> str:
        name = self._slots[slot]
        assert name is not None, "a plan names an empty slot"
        return name


def _by_arrival(item: tuple[Request, Deferral]) -> tuple[int, int]:
    return item[0].arrival_number, item[0].sample
