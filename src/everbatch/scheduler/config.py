"""The scheduler's options, all resolved. Names, defaults and meanings are a public format.

Belongs here: values and their limits. Not here: where they come from (command line, scenario files,
assemble) and what they do (docs/scheduling.md shows each on a small scenario).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Literal, get_args

from everbatch.base.errors import ConfigError

Batching = Literal["continuous", "static"]
PolicyName = Literal["fcfs", "priority", "srpt", "vtc"]
Backfill = Literal["none", "safe", "greedy"]
Admission = Literal["now", "prompt", "peak", "reserve"]
PreemptionTrigger = Literal["shortage", "stall"]
PreemptionMode = Literal["recompute", "swap", "auto"]
PreemptionExtent = Literal["whole", "tail"]
PreemptionVictim = Literal["newest", "priority", "least_lost", "largest"]

MAX_NUM_SEQS = 65_536
MAX_NUM_BLOCKS = 1 << 26
MAX_TOKENS = 1 << 30
MAX_STEPS = 1 << 40


@dataclass(frozen=True, slots=True)
class TenantConfig:
    """One tenant's share: twice the weight, twice the service under policy vtc.

    max_requests_per_minute 0: no limit. Counted over the last 60 s of accepted arrivals.
    """

    weight: float = 1.0
    max_requests_per_minute: int = 0

    def __post_init__(self) -> None:
        _is_number("weight", self.weight)
        if not 0 < self.weight < inf:
            raise ConfigError(f"a tenant's weight must be finite and above 0, got {self.weight!r}")
        _within("max_requests_per_minute", self.max_requests_per_minute, 0, MAX_TOKENS)


@dataclass(frozen=True, slots=True)
class PreemptionCosts:
    """What preemption_mode auto compares: time to move a block out and in, to compute a token."""

    swap_ns_per_block: int
    recompute_ns_per_token: int


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Options of one scheduler; raises ConfigError, naming the option, when one is impossible.

    max_model_len 0 leaves the limit to the pool; `context_limit` is the resolved value. 0 stands
    for "off" or "unbounded" in every other option where it is the default.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    batching: Batching = "continuous"
    block_size: int = 16
    max_model_len: int = 0
    num_host_blocks: int = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    min_prefill_tokens: int = 0
    prefill_aging_steps: int = 0
    policy: PolicyName = "fcfs"
    aging_steps: int = 0
    backfill: Backfill = "none"
    admission: Admission = "prompt"
    watermark: float = 0.0
    preemption_trigger: PreemptionTrigger = "shortage"
    preemption_mode: PreemptionMode = "recompute"
    preemption_extent: PreemptionExtent = "whole"
    preemption_victim: PreemptionVictim = "newest"
    max_preemptions: int = 0
    max_queue_requests: int = 0
    max_queue_tokens: int = 0
    tenants: Mapping[str, TenantConfig] = field(default_factory=dict)
    preemption_costs: PreemptionCosts | None = None
    """Needed by preemption_mode auto alone; from the hardware and the model."""

    def __post_init__(self) -> None:
        _within("max_num_seqs", self.max_num_seqs, 1, MAX_NUM_SEQS)
        _within("max_num_batched_tokens", self.max_num_batched_tokens, 1, MAX_TOKENS)
        _within("num_blocks", self.num_blocks, 1, MAX_NUM_BLOCKS)
        _within("block_size", self.block_size, 1, 4096)
        _within("max_model_len", self.max_model_len, 0, MAX_TOKENS)
        _within("num_host_blocks", self.num_host_blocks, 0, MAX_NUM_BLOCKS)
        for name in ("long_prefill_token_threshold", "min_prefill_tokens", "max_queue_tokens"):
            _within(name, getattr(self, name), 0, MAX_TOKENS)
        for name in ("prefill_aging_steps", "aging_steps"):
            _within(name, getattr(self, name), 0, MAX_STEPS)
        for name in ("max_preemptions", "max_queue_requests"):
            _within(name, getattr(self, name), 0, MAX_TOKENS)
        for name, choices in _CHOICES.items():
            _one_of(name, getattr(self, name), get_args(choices))
        _is_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        _is_bool("enable_prefix_caching", self.enable_prefix_caching)
        _is_number("watermark", self.watermark)
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must lie in [0, 1), got {self.watermark!r}")
        self._check_together()

    def _check_together(self) -> None:
        """Check what only makes sense together."""
        if self.min_prefill_tokens > self.max_num_batched_tokens:
            raise ConfigError(
                f"min_prefill_tokens {self.min_prefill_tokens:,} is above max_num_batched_tokens "
                f"{self.max_num_batched_tokens:,}: lower the one or raise the other"
            )
        if self.preemption_mode == "auto" and self.preemption_costs is None:
            raise ConfigError(
                "preemption_mode auto compares the costs of swapping and recomputing: describe "
                "hardware and model, or choose recompute or swap"
            )

    @property
    def context_limit(self) -> int:
        """The longest prompt + output, in tokens.

        The last output is never consumed, so a full pool leaves room for one token more.
        """
        return self.max_model_len or self.num_blocks * self.block_size + 1

    @property
    def watermark_blocks(self) -> int:
        """Blocks kept free at admission while anybody holds a slot."""
        return int(self.watermark * self.num_blocks)


_CHOICES: dict[str, object] = {
    "batching": Batching,
    "policy": PolicyName,
    "backfill": Backfill,
    "admission": Admission,
    "preemption_trigger": PreemptionTrigger,
    "preemption_mode": PreemptionMode,
    "preemption_extent": PreemptionExtent,
    "preemption_victim": PreemptionVictim,
}


def _within(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie in [{low}, {high}], got {value}")


def _is_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {value!r}")


def _is_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number, not {value!r}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
