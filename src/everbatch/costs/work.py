"""What one forward pass does, in counts, and the seam behind which its duration is predicted.

Belongs here: the quantities that every cost model is a function of. Not here: devices, models,
prices. Filled in by the simulated executor, read by the models of step time.
"""

from dataclasses import dataclass
from typing import Protocol


@dataclass(slots=True)
class StepWork:
    """One forward pass, in counts of tokens, rows and blocks.

    A decode is a row of one token; masked rows of a static batch are decodes too. A prefill chunk
    consumes `count` tokens after `start` that are in the KV cache already.
    """

    num_decodes: int = 0
    decode_context: int = 0
    """Sum over the decodes of the tokens whose KV is read, the consumed one included."""
    num_chunks: int = 0
    prefill_tokens: int = 0
    """Sum of `count` over the chunks."""
    prefill_context: int = 0
    """Sum of `start + count` over the chunks: the tokens whose KV a chunk reads, each once."""
    prefill_pairs: int = 0
    """Sum over the chunks of the (query, key) pairs: count * start + count * (count + 1) / 2."""
    num_logits: int = 0
    """Rows whose logits are computed: the decodes and the chunks that emit."""
    swapped_blocks: int = 0
    """Blocks that cross the link to the host tier, either way."""
    copied_blocks: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that pass through the network."""
        return self.num_decodes + self.prefill_tokens

    def add_chunk(self, start: int, count: int) -> None:
        """Count one prefill chunk."""
        self.num_chunks += 1
        self.prefill_tokens += count
        self.prefill_context += start + count
        self.prefill_pairs += count * start + count * (count + 1) // 2


class StepTime(Protocol):
    """Predicts how long a forward pass takes."""

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1."""
        ...


class TokensAlone:
    """Marks a StepTime that asks how many tokens a pass computes, and not what they read.

    Passes of the same decodes then take equally long, and are not asked for one by one.
    """
