"""Writes down one life: what each event means for the request, or the sample, that it is about.

A wait begins with a `deferred` event and ends with the next event of the request. Which events
concern whom, recorder knows; what they mean for the others, world.
"""

from dataclasses import dataclass, replace

from everbatch.base.events import (
    Admitted,
    Arrived,
    Decoding,
    Deferred,
    Finished,
    Preempted,
    QuietSteps,
    Rejected,
    SampleFinished,
    StepRan,
)
from everbatch.base.sample_ids import request_of_sample
from everbatch.diagnose.life import (
    End,
    Entry,
    HeadSpan,
    Lack,
    Life,
    Loss,
    Refusal,
    Run,
    Wait,
)
from everbatch.diagnose.log import Ruler
from everbatch.diagnose.world import BEHIND_HEAD, Live, World


@dataclass(slots=True)
class Scribe:
    """Writes one life."""

    life: Life
    world: World
    _wait: Wait | None = None
    _run: Run | None = None
    _slot: int | None = None
    """The one it took last."""
    _is_fresh: bool = False
    """Whether the open wait still lacks what its first step used."""
    _phase: str = "waiting"
    _has_ended: bool = False
    _completes: bool = False
    """Whether the step under way completes the prompt, and emits the first output."""

    @property
    def _ruler(self) -> Ruler:
        return self.world.ruler

    def come(self, event: Arrived | Rejected) -> None:
        life = self.life
        life.arrival_t = life.last_t = event.t
        life.prompt_tokens, life.max_tokens = event.prompt_tokens, event.max_tokens
        if isinstance(event, Arrived):
            life.priority, life.tenant = event.priority, event.tenant
            life.num_samples = event.samples
            return
        self._has_ended = True
        life.chapters.append(
            Refusal(
                event.t,
                event.reason,
                event.prompt_tokens,
                event.max_tokens,
                event.needed,
                event.limit,
            )
        )

    def take(
        self, event: Admitted | Decoding | Deferred | Preempted | Finished | SampleFinished
    ) -> None:
        """Write down an event of this request."""
        if self._has_ended:
            return
        self.life.last_t = event.t
        match event:
            case Deferred():
                self._defer(event)
            case Admitted():
                self._admit(event)
            case Decoding():
                self._phase = "decode"
                self._completes = event.emitted
            case Preempted():
                self._preempt(event)
            case Finished() | SampleFinished():
                self._end(event)

    def step(self, event: StepRan | QuietSteps) -> None:
        """Write down a pass: tokens of this request, or what it still waits for."""
        if self._has_ended or self.life.last_t is None:
            return
        if isinstance(event, StepRan):
            for id, _, count in event.chunks:
                if id == self.life.id or self._shares(id):
                    self._chunk(event, count, None if id == self.life.id else id)
            if self.life.id in event.joined:
                self._join(event)
            if self.life.id in event.left and self._run is not None:
                self._close_run(self._ruler.planned_at(event.start, event.step) - 1, event.start)
        if self._wait is not None:
            self._watch(self._wait, event)
        self.life.last_t = event.t
        self.life.last_step = self._last_step(event)

    def close(self) -> None:
        """End the open wait or run where the log ends."""
        now = self.world.now
        if self._has_ended or now is None or self.life.last_t is None:
            return
        self.life.last_t = now
        if self._wait is not None:
            self._wait.to_step = max(self._wait.from_step, self.life.last_step)
            self._wait.to_t = max(now, self._wait.from_t)
        if self._run is not None:
            self._close_run(self.life.last_step, now)
        known = self.world.live.get(self.life.id)
        if known is not None:
            self.life.num_outputs = self.world.num_outputs(known)

    # What happens

    def _defer(self, event: Deferred) -> None:
        step = self._ruler.planned_at(event.t, event.step)
        self._close_wait(step, event.t)
        # A decode that pauses has left the decode set in this step: its event says so later.
        self._close_run(step - 1, event.t)
        live = self.world.live.get(event.id)
        self._wait = Wait(
            reason=event.reason,
            from_step=step,
            to_step=step,
            from_t=event.t,
            to_t=event.t,
            needed=event.needed,
            available=event.available,
            lacking=_lack(event),
            behind=event.behind,
            phase=self._phase,
            by=self._reader(event.id),
        )
        if event.reason == "cooldown":
            self._wait.victims = [back.id for back in self.world.returns if back.how == "preempted"]
        if live is not None and event.reason in ("token_budget", "kv_budget"):
            self._wait.before = self.world.before(live, event.reason)
        self._is_fresh = True
        self.life.chapters.append(self._wait)

    def _admit(self, event: Admitted) -> None:
        step = self._ruler.planned_at(event.t, event.step)
        self._close_wait(step, event.t, freed=True)
        self._phase, self._slot = "prefill", event.slot
        self.life.chapters.append(
            Entry(
                step,
                event.t,
                event.slot,
                event.cached_tokens,
                event.computed_tokens,
                event.resumed,
            )
        )

    def _preempt(self, event: Preempted) -> None:
        step = self._ruler.planned_at(event.t, event.step)
        if event.slot is not None:
            # Who waits already, and loses the blocks it had kept, goes on waiting for the same.
            self._close_wait(step, event.t)
        self._close_run(step - 1, event.t)
        by = self._reader(event.id)
        has_slot = event.slot is not None
        self._phase = "preempted"
        self.life.chapters.append(
            Loss(
                step,
                event.t,
                event.way,
                event.computed_tokens,
                event.blocks,
                self._slot if has_slot and by is not None else event.slot,
                event.requester,
                event.needed,
                event.swap_ns,
                event.recompute_ns,
                by,
            )
        )

    def _end(self, event: Finished | SampleFinished) -> None:
        step = self._ruler.ended_at(event.t, event.step)
        self._close_wait(step + 1, event.t)
        self._close_run(step, event.t)
        is_own = event.id == self.life.id
        if not is_own and self.life.num_samples > 1 and self.life.runs():
            # The whole request has ended; this sample had before.
            return
        self._has_ended = True
        self.life.last_step = step
        self.life.num_outputs = event.output_tokens
        self.life.chapters.append(
            End(
                step,
                event.t,
                event.reason,
                event.output_tokens,
                event.cached_tokens,
                event.recomputed_tokens,
                event.preemptions,
                event.message,
            )
        )
        is_whole = self.life.arrival_t is not None
        runs = self.life.runs()
        if is_whole and runs and runs[-1].kind == "decode":
            decoded = sum(run.tokens for run in runs if run.kind == "decode")
            sampled = decoded + (self.life.first_token_t is not None)
            # What the last step sampled for whoever left meanwhile is no output.
            runs[-1].num_dropped = int(sampled == event.output_tokens + 1)
        # A damaged log may lack the step that it ran in.
        if is_whole and self.life.first_token_t is None and event.output_tokens and runs:
            # Its first output was its last.
            self.life.first_token_t = runs[-1].to_t

    # Steps

    def _chunk(self, event: StepRan, count: int, by: str | None) -> None:
        step = self._ruler.planned_at(event.start, event.step)
        self._close_wait(step, event.start, freed=True, is_past=True)
        live = self.world.live.get(self.life.id)
        is_rebuild = live is not None and live.outputs > 0 and not self._completes
        kind = "rebuild" if is_rebuild else "prefill"
        run = self._run
        if run is not None and (run.kind, run.by, run.to_step) == (kind, by, step - 1):
            run.to_step, run.to_t = step, event.t
            run.tokens += count
            run.num_passes += 1
        else:
            self._close_run(step - 1, event.start)
            self._run = Run(kind, step, step, event.start, event.t, count, 1, by)
            self.life.chapters.append(self._run)
        if self._completes and self.life.first_token_t is None:
            self.life.first_token_t = event.t
        self._completes = False

    def _join(self, event: StepRan) -> None:
        step = self._ruler.planned_at(event.start, event.step)
        self._close_wait(step, event.start, freed=True, is_past=True)
        self._close_run(step - 1, event.start)
        self._run = Run("decode", step, step, event.start, event.t, 0, 0)
        self.life.chapters.append(self._run)
        self._phase = "decode"

    def _watch(self, wait: Wait, event: StepRan | QuietSteps) -> None:
        """Keep what the first step of a wait used, and who heads the queue meanwhile."""
        is_fresh, self._is_fresh = self._is_fresh, False
        if is_fresh:
            wait.usage = self.world.usage(event)
        if wait.reason != BEHIND_HEAD and (wait.behind is None or not is_fresh):
            return
        head = self._head(wait)
        first, last = self._ruler.planned_at(event.start, event.step), self._last_step(event)
        if head is None or head.obstacle is None or head.id in (self.life.id, wait.by):
            return
        known = wait.heads[-1] if wait.heads else None
        span = self._head_span(head, head.obstacle, first, last)
        if known is not None and (known.id, known.since_step) == (span.id, span.since_step):
            wait.heads[-1] = replace(known, to_step=last)
        else:
            wait.heads.append(span)

    def _head(self, wait: Wait) -> Live | None:
        """Give the head: the one that was named, while it still is an obstacle, or another."""
        named = self.world.live.get(wait.behind or "")
        if named is not None and named.obstacle is not None:
            is_waiting = named.slot is None and named.obstacle.reason != BEHIND_HEAD
            if is_waiting or wait.reason != BEHIND_HEAD:
                return named
        return self.world.head()

    def _head_span(self, head: Live, obstacle: Deferred, first: int, last: int) -> HeadSpan:
        return HeadSpan(
            id=head.id,
            reason=obstacle.reason,
            needed=obstacle.needed,
            available=obstacle.available,
            lacking=_lack(obstacle),
            behind=obstacle.behind,
            since_step=self._ruler.planned_at(obstacle.t, obstacle.step),
            from_step=first,
            to_step=last,
        )

    def _last_step(self, event: StepRan | QuietSteps) -> int:
        count = event.count if isinstance(event, QuietSteps) else 1
        return self._ruler.ended_at(event.t, event.step + count - 1)

    def _close_wait(self, step: int, t: int, *, freed: bool = False, is_past: bool = False) -> None:
        """End the open wait before `step`; `is_past`: that step has run already."""
        wait, self._wait = self._wait, None
        if wait is None:
            return
        wait.to_step, wait.to_t = max(wait.from_step, step - 1), t
        wait.is_open = False
        if freed:
            world = self.world
            wait.freed = list(world.earlier_returns if is_past else world.returns)

    def _close_run(self, step: int, t: int) -> None:
        run, self._run = self._run, None
        if run is None or run.kind != "decode":
            return
        if step < run.from_step:
            # It was taken out of the step in which it would have joined.
            self.life.chapters.remove(run)
            return
        run.to_step, run.to_t = step, t
        run.tokens = run.num_passes = run.num_steps

    def _reader(self, id: str) -> str | None:
        """Give whom an event is about where that is another sample, who reads the prompt."""
        return id if id != self.life.id and self._is_sibling(id) else None

    def _is_sibling(self, id: str) -> bool:
        request_id = request_of_sample(id)
        return request_id is not None and request_id == request_of_sample(self.life.id)

    def _shares(self, id: str) -> bool:
        """Whether another sample computes the prompt that this one waits for with its slot."""
        is_unread = self.life.num_samples > 1 and self.life.first_token_t is None
        return is_unread and self._is_sibling(id)


def _lack(event: Deferred) -> Lack:
    """Give what a request lacked; of an older log what its reason tells."""
    lacking = Lack(event.lacking_slots, event.lacking_tokens, event.lacking_blocks)
    if lacking or event.behind is not None:
        return lacking
    missing = max(0, event.needed - event.available)
    match event.reason:
        case "sequence_budget":
            return Lack(slots=missing)
        case "kv_budget":
            return Lack(blocks=missing)
        case _:
            return lacking
