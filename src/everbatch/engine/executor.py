"""The seam between deciding and computing: what stands behind an Engine.

Model executor, cost model and scripted executor implement this and do not know each other. An
executor keeps a persistent picture of the batch, which plans change (scheduler/plan.py says in
which order), and one record of token ids, the TokenStore.

What can go wrong in a pass, and what follows:

- One row (its logits are no finite numbers): `outcome.failed` names its slot; that request ends
  with `error`, all others go on.
- One pass, by the world's fault (no memory for a step of this size, a lost device): ExecutorError.
  The step is rolled back and tried again in parts; who fails again alone ends with `error`, all
  others go on (scheduler/trials.py).
- Anything else, an assertion or an index out of range, is a bug: nobody knows what is still true of
  slots and blocks. It passes through Engine.step, and the engine is not used again; the server
  answers everybody and its /health says 503.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from everbatch.scheduler.plan import StepOutcome, StepPlan, TokenStore


@dataclass(slots=True, frozen=True)
class TokenLogprobs:
    """Log probabilities of one emitted token, from the raw logits.

    `top` holds (token id, log probability) of the most likely tokens, the likeliest first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


@dataclass(slots=True, frozen=True)
class EmittedTokens:
    """What a forward pass sampled, row by row. Equal lengths; `logprobs` None if nobody asked."""

    request_ids: Sequence[str]
    token_ids: Sequence[int]
    logprobs: Sequence[TokenLogprobs | None] | None


class Executor(Protocol):
    """Carries out plans."""

    @property
    def tokens(self) -> TokenStore:
        """Where token ids are read from."""
        ...

    def execute(self, plan: StepPlan) -> StepOutcome:
        """Run one forward pass; `outcome.tokens` is EmittedTokens.

        Raises ExecutorError where the pass failed by the world's fault and the next may do better.
        """
        ...

    def reset(self) -> None:
        """Forget all slots, after a failed pass; the tokens of their requests stay readable."""
        ...
