"""Says in words what an explanation says in values. Plain text; printing is cli's.

One Row a chapter: when, how long, what, and details that say who and what would have helped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from everbatch.base.units import NS_PER_MS, NS_PER_S, counted
from everbatch.diagnose.life import (
    Chapter,
    End,
    Entry,
    HeadSpan,
    Lack,
    Life,
    Loss,
    Refusal,
    Run,
    Wait,
    sums,
)
from everbatch.diagnose.log import Ruler
from everbatch.diagnose.world import Return

MAX_NAMED = 6
MAX_HEADS = 4


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
        text, details = self._reason(wait)
        if wait.by is not None:
            details.insert(0, f"so did {wait.by}, which reads the prompt for all")
        details += self._cure(wait)
        if wait.freed and not wait.is_open:
            details.append(f"it went on after {_returns(wait.freed)}")
        when = self._when(life, wait.from_step, wait.to_step, wait.from_t)
        return Row(when, self._length(wait), f"waited ({wait.reason}): {text}", details)

    def _reason(self, wait: Wait) -> tuple[str, list[str]]:
        if wait.behind is not None and wait.reason != "behind_head":
            return self._borrowed(wait), []
        match wait.reason:
            case "static_batch":
                return "the static batch that ran had to end first", self._batch(wait)
            case "behind_head":
                return "it stood behind the head of the queue", self._heads(wait)
            case "cooldown":
                victims = f" ({named(wait.victims)})" if wait.victims else ""
                return (
                    f"it headed the queue, but step {wait.from_step:,} preempted somebody{victims} "
                    "and admits nobody",
                    ["the step after the last one that preempts considers it again"],
                )
            case "trial":
                return "a step failed, and others had this one alone to find out by whose row", []
            case "sequence_budget":
                slots = counted(wait.needed, "slot")
                limit = self.config["max_num_seqs"]
                text = f"it needed {slots}, {wait.available:,} of {limit:,} were free"
                return text, self._slots(wait)
            case "token_budget" | "prefill_share":
                return self._tokens(wait), self._token_users(wait)
            case "kv_budget":
                text = (
                    f"it needed {counted(wait.needed, 'block')}, {wait.available:,} of "
                    f"{self.config['num_blocks']:,} were to be had"
                )
                return text, [*self._watermark(wait), *self._block_holders(wait)]
            case _:
                return f"needed {wait.needed:,}, available {wait.available:,}", []

    def _borrowed(self, wait: Wait) -> str:
        lacked = f"{wait.needed:,} needed, {wait.available:,} available"
        if wait.phase in ("waiting", "preempted") and self.config.get("backfill") == "greedy":
            return f"the scan of the queue ended before it, at {wait.behind} ({lacked})"
        return f"nobody overtakes {wait.behind}, which has begun and waits ({lacked})"

    def _tokens(self, wait: Wait) -> str:
        limit = self.config["max_num_batched_tokens"]
        if wait.reason == "prefill_share":
            return f"its token of the step's {limit:,} was kept for prompts"
        if wait.phase == "decode":
            return f"its token found no room: all {limit:,} of the step were taken"
        needed = counted(wait.needed, "token")
        return f"it had {needed} to compute, {wait.available:,} of {limit:,} were left"

    # Who

    def _slots(self, wait: Wait) -> list[str]:
        if wait.usage is None or not wait.usage.slots:
            return []
        return [f"slots were held by {named([id for _, id in wait.usage.slots])}"]

    def _batch(self, wait: Wait) -> list[str]:
        if wait.usage is None:
            return []
        lines = [f"in the batch: {named([id for _, id in wait.usage.slots])}"]
        if wait.usage.masked:
            ended = named([id for _, id in wait.usage.masked])
            lines.append(f"ended already, their slots masked: {ended}")
        return lines

    def _token_users(self, wait: Wait) -> list[str]:
        usage = wait.usage
        if usage is None:
            return []
        users = [counted(usage.num_decodes, "decode")] if usage.num_decodes else []
        users += [f"{id} ({tokens:,})" for id, tokens in usage.chunks]
        lines = [f"tokens of step {wait.from_step:,} went to {named(users)}"] if users else []
        has_share = self.config.get("min_prefill_tokens") or self.config.get("prefill_aging_steps")
        if usage.num_decodes and wait.phase in ("waiting", "prefill") and not has_share:
            lines.append("decodes go first: min_prefill_tokens keeps a share for prompts")
        return lines

    def _block_holders(self, wait: Wait) -> list[str]:
        usage = wait.usage
        if usage is None or not usage.blocks:
            return []
        users = [f"{id} ({blocks:,})" for id, blocks in usage.blocks]
        total = sum(blocks for _, blocks in usage.blocks)
        shared = " (shared ones counted once for each)" if total > self.config["num_blocks"] else ""
        return [f"blocks were held by {named(users)}{shared}"]

    def _watermark(self, wait: Wait) -> list[str]:
        kept = int(self.config.get("watermark", 0.0) * self.config["num_blocks"])
        if not kept or wait.phase not in ("waiting", "preempted"):
            return []
        return [f"{counted(kept, 'block')} of those it needed are the watermark's"]

    def _heads(self, wait: Wait) -> list[str]:
        shown = wait.heads[:MAX_HEADS]
        lines = [self._head(head) for head in shown]
        if len(wait.heads) > len(shown):
            lines.append(f"and {counted(len(wait.heads) - len(shown), 'other head')} after those")
        return lines

    def _head(self, head: HeadSpan) -> str:
        first, last = head.from_step, head.to_step
        steps = f"step {first:,}" if first == last else f"steps {first:,} to {last:,}"
        numbers = ""
        if head.needed or head.available:
            numbers = f", {head.needed:,} needed, {head.available:,} available"
        whose = f", {head.behind}'s obstacle" if head.behind is not None else ""
        return f"{steps}: behind {head.id} ({head.reason}{numbers}{whose})"

    # What would have helped

    def _cure(self, wait: Wait) -> list[str]:
        step = wait.from_step
        if wait.reason == "static_batch":
            return ["continuous batching would have let it join; a static batch lets nobody"]
        if wait.lacking:
            line = f"it would have run in step {step:,} with {lack_text(wait.lacking, wait.reason)}"
            if wait.before:
                line += f", at its turn: {named(wait.before)} lacked the same and go first"
            return [line]
        head = wait.pointer
        if head is None:
            return []
        if head.lacking:
            step, what = head.since_step, lack_text(head.lacking, head.reason)
            return [f"{head.id} would have run in step {step:,} with {what}"]
        return [f"ask about {head.behind or head.id}: what helps it lets the others be considered"]

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


def named(names: Sequence[str]) -> str:
    """Name some and count the others."""
    if len(names) <= MAX_NAMED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:MAX_NAMED])} and {len(names) - MAX_NAMED:,} more"


def lack_text(lack: Lack, reason: str = "") -> str:
    """Write what was lacking: "2 more blocks"."""
    parts = []
    if lack.slots:
        parts.append("one more slot" if lack.slots == 1 else f"{lack.slots:,} more slots")
    if lack.tokens:
        tokens = "one more token" if lack.tokens == 1 else f"{lack.tokens:,} more tokens"
        kept = f"{counted(lack.tokens, 'token')} less kept for prompts"
        parts.append(kept if reason == "prefill_share" else f"{tokens} of budget")
    if lack.blocks:
        parts.append("one more block" if lack.blocks == 1 else f"{lack.blocks:,} more blocks")
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def _returns(freed: Sequence[Return]) -> str:
    """Say who gave back what, summed up."""
    told = []
    for how, verb in (("ended", "ended"), ("preempted", "yielded")):
        backs = [back for back in freed if (back.how == "preempted") == (how == "preempted")]
        if not backs:
            continue
        slots = sum(back.slot is not None for back in backs)
        blocks = sum(back.blocks for back in backs)
        parts = [counted(slots, "slot")] if slots else []
        parts += [counted(blocks, "block")] if blocks else []
        gave = f" and gave back {' and '.join(parts)}" if parts else ""
        told.append(f"{named([back.id for back in backs])} {verb}{gave}")
    return "; ".join(told)


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
