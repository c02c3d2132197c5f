"""Says in words what an explanation says in values. Plain text.

Belongs here: lives, chapter by chapter. Not here: why somebody waited (wait_sentences.py), printing
(cli).

One Row a chapter: when, how long, what, and details that say who and what would have helped.
"""

from dataclasses import dataclass, field
from typing import Any

from everbatch.base.units import NS_PER_MS, NS_PER_S, counted
from everbatch.diagnose.life import (
    Chapter,
    End,
    Entry,
    Life,
    Loss,
    Refusal,
    Run,
    Wait,
    sums,
)
from everbatch.diagnose.log import Ruler
from everbatch.diagnose.wait_sentences import WaitTeller


@dataclass(slots=True)
class Row:
    """One chapter as text."""

    when: str
    length: str
    text: str
    details: list[str] = field(default_factory=list)


@dataclass(slots=True, frozen=True)
class Teller:
    """Tells lives of one log."""

    config: dict[str, Any]
    ruler: Ruler

    def heading(self, life: Life) -> str:
        """Say who it is."""
        facts = []
        if life.prompt_tokens is not None:
            facts.append(f"prompt {counted(life.prompt_tokens, 'token')}")
            facts.append(f"max_tokens {life.max_tokens:,}")
        if life.priority:
            facts.append(f"priority {life.priority}")
        if life.tenant:
            facts.append(f"tenant {life.tenant}")
        if life.num_samples > 1:
            facts.append(f"one of {life.num_samples} samples")
        return f"request {life.id}" + (f": {', '.join(facts)}" if facts else "")

    def rows(self, life: Life) -> list[Row]:
        """Tell a life from arrival to end."""
        rows = [self._arrival(life)]
        rows += [self._row(life, chapter) for chapter in life.chapters]
        if life.end is None:
            row = Row(self._after(life), "", "the log ends here: this request has no end in it")
            rows.append(row)
        return rows

    def summary(self, life: Life) -> list[tuple[str, str]]:
        """Add a life up: (what, how much)."""
        if isinstance(life.end, Refusal):
            return []
        facts, told = sums(life), self.duration
        still = "" if facts.has_started else " and never started"
        times = [
            ("waited in the queue", facts.queue_wait, still),
            ("to the first token", facts.ttft, ""),
            ("prefill", facts.prefill or None, ""),
            ("rebuild", facts.rebuild or None, ""),
            ("decode", facts.decode or None, ""),
            ("waited with a slot", facts.stalled or None, ""),
            ("waited after preemption", facts.preempted_wait or None, ""),
            ("from arrival to end", facts.e2e, ""),
        ]
        counts = [
            ("from the prefix cache", facts.cached_tokens, "token"),
            ("preempted", facts.num_preemptions, "time"),
            ("computed again", facts.recomputed_tokens, "token"),
        ]
        return [
            *((name, told(t) + more) for name, t, more in times if t is not None),
            ("outputs", f"{facts.output_tokens:,}"),
            *((name, counted(number, noun)) for name, number, noun in counts if number),
        ]

    def duration(self, t: int) -> str:
        """Write a duration of the log's clock."""
        if self.ruler.is_steps:
            return counted(t, "step")
        if t < NS_PER_S:
            return f"{t / NS_PER_MS:,.1f} ms"
        return f"{t / NS_PER_S:,.2f} s"

    # When

    def _arrival(self, life: Life) -> Row:
        if life.arrival_t is None:
            return Row("", "", "arrived before the log begins")
        if self.ruler.is_steps:
            return Row(f"boundary {life.arrival_t:,}", "", "arrived")
        return Row("+0.0 ms", "", "arrived")

    def _when(self, life: Life, first: int, last: int, t: int) -> str:
        steps = f"step {first:,}" if first >= last else f"steps {first:,} to {last:,}"
        if self.ruler.is_steps or life.arrival_t is None:
            return steps
        return f"+{self.duration(t - life.arrival_t)}, {steps}"

    def _after(self, life: Life) -> str:
        return f"after step {life.last_step:,}"

    # What

    def _row(self, life: Life, chapter: Chapter) -> Row:
        match chapter:
            case Wait():
                return self._wait(life, chapter)
            case Run():
                when = self._when(life, chapter.from_step, chapter.to_step, chapter.from_t)
                return Row(when, self._length(chapter), _run_text(chapter))
            case Entry():
                when = self._when(life, chapter.step, chapter.step, chapter.t)
                return Row(when, "", _entry_text(chapter))
            case Loss():
                when = self._when(life, chapter.step, chapter.step, chapter.t)
                return Row(when, "", *self._loss(life, chapter))
            case End():
                return Row(f"after step {chapter.step:,}", "", _end_text(chapter))
            case Refusal():
                return Row("", "", _refusal_text(chapter))

    def _length(self, part: Wait | Run) -> str:
        steps = counted(part.num_steps, "step")
        if self.ruler.is_steps:
            return steps
        return f"{steps}, {self.duration(part.to_t - part.from_t)}"

    def _wait(self, life: Life, wait: Wait) -> Row:
        text, details = WaitTeller(self.config).told(wait)
        when = self._when(life, wait.from_step, wait.to_step, wait.from_t)
        return Row(when, self._length(wait), f"waited ({wait.reason}): {text}", details)

    def _loss(self, life: Life, loss: Loss) -> tuple[str, list[str]]:
        gave = f"gave up {counted(loss.blocks, 'block')}"
        if loss.by is not None:
            gave = f"{loss.by}, which reads the prompt for all, {gave}"
        blocks = counted(loss.needed, "block")
        if loss.slot is None:
            text = f"lost the blocks it had kept: {self._cause(life, loss, blocks)}"
        else:
            text = f"preempted: {self._cause(life, loss, blocks)}"
        match loss.way:
            case "swap":
                what = f"{gave}, kept in the host tier: nothing is computed again"
            case "tail":
                what = f"{gave} from the end, keeps the others"
            case _:
                what = f"{gave}; {counted(loss.computed_tokens, 'token')} must be computed again"
        details = [what]
        if loss.swap_ns is not None and loss.recompute_ns is not None:
            details.append(
                f"reckoned: swapping {loss.swap_ns:,} ns, recomputing {loss.recompute_ns:,} ns"
            )
        return text, details

    def _cause(self, life: Life, loss: Loss, blocks: str) -> str:
        if loss.requester is None and loss.needed == 0:
            return "nobody could run, so one had to yield"
        if loss.requester == life.id:
            return f"it needed {blocks} itself, none was free, and it is the one to yield"
        if loss.by is not None and loss.requester == loss.by:
            return f"{loss.by} needed {blocks}, none was free, and its samples are to yield"
        return f"{loss.requester} needed {blocks} and none was free"


def _run_text(run: Run) -> str:
    tokens = counted(run.tokens, "token")
    if run.kind == "decode":
        dropped = "; the last step's was dropped" if run.num_dropped else ""
        return f"decode: {counted(run.tokens - run.num_dropped, 'output')}{dropped}"
    chunks = f" in {run.num_passes:,} chunks" if run.num_passes > 1 else ""
    if run.kind == "rebuild":
        return f"rebuild: {tokens} computed again{chunks}"
    by = f", by {run.by}, whose prompt is the same" if run.by is not None else ""
    return f"prefill: {tokens}{chunks}{by}"


def _entry_text(entry: Entry) -> str:
    kept = entry.computed_tokens - entry.cached_tokens
    facts = []
    if entry.cached_tokens:
        facts.append(f"{counted(entry.cached_tokens, 'token')} found in the prefix cache")
    if entry.resumed and kept > 0:
        facts.append(f"{counted(kept, 'token')} kept")
    verb = "came back to" if entry.resumed else "took"
    return f"{verb} slot {entry.slot:,}" + (f", {', '.join(facts)}" if facts else "")


_ENDS = {
    "stop": "ended by itself (stop)",
    "length": "ended at its limit (length)",
    "abort": "was aborted: its client left, its max_total_s was over, or the server stopped",
    "deadline": "had not started when its deadline passed",
    "error": "ended with an error",
}


def _end_text(end: End) -> str:
    told = _ENDS.get(end.reason, f"ended ({end.reason})")
    why = f": {end.message}" if end.message else ""
    return f"{told}, {counted(end.output_tokens, 'output')}{why}"


def _refusal_text(refusal: Refusal) -> str:
    return (
        f"refused at arrival ({refusal.reason}): needed {refusal.needed:,}, limit "
        f"{refusal.limit:,}; prompt of {counted(refusal.prompt_tokens, 'token')}, max_tokens "
        f"{refusal.max_tokens:,}"
    )
