"""An engine's options as they are: all known, printed at start, read-only.

Belongs here: the record and how it is told to people and to the event log. Not here: choosing the
values (options.py).
"""

from dataclasses import asdict, dataclass, fields

from everbatch.base.units import NS_PER_MS, counted, format_bytes
from everbatch.scheduler.config import SchedulerConfig

_ON = {True: "on", False: "off"}
_NS_PER_US = 1_000
SHORT_CONTEXT = 512
"""A pool of fewer tokens refuses what people try first: a question and a few paragraphs."""

# Told in words of their own, or not at all: the others are told by name if they were changed.
_TOLD = (
    *("max_num_seqs", "max_num_batched_tokens", "num_blocks", "block_size", "max_model_len"),
    *("num_host_blocks", "enable_chunked_prefill", "enable_prefix_caching", "batching", "policy"),
    *("admission", "preemption_trigger", "preemption_mode", "preemption_extent"),
    *("preemption_victim", "preemption_costs", "tenants"),
)


@dataclass(frozen=True, slots=True)
class ResolvedOptions:
    """An engine as it is. Bytes are those of all KV blocks in use."""

    model_path: str
    model_name: str
    dtype: str
    kernels: str
    """Which, on what."""
    num_parameters: int
    model_bytes: int
    kv_cache_bytes: int
    kv_bytes_per_block: int
    model_max_len: int
    """The tokens that the model was made for."""
    scheduler: SchedulerConfig
    seed: int
    max_workspace_bytes: int | None = None
    """Of the intermediate results of a step; None where it is not known."""

    def describe(self) -> list[tuple[str, str]]:
        """Give name and value of each option, for people."""
        config = self.scheduler
        pool_tokens = config.num_blocks * config.block_size
        return [
            ("model", f"{self.model_name}  ({self.model_path})"),
            (
                "parameters",
                f"{self.num_parameters:,} as {self.dtype}, {format_bytes(self.model_bytes)}",
            ),
            ("kernels", self.kernels),
            (
                "kv blocks",
                f"{config.num_blocks:,} of {config.block_size} tokens = {pool_tokens:,} "
                f"tokens, {format_bytes(self.kv_cache_bytes)} when all are used "
                f"({format_bytes(self.kv_bytes_per_block)} each)",
            ),
            *self._host_tier(),
            *self._workspace(),
            ("max_model_len", f"{config.context_limit:,}"),
            ("max_num_seqs", f"{config.max_num_seqs:,}"),
            ("max_num_batched_tokens", f"{config.max_num_batched_tokens:,}"),
            ("batching", config.batching),
            ("chunked prefill", _ON[config.enable_chunked_prefill]),
            ("prefix caching", _ON[config.enable_prefix_caching]),
            ("policy", config.policy),
            ("admission", config.admission),
            ("preemption", self._preemption()),
            *self._changed(),
            *(("tenant", _tenant_text(config, name)) for name in config.tenants),
            ("seed", str(self.seed)),
        ]

    def warnings(self) -> list[str]:
        """Say what will surprise whoever serves with these options."""
        config, told = self.scheduler, []
        pool_tokens = config.num_blocks * config.block_size
        if pool_tokens < min(SHORT_CONTEXT, self.model_max_len):
            told.append(
                f"the KV cache holds {pool_tokens:,} tokens, so a longer prompt with its answer is "
                f"refused (the model takes {self.model_max_len:,}): raise --kv-cache-memory or "
                "--num-blocks"
            )
        has_share = config.min_prefill_tokens or config.prefill_aging_steps
        # A prompt has a slot too, so the others are one fewer.
        if config.max_num_seqs > config.max_num_batched_tokens and not has_share:
            told.append(
                f"up to {config.max_num_seqs - 1:,} decodes can take all "
                f"{config.max_num_batched_tokens:,} tokens of each step, and prompts wait until "
                "they end: raise --max-num-batched-tokens, lower --max-num-seqs, or set "
                "--min-prefill-tokens"
            )
        return told

    def header(self) -> dict[str, object]:
        """Give the facts that stand in an event log's header."""
        return {
            "config": asdict(self.scheduler),
            "model": {
                "name": self.model_name,
                "dtype": self.dtype,
                "kernels": self.kernels,
                "num_parameters": self.num_parameters,
                "kv_bytes_per_block": self.kv_bytes_per_block,
            },
            "seed": self.seed,
        }

    def _host_tier(self) -> list[tuple[str, str]]:
        num_blocks = self.scheduler.num_host_blocks
        if not num_blocks:
            return []
        size = format_bytes(num_blocks * self.kv_bytes_per_block)
        return [("host blocks", f"{num_blocks:,}, {size} when all are used")]

    def _workspace(self) -> list[tuple[str, str]]:
        if self.max_workspace_bytes is None:
            return []
        tokens = counted(self.scheduler.max_num_batched_tokens, "token")
        return [("workspace", f"at most {format_bytes(self.max_workspace_bytes)}, for {tokens}")]

    def _preemption(self) -> str:
        config = self.scheduler
        text = (
            f"on {config.preemption_trigger}, {config.preemption_mode}, "
            f"{config.preemption_extent}, {config.preemption_victim}"
        )
        costs = config.preemption_costs
        if costs is None:
            return text
        return (
            f"{text}; measured: {costs.swap_ns_per_block / _NS_PER_US:,.1f} µs to move a block out "
            f"and in, {costs.recompute_ns_per_token / NS_PER_MS:,.3f} ms to compute a token"
        )

    def _changed(self) -> list[tuple[str, str]]:
        """Give the options that seldom matter, where they are not what they always are."""
        return [
            (item.name, _shown(getattr(self.scheduler, item.name)))
            for item in fields(SchedulerConfig)
            if item.name not in _TOLD and getattr(self.scheduler, item.name) != item.default
        ]


def _shown(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def _tenant_text(config: SchedulerConfig, name: str) -> str:
    tenant = config.tenants[name]
    limit = tenant.max_requests_per_minute
    rate = f"at most {counted(limit, 'request')} a minute" if limit else "any number of requests"
    return f"{name}: weight {tenant.weight:g}, {rate}"
