"""Sampling options of all slots as arrays, and the rows of one step out of them.

Belongs here: turning SamplingParams into what the sampling kernel reads, and the comparison of new
tokens with stop ids, for all rows at once. Not here: choosing tokens (kernels.sampling).

    S slots, R rows that sample in a step, K stop ids of the request that has most
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from everbatch.engine.sampling_params import SamplingParams
from everbatch.engine.structured_outputs import StructuredOutputsParams
from everbatch.kernels.arrays import Flags, Int32s, Int64s
from everbatch.kernels.random_numbers import MASK_64, seed_for
from everbatch.kernels.sampling import RowExtras, SamplingRows

_NO_STOP_ID = -1
SMALLEST_TOP_P = float(np.finfo(np.float32).tiny)


class Constraint(Protocol):
    """The form of one answer (tokenizer.grammars)."""

    @property
    def error(self) -> str | None:
        """Why it allows nothing, if so."""
        ...

    def allowed(self, outputs: Sequence[int]) -> bytes:
        """Give which tokens may follow: a bit for each id, the lowest bit of a byte first."""
        ...


ConstraintMaker = Callable[[StructuredOutputsParams], Constraint]


@dataclass(frozen=True, slots=True)
class _SlotExtras:
    """What few requests ask for: their options, the length of their prompt, their stop ids, the
    form of their answer."""

    params: SamplingParams
    num_prompt_tokens: int
    stops: tuple[int, ...]
    constraint: Constraint | None

    def after(self, history: Int32s, vocab_size: int) -> RowExtras:
        """Give what holds for the next token. history: int32, prompt and outputs so far."""
        params = self.params
        return RowExtras(
            token_history=history.astype(np.int64),
            prompt_length=self.num_prompt_tokens,
            repetition_penalty=params.repetition_penalty,
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
            bias_ids=np.array([token_id for token_id, _ in params.logit_bias], np.int64),
            bias_values=np.array([bias for _, bias in params.logit_bias], np.float32),
            forbidden_ids=self._forbidden(history[self.num_prompt_tokens :], vocab_size),
        )

    def _forbidden(self, outputs: Int32s, vocab_size: int) -> Int64s:
        if self.constraint is None:
            too_early = len(outputs) < self.params.min_tokens
            return np.array(self.stops if too_early else (), np.int64)
        # min_tokens does not go with a form: SamplingParams refuses it.
        # Not as a list: that would walk through the whole answer for each of its tokens.
        bits = np.frombuffer(self.constraint.allowed(outputs.data), np.uint8)
        allowed = np.unpackbits(bits, count=vocab_size, bitorder="little")
        return np.flatnonzero(allowed == 0)


class SamplingState:
    """Arrays by slot, written when a request is admitted."""

    def __init__(
        self,
        num_slots: int,
        eos_token_ids: tuple[int, ...],
        engine_seed: int,
        constraint: ConstraintMaker | None,
    ) -> None:
        self._eos_token_ids = eos_token_ids
        self._engine_seed = engine_seed
        self._temperature = np.zeros(num_slots, np.float32)
        self._top_k = np.zeros(num_slots, np.int32)
        self._top_p = np.ones(num_slots, np.float32)
        self._min_p = np.zeros(num_slots, np.float32)
        self._seed = np.zeros(num_slots, np.uint64)
        self._wants_logprobs = np.zeros(num_slots, np.bool_)
        self._num_logprobs = np.zeros(num_slots, np.int32)
        self._stop_ids = np.full((num_slots, max(1, len(eos_token_ids))), _NO_STOP_ID, np.int32)
        self._extras: dict[int, _SlotExtras] = {}
        """Of the few slots with penalties, biases, min_tokens or a form."""
        self._constraint = constraint

    def admit(
        self,
        slot: int,
        params: SamplingParams,
        arrival_number: int,
        num_prompt_tokens: int,
        sample: int,
    ) -> None:
        """Take the options of the request, or sample of a request, that got this slot."""
        self._temperature[slot] = params.temperature
        self._top_k[slot] = params.top_k
        # float32 would make 0 of a smaller one, and no token has a part in nothing.
        self._top_p[slot] = max(params.top_p, SMALLEST_TOP_P)
        self._min_p[slot] = params.min_p
        seed = params.seed
        if seed is None:
            seed = seed_for(self._engine_seed, arrival_number)
        if sample > 0:
            # Sample 0 draws what the same request with n = 1 draws.
            seed = seed_for(seed, sample)
        self._seed[slot] = seed & MASK_64
        self._wants_logprobs[slot] = params.logprobs is not None
        self._num_logprobs[slot] = params.logprobs or 0
        eos = () if params.ignore_eos else self._eos_token_ids
        stops = (*eos, *params.stop_token_ids)
        self._widen(len(stops))
        self._stop_ids[slot] = _NO_STOP_ID
        self._stop_ids[slot, : len(stops)] = stops
        self._extras.pop(slot, None)
        if _uses_extras(params):
            form = params.structured_outputs
            constraint = None
            if form is not None:
                assert self._constraint is not None, "nobody said how forms are followed"
                constraint = self._constraint(form)
            self._extras[slot] = _SlotExtras(params, num_prompt_tokens, stops, constraint)

    def rows(
        self, slots: Int32s, num_tokens: Int32s, token_ids: Int32s, vocab_size: int
    ) -> SamplingRows:
        """Give the options of a step's rows.

        slots: [R] int32; num_tokens: [S] int32, prompt and outputs so far; token_ids: [S, C] int32;
        vocab_size: logits of a row.
        """
        return SamplingRows(
            temperature=self._temperature[slots],
            top_k=self._top_k[slots],
            top_p=self._top_p[slots],
            min_p=self._min_p[slots],
            seed=self._seed[slots],
            position=num_tokens[slots].astype(np.int64),
            wants_logprobs=self._wants_logprobs[slots],
            num_logprobs=self._num_logprobs[slots],
            extras=self._row_extras(slots, num_tokens, token_ids, vocab_size),
        )

    def why_failed(self, slot: int) -> str:
        """Say why no token could be chosen for a slot."""
        extras = self._extras.get(slot)
        if extras is not None and extras.constraint is not None and extras.constraint.error:
            return f"its structured output cannot be followed further: {extras.constraint.error}"
        return "its logits are no finite numbers"

    def stopped(self, slots: Int32s, new_token_ids: Int32s) -> Flags:
        """Give [R] bool: whose new token is one of its stop ids."""
        hits: Flags = (self._stop_ids[slots] == new_token_ids[:, None]).any(axis=1)
        return hits

    def _row_extras(
        self, slots: Int32s, num_tokens: Int32s, token_ids: Int32s, vocab_size: int
    ) -> dict[int, RowExtras]:
        extras: dict[int, RowExtras] = {}
        if not self._extras:
            return extras
        for row, slot in enumerate(slots.tolist()):
            if slot in self._extras:
                extras[row] = self._extras[slot].after(
                    token_ids[slot, : num_tokens[slot]], vocab_size
                )
        return extras

    def _widen(self, num_stops: int) -> None:
        missing = num_stops - self._stop_ids.shape[1]
        if missing > 0:
            padding = ((0, 0), (0, missing))
            self._stop_ids = np.pad(self._stop_ids, padding, constant_values=_NO_STOP_ID)


def _uses_extras(params: SamplingParams) -> bool:
    return (
        params.repetition_penalty != 1.0
        or params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or bool(params.logit_bias)
        or params.min_tokens > 0
        or params.structured_outputs is not None
    )
