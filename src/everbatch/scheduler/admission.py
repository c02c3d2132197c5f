"""What can never run is refused at arrival; what cannot run yet is told what it lacks.

Pure arithmetic over a request and the configuration. Called by the scheduler and the planner.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from everbatch.base.units import counted
from everbatch.kv_cache.arithmetic import blocks_for, blocks_for_life, blocks_of_samples
from everbatch.scheduler.config import SchedulerConfig

_LARGER_POOL = "make the KV cache larger (num_blocks)"


class RejectReason(Enum):
    """Why a request is refused at arrival."""

    EMPTY_PROMPT = "empty_prompt"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LIMIT = "context_limit"
    KV_POOL = "kv_pool"
    TOKEN_BUDGET = "token_budget"
    DUPLICATE_ID = "duplicate_id"
    SEQUENCE_BUDGET = "sequence_budget"
    QUEUE_FULL = "queue_full"
    TENANT_RATE = "tenant_rate"


@dataclass(slots=True, frozen=True)
class Rejection:
    """A refusal at arrival: a sentence for people, and its numbers."""

    reason: RejectReason
    message: str
    needed: int
    limit: int


def most_output_tokens(
    num_prompt_tokens: int, config: SchedulerConfig, num_samples: int = 1
) -> int:
    """Give the largest max_tokens with which a prompt is accepted; below 1 if there is none.

    Solves blocks_for_life for max_tokens: the last output needs no place in the pool, and the full
    blocks of the prompt are there once.
    """
    by_context = config.context_limit - num_prompt_tokens
    num_shared = num_prompt_tokens // config.block_size
    num_own = (config.num_blocks - num_shared) // num_samples
    by_pool = (num_shared + num_own) * config.block_size - num_prompt_tokens + 1
    return min(by_context, by_pool)


def refusal(
    num_prompt_tokens: int, max_tokens: int, config: SchedulerConfig, num_samples: int = 1
) -> Rejection | None:
    """Say why a request can never run, or None. Cache hits and the watermark do not enter."""
    if num_prompt_tokens < 1:
        return Rejection(RejectReason.EMPTY_PROMPT, "the prompt has no tokens, it needs 1", 1, 0)
    if max_tokens < 1:
        message = f"max_tokens is {max_tokens:,}, it must be at least 1"
        return Rejection(RejectReason.MAX_TOKENS, message, 1, max_tokens)
    if num_prompt_tokens + max_tokens > config.context_limit:
        return _over_context(num_prompt_tokens, max_tokens, config)
    if num_samples > config.max_num_seqs:
        limit = config.max_num_seqs
        message = (
            f"n is {num_samples:,}, at most max_num_seqs {limit:,} samples can run at once: lower "
            "n or raise max_num_seqs"
        )
        return Rejection(RejectReason.SEQUENCE_BUDGET, message, num_samples, limit)
    needed = blocks_for_life(num_prompt_tokens, max_tokens, config.block_size, num_samples)
    if needed > config.num_blocks:
        tokens = counted(num_prompt_tokens, "token")
        samples = f" in {num_samples:,} samples" if num_samples > 1 else ""
        message = (
            f"prompt of {tokens} and max_tokens {max_tokens:,}{samples} need {needed:,} KV blocks "
            f"of {config.block_size}, the pool has {config.num_blocks:,}: "
            f"shorten the prompt, lower max_tokens or {_LARGER_POOL}"
        )
        return Rejection(RejectReason.KV_POOL, message, needed, config.num_blocks)
    if not config.enable_chunked_prefill and num_prompt_tokens > config.max_num_batched_tokens:
        limit, tokens = config.max_num_batched_tokens, counted(num_prompt_tokens, "token")
        message = (
            f"prompt has {tokens}, max_num_batched_tokens is {limit:,} and "
            "chunked prefill is off: shorten it, raise max_num_batched_tokens or switch "
            "enable_chunked_prefill on"
        )
        return Rejection(RejectReason.TOKEN_BUDGET, message, num_prompt_tokens, limit)
    return None


def _over_context(num_prompt_tokens: int, max_tokens: int, config: SchedulerConfig) -> Rejection:
    limit = config.context_limit
    tokens = counted(num_prompt_tokens, "token")
    # Above what the pool holds the limit cannot be raised, whatever the model was made for.
    is_of_the_pool = limit > config.num_blocks * config.block_size
    way_out = _LARGER_POOL if is_of_the_pool else "raise max_model_len, if the model takes more"
    if num_prompt_tokens >= limit:
        message = (
            f"prompt has {tokens}, max_model_len is {limit:,} and at least one token must be left "
            f"for the output: shorten it or {way_out}"
        )
        return Rejection(RejectReason.CONTEXT_LIMIT, message, num_prompt_tokens + 1, limit)
    message = (
        f"prompt has {tokens} and max_tokens is {max_tokens:,}, together more than max_model_len "
        f"{limit:,}: shorten the prompt, lower max_tokens to {limit - num_prompt_tokens:,} or "
        f"{way_out}"
    )
    return Rejection(RejectReason.CONTEXT_LIMIT, message, num_prompt_tokens + max_tokens, limit)


def chunk_size(remaining: int, budget_left: int, config: SchedulerConfig) -> int:
    """Give the tokens of a prompt or history that a step takes; not rounded to blocks."""
    cap = config.long_prefill_token_threshold or remaining
    return min(remaining, budget_left, cap)


def chunk_blocks(start: int, count: int, num_held: int, block_size: int) -> int:
    """Give the blocks to append so that tokens [start, start + count) have their places."""
    return blocks_for(start + count, block_size) - num_held


@dataclass(slots=True, frozen=True)
class Future:
    """A request from now to its end: it has one token more in the cache after each step."""

    tokens: int
    """Before the next step, were its prompt read one token a step."""
    steps_left: int
    num_samples: int = 1
    num_shared_blocks: int = 0
    """The prompt's full blocks, which all samples read while they are one request."""

    def blocks_after(self, steps: int, block_size: int) -> int:
        """Give the blocks held after so many steps more, if it has not ended by then."""
        num_each = blocks_for(self.tokens + steps, block_size)
        return blocks_of_samples(num_each, self.num_shared_blocks, self.num_samples)


def peak_blocks(futures: Sequence[Future], block_size: int) -> int:
    """Give the most blocks that requests hold at any time if all run to their limits.

    The sum is largest just before somebody ends. O(n²). Source: LightLLM's future peak, in blocks.
    """
    peak = 0
    for ahead in sorted({future.steps_left for future in futures}):
        held = sum(
            future.blocks_after(ahead, block_size)
            for future in futures
            if future.steps_left >= ahead
        )
        peak = max(peak, held)
    return peak


def queue_refusal(
    num_prompt_tokens: int, num_waiting: int, waiting_tokens: int, config: SchedulerConfig
) -> Rejection | None:
    """Say why there is no room to wait, or None. The limits are inclusive.

    num_waiting, waiting_tokens: requests that arrived before, never ran, and their prompt tokens.
    """
    limit = config.max_queue_requests
    if limit and num_waiting + 1 > limit:
        message = (
            f"{counted(num_waiting, 'request')} waiting already, max_queue_requests is {limit:,}: "
            "try again later or raise max_queue_requests"
        )
        return Rejection(RejectReason.QUEUE_FULL, message, num_waiting + 1, limit)
    limit = config.max_queue_tokens
    total = waiting_tokens + num_prompt_tokens
    if limit and total > limit:
        message = (
            f"{counted(waiting_tokens, 'prompt token')} waiting already, with "
            f"{num_prompt_tokens:,} more above max_queue_tokens {limit:,}: try again later or "
            "raise max_queue_tokens"
        )
        return Rejection(RejectReason.QUEUE_FULL, message, total, limit)
    return None


def rate_refusal(tenant: str, num_recent: int, limit: int) -> Rejection | None:
    """Say that a tenant sends too much, or None; `limit` 0: it may send anything."""
    if not limit or num_recent < limit:
        return None
    message = (
        f"tenant {tenant!r} sent {counted(num_recent, 'request')} in the last minute, its "
        f"max_requests_per_minute is {limit:,}: try again later"
    )
    return Rejection(RejectReason.TENANT_RATE, message, num_recent + 1, limit)
