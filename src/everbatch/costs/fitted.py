"""The fitted model of step time: a price for each count, and the region in which prices were seen.

A step of decodes costs a fixed part, a price for each sequence and one for each token of context. A
step with a prompt has a fixed part of its own, and prices for prompt tokens and for pairs of query
and key besides: on real engines the two fixed parts differ. Few tokens are computed while the
weights are read, many take longer than that (costs.roofline): so a token beyond the first few of a
step has a price more. And kernels compute tokens in tiles: one token more than a tile holds costs
another. Read from profiles (profile.py), which a calibration writes.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from everbatch.base.units import div_ceil
from everbatch.costs.work import StepWork

COUNTS = ("num_decodes", "decode_context", "num_chunks", "prefill_tokens", "prefill_pairs")
"""Counts of `StepWork` whose range says how far a fit can be trusted."""
_NEVER = (1, 0)
"""A range that holds nothing."""


@dataclass(frozen=True, slots=True)
class Prices:
    """Nanoseconds: a step without a prompt, a step with one, and each unit of a step's work."""

    decode_step: float
    prompt_step: float
    decode: float = 0.0
    decode_context: float = 0.0
    prompt_token: float = 0.0
    prompt_pair: float = 0.0
    swapped_block: float = 0.0
    copied_block: float = 0.0
    wide_token: float = 0.0
    """Of each token of a step beyond the first `narrow_tokens`, on top of its other prices."""
    narrow_tokens: int = 0
    tile: float = 0.0
    """Of each `tile_tokens` tokens of a step, begun ones included."""
    tile_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Region:
    """The least and the most that was seen of each count, in steps that had any of it.

    A count without a range was never seen: all steps that have it lie outside.
    """

    ranges: dict[str, tuple[int, int]] = field(default_factory=dict)

    @classmethod
    def of(cls, works: Iterable[StepWork]) -> "Region":
        """Give the region that some steps span."""
        ranges: dict[str, tuple[int, int]] = {}
        for work in works:
            for name in COUNTS:
                count = getattr(work, name)
                if count:
                    low, high = ranges.get(name, (count, count))
                    ranges[name] = (min(low, count), max(high, count))
        return cls(ranges)

    def outside(self, work: StepWork) -> tuple[str, ...]:
        """Give the counts in which a step lies outside; none, if prices were seen for all."""
        return tuple(name for name in COUNTS if not self._holds(name, getattr(work, name)))

    def _holds(self, name: str, count: int) -> bool:
        if not count:
            return True
        if name not in self.ranges:
            return False
        low, high = self.ranges[name]
        return low <= count <= high


class FittedStepTime:
    """Prices a step."""

    def __init__(self, prices: Prices, region: Region) -> None:
        self.prices = prices
        self._region = region
        # Read for every step: attributes of the instance are found faster than those behind one.
        self._decode_step, self._prompt_step = prices.decode_step, prices.prompt_step
        self._decode, self._decode_context = prices.decode, prices.decode_context
        self._prompt_token, self._prompt_pair = prices.prompt_token, prices.prompt_pair
        self._wide_token, self._narrow_tokens = prices.wide_token, prices.narrow_tokens
        self._tile, self._tile_tokens = prices.tile, prices.tile_tokens or 1
        self._num_decodes_seen = region.ranges.get("num_decodes", _NEVER)
        self._context_seen = region.ranges.get("decode_context", _NEVER)

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1."""
        duration = self._decode * work.num_decodes + self._decode_context * work.decode_context
        if work.num_chunks:
            duration += (
                self._prompt_step
                + self._prompt_token * work.prefill_tokens
                + self._prompt_pair * work.prefill_pairs
            )
        else:
            duration += self._decode_step
        if self._wide_token or self._tile:
            num_tokens = work.num_decodes + work.prefill_tokens
            if num_tokens > self._narrow_tokens:
                duration += self._wide_token * (num_tokens - self._narrow_tokens)
            duration += self._tile * div_ceil(num_tokens, self._tile_tokens)
        if work.swapped_blocks or work.copied_blocks:
            duration += self.prices.swapped_block * work.swapped_blocks
            duration += self.prices.copied_block * work.copied_blocks
        return max(1, round(duration))

    def outside(self, work: StepWork) -> tuple[str, ...]:
        """Give the counts in which a step lies outside the region of the fit."""
        # Most steps are of decodes alone, and inside.
        low, high = self._num_decodes_seen
        if not work.num_chunks and low <= work.num_decodes <= high:
            low, high = self._context_seen
            if low <= work.decode_context <= high:
                return ()
        return self._region.outside(work)
