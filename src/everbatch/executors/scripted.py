"""An executor without a model, for tests: it checks every plan and answers by rule.

It keeps a KV cache of its own whose entries are token ids, and reads it back through the block
tables: the next token is a function of what it reads. So wrong block tables, stale prefix hits,
lost or doubled tokens change the text or trip an assertion. Tests say how long texts are and which
steps or rows fail.
"""

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from zlib import crc32

from everbatch.base.errors import ExecutorError
from everbatch.engine.executor import EmittedTokens
from everbatch.kv_cache.content import in_blocks
from everbatch.scheduler.plan import Admission, PrefillChunk, StepOutcome, StepPlan

VOCAB_SIZE = 50_000


@dataclass(slots=True)
class _Row:
    """One slot's request: `tokens` are prompt and outputs, [0, computed) have KV entries."""

    request_id: str
    payload: object
    tokens: list[int]
    table: list[int]
    num_computed: int
    sample: int


@dataclass(slots=True)
class ScriptedExecutor:
    """Runs plans over token ids. `prompt_of(payload)` gives a request's prompt.

    `output_lengths` says after how many outputs a request stops by itself; others never do.
    Passes in `failing_steps` raise ExecutorError, and so does copy number `failing_copy` of a
    block, within or between tiers; `failing_outputs` says at which of its outputs a request's row
    fails. Passes with a row of somebody in `poisoned` raise, too.
    """

    block_size: int
    prompt_of: Callable[[object], Sequence[int]]
    output_lengths: Mapping[str, int] = field(default_factory=dict)
    failing_steps: frozenset[int] = frozenset()
    failing_outputs: Mapping[str, int] = field(default_factory=dict)
    failing_copy: int | None = None
    poisoned: frozenset[str] = frozenset()
    num_steps: int = 0
    num_copies: int = 0
    _rows: dict[int, _Row] = field(default_factory=dict)
    _slot_of: dict[str, int] = field(default_factory=dict)
    _decodes: dict[int, None] = field(default_factory=dict)
    _kept: dict[str, _Row] = field(default_factory=dict)
    _kv: dict[int, int] = field(default_factory=dict)
    _host_kv: dict[int, int] = field(default_factory=dict)

    @property
    def tokens(self) -> "ScriptedExecutor":
        return self

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        """Give token ids as bytes (scheduler.plan.TokenStore)."""
        slot = self._slot_of.get(request_id)
        row = self._kept.get(request_id) if slot is None else self._rows[slot]
        # An id may come again with another request once the first has ended.
        known = row is not None and row.payload is payload
        tokens = row.tokens if row is not None and known else self.prompt_of(payload)
        start, stop = blocks.start * block_size, blocks.stop * block_size
        assert stop <= len(tokens), "tokens that nobody knows were asked for"
        return in_blocks(array("i", tokens[start:stop]).tobytes(), block_size)

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Carry out a plan, checking it on the way."""
        self.num_steps += 1
        self._apply_changes(plan)
        emitting: list[int] = []
        for chunk in plan.chunks:
            self._write_chunk(chunk)
            if chunk.emits:
                emitting.append(chunk.slot)
                emitting += chunk.followers
                for follower in chunk.followers:
                    self._fork(self._rows[chunk.slot], self._rows[follower])
        for slot in self._decodes:
            row = self._rows[slot]
            assert row.num_computed == len(row.tokens) - 1, "a decode has one pending token"
            self._write_kv(row, row.num_computed, 1)
            emitting.append(slot)
        if self.num_steps in self.failing_steps:
            # As late as can be: slots have changed and blocks have been written.
            raise ExecutorError(f"pass {self.num_steps} was told to fail")
        computing = [*(chunk.slot for chunk in plan.chunks), *self._decodes]
        if any(self._rows[slot].request_id in self.poisoned for slot in computing):
            raise ExecutorError("a row of this pass was told to make it fail")
        return self._emit(emitting)

    def reset(self) -> None:
        """Forget all slots, keep their tokens."""
        for slot in list(self._rows):
            self._release(slot, keep=True)

    def _apply_changes(self, plan: StepPlan) -> None:
        for slot in plan.released:
            self._release(slot, keep=slot in plan.preempted)
        for admission in plan.restated:
            self._admit(admission)
        for slot in plan.left:
            del self._decodes[slot]
        assert not self._rows.keys() & set(plan.masked), "a masked slot holds a request"
        self._swap(plan)
        for slot, source, destination in plan.copies:
            row = self._rows[slot]
            assert row.table[-1] == source, "not the tail is to be copied"
            self._copy(self._kv, source, self._kv, destination)
            row.table[-1] = destination
        for admission in plan.admitted:
            self._admit(admission)
        for slot, block in plan.appended:
            self._rows[slot].table.append(block)
        for slot in plan.joined:
            assert slot not in self._decodes, "a member joined again"
            self._decodes[slot] = None
        assert len(self._decodes) == plan.num_decodes, "the decode sets differ"

    def _swap(self, plan: StepPlan) -> None:
        for block, host_block in plan.swap_out:
            self._copy(self._kv, block, self._host_kv, host_block)
        for host_block, block in plan.swap_in:
            self._copy(self._host_kv, host_block, self._kv, block)

    def _copy(
        self, source: dict[int, int], from_block: int, target: dict[int, int], to_block: int
    ) -> None:
        """Copy what stands in a block; places never written are cleared in the copy."""
        self.num_copies += 1
        if self.num_copies == self.failing_copy:
            raise ExecutorError(f"copy {self.num_copies} was told to fail")
        for offset in range(self.block_size):
            token = source.get(from_block * self.block_size + offset)
            place = to_block * self.block_size + offset
            if token is None:
                target.pop(place, None)
            else:
                target[place] = token

    def _admit(self, admission: Admission) -> None:
        assert admission.slot not in self._rows, "a slot was given away twice"
        kept = self._kept.pop(admission.request_id, None)
        known = kept is not None and kept.payload is admission.payload
        tokens = kept.tokens if kept is not None and known else self.prompt_of(admission.payload)
        self._rows[admission.slot] = _Row(
            admission.request_id,
            admission.payload,
            list(tokens),
            list(admission.cached_blocks),
            admission.num_cached_tokens,
            admission.sample,
        )
        self._slot_of[admission.request_id] = admission.slot

    def _release(self, slot: int, *, keep: bool) -> None:
        row = self._rows.pop(slot, None)
        self._decodes.pop(slot, None)
        if row is None:
            return
        del self._slot_of[row.request_id]
        if keep:
            self._kept[row.request_id] = row

    def _write_chunk(self, chunk: PrefillChunk) -> None:
        row = self._rows[chunk.slot]
        assert chunk.slot not in self._decodes, "a decode was given a chunk"
        assert chunk.start == row.num_computed, "a chunk does not start where the last one ended"
        row.table += chunk.new_blocks
        self._write_kv(row, chunk.start, chunk.count)
        assert chunk.emits <= (row.num_computed == len(row.tokens)), "an early chunk emits"

    def _fork(self, leader: _Row, follower: _Row) -> None:
        follower.table = list(leader.table)
        follower.num_computed = leader.num_computed
        assert follower.tokens == leader.tokens, "samples of different prompts share a chunk"

    def _write_kv(self, row: _Row, start: int, count: int) -> None:
        for position in range(start, start + count):
            block = row.table[position // self.block_size]
            self._kv[block * self.block_size + position % self.block_size] = row.tokens[position]
        row.num_computed = start + count

    def _emit(self, slots: list[int]) -> StepOutcome:
        outcome = StepOutcome()
        new_tokens = [self._next_token(self._rows[slot]) for slot in slots]
        emitted: list[tuple[str, int]] = []
        for slot, token in zip(slots, new_tokens, strict=True):
            row = self._rows[slot]
            row.tokens.append(token)
            num_outputs = len(row.tokens) - len(self.prompt_of(row.payload))
            if num_outputs == self.failing_outputs.get(row.request_id):
                outcome.failed.append((slot, f"output {num_outputs} was told to fail"))
                continue
            emitted.append((row.request_id, token))
            if num_outputs == self.output_lengths.get(row.request_id):
                outcome.stopped.append(slot)
        outcome.tokens = EmittedTokens(
            [request_id for request_id, _ in emitted], [token for _, token in emitted], None
        )
        return outcome

    def _next_token(self, row: _Row) -> int:
        """Read the context back from the cache and hash it."""
        size = self.block_size
        context = [
            self._kv[row.table[position // size] * size + position % size]
            for position in range(row.num_computed)
        ]
        # Samples differ as if drawn with other seeds.
        return crc32(array("i", context).tobytes(), row.sample) % VOCAB_SIZE
