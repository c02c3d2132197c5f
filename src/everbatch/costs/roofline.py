"""The full model of step time: every term that can be told from data sheets, each with its source.

A step is a row of operations, one after the other; each moves bytes and computes at once and takes
the longer of the two (Williams et al., Roofline, CACM 2009). Their times add up.

Covered: weights, KV reads and attention of decodes and of prompts, KV writes, output logits, the
all-reduces of tensor parallelism, swapping, block copies, the host. Not covered: traffic of
activations between kernels, re-reading of keys by tiles of queries, quantised arithmetic, overlap
of host and device. docs/roofline.md has the formulas. The nominal model is in nominal.py.
"""

from dataclasses import dataclass

from everbatch.base.errors import ConfigError
from everbatch.base.units import NS_PER_S
from everbatch.costs.device import Device
from everbatch.costs.model import Model
from everbatch.costs.needs import needed
from everbatch.costs.terms import Term
from everbatch.costs.work import StepWork

_PURPOSE = "the full model"
MAX_TENSOR_PARALLEL = 1024
LEAST_EFFICIENCY = 1e-3
LONGEST_S = 1e6
ALL_REDUCES_PER_LAYER = 2
"""One after attention, one after the MLP (Megatron-LM, arXiv 1909.08053, section 3)."""


@dataclass(frozen=True, slots=True)
class RooflineOptions:
    """What no data sheet tells: how well the rates are used, and what stands beside the device.

    Efficiencies are fractions of the stated rates; 0.8 for memory is AIConfigurator's, and 0.8 for
    both came within 4 % of a recorded vLLM run on an RTX 4090 (docs/roofline.md). The host's times
    are those that BLIS fitted, the latency of a transfer between devices is AIConfigurator's.
    """

    tensor_parallel_size: int = 1
    block_size: int = 16
    compute_efficiency: float = 0.8
    memory_efficiency: float = 0.8
    link_efficiency: float = 0.8
    host_s_per_step: float = 126e-6
    host_s_per_sequence: float = 4e-6
    all_reduce_latency_s: float = 10e-6

    def __post_init__(self) -> None:
        if not 1 <= self.tensor_parallel_size <= MAX_TENSOR_PARALLEL:
            raise ConfigError(
                f"tensor_parallel_size must lie in [1, {MAX_TENSOR_PARALLEL:,}], got "
                f"{self.tensor_parallel_size:,}"
            )
        if self.block_size < 1:
            raise ConfigError(f"block_size must be at least 1, got {self.block_size:,}")
        for name in ("compute_efficiency", "memory_efficiency", "link_efficiency"):
            if not LEAST_EFFICIENCY <= getattr(self, name) <= 1:
                raise ConfigError(
                    f"{name} must lie in [{LEAST_EFFICIENCY:g}, 1], got {getattr(self, name):g}"
                )
        for name in ("host_s_per_step", "host_s_per_sequence", "all_reduce_latency_s"):
            if not 0 <= getattr(self, name) <= LONGEST_S:
                raise ConfigError(
                    f"{name} must lie in [0, {LONGEST_S:g}] seconds, got {getattr(self, name):g}"
                )


class RooflineStepTime:
    """Adds up the terms of a step; all prices are worked out once, so a call is a few products."""

    def __init__(
        self, device: Device, model: Model, options: RooflineOptions | None = None
    ) -> None:
        """Work out the price of each count; ConfigError names what device or model lack."""
        options = options or RooflineOptions()
        self.sizes = _Sizes(model, options.tensor_parallel_size)
        self._device, self._options = device, options
        rate, bandwidth = needed(device, ("flops", "memory_bandwidth"), _PURPOSE)
        self._flop_s = 1.0 / (rate * options.compute_efficiency)
        self._byte_s = 1.0 / (bandwidth * options.memory_efficiency)
        self._all_reduce_fixed_s = 0.0
        self._all_reduce_token_s = 0.0
        if options.tensor_parallel_size > 1:
            (link,) = needed(device, ("link_bandwidth",), f"{_PURPOSE} of several devices")
            count = ALL_REDUCES_PER_LAYER * self.sizes.num_layers
            self._all_reduce_fixed_s = count * options.all_reduce_latency_s
            self._all_reduce_token_s = self.sizes.all_reduce_bytes / (
                link * options.link_efficiency
            )
        self._set_prices()

    def _set_prices(self) -> None:
        """Turn seconds into nanoseconds a count, for `duration_ns`."""
        sizes, flop_ns, byte_ns = self.sizes, self._flop_s * NS_PER_S, self._byte_s * NS_PER_S
        self._weights_ns = sizes.layer_bytes * byte_ns
        self._token_ns = sizes.layer_flops * flop_ns
        self._kv_ns = sizes.kv_bytes * byte_ns
        self._pair_ns = sizes.pair_flops * flop_ns
        # A decode has one pair for each token that it reads.
        self._decode_context_ns = max(self._kv_ns, self._pair_ns)
        self._head_ns = sizes.head_bytes * byte_ns
        self._logits_ns = sizes.head_flops * flop_ns
        self._copied_block_ns = 2 * self._options.block_size * self._kv_ns
        self._sequence_ns = self._options.host_s_per_sequence * NS_PER_S
        self._other_token_ns = self._kv_ns + self._all_reduce_token_s * NS_PER_S
        # A step takes at least one nanosecond.
        fixed_s = self._options.host_s_per_step + self._all_reduce_fixed_s
        self._fixed_ns = max(1.0, fixed_s * NS_PER_S)

    def duration_ns(self, work: StepWork) -> int:
        """Give the duration in nanoseconds, at least 1."""
        tokens = work.num_decodes + work.prefill_tokens
        duration = (
            self._fixed_ns
            + self._sequence_ns * (work.num_decodes + work.num_chunks)
            + max(self._weights_ns, self._token_ns * tokens)
            + self._other_token_ns * tokens
            + self._decode_context_ns * work.decode_context
        )
        if work.num_chunks:
            duration += max(self._kv_ns * work.prefill_context, self._pair_ns * work.prefill_pairs)
        if work.num_logits:
            duration += max(self._head_ns, self._logits_ns * work.num_logits)
        if work.copied_blocks:
            duration += self._copied_block_ns * work.copied_blocks
        if work.swapped_blocks:
            duration += self._swap_s(work.swapped_blocks) * NS_PER_S
        return round(duration)

    def terms(self, work: StepWork) -> list[Term]:
        """Give every term of a step, those that are 0 too; they add up to `duration_ns`."""
        return [
            *self._forward_terms(work),
            *self._transfer_terms(work),
            Term(
                name="host",
                formula="per step + per sequence × sequences",
                transfer_s=self._options.host_s_per_step
                + self._options.host_s_per_sequence * (work.num_decodes + work.num_chunks),
                medium="host",
            ),
        ]

    def _forward_terms(self, work: StepWork) -> list[Term]:
        sizes, tokens = self.sizes, work.num_tokens
        return [
            self._in_memory(
                "weights",
                "layers' params × bytes; 2 × layers' params × tokens",
                sizes.layer_bytes,
                sizes.layer_flops * tokens,
                in_nominal=True,
            ),
            self._in_memory(
                "attention, decodes",
                "KV bytes × context; 4 × layers × heads × head size × context",
                sizes.kv_bytes * work.decode_context,
                sizes.pair_flops * work.decode_context,
            ),
            self._in_memory(
                "attention, prompts",
                "KV bytes × context; 4 × layers × heads × head size × (query, key) pairs",
                sizes.kv_bytes * work.prefill_context,
                sizes.pair_flops * work.prefill_pairs,
            ),
            self._in_memory("KV writes", "KV bytes × tokens", sizes.kv_bytes * tokens),
            self._in_memory(
                "logits",
                "head's params × bytes; 2 × head's params × rows that sample",
                sizes.head_bytes if work.num_logits else 0.0,
                sizes.head_flops * work.num_logits,
                in_nominal=True,
            ),
        ]

    def _transfer_terms(self, work: StepWork) -> list[Term]:
        tp, tokens = self._options.tensor_parallel_size, work.num_tokens
        block_bytes = self._options.block_size * self.sizes.kv_bytes
        return [
            Term(
                name="all-reduce",
                formula="2 × layers × (latency + 2 (tp − 1) / tp × hidden × bytes × tokens / link)",
                bytes=self.sizes.all_reduce_bytes * tokens if tp > 1 else 0.0,
                transfer_s=self._all_reduce_fixed_s + self._all_reduce_token_s * tokens,
                medium="link",
            ),
            self._in_memory(
                "block copies",
                "2 × block's KV bytes × blocks",
                2 * block_bytes * work.copied_blocks,
            ),
            Term(
                name="swapping",
                formula="block's KV bytes × blocks / PCIe",
                bytes=block_bytes * work.swapped_blocks,
                transfer_s=self._swap_s(work.swapped_blocks),
                medium="pcie",
            ),
        ]

    def _in_memory(
        self, name: str, formula: str, bytes: float, flops: float = 0.0, *, in_nominal: bool = False
    ) -> Term:
        return Term(
            name=name,
            formula=formula,
            bytes=bytes,
            flops=flops,
            transfer_s=bytes * self._byte_s,
            compute_s=flops * self._flop_s,
            in_nominal=in_nominal,
        )

    def _swap_s(self, num_blocks: int) -> float:
        if not num_blocks:
            return 0.0
        (pcie,) = needed(self._device, ("pcie_bandwidth",), f"{_PURPOSE} of swapping")
        moved = num_blocks * self._options.block_size * self.sizes.kv_bytes
        return moved / (pcie * self._options.link_efficiency)


class _Sizes:
    """One device's part of a model, in bytes and FLOPs a unit of work."""

    def __init__(self, model: Model, tp: int) -> None:
        """Divide a model among `tp` devices; KV heads are kept twice where there are too few."""
        names = ("num_params", "num_layers", "num_kv_heads", "head_dim", "bytes_per_value")
        num_params, layers, kv_heads, head_dim, bytes_per_value = needed(model, names, _PURPOSE)
        if tp > 1 or model.num_heads is None:
            needed(model, ("hidden_size",), _PURPOSE)
        # Heads are as wide as the hidden state unless the model says otherwise.
        hidden = model.hidden_size or 0.0
        heads = model.num_heads or hidden / head_dim
        layer_params = num_params - model.head_params - model.embedding_params
        self.num_layers = layers
        self.layer_bytes = layer_params * bytes_per_value / tp
        self.layer_flops = 2.0 * layer_params / tp
        """A token."""
        self.head_bytes = model.head_params * bytes_per_value / tp
        self.head_flops = 2.0 * model.head_params / tp
        """A row that samples."""
        assert model.kv_bytes_per_token is not None
        self.kv_bytes = model.kv_bytes_per_token / min(tp, kv_heads)
        """A token."""
        # A product with the key and one with the value, 2 FLOPs a number each.
        self.pair_flops = 4.0 * layers * heads * head_dim / tp
        """A (query, key) pair."""
        # A ring sends everything but one part, twice (Patarasuk and Yuan, JPDC 2009).
        ring = 2.0 * (tp - 1) / tp
        self.all_reduce_bytes = ALL_REDUCES_PER_LAYER * layers * ring * hidden * bytes_per_value
        """A token."""
