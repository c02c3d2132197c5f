"""How many blocks do tokens need? Integers only.

A block holds `block_size` consecutive tokens of one request. Used by the scheduler and by tests.
"""

from everbatch.base.units import div_ceil


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Give the blocks that hold `num_tokens` tokens of one request."""
    return div_ceil(num_tokens, block_size)


def new_blocks_needed(
    num_cached_tokens: int, num_input_tokens: int, block_size: int, *, tail_shared: bool = False
) -> int:
    """Give the blocks that `num_input_tokens` more tokens take from the pool.

    A partial tail with another reader must be copied before it is written, so it costs one more
    block (copy-on-write; PagedAttention, section 4.3). Full blocks are never written again.
    """
    assert num_cached_tokens >= 0
    assert num_input_tokens >= 0
    have = blocks_for(num_cached_tokens, block_size)
    need = blocks_for(num_cached_tokens + num_input_tokens, block_size)
    copies_tail = tail_shared and num_input_tokens > 0 and num_cached_tokens % block_size > 0
    return need - have + int(copies_tail)


def blocks_for_life(num_prompt_tokens: int, max_tokens: int, block_size: int) -> int:
    """Give the most blocks a request can ever hold at once.

    The last output is never consumed, so it has no KV entry and needs no place.
    """
    assert num_prompt_tokens > 0
    assert max_tokens > 0
    return blocks_for(num_prompt_tokens + max_tokens - 1, block_size)
