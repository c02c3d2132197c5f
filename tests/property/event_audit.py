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
    StepFailed,
    StepRan,
)
from everbatch.engine.metrics import EngineStats


@dataclass
class Life:
    """One request as its events tell it."""

    prompt_tokens: int
    hits: int | None = None
    granted: int = 0
    """Tokens of chunks."""
    frontier: int = 0
    """[0, frontier) was computed or hit once."""
    skipped: int = 0
    """Tokens above the frontier that a later admission hit: others had computed them."""
    recomputed: int = 0
    decode_since: int | None = None
    reason: str | None = None
    preemptions: int = 0
    end: Finished | None = None


@dataclass
class Audit:
    """Takes events in order."""

    lives: dict[str, Life] = field(default_factory=dict)
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
                case Rejected():
                    self.totals["rejected"] += 1
                case Arrived():
                    assert event.id not in self.lives or self.lives[event.id].end is not None
                    self.lives[event.id] = Life(event.prompt_tokens)
                case _:
                    self._life(event, self.lives[event.id])

    def _life(self, event: Event, life: Life) -> None:
        assert life.end is None, "something happened after the end"
        match event:
            case Admitted():
                assert event.resumed == (life.hits is not None)
                if life.hits is None:
                    life.hits = event.cached_tokens
                    life.frontier = event.cached_tokens
                life.skipped += max(0, event.cached_tokens - life.frontier)
                life.frontier = max(life.frontier, event.cached_tokens)
            case Deferred():
                assert event.reason != life.reason, "a reason was told twice"
                life.reason = event.reason
            case Preempted():
                life.preemptions += 1
                life.frontier = max(life.frontier, event.computed_tokens)
                life.reason = None
            case Finished():
                life.end = event
                self.ends[event.reason] += 1
            case Decoding():
                pass
            case _:
                raise AssertionError(f"unknown event {event}")

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
            life.granted += count
            life.recomputed += max(0, min(stop, life.frontier) - start)
            life.frontier = max(life.frontier, stop)
            life.reason = None
        for id in event.joined:
            self.lives[id].reason = None

    def close(self, stats: EngineStats) -> None:
        """Compare the sums with the engine's once everybody has ended."""
        totals, lives = self.totals, self.lives.values()
        assert all(life.end is not None for life in lives)
        assert stats.num_steps == totals["steps"]
        assert stats.num_rejected == totals["rejected"]
        assert stats.num_arrived == len(self.lives)
        assert stats.num_finished == dict(self.ends)
        assert stats.scheduled_tokens == totals["tokens"]
        assert stats.generation_tokens == totals["emitted"]
        assert stats.num_preemptions == sum(life.preemptions for life in lives)
        assert stats.recomputed_tokens == sum(life.recomputed for life in lives)
        assert stats.prefix_cache_hits == sum(life.hits or 0 for life in lives)
        started = [life for life in lives if life.hits is not None]
        assert stats.prompt_tokens == sum(life.prompt_tokens for life in started)
        for life in lives:
            self._close_life(life)

    def _close_life(self, life: Life) -> None:
        end = life.end
        assert end is not None
        assert end.preemptions == life.preemptions
        assert end.recomputed_tokens == life.recomputed
        assert end.cached_tokens == (life.hits or 0)
        if end.reason in ("stop", "length"):
            # Every token of the prompt was hit or granted; all else that was granted was again.
            fresh = life.prompt_tokens - (life.hits or 0) - life.skipped
            assert life.granted == fresh + life.recomputed, "tokens were lost or doubled"
