"""Writes down the life of one request while a log goes by, or of all samples of one.

Knows which events concern whom; scribe, what they mean for one life; world, for everybody else.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Event,
    Finished,
    Preempted,
    QuietSteps,
    Rejected,
    SampleFinished,
    StepRan,
)
from everbatch.base.sample_ids import request_of_sample, sample_ids
from everbatch.diagnose.life import Life
from everbatch.diagnose.scribe import Scribe
from everbatch.diagnose.world import World

_Told = Admitted | Decoding | Deferred | Preempted | Finished | SampleFinished
"""What is told of one request."""


@dataclass(slots=True)
class Recorder:
    """Takes events in order, each right after `world` has followed it."""

    target: str
    world: World
    begins_midway: bool = False
    """Whether the log has lost its beginning: requests may come up that never arrived in it."""
    scribes: dict[str, Scribe] = field(default_factory=dict)
    """By the id that the request, or each of its samples, runs under."""

    def take(self, event: Event) -> None:
        """Write down what an event says about the request."""
        match event:
            case StepRan() | QuietSteps():
                for scribe in self.scribes.values():
                    scribe.step(event)
            case Arrived() | Rejected():
                self._come(event)
            case Admitted() | Decoding() | Deferred() | Preempted() | Finished() | SampleFinished():
                for scribe in self._concerned(event):
                    scribe.take(event)
            case _:
                pass

    def close(self) -> list[Life]:
        """Give the lives, as far as the log goes."""
        for scribe in self.scribes.values():
            scribe.close()
        return [scribe.life for scribe in self.scribes.values()]

    def _come(self, event: Arrived | Rejected) -> None:
        samples = event.samples if isinstance(event, Arrived) else 1
        ids = sample_ids(event.id, samples)
        if self.target != event.id:
            ids = [id for id in ids if id == self.target]
        if not ids:
            return
        past = next(iter(self.scribes.values()), None)
        num_namesakes = past.life.num_namesakes + 1 if past is not None else 0
        self.scribes = {id: Scribe(Life(id), self.world) for id in ids}
        for scribe in self.scribes.values():
            scribe.life.num_namesakes = num_namesakes
            scribe.come(event)

    def _concerned(self, event: _Told) -> list[Scribe]:
        """Give those who write about an event.

        A request's own events concern all its samples. So does, while one of them reads the prompt
        for all, what keeps that one waiting and what takes its slot.
        """
        id = event.id
        concerned = [self.scribes[id]] if id in self.scribes else list(self._of_samples(id))
        if isinstance(event, Deferred | Preempted):
            followers = self.world.followers(id)
            concerned += [
                self.scribes[follower] for follower in followers if follower in self.scribes
            ]
        is_ours = self.target in (id, request_of_sample(id))
        if not concerned and self.begins_midway and is_ours:
            self.scribes[id] = Scribe(Life(id), self.world)
            return [self.scribes[id]]
        return concerned

    def _of_samples(self, id: str) -> Iterator[Scribe]:
        """Give those who write about samples of this request."""
        for known, scribe in self.scribes.items():
            # A request of one sample may be called as if it were a sample of another.
            may_be = scribe.life.num_samples > 1 or scribe.life.arrival_t is None
            if may_be and request_of_sample(known) == id:
                yield scribe
