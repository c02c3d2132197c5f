"""What a user may wish for an engine, and what becomes of the wishes on this machine.

Belongs here: EngineOptions (wished), ResolvedOptions (all known, printed at start), and the sizes
that depend on model and memory. Not here: parsing a command line (cli), loading (real.py).
"""

from dataclasses import dataclass
from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.units import div_ceil, format_bytes
from everbatch.engine.sampling_params import MAX_SEED
from everbatch.scheduler.config import Admission, PreemptionTrigger, SchedulerConfig

DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
"""A step's prompt tokens delay every decode in it: on a CPU more would make streams stutter."""
DEFAULT_KV_CACHE_BYTES = 4 << 30
"""Taken if a quarter of the free memory is more; pages are committed when first used."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """An engine as wished. None: chosen from the model and the machine.

    Raises ConfigError at once where a wish is impossible whatever the model.
    """

    model: str | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int | None = None
    """None: 512 or, as a prompt then has to fit into one step, max_model_len without chunked
    prefill."""
    block_size: int = 16
    kv_cache_memory: int | None = None
    """Bytes."""
    num_blocks: int | None = None
    """Overrides kv_cache_memory."""
    max_model_len: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    admission: Admission = "prompt"
    watermark: float = 0.0
    preemption_trigger: PreemptionTrigger = "shortage"
    seed: int = 0
    event_log: Path | None = None

    def __post_init__(self) -> None:
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2, ", a token in and a token out")
        if self.kv_cache_memory is not None:
            _at_least("kv_cache_memory", self.kv_cache_memory, 1, " byte")
        _at_least("seed", self.seed, 0)
        if self.seed > MAX_SEED:
            raise ConfigError(f"seed must lie in [0, {MAX_SEED}], got {self.seed}")
        # What the scheduler says of its own options does not wait for a model either.
        self.scheduler_options(
            num_blocks=1 if self.num_blocks is None else self.num_blocks,
            max_model_len=self.max_model_len or 0,
        )

    def scheduler_options(self, num_blocks: int, max_model_len: int) -> SchedulerConfig:
        """Give the scheduler's options for a pool and a context limit that are known."""
        return SchedulerConfig(
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self._step_tokens(max_model_len),
            num_blocks=num_blocks,
            block_size=self.block_size,
            max_model_len=max_model_len,
            enable_chunked_prefill=self.enable_chunked_prefill,
            enable_prefix_caching=self.enable_prefix_caching,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            admission=self.admission,
            watermark=self.watermark,
            preemption_trigger=self.preemption_trigger,
        )

    def _step_tokens(self, max_model_len: int) -> int:
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        if self.enable_chunked_prefill:
            return DEFAULT_MAX_NUM_BATCHED_TOKENS
        return max(DEFAULT_MAX_NUM_BATCHED_TOKENS, max_model_len)


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """An engine as it is. Bytes are those of all KV blocks in use."""

    model_path: str
    model_name: str
    dtype: str
    num_parameters: int
    model_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_block: int
    scheduler: SchedulerConfig
    seed: int

    def describe(self) -> list[tuple[str, str]]:
        """Give name and value of each option, for people."""
        config = self.scheduler
        pool_tokens = config.num_blocks * config.block_size
        on = {True: "on", False: "off"}
        return [
            ("model", f"{self.model_name}  ({self.model_path})"),
            (
                "parameters",
                f"{self.num_parameters:,} as {self.dtype}, {format_bytes(self.model_bytes)}",
            ),
            (
                "kv blocks",
                f"{config.num_blocks:,} of {config.block_size} tokens = {pool_tokens:,} "
                f"tokens, {format_bytes(self.kv_cache_bytes)} when all are used "
                f"({format_bytes(self.kv_bytes_per_block)} each)",
            ),
            ("max_model_len", f"{config.context_limit:,}"),
            ("max_num_seqs", f"{config.max_num_seqs:,}"),
            ("max_num_batched_tokens", f"{config.max_num_batched_tokens:,}"),
            ("chunked prefill", on[config.enable_chunked_prefill]),
            ("prefix caching", on[config.enable_prefix_caching]),
            ("admission", config.admission),
            ("seed", str(self.seed)),
        ]

    def header(self) -> dict[str, object]:
        """Give the facts that stand in an event log's header."""
        names = SchedulerConfig.__dataclass_fields__
        return {
            "config": {name: getattr(self.scheduler, name) for name in names},
            "model": {
                "name": self.model_name,
                "dtype": self.dtype,
                "num_parameters": self.num_parameters,
                "kv_bytes_per_block": self.kv_bytes_per_block,
            },
            "seed": self.seed,
        }


def scheduler_config(
    options: EngineOptions, model_max_len: int, bytes_per_block: int, free_bytes: int
) -> SchedulerConfig:
    """Resolve the scheduler's options; raises ConfigError where wishes do not fit together.

    `model_max_len` is what the model was made for, in tokens; `free_bytes` the memory left.
    """
    num_blocks = _num_blocks(options, model_max_len, bytes_per_block, free_bytes)
    max_model_len = _max_model_len(options, model_max_len, num_blocks, bytes_per_block)
    return options.scheduler_options(num_blocks, max_model_len)


def _num_blocks(
    options: EngineOptions, model_max_len: int, bytes_per_block: int, free_bytes: int
) -> int:
    if options.num_blocks is not None:
        size = options.num_blocks * bytes_per_block
        if size > free_bytes:
            raise ConfigError(
                f"--num-blocks {options.num_blocks:,} take {format_bytes(size)}, more than the "
                f"{format_bytes(free_bytes)} of memory that are free: ask for at most "
                f"{free_bytes // bytes_per_block:,}"
            )
        return options.num_blocks
    wished = options.kv_cache_memory
    if wished is None:
        # No request can use more than max_num_seqs longest ones.
        longest = options.max_model_len or model_max_len
        all_requests = div_ceil(longest, options.block_size) * options.max_num_seqs
        by_memory = min(DEFAULT_KV_CACHE_BYTES, free_bytes // 4) // bytes_per_block
        return max(1, min(all_requests, by_memory))
    if wished > free_bytes:
        raise ConfigError(
            f"--kv-cache-memory {format_bytes(wished)} is more than the {format_bytes(free_bytes)} "
            "of memory that are free: ask for less"
        )
    if wished < bytes_per_block:
        raise ConfigError(
            f"--kv-cache-memory {format_bytes(wished)} holds no block: one block of "
            f"{options.block_size} tokens takes {format_bytes(bytes_per_block)} with this model: "
            "raise it"
        )
    return wished // bytes_per_block


def _max_model_len(
    options: EngineOptions, model_max_len: int, num_blocks: int, bytes_per_block: int
) -> int:
    pool_tokens = num_blocks * options.block_size
    wished = options.max_model_len
    if wished is None:
        return min(model_max_len, pool_tokens)
    if wished > model_max_len:
        raise ConfigError(
            f"--max-model-len {wished:,} is more than the {model_max_len:,} tokens that the model "
            "was made for: lower it"
        )
    # The last output is never consumed, so it needs no place.
    if wished - 1 > pool_tokens:
        needed = div_ceil(wished - 1, options.block_size)
        raise ConfigError(
            f"--max-model-len {wished:,} needs {needed:,} KV blocks "
            f"({format_bytes(needed * bytes_per_block)}), the pool has {num_blocks:,} "
            f"({format_bytes(num_blocks * bytes_per_block)}): lower it to {pool_tokens + 1:,} or "
            "raise --kv-cache-memory"
        )
    return wished


def _at_least(name: str, value: object, low: int, remark: str = "") -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    if value < low:
        raise ConfigError(f"{name} must be at least {low}{remark}, got {value}")
