"""The executor of the virtual clock: it computes no tokens, it only knows when they would end.

Belongs here: who has emitted how many outputs, who ends by itself, which token ids stand where, and
what work a pass does (costs.work), of which `step_time` makes a duration. The scheduler never
learns how long an output will be; this executor reports it in the pass in which it happens. A
running request costs nothing in a pass in which it only decodes: like the scheduler's decode set it
keeps a calendar, and the work of all decodes is a sum that grows by their number. Called by sim.

Token ids are those of streams handed in as ranges and arrays. They are read only for prefix caching
(TokenStore), as runs.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import TypeAlias

from everbatch.base.clock import VirtualClock
from everbatch.base.units import div_ceil
from everbatch.costs.work import StepTime, StepWork, TokensAlone
from everbatch.engine.engine import EngineRequest
from everbatch.engine.executor import EmittedTokens
from everbatch.scheduler.leap import Stretch
from everbatch.scheduler.plan import Admission, PrefillChunk, StepOutcome, StepPlan

NOTHING_TO_STREAM = EmittedTokens((), (), None)

_RUN = Struct("<iI")
"""The first id of a run, and how many follow each other."""

Piece: TypeAlias = "range | array[int]"
"""Consecutive ids, or ids as they are written; both are sliced, not walked through."""


class OneTick(TokensAlone):
    """Every pass takes one tick, whatever it does: the clock of steps."""

    def duration_ns(self, work: StepWork) -> int:
        return 1


@dataclass(slots=True)
class SimulatedText:
    """A request's token ids, prompt and outputs, piece by piece; 32-bit integers.

    Written ids are not negative; ranges are of negative ids. `output_tokens` is the number of
    outputs after which the model ends by itself; the last piece are those of the first sample,
    `other_outputs` those of the others.
    """

    pieces: tuple[Piece, ...]
    output_tokens: int
    other_outputs: tuple[Piece, ...] = ()

    def read(self, blocks: range, block_size: int, sample: int = 0) -> list[bytes]:
        """Give what these blocks of a sample hold: equal bytes where the ids are, and only there.

        Nothing is made token by token: a run of negative ids is its first id and its length,
        adjacent runs are one, and other ids are written as they are.
        """
        outputs = self.other_outputs[sample - 1] if sample else self.pieces[-1]
        found: list[bytes] = []
        parts: list[Piece] = []
        start, left = blocks.start * block_size, len(blocks) * block_size
        room = block_size
        for piece in (*self.pieces[:-1], outputs):
            if not start and left and room == len(piece) == block_size and type(piece) is range:
                # A whole block: those of a trace that names its blocks are such.
                found.append(_run_bytes(piece))
                start += block_size
                left -= block_size
            while start < len(piece) and left:
                part = piece[start : start + room]
                parts.append(part)
                start += len(part)
                left -= len(part)
                room -= len(part)
                if not room:
                    found.append(_joined(parts))
                    parts, room = [], block_size
            if not left:
                return found
            start -= len(piece)
        raise AssertionError("tokens that nobody knows were asked for")


def _joined(parts: list[Piece]) -> bytes:
    """Give ids as bytes from which they can be told: runs of negative ones, others as they are."""
    texts: list[bytes] = []
    run: range | None = None
    for part in parts:
        if run is not None and isinstance(part, range) and part.start == run.stop:
            run = range(run.start, part.stop)
            continue
        if run is not None:
            texts.append(_run_bytes(run))
        run = part if isinstance(part, range) else None
        if not isinstance(part, range):
            texts.append(part.tobytes())
    if run is not None:
        texts.append(_run_bytes(run))
    return texts[0] if len(texts) == 1 else b"".join(texts)


def _run_bytes(run: range) -> bytes:
    assert run.stop <= 0, "a run of ids that could be written ones"
    return _RUN.pack(run.start, len(run))


@dataclass(slots=True)
class _Row:
    """One slot's request; its counts are as of `joined_at`, the pass after which it decodes."""

    text: SimulatedText
    num_outputs: int
    num_computed: int
    """Tokens with KV entries."""
    joined_at: int | None = None


class SimulatedExecutor:
    """Carries out plans on a virtual clock, which it moves by what each pass takes."""

    def __init__(self, clock: VirtualClock, step_time: StepTime | None = None) -> None:
        """step_time: how long a pass takes, in the unit of the clock; None: one tick."""
        self._clock = clock
        self._step_time: StepTime = OneTick() if step_time is None else step_time
        self.work = StepWork()
        """What the last pass did; the object is used again."""
        self.num_tokens = 0
        """Tokens computed in all passes; masked rows compute none that count."""
        self._num_last_tokens = 0
        """Of them, those of the last planned pass."""
        self._rows: dict[int, _Row] = {}
        self._ends_at: dict[int, dict[int, None]] = {}
        """Slots by the pass that emits their last output."""
        self._first_end: int | None = None
        """The first pass of `_ends_at`, where it is known."""
        self._num_passes = 0
        self._num_decodes = 0
        self._decode_context = 0
        """Tokens that the next pass reads for its decodes, those that it consumes included."""

    @property
    def tokens(self) -> "SimulatedExecutor":
        return self

    def read(
        self, request_id: str, payload: object, sample: int, blocks: range, block_size: int
    ) -> list[bytes]:
        """Give what blocks hold, as runs (scheduler.plan.TokenStore)."""
        return _text_of(payload).read(blocks, block_size, sample)

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Let one pass go by; gives who ended by itself in it."""
        self._release(plan.released)
        for admission in plan.restated:
            self._admit(admission)
        for slot in plan.left:
            self._leave(slot)
        for admission in plan.admitted:
            self._admit(admission)
        for slot in plan.joined:
            self._join(slot)
        assert self._num_decodes == plan.num_decodes, "the decode sets differ"
        self._count_work(plan)
        self._num_last_tokens = self._num_decodes + self.work.prefill_tokens
        self.num_tokens += self._num_last_tokens
        self._num_passes += 1
        self._decode_context += self._num_decodes
        stopped = list(self._ends_at.pop(self._num_passes, ()))
        for chunk in plan.chunks:
            self._compute_chunk(chunk, stopped)
        self._clock.advance(self._step_time.duration_ns(self.work))
        return StepOutcome(stopped=stopped, tokens=NOTHING_TO_STREAM)

    def leap(self, stretch: Stretch, until: int) -> None:
        """Let passes of the same decodes go by; none but the first begins at `until` or later.

        Ends with the first pass that ends somebody.
        """
        if stretch.released or stretch.joined:
            self._release(stretch.released)
            for request in stretch.joined:
                assert request.slot is not None
                self._join(request.slot)
        num_decodes = self._num_decodes
        assert num_decodes == stretch.num_decodes, "the decode sets differ"
        most = stretch.most
        if self._first_end is None and self._ends_at:
            self._first_end = min(self._ends_at)
        if self._first_end is not None:
            most = min(most, self._first_end - self._num_passes)
        count = self._run_passes(stretch, most, until)
        self._num_passes += count
        num_tokens = num_decodes * count
        self.num_tokens += num_tokens
        self._decode_context += num_tokens
        if self._num_passes == self._first_end:
            stretch.stopped += self._ends_at.pop(self._num_passes)
            self._first_end = None

    def reset(self) -> None:
        """Forget all slots (engine.executor.Executor), and that the last pass computed anything."""
        self.num_tokens -= self._num_last_tokens
        self._num_last_tokens = 0
        self._rows.clear()
        self._ends_at.clear()
        self._first_end = None
        self._num_decodes = 0
        self._decode_context = 0

    def _run_passes(self, stretch: Stretch, most: int, until: int) -> int:
        """Let up to `most` passes of nothing but the decode set go by; gives how many did."""
        work, clock = self.work, self._clock
        work.num_decodes = work.num_logits = stretch.num_decodes
        work.decode_context = self._decode_context
        work.num_chunks = work.prefill_tokens = work.prefill_context = work.prefill_pairs = 0
        work.swapped_blocks = work.copied_blocks = 0
        stretch.start_ns = clock.now_ns()
        if isinstance(self._step_time, TokensAlone):
            duration = self._step_time.duration_ns(work)
            count = min(most, div_ceil(until - stretch.start_ns, duration))
            stretch.durations += [duration] * count
            clock.advance(duration * count)
        else:
            self._run_one_by_one(stretch, most, until)
        return len(stretch.durations)

    def _run_one_by_one(self, stretch: Stretch, most: int, until: int) -> None:
        """Let passes go by each of which reads more than the one before."""
        work, clock = self.work, self._clock
        time_left = until - stretch.start_ns
        for _ in range(most):
            duration = self._step_time.duration_ns(work)
            stretch.durations.append(duration)
            clock.advance(duration)
            time_left -= duration
            if time_left <= 0:
                break
            work.decode_context += stretch.num_decodes

    def _count_work(self, plan: StepPlan) -> None:
        """Say what the pass is about to do. A masked row is a decode that reads its own token."""
        work, num_masked = self.work, len(plan.masked)
        work.num_decodes = work.num_logits = self._num_decodes + num_masked
        work.decode_context = self._decode_context + num_masked
        work.num_chunks = work.prefill_tokens = work.prefill_context = work.prefill_pairs = 0
        for chunk in plan.chunks:
            work.add_chunk(chunk.start, chunk.count)
            work.num_logits += chunk.emits
        work.swapped_blocks = len(plan.swap_out) + len(plan.swap_in)
        work.copied_blocks = len(plan.copies)

    def _compute_chunk(self, chunk: PrefillChunk, stopped: list[int]) -> None:
        """Note what a chunk computed, and add to `stopped` whose first output is the last."""
        stop = chunk.start + chunk.count
        self._rows[chunk.slot].num_computed = stop
        if not chunk.emits:
            return
        for slot in (chunk.slot, *chunk.followers):
            row = self._rows[slot]
            row.num_computed = stop
            row.num_outputs += 1
            if row.num_outputs == row.text.output_tokens:
                stopped.append(slot)

    def _release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot in self._rows:
                self._leave(slot)
                del self._rows[slot]

    def _admit(self, admission: Admission) -> None:
        assert admission.slot not in self._rows, "a slot was given away twice"
        text = _text_of(admission.payload)
        self._rows[admission.slot] = _Row(
            text, admission.num_output_tokens, admission.num_cached_tokens
        )

    def _join(self, slot: int) -> None:
        row = self._rows[slot]
        assert row.joined_at is None, "a member joined again"
        row.joined_at = self._num_passes
        self._num_decodes += 1
        self._decode_context += row.num_computed + 1
        end = self._end(row)
        self._ends_at.setdefault(end, {})[slot] = None
        if self._first_end is not None and end < self._first_end:
            self._first_end = end

    def _leave(self, slot: int) -> None:
        row = self._rows[slot]
        if row.joined_at is None:
            return
        end = self._end(row)
        num_decoded = self._num_passes - row.joined_at
        row.num_outputs += num_decoded
        row.num_computed += num_decoded
        row.joined_at = None
        self._num_decodes -= 1
        self._decode_context -= row.num_computed + 1
        due = self._ends_at.get(end)
        if due is not None:
            due.pop(slot, None)
            if not due:
                del self._ends_at[end]
        self._first_end = None

    def _end(self, row: _Row) -> int:
        assert row.joined_at is not None
        return row.joined_at + row.text.output_tokens - row.num_outputs


def _text_of(payload: object) -> SimulatedText:
    assert isinstance(payload, EngineRequest)
    text = payload.prompt_token_ids
    assert isinstance(text, SimulatedText)
    return text
