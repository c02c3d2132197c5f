"""What one forward pass computes: the packed, mixed-phase batch, without padding.

Belongs here: the arrays and the rules that tie them together. Not here: building them from a step
plan (executors) and computing with them (the backends). Called by the model executor and by every
backend.
"""

from dataclasses import dataclass

import numpy as np

from everbatch.base.invariant import check
from everbatch.base.units import div_ceil
from everbatch.kernels.arrays import Int32s


@dataclass(slots=True)
class PackedBatch:
    """The tokens of one step, row after row: prompt chunks first, then decodes.

    T tokens belong to S rows, one row a request. Row s has the tokens [cu_seqlens_q[s],
    cu_seqlens_q[s+1]), which are the last ones of its context of context_lens[s] tokens. All arrays
    are int32. Nobody changes an array while a forward pass reads it.

        input_ids     [T]             token ids
        positions     [T]             place of each token in its request, from 0
        cu_seqlens_q  [S+1]           where each row starts in T; the last entry is T
        context_lens  [S]             tokens in the cache before this step plus those of this step
        block_tables  [S, max_blocks] blocks of each row in order; entries past the last block of
                                      a row may be any block that exists, they are never used
        slot_mapping  [T]             where key and value of a token go: block_id * block_size +
                                      offset in the block
        logit_rows    [R]             tokens (indices into T) whose logits are wanted, ascending
        num_prefills                  the first num_prefills rows are prompt chunks of one token or
                                      more; each of the others is a decode of exactly one token

    One 512-token prompt and decodes with 51, 81 and 21 tokens in the cache, in blocks of 16:
    cu_seqlens_q [0, 512, 513, 514, 515], context_lens [512, 52, 82, 22], 32, 4, 6 and 2 blocks.
    """

    input_ids: Int32s
    positions: Int32s
    cu_seqlens_q: Int32s
    context_lens: Int32s
    block_tables: Int32s
    slot_mapping: Int32s
    logit_rows: Int32s
    num_prefills: int

    @property
    def num_tokens(self) -> int:
        """T, the tokens of all rows."""
        return len(self.input_ids)

    @property
    def num_rows(self) -> int:
        """S, the rows (requests) of this step."""
        return len(self.context_lens)

    def validate(self, num_blocks: int, block_size: int) -> None:
        """Raise InvariantViolation where the arrays contradict each other or the pool.
        O(T + S * max_blocks). For tests and debugging; a serving step does not call it."""
        self._check_shapes()
        self._check_rows()
        self._check_blocks(num_blocks, block_size)
        self._check_slots(block_size)
        self._check_logit_rows()

    def _check_shapes(self) -> None:
        expected = {
            "input_ids": (self.num_tokens,),
            "positions": (self.num_tokens,),
            "cu_seqlens_q": (self.num_rows + 1,),
            "context_lens": (self.num_rows,),
            "block_tables": (self.num_rows, *self.block_tables.shape[1:2]),
            "slot_mapping": (self.num_tokens,),
            "logit_rows": (len(self.logit_rows),),
        }
        for name, shape in expected.items():
            array = getattr(self, name)
            check(array.dtype == np.int32, f"{name} is not int32", dtype=str(array.dtype))
            check(
                array.shape == shape, f"{name} has a wrong shape", shape=array.shape, expected=shape
            )
        check(self.num_tokens > 0, "the batch is empty")

    def _check_rows(self) -> None:
        starts, query_lens = self.cu_seqlens_q, np.diff(self.cu_seqlens_q)
        check(
            starts[0] == 0 and starts[-1] == self.num_tokens,
            "cu_seqlens_q does not run from 0 to T",
            first=int(starts[0]),
            last=int(starts[-1]),
            num_tokens=self.num_tokens,
        )
        check(bool((query_lens > 0).all()), "a row has no token", query_lens=query_lens.tolist())
        check(
            0 <= self.num_prefills <= self.num_rows,
            "num_prefills is not a count of rows",
            num_prefills=self.num_prefills,
            num_rows=self.num_rows,
        )
        check(
            bool((query_lens[self.num_prefills :] == 1).all()),
            "a decode row has more than one token",
            query_lens=query_lens.tolist(),
            num_prefills=self.num_prefills,
        )
        check(
            bool((self.context_lens >= query_lens).all()),
            "a context is shorter than the row's own tokens",
            context_lens=self.context_lens.tolist(),
            query_lens=query_lens.tolist(),
        )
        first_positions = self.context_lens - query_lens
        expected = np.arange(self.num_tokens) + np.repeat(first_positions - starts[:-1], query_lens)
        check(
            bool((self.positions == expected).all()),
            "positions are not the last ones of their row's context",
            positions=self.positions.tolist(),
        )

    def _check_blocks(self, num_blocks: int, block_size: int) -> None:
        needed = div_ceil(int(self.context_lens.max()), block_size)
        check(
            self.block_tables.shape[1] >= needed,
            "block_tables is too narrow for the longest context",
            max_blocks=self.block_tables.shape[1],
            needed=needed,
        )
        lowest, highest = int(self.block_tables.min()), int(self.block_tables.max())
        check(
            lowest >= 0 and highest < num_blocks,
            "block_tables names a block that does not exist",
            lowest=lowest,
            highest=highest,
            num_blocks=num_blocks,
        )

    def _check_slots(self, block_size: int) -> None:
        rows = np.repeat(np.arange(self.num_rows), np.diff(self.cu_seqlens_q))
        blocks = self.block_tables[rows, self.positions // block_size]
        expected = blocks * block_size + self.positions % block_size
        check(
            bool((self.slot_mapping == expected).all()),
            "slot_mapping does not follow block_tables",
            slot_mapping=self.slot_mapping.tolist(),
            expected=expected.tolist(),
        )
        check(
            len(np.unique(self.slot_mapping)) == self.num_tokens,
            "two tokens are written to one slot",
            slot_mapping=self.slot_mapping.tolist(),
        )

    def _check_logit_rows(self) -> None:
        rows = self.logit_rows
        inside = len(rows) == 0 or (rows[0] >= 0 and rows[-1] < self.num_tokens)
        check(
            bool(inside and (np.diff(rows) > 0).all()),
            "logit_rows are not ascending indices into T",
            logit_rows=rows.tolist(),
            num_tokens=self.num_tokens,
        )
