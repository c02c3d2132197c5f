"""The persistent picture of the batch: arrays by slot, which plans change, and the packed step.

Belongs here: token ids, block tables and lengths of all slots, the decode set, and packing them
into a PackedBatch. Not here: sampling options (sampling_state.py), the forward pass (executor.py).

    S slots (max_num_seqs), C context limit in tokens, B blocks of a longest request
"""

from dataclasses import dataclass

import numpy as np

from everbatch.base.units import div_ceil
from everbatch.kernels.arrays import Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import PrefillChunk, StepPlan


@dataclass(slots=True)
class PackedStep:
    """A batch, and the slots whose logits it computes, row by row of `batch.logit_rows`."""

    batch: PackedBatch
    sampling_slots: Int32s


class InputBatch:
    """Arrays of all slots. Rows of empty slots hold what was left there; nobody reads them.

    Memory is committed by the operating system when it is touched: a short request in a slot of a
    long context costs what it uses.
    """

    def __init__(self, config: SchedulerConfig) -> None:
        num_slots = config.max_num_seqs
        self._block_size = config.block_size
        max_blocks = div_ceil(config.context_limit, config.block_size)
        self.token_ids = np.zeros((num_slots, config.context_limit), np.int32)
        self.num_tokens = np.zeros(num_slots, np.int32)
        """Prompt and outputs known so far."""
        self._num_computed = np.zeros(num_slots, np.int32)
        self._block_tables = np.zeros((num_slots, max_blocks), np.int32)
        self._num_blocks = np.zeros(num_slots, np.int32)
        self._decodes = np.zeros(num_slots, np.int32)
        self._num_decodes = 0

    def admit(self, slot: int, token_ids: Int32s, cached_blocks: tuple[int, ...]) -> None:
        """Fill an empty slot with a request's tokens and the cached blocks it starts from."""
        self.token_ids[slot, : len(token_ids)] = token_ids
        self.num_tokens[slot] = len(token_ids)
        self._num_computed[slot] = len(cached_blocks) * self._block_size
        self._num_blocks[slot] = 0
        self.append_blocks(slot, cached_blocks)

    def append_blocks(self, slot: int, blocks: tuple[int, ...]) -> None:
        num_blocks = self._num_blocks[slot]
        self._block_tables[slot, num_blocks : num_blocks + len(blocks)] = blocks
        self._num_blocks[slot] += len(blocks)

    def join_decodes(self, slots: list[int]) -> None:
        """Let slots decode from this step on."""
        self._decodes[self._num_decodes : self._num_decodes + len(slots)] = slots
        self._num_decodes += len(slots)

    def leave_decodes(self, slots: list[int]) -> None:
        """Take slots out of the decode set, if they are in it; the others keep their order."""
        members = self._decodes[: self._num_decodes]
        staying = members[~np.isin(members, slots)]
        self._decodes[: len(staying)] = staying
        self._num_decodes = len(staying)

    def clear_decodes(self) -> None:
        self._num_decodes = 0

    def tokens_of(self, slot: int) -> Int32s:
        """Give a view of the slot's prompt and outputs."""
        return self.token_ids[slot, : self.num_tokens[slot]]

    def pack(self, plan: StepPlan) -> PackedStep:
        """Pack a step whose changes have been made: prompt chunks first, then the decode set."""
        decodes = self._decodes[: self._num_decodes]
        assert len(decodes) == plan.num_decodes, "executor and scheduler differ about the decodes"
        decode_positions = self._num_computed[decodes]
        positions = [*map(_chunk_positions, plan.chunks), decode_positions]
        input_ids = [
            self.token_ids[chunk.slot, chunk.start : chunk.start + chunk.count]
            for chunk in plan.chunks
        ]
        input_ids.append(self.token_ids[decodes, decode_positions])
        counts = np.array([chunk.count for chunk in plan.chunks], np.int32)
        query_lens = np.concatenate([counts, np.ones(len(decodes), np.int32)])
        chunk_slots = np.array([chunk.slot for chunk in plan.chunks], np.int32)
        slots = np.concatenate([chunk_slots, decodes])
        ends = np.cumsum(query_lens, dtype=np.int32)
        chunk_ends = np.array([chunk.start + chunk.count for chunk in plan.chunks], np.int32)
        context_lens = np.concatenate([chunk_ends, decode_positions + np.int32(1)])
        width = div_ceil(int(context_lens.max()), self._block_size)
        block_tables = self._block_tables[slots, :width]
        all_positions = np.concatenate(positions)
        rows = np.repeat(np.arange(len(slots)), query_lens)
        blocks = block_tables[rows, all_positions // self._block_size]
        emits = np.array([chunk.emits for chunk in plan.chunks] + [True] * len(decodes), np.bool_)
        batch = PackedBatch(
            input_ids=np.concatenate(input_ids),
            positions=all_positions,
            cu_seqlens_q=np.concatenate([np.zeros(1, np.int32), ends]),
            context_lens=context_lens,
            block_tables=block_tables,
            slot_mapping=blocks * self._block_size + all_positions % self._block_size,
            logit_rows=ends[emits] - np.int32(1),
            num_prefills=len(plan.chunks),
        )
        return PackedStep(batch, slots[emits])

    def commit(self, plan: StepPlan, slots: Int32s, new_token_ids: Int32s) -> None:
        """Note what a step consumed and emitted. slots, new_token_ids: [R] int32."""
        for chunk in plan.chunks:
            self._num_computed[chunk.slot] = chunk.start + chunk.count
        self._num_computed[self._decodes[: self._num_decodes]] += 1
        # The last token of a longest context has no place in the row; nobody will read it.
        fits = self.num_tokens[slots] < self.token_ids.shape[1]
        self.token_ids[slots[fits], self.num_tokens[slots[fits]]] = new_token_ids[fits]
        self.num_tokens[slots] += 1


def _chunk_positions(chunk: PrefillChunk) -> Int32s:
    return np.arange(chunk.start, chunk.start + chunk.count, dtype=np.int32)
