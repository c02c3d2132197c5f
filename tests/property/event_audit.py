"""Recounts a run from its events alone, and holds the events to their rules.

Knows no scheduler: what it finds is compared with what the engine claims.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Event,
    Finished,
    Preempted,
    Rejected,
    SampleFinished,
    StepFailed,
    StepRan,
)
from everbatch.base.sample_ids import request_of_sample, sample_ids
from everbatch.engine.metrics import EngineStats


@dataclass
class Life:
    """One request, or one sample, as its events tell it."""

    prompt_tokens: int
    is_follower: bool = False
    """A sample whose prompt another one computes."""
    goes_on: bool = False
    """A sample that goes on with a prompt that one which ended had begun."""
    hits: int | None = None
    granted: int = 0
    """Tokens of chunks."""
    frontier: int = 0
    """[0, frontier) was computed or hit once."""
    skipped: int = 0
    """Tokens above the frontier that a later admission hit: others had computed them."""
    recomputed: int = 0
    swapped_tokens: int | None = None
    """Computed tokens in the host tier."""
    preemptions: int = 0
    end: Finished | SampleFinished | None = None


@dataclass
class Audit:
    """Takes events in order."""

    lives: dict[str, Life] = field(default_factory=dict)
    """Requests, and the samples of those that have several."""
    groups: dict[str, list[str]] = field(default_factory=dict)
    group_ends: dict[str, Finished] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    """Why somebody waits, as last told."""
    totals: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)

    def take(self, events: Sequence[Event]) -> None:
        """Check and count the events of one call."""
        told = Counter(e.id for e in events if isinstance(e, Deferred))
        assert not told or max(told.values()) == 1, "two reasons for one request in one call"
        for event in events:
            match event:
                case StepRan():
                    self._step(event)
                case StepFailed():
                    self.totals["failed"] += 1
                    for life in self.lives.values():
                        life.swapped_tokens = None
                case Rejected():
                    self.totals["rejected"] += 1
                case Arrived():
                    self._arrive(event)
                case Finished() if event.id in self.groups:
                    assert event.id not in self.group_ends, "two ends of one request"
                    self.group_ends[event.id] = event
                    self.ends[event.reason] += 1
                case Deferred():
                    assert event.reason != self.reasons.get(event.id), "a reason was told twice"
                    # docs/decisions/0011: they have a place in the order and no case.
                    assert event.reason not in ("tenant_share", "host_tier")
                    self.reasons[event.id] = event.reason
                case _:
                    self._life(event, self.lives[event.id])

    def output_tokens(self, id: str) -> int:
        """Give the outputs of a request or sample, as told at its end."""
        end = self.lives[id].end
        assert end is not None
        return end.output_tokens

    def _arrive(self, event: Arrived) -> None:
        assert event.id not in self.lives or self.lives[event.id].end is not None
        assert event.id not in self.groups or event.id in self.group_ends
        self.totals["arrived"] += 1
        self.reasons.pop(event.id, None)
        if event.samples == 1:
            self.lives[event.id] = Life(event.prompt_tokens)
            return
        self.groups[event.id] = sample_ids(event.id, event.samples)
        for sample, id in enumerate(self.groups[event.id]):
            self.lives[id] = Life(event.prompt_tokens, is_follower=sample > 0)

    def _life(self, event: Event, life: Life) -> None:
        assert life.end is None, "something happened after the end"
        match event:
            case Admitted():
                self._admit(event, life)
            case Preempted():
                life.preemptions += event.slot is not None
                life.frontier = max(life.frontier, event.computed_tokens)
                life.swapped_tokens = event.computed_tokens if event.way == "swap" else None
                if event.slot is not None:
                    self.reasons.pop(event.id, None)
            case Finished():
                life.end = event
                self.ends[event.reason] += 1
            case SampleFinished():
                life.end = event
                if not life.is_follower and life.frontier < life.prompt_tokens:
                    self._hand_over(life, request_of_sample(event.id))
            case Decoding():
                if life.is_follower and event.emitted:
                    life.frontier = life.prompt_tokens
            case _:
                raise AssertionError(f"unknown event {event}")

    def _hand_over(self, life: Life, group: str) -> None:
        """The sample that computed the prompt of all has ended: the next goes on with it."""
        left = [self.lives[id] for id in self.groups[group] if self.lives[id].end is None]
        if left:
            heir = left[0]
            heir.is_follower, heir.goes_on = False, life.hits is not None
            heir.hits, heir.frontier, heir.skipped = life.hits, life.frontier, life.skipped
            heir.granted = life.granted - life.recomputed
            heir.swapped_tokens = life.swapped_tokens

    def _admit(self, event: Admitted, life: Life) -> None:
        assert event.resumed == (life.hits is not None)
        if life.hits is None:
            life.hits = event.cached_tokens
            life.frontier = event.cached_tokens
        if life.swapped_tokens is not None and not life.is_follower:
            assert event.computed_tokens == life.swapped_tokens, "a swap lost tokens"
        life.swapped_tokens = None
        life.skipped += max(0, event.cached_tokens - life.frontier)
        life.frontier = max(life.frontier, event.cached_tokens)

    def _step(self, event: StepRan) -> None:
        totals = self.totals
        totals["steps"] += 1
        totals["tokens"] += event.tokens
        totals["emitted"] += event.emitted
        granted = sum(count for _, _, count in event.chunks)
        assert event.tokens == granted + event.decodes
        for id, start, count in event.chunks:
            life = self.lives[id]
            stop = start + count
            assert count > 0, "an empty chunk"
            life.granted += count
            life.recomputed += max(0, min(stop, life.frontier) - start)
            life.frontier = max(life.frontier, stop)
            self.reasons.pop(id, None)
        for id in event.joined:
            self.reasons.pop(id, None)

    def close(self, stats: EngineStats) -> None:
        """Compare the sums with the engine's once everybody has ended."""
        totals, lives = self.totals, self.lives.values()
        assert all(life.end is not None for life in lives)
        assert self.group_ends.keys() == self.groups.keys()
        assert stats.num_steps == totals["steps"]
        assert stats.num_rejected == totals["rejected"]
        assert stats.num_arrived == totals["arrived"]
        assert stats.num_finished == dict(self.ends)
        assert stats.scheduled_tokens == totals["tokens"]
        assert stats.generation_tokens == totals["emitted"]
        assert stats.num_preemptions == sum(life.preemptions for life in lives)
        assert stats.recomputed_tokens == sum(life.recomputed for life in lives)
        readers = [life for life in lives if not life.is_follower and not life.goes_on]
        assert stats.prefix_cache_hits == sum(life.hits or 0 for life in readers)
        started = [life for life in readers if life.hits is not None]
        assert stats.prompt_tokens == sum(life.prompt_tokens for life in started)
        for life in lives:
            self._close_life(life)
        for id, samples in self.groups.items():
            self._close_group(self.group_ends[id], [self.lives[sample] for sample in samples])

    def _close_life(self, life: Life) -> None:
        end = life.end
        assert end is not None
        assert end.preemptions == life.preemptions
        assert end.recomputed_tokens == life.recomputed
        if not life.is_follower:
            assert end.cached_tokens == (life.hits or 0)
        if end.reason in ("stop", "length"):
            # Every token of the prompt was hit or granted; all else that was granted was again.
            fresh = 0 if life.is_follower else life.prompt_tokens - (life.hits or 0) - life.skipped
            assert life.granted == fresh + life.recomputed, "tokens were lost or doubled"

    def _close_group(self, end: Finished, samples: list[Life]) -> None:
        ends = [life.end for life in samples if life.end is not None]
        assert end.output_tokens == sum(one.output_tokens for one in ends)
        assert end.recomputed_tokens == sum(one.recomputed_tokens for one in ends)
        assert end.preemptions == sum(one.preemptions for one in ends)
