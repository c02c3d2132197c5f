"""Says in words why a request waited, who had what it lacked, and what would have let it run.

Belongs here: waits. Not here: the other chapters of a life, and when they were (sentences.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from everbatch.base.units import counted
from everbatch.diagnose.life import HeadSpan, Lack, Wait
from everbatch.diagnose.world import Return

MAX_NAMED = 6
MAX_HEADS = 4


@dataclass(slots=True, frozen=True)
class WaitTeller:
    """Tells waits under one configuration."""

    config: dict[str, Any]

    def told(self, wait: Wait) -> tuple[str, list[str]]:
        """Give why it waited, and who and what would have helped."""
        text, details = self._reason(wait)
        if wait.by is not None:
            details.insert(0, f"so did {wait.by}, which reads the prompt for all")
        details += self._cure(wait)
        if wait.freed and not wait.is_open:
            details.append(f"it went on after {_returns(wait.freed)}")
        return text, details

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
