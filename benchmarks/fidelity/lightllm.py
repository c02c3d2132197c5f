"""LightLLM's router before our scheduler: those of its rules for which there is no option.

The preset "lightllm" says what options can. What is left is here, as a waiting queue that hands out
nobody until the router would form its next batch, and then those whom it would let in:

- After a batch of prompts ten decode steps go by before the next is tried; where nobody is let in,
  it is tried again in every step.
- The prompts of one batch have 3,072 tokens at most.
- The future peak is compared token by token, with each request's true length, which the runs force.
- S-LoRA, a fork of LightLLM, holds 4 × rank tokens of the pool for every adapter in use, with
  LoRA switched off too; the clients of its fairness runs are adapters of rank 8.
- VTC charges everybody who runs once more after a pass in which somebody ended, and nothing for a
  first output. With lengths known in advance it charges a whole life when a request is let in.

LightLLM computes prompts in a pass of their own. Here they are in a step with decodes, which takes
what both passes take (`TwoPasses`); so a first token comes one decode later, which is 25 ms there.

Source of the rules: slora/server/router of VTC-artifact at 192c2e20 (manager.py, req_queue.py,
vtc_req_queue.py, vtc_oracle_req_queue.py). Called by vtc_runs.py.
"""

from bisect import insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from everbatch.costs.work import StepWork
from everbatch.scheduler.policy import Vtc
from everbatch.scheduler.queue import Granted, WaitingQueue
from everbatch.scheduler.request import Request
from everbatch.scheduler.state import SchedulerState
from everbatch.scheduler.tenants import OUTPUT_TOKEN_PRICE, TenantLedger

DECODES_BETWEEN_BATCHES = 10
BATCH_TOKENS = 3_072
ADAPTER_TOKENS = 32
"""4 × rank 8."""


@dataclass(frozen=True, slots=True)
class TwoPasses:
    """A pass over the prompts, then one of the decodes; in nanoseconds."""

    prompt_token: float
    decode_step: float
    context_token: float

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1."""
        duration = self.prompt_token * work.prefill_tokens
        if work.num_decodes:
            duration += self.decode_step + self.context_token * work.decode_context
        return max(1, round(duration))


@dataclass(frozen=True, slots=True, order=True)
class Seat:
    """One who runs: its first output is of step `first_step`, its last of step `last_step`."""

    last_step: int
    first_step: int
    num_prompt_tokens: int
    tenant: str


def peak_tokens(seats: list[Seat], step: int) -> int:
    """Give the most tokens that all hold at any time after `step` steps, as the router counts.

    `seats` ascend. Who ends last is counted first: when the i-th of them ends, the i that are still
    there have grown by what was left to it.
    """
    held = peak = 0
    for place, seat in enumerate(reversed(seats), 1):
        held += seat.num_prompt_tokens + step - seat.first_step + 1
        peak = max(peak, held + place * (seat.last_step - step - 1))
    return peak


class RouterLedger(TenantLedger):
    """VTC's counters as the artifact keeps them.

    It charges before each pass of decodes, so the first output is free; and once more, everybody
    who runs, after a pass in which somebody ended.
    """

    def let_in(self, request: Request) -> None:
        """Take back what the first output will be charged."""
        TenantLedger.charge_outputs(self, request.tenant, -1)

    def after_an_end(self, seats: Iterable[Seat]) -> None:
        """Charge those who ran in a pass in which somebody ended."""
        for seat in seats:
            TenantLedger.charge_outputs(self, seat.tenant, 1)


class KnownLengthsLedger(RouterLedger):
    """The same, where lengths are known: a request is charged for its life when it is let in."""

    def charge_outputs(self, tenant: str, num_tokens: int) -> None:
        """Charge nothing: the life has been charged."""

    def change_decoding(self, tenant: str, change: int, step: int) -> None:
        """Charge nothing: the life has been charged."""

    def let_in(self, request: Request) -> None:
        """Charge all outputs; the prompt is charged when it is computed, as always."""
        TenantLedger.charge_outputs(self, request.tenant, request.max_tokens)

    def after_an_end(self, seats: Iterable[Seat]) -> None:
        """Charge nothing: lives have been charged."""


class RouterQueue:
    """The queue of a policy, seen through LightLLM's router. Nobody may leave while waiting."""

    def __init__(self, queue: WaitingQueue, num_tokens: int, ledger: RouterLedger | None) -> None:
        """num_tokens: of the pool; the peak stays below. ledger: the tenants' counters, if any."""
        self._queue = queue
        self._num_tokens = num_tokens
        self._ledger = ledger
        self._seats: list[Seat] = []
        self._step = 0
        """Steps completed when the last plan was made."""
        self._last_batch = -DECODES_BETWEEN_BATCHES

    def __len__(self) -> int:
        return len(self._queue)

    def __contains__(self, request: object) -> bool:
        return request in self._queue

    def push(self, request: Request) -> None:
        """Add a request that is not in it."""
        self._queue.push(request)

    def remove(self, request: Request) -> None:
        """Take out a request that the last plan admits."""
        self._queue.remove(request)
        step, num_prompt = self._step, request.num_prompt_tokens
        insort(self._seats, Seat(step + request.max_tokens, step + 1, num_prompt, request.tenant))
        self._last_batch = step
        if self._ledger is not None:
            self._ledger.let_in(request)

    def peek(self, step: int) -> Request | None:
        """Give the head."""
        return self._queue.peek(step)

    def in_order(self, step: int, granted: Granted = lambda request: 0) -> Iterator[Request]:
        """Go through those whom the router would let in now, changing no request."""
        self._note_ends(step)
        if self._seats and step - self._last_batch < DECODES_BETWEEN_BATCHES:
            return
        seats, tokens_left = list(self._seats), BATCH_TOKENS
        for request in self._queue.in_order(step, self._charged(granted)):
            num_prompt, last_step = request.num_prompt_tokens, step + request.max_tokens
            # Counted as if its prompt were computed and its first output there.
            insort(seats, Seat(last_step, step, num_prompt, request.tenant))
            tokens_left -= num_prompt
            adapters = ADAPTER_TOKENS * len({seat.tenant for seat in seats})
            if tokens_left < 0 or peak_tokens(seats, step) >= self._num_tokens - adapters:
                # The first that does not fit ends the scan.
                return
            yield request

    def _note_ends(self, step: int) -> None:
        """Let go of those who have ended since the last plan."""
        ends = sorted({seat.last_step for seat in self._seats if seat.last_step <= step})
        for end in ends if self._ledger is not None else ():
            self._ledger.after_an_end(
                seat for seat in self._seats if seat.first_step < end <= seat.last_step
            )
        self._seats = [seat for seat in self._seats if seat.last_step > step]
        self._step = step

    def _charged(self, granted: Granted) -> Granted:
        if not isinstance(self._ledger, KnownLengthsLedger):
            return granted
        return lambda request: granted(request) + OUTPUT_TOKEN_PRICE * request.max_tokens


def put_router_before(
    state: SchedulerState, num_tokens: int, *, vtc_knows_lengths: bool = False
) -> None:
    """Put the router before the queue of a scheduler in which nobody is yet."""
    assert not state.requests
    ledger = None
    if state.ledger is not None:
        kind = KnownLengthsLedger if vtc_knows_lengths else RouterLedger
        # Who has ended is charged at the next plan, so its account is still needed.
        ledger = kind(state.ledger.configs, closes_accounts=False)
        state.ledger, state.policy = ledger, Vtc(ledger, state.decodes)
    state.policy.queue = RouterQueue(state.policy.queue, num_tokens, ledger)
