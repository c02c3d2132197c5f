"""The life of one request, as a list of what happened to it: records, and what they add up to.

Plain values, in order of time. `steps` are numbers as people see them (log.Ruler), both ends
included; `t` are times of the log's clock. Made by recorder, told by sentences.
"""

from dataclasses import dataclass, field

from everbatch.diagnose.world import Return, Usage


@dataclass(slots=True, frozen=True)
class Lack:
    """What would have let a request run: all of it, at its turn in the plan."""

    slots: int = 0
    tokens: int = 0
    blocks: int = 0

    def __bool__(self) -> bool:
        return bool(self.slots or self.tokens or self.blocks)


@dataclass(slots=True, frozen=True)
class HeadSpan:
    """Whom the others waited for in some steps, and why it waited itself since `since_step`."""

    id: str
    reason: str
    needed: int
    available: int
    lacking: Lack
    behind: str | None
    since_step: int
    from_step: int
    to_step: int


@dataclass(slots=True)
class Wait:
    """Steps in which it got no token, for one reason; the numbers are those of the first."""

    kind: str = field(default="wait", init=False)
    reason: str
    from_step: int
    to_step: int
    from_t: int
    to_t: int
    needed: int
    available: int
    lacking: Lack
    behind: str | None
    phase: str
    """waiting, preempted (both in the queue), prefill or decode (with a slot)."""
    by: str | None = None
    """The sample that it waited for, which reads the prompt of both and lacked something."""
    before: list[str] = field(default_factory=list)
    """Who runs, waited for the same in the first step, and would have been served before it."""
    victims: list[str] = field(default_factory=list)
    """Who was preempted in the first step, where that is the reason."""
    usage: Usage | None = None
    heads: list[HeadSpan] = field(default_factory=list)
    """Behind the head: who that was, one after another. Else: whose obstacle it was at first."""
    freed: list[Return] = field(default_factory=list)
    """What came back at the boundary after the last step; known if the request ran then."""
    is_open: bool = True
    """Whether the log ends before the wait does."""

    @property
    def num_steps(self) -> int:
        return self.to_step - self.from_step + 1

    @property
    def pointer(self) -> HeadSpan | None:
        """Give whom to ask about, where the obstacle is somebody else's: one who lacks something.

        None if nobody is known.
        """
        lacking = (head for head in self.heads if head.lacking)
        return next(lacking, self.heads[0] if self.heads else None)


@dataclass(slots=True)
class Run:
    """Steps in a row in which it got tokens."""

    kind: str
    """prefill, rebuild (what was computed once, after a preemption) or decode."""
    from_step: int
    to_step: int
    from_t: int
    to_t: int
    tokens: int
    """Computed in them."""
    num_passes: int
    by: str | None = None
    """The sample that computed the prompt, if it was another one."""
    num_dropped: int = 0
    """Outputs of the last step that do not count: the request had left, or its row failed."""

    @property
    def num_steps(self) -> int:
        return self.to_step - self.from_step + 1


@dataclass(slots=True, frozen=True)
class Entry:
    """It took a slot."""

    kind: str = field(default="admitted", init=False)
    step: int
    t: int
    slot: int
    cached_tokens: int
    computed_tokens: int
    resumed: bool


@dataclass(slots=True, frozen=True)
class Loss:
    """It was preempted."""

    kind: str = field(default="preempted", init=False)
    step: int
    t: int
    way: str
    computed_tokens: int
    blocks: int
    slot: int | None
    requester: str | None
    needed: int
    swap_ns: int | None
    recompute_ns: int | None
    by: str | None = None
    """The sample that reads the prompt of both, and gave up the blocks; this one lost its slot."""


@dataclass(slots=True, frozen=True)
class End:
    """It ended."""

    kind: str = field(default="finished", init=False)
    step: int
    t: int
    reason: str
    output_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    preemptions: int
    message: str | None = None
    """Why, where it failed and somebody knew."""


@dataclass(slots=True, frozen=True)
class Refusal:
    """It was refused at arrival."""

    kind: str = field(default="rejected", init=False)
    t: int
    reason: str
    prompt_tokens: int
    max_tokens: int
    needed: int
    limit: int


Chapter = Wait | Run | Entry | Loss | End | Refusal


@dataclass(slots=True)
class Life:
    """All that a log tells of a request, or of one sample of it."""

    id: str
    arrival_t: int | None = None
    """None: it arrived before the log begins."""
    prompt_tokens: int | None = None
    max_tokens: int | None = None
    priority: int = 0
    tenant: str = ""
    num_samples: int = 1
    chapters: list[Chapter] = field(default_factory=list)
    num_outputs: int = 0
    first_token_t: int | None = None
    last_t: int | None = None
    """The time up to which the log tells of it: its end, or the log's."""
    last_step: int = 0
    num_namesakes: int = 0
    """Requests of the same id that had ended before this one came."""

    def waits(self) -> list[Wait]:
        return [chapter for chapter in self.chapters if isinstance(chapter, Wait)]

    def runs(self) -> list[Run]:
        return [chapter for chapter in self.chapters if isinstance(chapter, Run)]

    def losses(self) -> list[Loss]:
        return [chapter for chapter in self.chapters if isinstance(chapter, Loss)]

    @property
    def end(self) -> End | Refusal | None:
        last = self.chapters[-1] if self.chapters else None
        return last if isinstance(last, End | Refusal) else None


@dataclass(slots=True, frozen=True)
class Sums:
    """A life in figures. Times are durations on the log's clock; None: it never came to that."""

    queue_wait: int | None
    """From arrival to the first step with a token of it, or to the end of what is known."""
    has_started: bool
    ttft: int | None
    prefill: int
    rebuild: int
    decode: int
    stalled: int
    """Waiting with a slot."""
    preempted_wait: int
    """From being preempted to having a slot again."""
    e2e: int | None
    output_tokens: int
    cached_tokens: int
    recomputed_tokens: int
    num_preemptions: int
    steps_waited: dict[str, int]
    """By reason."""


def sums(life: Life) -> Sums:
    """Add up a life."""
    runs, end = life.runs(), life.end
    first_run = runs[0].from_t if runs else None
    until = first_run if first_run is not None else life.last_t
    arrival = life.arrival_t
    times = {kind: _total(runs, kind) for kind in ("prefill", "rebuild", "decode")}
    waited: dict[str, int] = {}
    for wait in life.waits():
        waited[wait.reason] = waited.get(wait.reason, 0) + wait.num_steps
    is_end = isinstance(end, End)
    return Sums(
        queue_wait=None if arrival is None or until is None else until - arrival,
        has_started=bool(runs),
        ttft=_between(arrival, life.first_token_t),
        stalled=sum(w.to_t - w.from_t for w in life.waits() if w.phase in ("prefill", "decode")),
        preempted_wait=_preempted_wait(life),
        e2e=_between(arrival, end.t) if is_end and end is not None else None,
        output_tokens=life.num_outputs,
        cached_tokens=next(
            (c.cached_tokens for c in life.chapters if isinstance(c, Entry) and not c.resumed), 0
        ),
        recomputed_tokens=end.recomputed_tokens
        if isinstance(end, End)
        else sum(run.tokens for run in runs if run.kind == "rebuild"),
        num_preemptions=sum(1 for loss in life.losses() if loss.slot is not None),
        steps_waited=waited,
        **times,
    )


def _total(runs: list[Run], kind: str) -> int:
    return sum(run.to_t - run.from_t for run in runs if run.kind == kind)


def _between(start: int | None, stop: int | None) -> int | None:
    return None if start is None or stop is None else stop - start


def _preempted_wait(life: Life) -> int:
    total, since = 0, None
    for chapter in life.chapters:
        if isinstance(chapter, Loss):
            since = chapter.t if since is None else since
        elif isinstance(chapter, Entry | End) and since is not None:
            total += chapter.t - since
            since = None
    if since is not None and life.last_t is not None:
        total += life.last_t - since
    return total
