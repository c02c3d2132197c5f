"""What a user may wish for an engine, and what becomes of the wishes on this machine.

Belongs here: EngineOptions (wished), and the sizes that depend on model and memory. Not here:
parsing a command line (cli), loading (real.py), telling what was resolved (resolved.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from everbatch.base.errors import ConfigError
from everbatch.base.units import div_ceil, format_bytes
from everbatch.engine.sampling_params import MAX_SEED
from everbatch.kernels.options import BACKEND_NAMES, MAX_THREADS, BackendName
from everbatch.scheduler.config import (
    Admission,
    Backfill,
    Batching,
    PolicyName,
    PreemptionCosts,
    PreemptionExtent,
    PreemptionMode,
    PreemptionTrigger,
    PreemptionVictim,
    SchedulerConfig,
    TenantConfig,
)

DEFAULT_MAX_NUM_SEQS = 128
DEFAULT_MAX_NUM_BATCHED_TOKENS = 512
"""A step's prompt tokens delay every decode in it: on a CPU more would make streams stutter."""
DEFAULT_KV_CACHE_BYTES = 4 << 30
"""Taken if a quarter of the free memory is more; pages are committed when first used."""

BYTES_PER_GIB = 1 << 30
MIN_EVENT_LOG_BYTES = 1 << 16
"""Files of less would be thousands in a day."""
MAX_SWAP_SPACE_GIB = 1 << 20
"""A pebibyte: more than any host has, and little enough that its bytes are exact."""

_BYTES = "a number of bytes, an integer"

_NOT_MEASURED = PreemptionCosts(swap_ns_per_block=1, recompute_ns_per_token=1)
"""Stands for the costs of preemption_mode auto until the model is there (measure.py)."""
_SAME_NAME = frozenset(item.name for item in fields(SchedulerConfig))


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
    """In place of kv_cache_memory."""
    host_cache_memory: int | None = None
    """Bytes."""
    num_host_blocks: int | None = None
    """In place of host_cache_memory; None and no memory given: 0."""
    swap_space: float | None = None
    """vLLM's way to give host_cache_memory, in GiB; 0 is none, as vLLM's users write it."""
    max_model_len: int | None = None
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = True
    long_prefill_token_threshold: int = 0
    min_prefill_tokens: int = 0
    prefill_aging_steps: int = 0
    batching: Batching = "continuous"
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
    kernels: BackendName = "auto"
    threads: int | None = None
    """That compute. None: chosen by the kernels from the cores that we may use."""
    pin_threads: bool = False
    seed: int = 0
    event_log: Path | None = None
    event_log_max_size: int | None = None
    """Bytes; beyond, it goes on in a new file."""

    def __post_init__(self) -> None:
        if self.max_model_len is not None:
            _at_least("max_model_len", self.max_model_len, 2, ", a token in and a token out")
        if self.kv_cache_memory is not None:
            _at_least("kv_cache_memory", self.kv_cache_memory, 1, " byte", _BYTES)
        if self.host_cache_memory is not None:
            _at_least("host_cache_memory", self.host_cache_memory, 1, " byte", _BYTES)
        if self.swap_space is not None:
            _check_swap_space(self.swap_space)
        self._check_event_log_size()
        self._check_one_of("kv_cache_memory", "num_blocks")
        self._check_one_of("host_cache_memory", "num_host_blocks", "swap_space")
        _check_kernels(self.kernels, self.threads, self.pin_threads)
        _at_least("seed", self.seed, 0)
        if self.seed > MAX_SEED:
            raise ConfigError(f"seed must lie in [0, {MAX_SEED}], got {self.seed}")
        _check_tenants(self.tenants)
        self._check_policy()
        # What the scheduler says of its own options does not wait for a model either.
        self.scheduler_options(
            num_blocks=1 if self.num_blocks is None else self.num_blocks,
            num_host_blocks=0 if self.num_host_blocks is None else self.num_host_blocks,
            max_model_len=self.max_model_len or 0,
        )
        if self.preemption_mode != "recompute" and not self._wants_host_tier:
            raise ConfigError(
                f"preemption_mode {self.preemption_mode} moves KV blocks to a host tier, and there "
                "is none: give --host-cache-memory or --num-host-blocks"
            )

    def _check_event_log_size(self) -> None:
        size = self.event_log_max_size
        if size is None:
            return
        _at_least("event_log_max_size", size, MIN_EVENT_LOG_BYTES, " bytes", _BYTES)
        if self.event_log is None:
            raise ConfigError("--event-log-max-size is of the event log: give --event-log, too")

    def _check_one_of(self, *names: str) -> None:
        """Refuse several ways to give one size: one of them would be ignored."""
        given = [f"--{name.replace('_', '-')}" for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)} say the same: give one of them")

    def _check_policy(self) -> None:
        """Refuse options that only another policy would look at."""
        if self.aging_steps and self.policy != "priority":
            raise ConfigError(
                f"aging_steps is {self.aging_steps:,}, but the policy is {self.policy} and does "
                "not look at it: leave it out or use --policy priority"
            )
        for name, tenant in self.tenants.items():
            if self.policy != "vtc" and (tenant.weight != 1 or not tenant.max_requests_per_minute):
                raise ConfigError(
                    f"tenant {name} has the weight {tenant.weight:g}, but the policy is "
                    f"{self.policy} and does not look at it: use --policy vtc, or give the weight "
                    "1 with a rate"
                )

    @property
    def host_cache_bytes(self) -> int | None:
        """Memory for swapped out blocks, under whichever name it was given; None: none wished."""
        if self.swap_space is not None:
            return int(self.swap_space * BYTES_PER_GIB) or None
        return self.host_cache_memory

    @property
    def _wants_host_tier(self) -> bool:
        return bool(self.num_host_blocks or self.host_cache_bytes)

    def scheduler_options(
        self, num_blocks: int, num_host_blocks: int, max_model_len: int
    ) -> SchedulerConfig:
        """Give the scheduler's options for pools and a context limit that are known.

        Those of the same name are taken over as they are. The costs that preemption_mode auto
        compares are not known yet.
        """
        same: dict[str, Any] = {
            item.name: getattr(self, item.name) for item in fields(self) if item.name in _SAME_NAME
        }
        resolved = {
            "max_num_batched_tokens": self._step_tokens(max_model_len),
            "num_blocks": num_blocks,
            "num_host_blocks": num_host_blocks,
            "max_model_len": max_model_len,
            "tenants": dict(self.tenants),
            "preemption_costs": _NOT_MEASURED if self.preemption_mode == "auto" else None,
        }
        return SchedulerConfig(**{**same, **resolved})

    def _step_tokens(self, max_model_len: int) -> int:
        if self.max_num_batched_tokens is not None:
            return self.max_num_batched_tokens
        if self.enable_chunked_prefill:
            return DEFAULT_MAX_NUM_BATCHED_TOKENS
        return max(DEFAULT_MAX_NUM_BATCHED_TOKENS, max_model_len)


def scheduler_config(
    options: EngineOptions, model_max_len: int, bytes_per_block: int, free_bytes: int
) -> SchedulerConfig:
    """Resolve the scheduler's options; raises ConfigError where wishes do not fit together.

    `model_max_len` is what the model was made for, in tokens; `free_bytes` the memory left.
    """
    num_blocks = _num_blocks(options, model_max_len, bytes_per_block, free_bytes)
    left_bytes = free_bytes - num_blocks * bytes_per_block
    num_host_blocks = _num_host_blocks(options, bytes_per_block, left_bytes)
    max_model_len = _max_model_len(options, model_max_len, num_blocks, bytes_per_block)
    return options.scheduler_options(num_blocks, num_host_blocks, max_model_len)


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


def _num_host_blocks(options: EngineOptions, bytes_per_block: int, left_bytes: int) -> int:
    """Give the size of the host tier; `left_bytes` is what the KV cache leaves of the memory."""
    wished, flag = options.num_host_blocks, "--num-host-blocks"
    if wished is None:
        memory = options.host_cache_bytes
        if memory is None:
            return 0
        flag = "--host-cache-memory" if options.swap_space is None else "--swap-space"
        wished = memory // bytes_per_block
        if not wished:
            raise ConfigError(
                f"{flag} {format_bytes(memory)} holds no block: one block of {options.block_size} "
                f"tokens takes {format_bytes(bytes_per_block)} with this model: raise it"
            )
    if wished * bytes_per_block > max(0, left_bytes):
        raise ConfigError(
            f"{flag} wants {format_bytes(wished * bytes_per_block)} for {wished:,} host blocks, "
            f"the KV cache leaves {format_bytes(max(0, left_bytes))} of the memory that is free: "
            "ask for less, or lower --kv-cache-memory"
        )
    return wished


def _max_model_len(
    options: EngineOptions, model_max_len: int, num_blocks: int, bytes_per_block: int
) -> int:
    # The last output is never consumed, so it needs no place.
    pool_tokens = num_blocks * options.block_size
    wished = options.max_model_len
    if wished is None:
        return min(model_max_len, pool_tokens + 1)
    if wished > model_max_len:
        raise ConfigError(
            f"--max-model-len {wished:,} is more than the {model_max_len:,} tokens that the model "
            "was made for: lower it"
        )
    if wished - 1 > pool_tokens:
        needed = div_ceil(wished - 1, options.block_size)
        flag = "--kv-cache-memory" if options.num_blocks is None else "--num-blocks"
        raise ConfigError(
            f"--max-model-len {wished:,} needs {needed:,} KV blocks "
            f"({format_bytes(needed * bytes_per_block)}), the pool has {num_blocks:,} "
            f"({format_bytes(num_blocks * bytes_per_block)}): lower it to {pool_tokens + 1:,} or "
            f"raise {flag}"
        )
    return wished


def _at_least(
    name: str, value: object, low: int, remark: str = "", kind: str = "an integer"
) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be {kind}, not {value!r}")
    if value < low:
        raise ConfigError(f"{name} must be at least {low}{remark}, got {value}")


def _check_kernels(kernels: object, threads: int | None, pin_threads: object) -> None:
    if kernels not in BACKEND_NAMES:
        raise ConfigError(f"kernels must be one of {', '.join(BACKEND_NAMES)}, not {kernels!r}")
    if threads is not None:
        _at_least("threads", threads, 1)
        if threads > MAX_THREADS:
            raise ConfigError(f"threads must be at most {MAX_THREADS:,}, got {threads:,}")
    if not isinstance(pin_threads, bool):
        raise ConfigError(f"pin_threads must be True or False, not {pin_threads!r}")


def _check_swap_space(gib: object) -> None:
    if isinstance(gib, bool) or not isinstance(gib, int | float):
        raise ConfigError(f"swap_space must be a number of GiB, not {gib!r}")
    if not 0 <= gib <= MAX_SWAP_SPACE_GIB:
        raise ConfigError(
            f"--swap-space must be a number of GiB in [0, {MAX_SWAP_SPACE_GIB:,}], got {gib:g}"
        )


def _check_tenants(tenants: object) -> None:
    if not isinstance(tenants, Mapping):
        raise ConfigError(f"tenants must be a mapping of name and TenantConfig, not {tenants!r}")
    for name, config in tenants.items():
        if not isinstance(name, str) or not name or not isinstance(config, TenantConfig):
            raise ConfigError(f"tenants must map names to TenantConfig, not {name!r} to {config!r}")
