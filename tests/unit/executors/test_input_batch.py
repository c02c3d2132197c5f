"""Packing a step: decodes alone give what they give beside a prompt's chunk."""

import numpy as np
import pytest

from everbatch.executors.model.input_batch import InputBatch, PackedStep
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import PrefillChunk, StepPlan

BLOCK_SIZE = 4
NUM_BLOCKS = 400


def make_batch(lengths: list[int]) -> InputBatch:
    """Requests in slots 0, 2, 4, ... that all decode; the last slot has a prompt to compute."""
    config = SchedulerConfig(
        max_num_seqs=2 * len(lengths) + 1,
        max_num_batched_tokens=512,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
    )
    batch = InputBatch(config)
    blocks = iter(np.random.default_rng(0).permutation(NUM_BLOCKS).tolist())

    def admit(slot: int, length: int, num_computed: int) -> None:
        owned = tuple(next(blocks) for _ in range(-(-length // BLOCK_SIZE)))
        tokens = np.arange(1_000 * slot, 1_000 * slot + length, dtype=np.int32)
        batch.admit(slot, tokens, owned, num_computed)

    for index, length in enumerate(lengths):
        admit(2 * index, length, length - 1)
    admit(2 * len(lengths), 50, 0)
    batch.join_decodes([2 * index for index in range(len(lengths))][::-1])
    return batch


def plan_of(num_decodes: int, chunks: list[PrefillChunk]) -> StepPlan:
    plan = StepPlan(step=1, start_ns=0)
    plan.chunks = chunks
    plan.num_decodes = num_decodes
    plan.num_tokens = num_decodes + sum(chunk.count for chunk in chunks)
    return plan


@pytest.mark.parametrize("lengths", [[1], [4], [5], [3, 90, 8, 9, 1]])
def test_decodes_alone_are_packed_as_beside_a_chunk(lengths: list[int]) -> None:
    batch, num_decodes = make_batch(lengths), len(lengths)
    chunk = PrefillChunk(2 * num_decodes, 0, 50, (), emits=False)

    alone: PackedStep = batch.pack(plan_of(num_decodes, []), None)
    mixed = batch.pack(plan_of(num_decodes, [chunk]), None)

    alone.batch.validate(NUM_BLOCKS, BLOCK_SIZE)
    for name in ("input_ids", "positions", "slot_mapping"):
        found, expected = getattr(alone.batch, name), getattr(mixed.batch, name)[50:]
        assert found.tolist() == expected.tolist()
        assert found.dtype == expected.dtype == np.int32
    assert alone.batch.context_lens.tolist() == mixed.batch.context_lens[1:].tolist()
    width = alone.batch.block_tables.shape[1]
    assert alone.batch.block_tables.tolist() == mixed.batch.block_tables[1:, :width].tolist()
    assert (alone.batch.logit_rows + 50).tolist() == mixed.batch.logit_rows.tolist()
    assert alone.batch.cu_seqlens_q.tolist() == list(range(num_decodes + 1))
    assert alone.sampling_slots.tolist() == mixed.sampling_slots.tolist()
    assert alone.logits_of.tolist() == mixed.logits_of.tolist()
    assert alone.sampling_slots.dtype == alone.logits_of.dtype == np.int32


def test_a_packed_step_keeps_its_slots_when_the_decodes_change() -> None:
    batch = make_batch([3, 4])
    step = batch.pack(plan_of(2, []), None)
    batch.leave_decodes([0, 2])
    batch.join_decodes([0])

    assert step.sampling_slots.tolist() == [2, 0]
