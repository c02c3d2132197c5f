"""Benchmark: the native kernels against the reference, operation by operation, in one run.

    python benchmarks/bench_kernels.py [--threads N | --cpu-time]

Random weights in the shape of SmolLM2-135M; decodes of 1, 8 and 32 requests with 128 tokens in the
cache, and a prompt of 512. Rounds alternate between the backends and the shortest time of each
counts, as neighbours only ever make a round longer. `--cpu-time` counts the CPU time of the calling
thread in place of the clock, with one thread: a ratio for a machine on which others compute.

Prints milliseconds of all layers, GFLOP/s of the products, and how many times as long the reference
takes. Not here: peers and whole runs (bench_reference.py).
"""

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from positive_numbers import positive

from everbatch.base.units import div_ceil
from everbatch.kernels.backends import choose_backend
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.native import NativeStep
from everbatch.kernels.protocol import Kernels
from everbatch.kernels.weights import LayerWeights, NetworkShape, NetworkWeights

SMOLLM2 = NetworkShape(
    num_layers=30,
    hidden_size=576,
    intermediate_size=1536,
    vocab_size=49_152,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    rms_norm_eps=1e-5,
)
BLOCK_SIZE = 16
CONTEXT_LEN = 129  # of a decode: 128 tokens in the cache and its own
PROMPT_LEN = 512
OPERATIONS = ("embed", "norm_qkv_rope_write", "paged_attention", "project_add", "norm_mlp_add")

Clock = Callable[[], float]
Times = dict[str, float]  # seconds by operation


@dataclass(frozen=True, slots=True)
class Workload:
    """A batch to time, and the products' floating-point operations in each operation."""

    name: str
    batch: PackedBatch
    flops: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    one_of = parser.add_mutually_exclusive_group()
    one_of.add_argument("--threads", type=positive, help="default: what each backend chooses")
    one_of.add_argument("--cpu-time", action="store_true", help="of one thread, not the clock's")
    parser.add_argument("--rounds", type=positive, default=10, help="of each backend")
    options = parser.parse_args()
    threads = 1 if options.cpu_time else options.threads
    clock = time.thread_time if options.cpu_time else time.perf_counter
    backends = [choose_backend(name, threads) for name in ("native", "reference")]
    kernels = [backend.build(SMOLLM2, random_weights(SMOLLM2)) for backend in backends]
    print(f"{backends[0].name} against {backends[1].name}; shortest of {options.rounds} rounds")
    for workload in (decodes(1), decodes(8), decodes(32), prompt(PROMPT_LEN)):
        native, reference = compare(kernels, workload, options.rounds, clock)
        print_table(workload, native, reference)


def compare(
    kernels: list[Kernels], workload: Workload, rounds: int, clock: Clock
) -> tuple[Times, ...]:
    """Time every operation under each backend in turn; give the shortest times of each."""
    num_blocks = int(workload.batch.block_tables.max()) + 1
    storages = [one.allocate_kv(num_blocks, BLOCK_SIZE) for one in kernels]
    shortest: list[Times] = [defaultdict(lambda: float("inf")) for _ in kernels]
    for _ in range(rounds):
        for one, kv, best in zip(kernels, storages, shortest, strict=True):
            for name, seconds in timed_pass(one, workload.batch, kv, clock).items():
                best[name] = min(best[name], seconds)
    return tuple(shortest)


def timed_pass(kernels: Kernels, batch: PackedBatch, kv: object, clock: Clock) -> Times:
    """One forward pass, its seconds by operation, summed over layers."""
    times: Times = defaultdict(float)

    def timed(name: str, operation: Callable[..., object], *operands: object) -> object:
        start = clock()
        result = operation(*operands)
        if isinstance(step, NativeStep):
            step.finish()  # Or it would only be noted.
        times[name] += clock() - start
        return result

    start = clock()
    step = kernels.begin_step(batch, kv)
    hidden = timed("embed", step.embed)
    for layer in range(SMOLLM2.num_layers):
        queries = timed("norm_qkv_rope_write", step.norm_qkv_rope_write, layer, hidden)
        attended = timed("paged_attention", step.paged_attention, layer, queries)
        hidden = timed("project_add", step.project_add, layer, attended, hidden)
        hidden = timed("norm_mlp_add", step.norm_mlp_add, layer, hidden)
    timed("norm_logits", step.norm_logits, hidden)
    return {**times, "whole pass": clock() - start}


def print_table(workload: Workload, native: Times, reference: Times) -> None:
    print(f"\n{workload.name:<22}{'native ms':>12}{'GFLOP/s':>10}{'reference ms':>15}{'ratio':>8}")
    for name in (*OPERATIONS, "norm_logits", "whole pass"):
        flops = workload.flops.get(name)
        rate = f"{flops / native[name] / 1e9:10.0f}" if flops else " " * 10
        ratio = reference[name] / native[name]
        print(
            f"{name:<22}{native[name] * 1e3:12.2f}{rate}{reference[name] * 1e3:15.2f}{ratio:8.2f}"
        )


def decodes(num_requests: int) -> Workload:
    contexts = np.full(num_requests, CONTEXT_LEN, np.int32)
    rows = np.arange(num_requests, dtype=np.int32)
    return workload_of(f"{num_requests} decodes", np.ones(num_requests, np.int32), contexts, rows)


def prompt(length: int) -> Workload:
    lengths = np.array([length], np.int32)
    last = np.array([length - 1], np.int32)
    return workload_of(f"a prompt of {length}", lengths, lengths, last)


def workload_of(
    name: str, query_lens: np.ndarray, context_lens: np.ndarray, logit_rows: np.ndarray
) -> Workload:
    num_rows, max_blocks = len(context_lens), div_ceil(int(context_lens.max()), BLOCK_SIZE)
    num_blocks = num_rows * max_blocks
    tables = np.random.default_rng(0).permutation(num_blocks).reshape(num_rows, max_blocks)
    positions = np.concatenate(
        [np.arange(c - q, c) for q, c in zip(query_lens, context_lens, strict=True)]
    )
    rows = np.repeat(np.arange(num_rows), query_lens)
    slots = tables[rows, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    batch = PackedBatch(
        input_ids=(positions % SMOLLM2.vocab_size).astype(np.int32),
        positions=positions.astype(np.int32),
        cu_seqlens_q=np.cumsum([0, *query_lens]).astype(np.int32),
        context_lens=context_lens,
        block_tables=tables.astype(np.int32),
        slot_mapping=slots.astype(np.int32),
        logit_rows=logit_rows,
        num_prefills=int((query_lens > 1).sum()),
    )
    return Workload(name, batch, product_flops(len(positions), len(logit_rows)))


def product_flops(num_tokens: int, num_logit_rows: int) -> dict[str, float]:
    shape = SMOLLM2
    queries = shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    per_layer = 2 * num_tokens * shape.hidden_size * shape.num_layers
    return {
        "norm_qkv_rope_write": per_layer * (queries + 2 * keys),
        "project_add": per_layer * queries,
        "norm_mlp_add": per_layer * 3 * shape.intermediate_size,
        "norm_logits": 2.0 * num_logit_rows * shape.hidden_size * shape.vocab_size,
    }


def random_weights(shape: NetworkShape) -> NetworkWeights:
    rng = np.random.default_rng(0)

    def matrix(num_outputs: int, num_inputs: int) -> np.ndarray:
        return rng.standard_normal((num_outputs, num_inputs), dtype=np.float32) * num_inputs**-0.5

    queries = shape.num_heads * shape.head_dim
    keys = shape.num_kv_heads * shape.head_dim
    norm = np.ones(shape.hidden_size, np.float32)

    def layers() -> Iterator[LayerWeights]:
        for _ in range(shape.num_layers):
            yield LayerWeights(
                attention_norm=norm,
                q_proj=matrix(queries, shape.hidden_size),
                k_proj=matrix(keys, shape.hidden_size),
                v_proj=matrix(keys, shape.hidden_size),
                o_proj=matrix(shape.hidden_size, queries),
                mlp_norm=norm,
                gate_proj=matrix(shape.intermediate_size, shape.hidden_size),
                up_proj=matrix(shape.intermediate_size, shape.hidden_size),
                down_proj=matrix(shape.hidden_size, shape.intermediate_size),
            )

    embedding = matrix(shape.vocab_size, shape.hidden_size)
    frequencies = (10_000.0 ** -(np.arange(0, shape.head_dim, 2) / shape.head_dim)).astype(
        np.float32
    )
    return NetworkWeights(embedding, layers(), norm, embedding, frequencies, 1.0)


if __name__ == "__main__":
    main()
