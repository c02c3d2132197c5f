"""PackedBatch.validate: a good batch passes, and each contradiction is named."""

from collections.abc import Callable

import numpy as np
import pytest
from models.network_builders import TINY, Runner, random_prompt, random_tensors

from everbatch.base.errors import InvariantViolation
from everbatch.kernels.batch import PackedBatch

NUM_BLOCKS = 40
BLOCK_SIZE = 4


def mixed_batch() -> PackedBatch:
    """A prompt of 5 tokens, the second chunk of one (3 of 9), and a decode with 8 cached."""
    runner = Runner(TINY, random_tensors(TINY), block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS)
    for name, length, computed in (("a", 5, 0), ("b", 9, 6), ("c", 9, 8)):
        runner.add(name, random_prompt(TINY, length))
        if computed:
            runner.step({name: computed})
    return runner.pack({"a": 5, "b": 3}, ["c"])


def test_mixed_batch_has_the_documented_arrays() -> None:
    batch = mixed_batch()
    batch.validate(NUM_BLOCKS, BLOCK_SIZE)

    assert (batch.num_tokens, batch.num_rows, batch.num_prefills) == (9, 3, 2)
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 8]
    assert batch.cu_seqlens_q.tolist() == [0, 5, 8, 9]
    assert batch.context_lens.tolist() == [5, 9, 9]
    assert batch.block_tables.shape == (3, 3)


def set_item(name: str, index: int | tuple[int, int], value: int) -> Callable[[PackedBatch], None]:
    def change(batch: PackedBatch) -> None:
        getattr(batch, name)[index] = value

    return change


def set_field(name: str, value: object) -> Callable[[PackedBatch], None]:
    return lambda batch: setattr(batch, name, value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_field("input_ids", np.zeros(9, np.int64)), "input_ids is not int32"),
        (set_field("positions", np.zeros(8, np.int32)), "positions has a wrong shape"),
        (set_field("input_ids", np.zeros(0, np.int32)), "wrong shape"),
        (set_item("cu_seqlens_q", 0, 1), "does not run from 0 to T"),
        (set_item("cu_seqlens_q", 3, 10), "does not run from 0 to T"),
        (set_item("cu_seqlens_q", 1, 8), "a row has no token"),
        (set_field("num_prefills", 4), "num_prefills is not a count of rows"),
        (set_field("num_prefills", 1), "a decode row has more than one token"),
        (set_item("context_lens", 0, 4), "a context is shorter"),
        (set_item("context_lens", 2, 10), "positions are not the last ones"),
        (set_item("positions", 5, 7), "positions are not the last ones"),
        (set_item("block_tables", (1, 0), NUM_BLOCKS), "a block that does not exist"),
        (set_item("block_tables", (0, 2), -1), "a block that does not exist"),
        (set_item("slot_mapping", 4, 0), "slot_mapping does not follow block_tables"),
        (set_field("logit_rows", np.array([8, 4], np.int32)), "not ascending"),
        (set_field("logit_rows", np.array([4, 9], np.int32)), "not ascending"),
        (set_field("logit_rows", np.array([-1], np.int32)), "not ascending"),
    ],
)
def test_contradiction_is_named(change: Callable[[PackedBatch], None], message: str) -> None:
    batch = mixed_batch()
    change(batch)

    with pytest.raises(InvariantViolation, match=message):
        batch.validate(NUM_BLOCKS, BLOCK_SIZE)


def test_narrow_block_table_is_named() -> None:
    batch = mixed_batch()
    batch.block_tables = batch.block_tables[:, :2]

    with pytest.raises(InvariantViolation, match=r"too narrow.*max_blocks=2, needed=3"):
        batch.validate(NUM_BLOCKS, BLOCK_SIZE)


def test_two_rows_that_write_one_slot_are_named() -> None:
    batch = mixed_batch()
    batch.block_tables[2] = batch.block_tables[1]
    batch.slot_mapping[8] = batch.slot_mapping[7]

    with pytest.raises(InvariantViolation, match="two tokens are written to one slot"):
        batch.validate(NUM_BLOCKS, BLOCK_SIZE)


def test_no_wanted_rows_are_valid() -> None:
    batch = mixed_batch()
    batch.logit_rows = np.array([], np.int32)

    batch.validate(NUM_BLOCKS, BLOCK_SIZE)
