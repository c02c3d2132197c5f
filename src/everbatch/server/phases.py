"""What the requests of an engine are doing, counted from its events: waiting (and why), prefill,
decode.

Belongs here: where each request, or sample, is, kept up to date by what changes. Not here: the
reasons to wait (scheduler.plan). Lives on the event loop, so that nobody reads the scheduler while
it works.

Samples are one in the queue until they first start, and again while one of them reads the prompt
for all and is preempted: so long they stand here under one name, their request's or that reader's.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Event,
    Finished,
    Preempted,
    SampleFinished,
    StepRan,
)
from everbatch.base.sample_ids import request_of_sample, sample_ids
from everbatch.scheduler.plan import DeferReason


class Phase(StrEnum):
    WAITING = "waiting"
    PREEMPTED = "preempted"
    PREFILL = "prefill"
    DECODE = "decode"


QUEUED = (Phase.WAITING, Phase.PREEMPTED)


@dataclass(slots=True)
class _Group:
    """The samples of one request that live, the one that reads the prompt first."""

    samples: list[str]
    has_forked: bool = False


@dataclass(slots=True)
class Phases:
    """Takes events in order."""

    _phases: dict[str, Phase] = field(default_factory=dict)
    _reasons: dict[str, str] = field(default_factory=dict)
    """Of those in the queue, once a step was planned without them."""
    _groups: dict[str, _Group] = field(default_factory=dict)

    def take(self, event: Event) -> None:
        """Follow one event."""
        match event:
            case Arrived():
                self._arrive(event)
            case Admitted():
                self._admit(event.id)
            case Decoding():
                self._decode(event.id)
            case StepRan():
                # Who comes back to its decode from the host tier is told here alone.
                self._phases.update(dict.fromkeys(event.joined, Phase.DECODE))
            case Preempted() if event.slot is not None:
                self._preempt(event.id)
            case Deferred() if self._phases.get(event.id) in QUEUED:
                # Those that hold a slot are deferred too, but do not wait.
                self._reasons[event.id] = event.reason
            case SampleFinished():
                self._end_sample(event.id)
            case Finished():
                self._groups.pop(event.id, None)
                self._forget(event.id)
            case _:
                pass

    def waiting_by_reason(self) -> dict[str, int]:
        """Give how many wait for each reason, all reasons named."""
        return {reason.value: 0 for reason in DeferReason} | Counter(self._reasons.values())

    def counts(self) -> dict[Phase, int]:
        """Give how many are in each phase; those with a slot are counted by samples."""
        return dict.fromkeys(Phase, 0) | Counter(self._phases.values())

    def clear(self) -> None:
        """Forget everybody."""
        for known in (self._phases, self._reasons, self._groups):
            known.clear()

    def _arrive(self, event: Arrived) -> None:
        self._phases[event.id] = Phase.WAITING
        if event.samples > 1:
            self._groups[event.id] = _Group(sample_ids(event.id, event.samples))

    def _admit(self, id: str) -> None:
        request = request_of_sample(id)
        if request in self._groups:
            self._forget(request)
        self._reasons.pop(id, None)
        self._phases[id] = Phase.PREFILL

    def _decode(self, id: str) -> None:
        self._phases[id] = Phase.DECODE
        group = self._group_of(id)
        if group is not None:
            group.has_forked = True

    def _preempt(self, id: str) -> None:
        """A victim returns to the queue, and for those whose prompt it reads as well."""
        self._phases[id] = Phase.PREEMPTED
        group = self._group_of(id)
        if group is not None and not group.has_forked:
            for follower in group.samples[1:]:
                self._phases.pop(follower, None)

    def _end_sample(self, id: str) -> None:
        phase, reason = self._phases.get(id), self._reasons.get(id)
        self._forget(id)
        group = self._group_of(id)
        if group is None or id not in group.samples:
            return
        group.samples.remove(id)
        if phase in QUEUED and not group.has_forked and group.samples:
            # The next goes on in its place.
            heir = group.samples[0]
            self._phases[heir] = phase
            if reason is not None:
                self._reasons[heir] = reason

    def _group_of(self, id: str) -> _Group | None:
        request = request_of_sample(id)
        return None if request is None else self._groups.get(request)

    def _forget(self, id: str) -> None:
        self._phases.pop(id, None)
        self._reasons.pop(id, None)
