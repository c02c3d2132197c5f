"""Runs plans on a real model: changes to the batch, forward pass, sampling.

Belongs here: the order in which a plan is carried out, and the record of token ids. Not here:
arithmetic (kernels), networks (models), decisions (scheduler). Built by assemble; driven by Engine.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from everbatch.base.errors import ExecutorError
from everbatch.engine.engine import EngineRequest
from everbatch.engine.executor import EmittedTokens
from everbatch.executors.model.input_batch import InputBatch, PackedStep
from everbatch.executors.model.prompt_scores import (
    note_scores,
    scored_parts,
    token_logprobs,
    with_forced_rows,
    with_scored_rows,
)
from everbatch.executors.model.sampling_state import ConstraintMaker, SamplingState
from everbatch.kernels.arrays import Floats, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.sampling import SampledTokens, SamplingRows
from everbatch.kv_cache.content import in_blocks
from everbatch.scheduler.config import SchedulerConfig
from everbatch.scheduler.plan import Admission, StepOutcome, StepPlan


class Network(Protocol):
    """A model: packed batch in, tokens of the rows that sample out, or their logits."""

    @property
    def vocab_size(self) -> int: ...
    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage: ...
    def forward(self, batch: PackedBatch, kv: KVStorage) -> Floats: ...
    def sample(
        self, batch: PackedBatch, kv: KVStorage, logits_of: Int32s, rows: SamplingRows
    ) -> SampledTokens: ...


@dataclass(slots=True, frozen=True)
class _Row:
    """Who holds a slot."""

    request: EngineRequest
    request_id: str
    sample: int


class ModelExecutor:
    """Carries out plans (engine.executor.Executor) and stores token ids (TokenStore)."""

    def __init__(
        self,
        network: Network,
        config: SchedulerConfig,
        eos_token_ids: tuple[int, ...],
        seed: int,
        constraint: ConstraintMaker | None = None,
    ) -> None:
        """constraint: makes the follower of an answer whose form was asked for; None: none is."""
        self._network = network
        # Masked rows write into one block more, which no request ever holds.
        self._scratch_block = config.num_blocks if config.batching == "static" else None
        num_blocks = config.num_blocks + int(config.batching == "static")
        self._kv = network.allocate_kv(num_blocks, config.block_size)
        self._host_kv: KVStorage | None = None
        if config.num_host_blocks:
            self._host_kv = network.allocate_kv(config.num_host_blocks, config.block_size)
        self._batch = InputBatch(config)
        self._sampling = SamplingState(config.max_num_seqs, eos_token_ids, seed, constraint)
        self._rows: dict[int, _Row] = {}
        """By slot."""
        self._slot_of: dict[str, int] = {}

    @property
    def tokens(self) -> "ModelExecutor":
        return self

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        """Give token ids as little-endian int32 (scheduler.plan.TokenStore)."""
        slot = self._slot_of.get(request_id)
        # The slot may still be that of an ended request whose id has come again.
        if slot is not None and self._rows[slot].request is payload:
            known = self._batch.tokens_of(slot)
        else:
            known = _known_tokens(payload, sample)
        start, stop = blocks.start * block_size, blocks.stop * block_size
        assert stop <= len(known)
        return in_blocks(known[start:stop].astype("<i4", copy=False).tobytes(), block_size)

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one forward pass; `outcome.tokens` is EmittedTokens in the order of rows.

        Raises ExecutorError where memory runs out; all other exceptions are bugs
        (engine.executor).
        """
        try:
            return self._execute(plan)
        except MemoryError:
            advice = "lower --max-num-batched-tokens or --kv-cache-memory, or free memory"
        # Not as its consequence: the error would keep alive all arrays of the pass, and there has
        # to be memory to go on with.
        raise ExecutorError(f"out of memory in a step of {plan.num_tokens:,} tokens: {advice}")

    def _execute(self, plan: StepPlan) -> StepOutcome:
        self._apply_changes(plan)
        step = self._batch.pack(plan, self._scratch_block)
        parts = scored_parts(plan, step, self._request_in, self._batch.token_ids)
        if parts:
            step = with_scored_rows(step, parts)
        rows = self._sampling.rows(
            step.sampling_slots,
            self._batch.num_tokens,
            self._batch.token_ids,
            self._network.vocab_size,
        )
        if parts:
            rows = with_forced_rows(rows, parts)
        sampled = self._network.sample(step.batch, self._kv, step.logits_of, rows)
        if parts:
            sampled = note_scores(sampled, len(step.sampling_slots), parts)
        self._batch.commit(plan, step.sampling_slots, sampled.token_ids)
        return self._outcome(step, sampled)

    def reset(self) -> None:
        """Forget all slots, after a failed pass; the tokens of their requests stay readable."""
        self._release(list(self._rows), keep=list(self._rows))
        self._batch.clear_decodes()

    def _apply_changes(self, plan: StepPlan) -> None:
        self._release(plan.released, keep=plan.preempted)
        for admission in plan.restated:
            self._admit(admission)
        if plan.left:
            self._batch.leave_decodes(plan.left)
        self._move_blocks(plan)
        for admission in plan.admitted:
            self._admit(admission)
        for chunk in plan.chunks:
            self._batch.append_blocks(chunk.slot, chunk.new_blocks)
        for slot, block in plan.appended:
            self._batch.append_blocks(slot, (block,))
        if plan.joined:
            self._batch.join_decodes(plan.joined)

    def _move_blocks(self, plan: StepPlan) -> None:
        """Carry out swaps and copies, in the order in which the plan relies on them."""
        if plan.swap_out:
            assert self._host_kv is not None
            self._host_kv.copy_from(self._kv, *_columns(plan.swap_out))
        if plan.swap_in:
            assert self._host_kv is not None
            self._kv.copy_from(self._host_kv, *_columns(plan.swap_in))
        if plan.copies:
            self._kv.copy_blocks(*_columns([(source, copy) for _, source, copy in plan.copies]))
            for slot, _, copy in plan.copies:
                self._batch.replace_last_block(slot, copy)

    def _admit(self, admission: Admission) -> None:
        request, slot = admission.payload, admission.slot
        assert isinstance(request, EngineRequest)
        self._rows[slot] = _Row(request, admission.request_id, admission.sample)
        self._slot_of[admission.request_id] = slot
        # A pass that failed late has perhaps noted a token that nobody was told.
        num_told = request.num_prompt_tokens + admission.num_output_tokens
        self._batch.admit(
            slot,
            _known_tokens(request, admission.sample)[:num_told],
            admission.cached_blocks,
            admission.num_cached_tokens,
        )
        self._sampling.admit(
            slot,
            request.sampling,
            request.arrival_number,
            request.num_prompt_tokens,
            admission.sample,
        )
        request.executor_state.pop(admission.sample, None)

    def _release(self, slots: list[int], *, keep: list[int]) -> None:
        """Empty slots; the tokens of those in `keep` go with their requests, who come back."""
        if not slots:
            return
        self._batch.leave_decodes(slots)
        for slot in slots:
            # A slot may have been forgotten before, by a reset.
            row = self._rows.get(slot)
            if row is None:
                continue
            if slot in keep:
                # First, as memory may run out here: then the slot still has them.
                tokens = self._batch.tokens_of(slot).copy()
                row.request.executor_state[row.sample] = tokens
            del self._rows[slot]
            if self._slot_of.get(row.request_id) == slot:
                del self._slot_of[row.request_id]

    def _request_in(self, slot: int) -> EngineRequest:
        return self._rows[slot].request

    def _outcome(self, step: PackedStep, sampled: SampledTokens) -> StepOutcome:
        slots, token_ids = step.sampling_slots, sampled.token_ids
        outcome = StepOutcome()
        if sampled.failed.any():
            outcome.failed = [
                (slot, self._sampling.why_failed(slot)) for slot in slots[sampled.failed].tolist()
            ]
        stopped = self._sampling.stopped(slots, token_ids) & ~sampled.failed
        if stopped.any():
            outcome.stopped = slots[stopped].tolist()
        outcome.tokens = self._emitted(slots, token_ids, sampled)
        return outcome

    def _emitted(self, slots: Int32s, token_ids: Int32s, sampled: SampledTokens) -> EmittedTokens:
        rows = np.flatnonzero(~sampled.failed).tolist()
        logprobs = None
        if sampled.logprobs:
            logprobs = [token_logprobs(sampled.logprobs.get(row)) for row in rows]
        ids = token_ids.tolist()
        return EmittedTokens(
            [self._rows[slot].request_id for slot in slots[rows].tolist()],
            [ids[row] for row in rows],
            logprobs,
        )


def _known_tokens(payload: object, sample: int) -> Int32s:
    """Give the tokens of a request without a slot: its prompt, or all it had when preempted."""
    assert isinstance(payload, EngineRequest)
    tokens = payload.executor_state.get(sample, payload.prompt_token_ids)
    assert isinstance(tokens, np.ndarray)
    return tokens


def _columns(pairs: list[tuple[int, int]]) -> tuple[list[int], list[int]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
