"""What a user may wish for an engine, and what becomes of the wishes on this machine.

Belongs here: EngineOptions (wished), ResolvedOptions (all known, printed at start), and the sizes
that depend on model and memory. Not here: parsing a command line (cli), loading (real.py).
"""

from dataclasses import dataclass
from pathlib import Path

from everbatch.base.errors import ConfigError
from everbatch.base.units import div_ceil, format_bytes
from everbatch.scheduler.config import Admission, PreemptionTrigger, SchedulerConfig

DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
"""A step's prompt tokens delay every decode in it: on a CPU more would make streams stutter."""
DEFAULT_KV_CACHE_BYTES = 4 << 30
"""Taken if a quarter of the free memory is more; pages are committed when first used."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """An engine as wished. None: chosen from the model and the machine."""

    model: str | None = None
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS
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
    if options.block_size < 1:
        raise ConfigError(f"block_size must be at least 1, got {options.block_size}")
    num_blocks = _num_blocks(options, model_max_len, bytes_per_block, free_bytes)
    max_model_len = _max_model_len(options, model_max_len, num_blocks, bytes_per_block)
    return SchedulerConfig(
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=options.max_num_batched_tokens,
        num_blocks=num_blocks,
        block_size=options.block_size,
        max_model_len=max_model_len,
        enable_chunked_prefill=options.enable_chunked_prefill,
        enable_prefix_caching=options.enable_prefix_caching,
        long_prefill_token_threshold=options.long_prefill_token_threshold,
        admission=options.admission,
        watermark=options.watermark,
        preemption_trigger=options.preemption_trigger,
    )


def _num_blocks(
    options: EngineOptions, model_max_len: int, bytes_per_block: int, free_bytes: int
) -> int:
    if options.num_blocks is not None:
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
            f"{options.block_size} tokens takes {format_bytes(bytes_per_block)} with this model"
        )
    return wished // bytes_per_block


def _max_model_len(
    options: EngineOptions, model_max_len: int, num_blocks: int, bytes_per_block: int
) -> int:
    pool_tokens = num_blocks * options.block_size
    wished = options.max_model_len
    if wished is None:
        return min(model_max_len, pool_tokens)
    if wished < 2:
        raise ConfigError(
            f"max_model_len must be at least 2, a token in and a token out, got {wished}"
        )
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
