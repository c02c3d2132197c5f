"""The scheduler's options, all resolved. Names, defaults and meanings are a public format.

Belongs here: values and their limits. Not here: where they come from (command line, assemble).
"""

from dataclasses import dataclass
from typing import Literal

from everbatch.base.errors import ConfigError

Admission = Literal["now", "prompt"]
PreemptionTrigger = Literal["shortage", "stall"]

MAX_NUM_SEQS = 65_536
MAX_NUM_BLOCKS = 1 << 26


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Options of one scheduler; raises ConfigError, naming the option, when one is impossible.

    max_model_len 0 leaves the limit to the pool; `context_limit` is the resolved value.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int = 16
    max_model_len: int = 0
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    admission: Admission = "prompt"
    watermark: float = 0.0
    preemption_trigger: PreemptionTrigger = "shortage"

    def __post_init__(self) -> None:
        _within("max_num_seqs", self.max_num_seqs, 1, MAX_NUM_SEQS)
        _within("max_num_batched_tokens", self.max_num_batched_tokens, 1, 1 << 30)
        _within("num_blocks", self.num_blocks, 1, MAX_NUM_BLOCKS)
        _within("block_size", self.block_size, 1, 4096)
        _within("max_model_len", self.max_model_len, 0, 1 << 30)
        _within("long_prefill_token_threshold", self.long_prefill_token_threshold, 0, 1 << 30)
        _one_of("admission", self.admission, ("now", "prompt"))
        _one_of("preemption_trigger", self.preemption_trigger, ("shortage", "stall"))
        _is_bool("enable_chunked_prefill", self.enable_chunked_prefill)
        _is_bool("enable_prefix_caching", self.enable_prefix_caching)
        if isinstance(self.watermark, bool) or not isinstance(self.watermark, int | float):
            raise ConfigError(f"watermark must be a number, not {self.watermark!r}")
        if not 0.0 <= self.watermark < 1.0:
            raise ConfigError(f"watermark must lie in [0, 1), got {self.watermark!r}")

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


def _within(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    if not low <= value <= high:
        raise ConfigError(f"{name} must lie in [{low}, {high}], got {value}")


def _is_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise ConfigError(f"{name} must be true or false, not {value!r}")


def _one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name} must be one of {', '.join(allowed)}, got {value!r}")
