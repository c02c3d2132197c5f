"""What can never run is refused at arrival; what cannot run yet is told what it lacks.

Pure arithmetic over a request and the configuration. Called by the scheduler and the planner.
"""

from dataclasses import dataclass
from enum import Enum

from everbatch.base.units import div_ceil
from everbatch.kv_cache.arithmetic import blocks_for_life
from everbatch.scheduler.config import SchedulerConfig


class RejectReason(Enum):
    EMPTY_PROMPT = "empty_prompt"
    MAX_TOKENS = "max_tokens"
    CONTEXT_LIMIT = "context_limit"
    KV_POOL = "kv_pool"
    TOKEN_BUDGET = "token_budget"
    DUPLICATE_ID = "duplicate_id"


@dataclass(slots=True, frozen=True)
class Rejection:
    """A refusal at arrival: a sentence for people, and its numbers."""

    reason: RejectReason
    message: str
    needed: int
    limit: int


def most_output_tokens(num_prompt_tokens: int, config: SchedulerConfig) -> int:
    """Give the largest max_tokens with which a prompt is accepted; below 1 if there is none.

    The last output is never consumed, so it needs no place in the pool.
    """
    by_context = config.context_limit - num_prompt_tokens
    by_pool = config.num_blocks * config.block_size - num_prompt_tokens + 1
    return min(by_context, by_pool)


def refusal(num_prompt_tokens: int, max_tokens: int, config: SchedulerConfig) -> Rejection | None:
    """Say why a request can never run, or None. Cache hits and the watermark do not enter."""
    if num_prompt_tokens < 1:
        return Rejection(RejectReason.EMPTY_PROMPT, "the prompt has no tokens, it needs 1", 1, 0)
    if max_tokens < 1:
        message = f"max_tokens is {max_tokens:,}, it must be at least 1"
        return Rejection(RejectReason.MAX_TOKENS, message, 1, max_tokens)
    total = num_prompt_tokens + max_tokens
    if total > config.context_limit:
        return _over_context(num_prompt_tokens, max_tokens, config)
    needed = blocks_for_life(num_prompt_tokens, max_tokens, config.block_size)
    if needed > config.num_blocks:
        message = (
            f"prompt of {num_prompt_tokens:,} tokens and max_tokens {max_tokens:,} need "
            f"{needed:,} KV blocks of {config.block_size}, the pool has {config.num_blocks:,}: "
            "shorten the prompt, lower max_tokens or raise --kv-cache-memory"
        )
        return Rejection(RejectReason.KV_POOL, message, needed, config.num_blocks)
    if not config.enable_chunked_prefill and num_prompt_tokens > config.max_num_batched_tokens:
        limit = config.max_num_batched_tokens
        message = (
            f"prompt has {num_prompt_tokens:,} tokens, max_num_batched_tokens is {limit:,} and "
            "chunked prefill is off: shorten it, raise --max-num-batched-tokens or use "
            "--enable-chunked-prefill"
        )
        return Rejection(RejectReason.TOKEN_BUDGET, message, num_prompt_tokens, limit)
    return None


def _over_context(num_prompt_tokens: int, max_tokens: int, config: SchedulerConfig) -> Rejection:
    limit = config.context_limit
    if num_prompt_tokens >= limit:
        message = (
            f"prompt has {num_prompt_tokens:,} tokens, max_model_len is {limit:,} and at least one "
            "token must be left for the output: shorten it or raise --max-model-len"
        )
        return Rejection(RejectReason.CONTEXT_LIMIT, message, num_prompt_tokens + 1, limit)
    message = (
        f"prompt has {num_prompt_tokens:,} tokens and max_tokens is {max_tokens:,}, together more "
        f"than max_model_len {limit:,}: shorten the prompt, lower max_tokens to "
        f"{limit - num_prompt_tokens:,} or raise --max-model-len"
    )
    return Rejection(RejectReason.CONTEXT_LIMIT, message, num_prompt_tokens + max_tokens, limit)


def chunk_size(remaining: int, budget_left: int, config: SchedulerConfig) -> int:
    """Give the tokens of a prompt or history that a step takes; not rounded to blocks."""
    cap = config.long_prefill_token_threshold or remaining
    return min(remaining, budget_left, cap)


def chunk_blocks(start: int, count: int, num_held: int, block_size: int) -> int:
    """Give the blocks to append so that tokens [start, start + count) have their places."""
    return div_ceil(start + count, block_size) - num_held
