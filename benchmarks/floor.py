"""The least time that a step can take on a machine: what it must read, and what it must multiply.

A step is a sum of phases that follow one another: in each layer q, k and v, attention, the output
projection, gate and up, down; at the end the head, for the rows that sample. A phase takes at least
the larger of its bytes through the memory and its FLOPs through the matrix units. Weights are read
once a step, keys and values once a decode or chunk, all bfloat16. Left out, so that the floor is
rather too low: norms, rotation, softmax, sampling, writing keys and values, activations, which fit
into caches.

Belongs here: that arithmetic. Not here: measuring ceilings (ceilings.py) and steps (bench_floor.py,
bench_mixed.py).
"""

from dataclasses import dataclass

from everbatch.assemble.model_source import resolve_model
from everbatch.costs.work import StepWork
from everbatch.kernels.weights import NetworkShape
from everbatch.models.llama import network_shape
from everbatch.models.weights import load_model

VALUE_BYTES = 2  # bfloat16


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What all cores together reach."""

    read_gb_per_s: float
    matrix_gflop_per_s: float


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a step, over all layers."""

    name: str
    num_bytes: float
    flops: float

    def seconds(self, ceilings: Ceilings) -> float:
        return max(
            self.num_bytes / (ceilings.read_gb_per_s * 1e9),
            self.flops / (ceilings.matrix_gflop_per_s * 1e9),
        )


def phases(shape: NetworkShape, work: StepWork) -> list[Phase]:
    """Give the phases of a step in which these tokens pass through the network."""
    queries, keys = (heads * shape.head_dim for heads in (shape.num_heads, shape.num_kv_heads))
    hidden, layers = shape.hidden_size, shape.num_layers
    products = {
        "qkv": hidden * (queries + 2 * keys) * layers,
        "output": queries * hidden * layers,
        "gate and up": 2 * hidden * shape.intermediate_size * layers,
        "down": shape.intermediate_size * hidden * layers,
    }
    found = [
        Phase(name, VALUE_BYTES * weights, 2.0 * work.num_tokens * weights)
        for name, weights in products.items()
    ]
    # A (query, key) pair costs a product with the key and one with the value, in each head.
    kv_bytes, pair_flops = 2 * VALUE_BYTES * keys * layers, 4.0 * queries * layers
    found += [
        Phase(
            "attention of decodes",
            kv_bytes * work.decode_context,
            pair_flops * work.decode_context,
        ),
        Phase(
            "attention of chunks", kv_bytes * work.prefill_context, pair_flops * work.prefill_pairs
        ),
    ]
    head = hidden * shape.vocab_size if work.num_logits else 0
    return [*found, Phase("head", VALUE_BYTES * head, 2.0 * work.num_logits * head)]


def floor_seconds(shape: NetworkShape, work: StepWork, ceilings: Ceilings) -> float:
    """Give the least time of a step."""
    return sum(phase.seconds(ceilings) for phase in phases(shape, work))


def decode_work(batch: int, context: float) -> StepWork:
    """Give the step in which `batch` requests decode, each with so many tokens, its own too."""
    return StepWork(num_decodes=batch, decode_context=round(batch * context), num_logits=batch)


def shape_of(model: str | None) -> NetworkShape:
    """Give the sizes of a model that everbatch loads."""
    return network_shape(load_model(resolve_model(model).path).config)
