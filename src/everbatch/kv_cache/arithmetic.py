"""How many blocks do tokens need? Integers only.

A block holds `block_size` consecutive tokens of one request. Used by the scheduler.
"""


def blocks_for(num_tokens: int, block_size: int) -> int:
    """Give the blocks that hold `num_tokens` tokens of one request."""
    # As div_ceil does, without a call more: asked several times a request and step.
    return -(-num_tokens // block_size)


def blocks_of_samples(num_each: int, num_shared: int, num_samples: int) -> int:
    """Give the blocks of samples of one prompt, each of which reads `num_each`.

    num_shared: the full blocks of the prompt. They are there once, all others once a sample.
    """
    return num_shared + num_samples * (num_each - num_shared)


def blocks_for_life(
    num_prompt_tokens: int, max_tokens: int, block_size: int, num_samples: int = 1
) -> int:
    """Give the most blocks that a request, in so many samples, can ever hold at once.

    The last output is never consumed, so it has no KV entry and needs no place.
    """
    assert num_prompt_tokens > 0
    assert max_tokens > 0
    num_each = blocks_for(num_prompt_tokens + max_tokens - 1, block_size)
    return blocks_of_samples(num_each, num_prompt_tokens // block_size, num_samples)
