"""The persistent picture of the batch: arrays by slot, which plans change, and the packed step.

Belongs here: token ids, block tables and lengths of all slots, the decode set, and packing them
into a PackedBatch. Not here: sampling options (sampling_state.py), the forward pass (executor.py).

    S slots (max_num_seqs), C context limit in tokens, B blocks of a longest request
"""

from dataclasses import dataclass

import numpy as np

from everbatch.base.units import div_ceil
from everbatch.kernels.arrays import Flags, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import PrefillChunk, StepPlan


@dataclass(slots=True)
class PackedStep:
    """A batch, and the slots that sample after it."""

    batch: PackedBatch
    sampling_slots: Int32s
    """[R] int32."""
    logits_of: Int32s
    """[R] int32: the row of logits that each samples from; samples of one prompt share one."""


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

    def admit(
        self,
        slot: int,
        token_ids: Int32s,
        cached_blocks: tuple[int, ...],
        num_cached_tokens: int,
    ) -> None:
        """Fill an empty slot with a request's tokens and the cached blocks it starts from."""
        self.token_ids[slot, : len(token_ids)] = token_ids
        self.num_tokens[slot] = len(token_ids)
        self._num_computed[slot] = num_cached_tokens
        self._num_blocks[slot] = 0
        self.append_blocks(slot, cached_blocks)

    def append_blocks(self, slot: int, blocks: tuple[int, ...]) -> None:
        num_blocks = self._num_blocks[slot]
        self._block_tables[slot, num_blocks : num_blocks + len(blocks)] = blocks
        self._num_blocks[slot] += len(blocks)

    def replace_last_block(self, slot: int, block: int) -> None:
        self._block_tables[slot, self._num_blocks[slot] - 1] = block

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

    def pack(self, plan: StepPlan, scratch_block: int | None) -> PackedStep:
        """Pack a step whose changes have been made: prompt chunks first, then the decode set.

        Masked rows (static batching) come last: one token each, which attends to itself in the
        scratch block.
        """
        decodes = self._decodes[: self._num_decodes]
        assert len(decodes) == plan.num_decodes, "executor and scheduler differ about the decodes"
        if not plan.chunks and not plan.masked:
            return self._pack_decodes(decodes)
        chunks = plan.chunks
        decode_positions = self._num_computed[decodes]
        chunk_slots = np.array([chunk.slot for chunk in chunks], np.int32)
        chunk_ends = np.array([chunk.start + chunk.count for chunk in chunks], np.int32)
        slots = np.concatenate([chunk_slots, decodes])
        query_lens = np.ones(len(slots), np.int32)
        query_lens[: len(chunks)] = [chunk.count for chunk in chunks]
        context_lens = np.concatenate([chunk_ends, decode_positions + np.int32(1)])
        positions = np.concatenate([*map(_chunk_positions, chunks), decode_positions])
        input_ids = np.concatenate(
            [
                *(self.token_ids[c.slot, c.start : c.start + c.count] for c in chunks),
                self.token_ids[decodes, decode_positions],
            ]
        )
        width = div_ceil(int(context_lens.max()), self._block_size)
        rows = _Rows(
            input_ids=input_ids,
            positions=positions,
            query_lens=query_lens,
            context_lens=context_lens,
            block_tables=self._block_tables[slots, :width],
            emits=np.array([chunk.emits for chunk in chunks] + [True] * len(decodes), np.bool_),
            num_prefills=len(chunks),
        )
        batch = rows.packed(self._block_size)
        if plan.masked:
            assert scratch_block is not None
            batch = _with_masked_rows(batch, len(plan.masked), scratch_block, self._block_size)
        return PackedStep(batch, *_sampling_rows(plan, decodes))

    def _pack_decodes(self, decodes: Int32s) -> PackedStep:
        """Pack a step of decodes alone, as most are: what `pack` gives, by half as many calls."""
        positions = self._num_computed[decodes]
        context_lens = positions + np.int32(1)
        in_order = np.arange(len(decodes) + 1, dtype=np.int32)
        width = div_ceil(int(context_lens.max()), self._block_size)
        tables = self._block_tables[decodes, :width]
        block_of, in_block = np.divmod(positions, np.int32(self._block_size))
        batch = PackedBatch(
            input_ids=self.token_ids[decodes, positions],
            positions=positions,
            cu_seqlens_q=in_order,
            context_lens=context_lens,
            block_tables=tables,
            slot_mapping=tables[in_order[:-1], block_of] * np.int32(self._block_size) + in_block,
            logit_rows=in_order[:-1],
            num_prefills=0,
        )
        # A copy, as the decode set may change before the tokens are noted.
        return PackedStep(batch, decodes.copy(), in_order[:-1])

    def commit(self, plan: StepPlan, slots: Int32s, new_token_ids: Int32s) -> None:
        """Note what a step consumed and emitted. slots, new_token_ids: [R] int32."""
        for chunk in plan.chunks:
            self._num_computed[chunk.slot] = chunk.start + chunk.count
            for follower in chunk.followers:
                self._fork(chunk.slot, follower)
        self._num_computed[self._decodes[: self._num_decodes]] += 1
        # The last token of a longest context has no place in the row; nobody will read it.
        fits = self.num_tokens[slots] < self.token_ids.shape[1]
        self.token_ids[slots[fits], self.num_tokens[slots[fits]]] = new_token_ids[fits]
        self.num_tokens[slots] += 1

    def _fork(self, leader: int, follower: int) -> None:
        """Let a sample go on from its leader's blocks; its tokens are there since admission."""
        num_blocks = self._num_blocks[leader]
        self._block_tables[follower, :num_blocks] = self._block_tables[leader, :num_blocks]
        self._num_blocks[follower] = num_blocks
        self._num_computed[follower] = self._num_computed[leader]


@dataclass(slots=True)
class _Rows:
    """The rows of a step: S rows with T tokens, prompt chunks first.

    input_ids, positions: [T] int32; query_lens, context_lens: [S] int32; emits: [S] bool, whose
    last token's logits are wanted; block_tables: [S, max_blocks] int32.
    """

    input_ids: Int32s
    positions: Int32s
    query_lens: Int32s
    context_lens: Int32s
    block_tables: Int32s
    emits: Flags
    num_prefills: int

    def packed(self, block_size: int) -> PackedBatch:
        """Add what follows from tokens, lengths and tables: offsets, slots, rows of logits."""
        rows = np.repeat(np.arange(len(self.query_lens)), self.query_lens)
        blocks = self.block_tables[rows, self.positions // block_size]
        ends = np.cumsum(self.query_lens, dtype=np.int32)
        return PackedBatch(
            input_ids=self.input_ids,
            positions=self.positions,
            cu_seqlens_q=np.concatenate([np.zeros(1, np.int32), ends]),
            context_lens=self.context_lens,
            block_tables=self.block_tables,
            slot_mapping=blocks * block_size + self.positions % block_size,
            logit_rows=ends[self.emits] - np.int32(1),
            num_prefills=self.num_prefills,
        )


def _with_masked_rows(
    batch: PackedBatch, num_masked: int, scratch_block: int, block_size: int
) -> PackedBatch:
    """Add rows whose results nobody wants, each a decode of one token in the scratch block."""
    zeros, ones = np.zeros(num_masked, np.int32), np.ones(num_masked, np.int32)
    num_tokens = np.int32(batch.num_tokens)
    tables = np.full((num_masked, batch.block_tables.shape[1]), scratch_block, np.int32)
    new_rows = num_tokens + np.arange(num_masked, dtype=np.int32)
    return PackedBatch(
        input_ids=np.concatenate([batch.input_ids, zeros]),
        positions=np.concatenate([batch.positions, zeros]),
        cu_seqlens_q=np.concatenate([batch.cu_seqlens_q, new_rows + np.int32(1)]),
        context_lens=np.concatenate([batch.context_lens, ones]),
        block_tables=np.concatenate([batch.block_tables, tables]),
        slot_mapping=np.concatenate([batch.slot_mapping, zeros + scratch_block * block_size]),
        logit_rows=np.concatenate([batch.logit_rows, new_rows]),
        num_prefills=batch.num_prefills,
    )


def _sampling_rows(plan: StepPlan, decodes: Int32s) -> tuple[Int32s, Int32s]:
    """Give the slots that sample, and for each the row of logits: [R], [R] int32."""
    emitting = [chunk for chunk in plan.chunks if chunk.emits]
    groups = [(chunk.slot, *chunk.followers) for chunk in emitting]
    slots = np.array([slot for group in groups for slot in group], np.int32)
    rows = np.repeat(np.arange(len(groups)), [len(group) for group in groups])
    decode_rows = len(groups) + np.arange(len(decodes))
    logits_of = np.concatenate([rows, decode_rows]).astype(np.int32)
    return np.concatenate([slots, decodes]), logits_of


def _chunk_positions(chunk: PrefillChunk) -> Int32s:
    return np.arange(chunk.start, chunk.start + chunk.count, dtype=np.int32)
