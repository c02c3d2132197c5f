"""The extension module made of csrc/ (bindings.cpp documents what each checks).

Arrays are C-contiguous and of exactly these types; bfloat16 is its bits in uint16. TypeError for
another type or layout, ValueError for sizes, indices or overlaps that do not fit.
"""

from collections.abc import Sequence
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from everbatch.kernels.arrays import Flags, Floats, Int32s, Int64s

_Bf16s = NDArray[np.uint16]

def available_paths() -> list[str]:
    """Names of the paths that this CPU runs, fastest first."""

def optimisations() -> list[str]:
    """Names of what a Runtime may be without. No result depends on it (docs/kernels.md)."""

def attention(
    runtime: Runtime,
    queries: _Bf16s,
    keys: _Bf16s,
    values: _Bf16s,
    cu_seqlens_q: Int32s,
    context_lens: Int32s,
    block_tables: Int32s,
    out: _Bf16s,
) -> None:
    """Attention of one layer. queries, out: [T, H, D]; keys, values: [blocks, size, H_kv, D]."""

def sample(
    runtime: Runtime, logits: Floats, logits_of: Int32s, rows: SamplingRows, out: SampledArrays
) -> None:
    """Sample row i of `rows` from logits[logits_of[i]]. logits: [.., vocab]."""

def uniform(seed: int, position: int) -> float:
    """random_numbers.uniform of one seed and position."""

class Runtime:
    """Threads and a path. cpus: one for each thread, which then runs there alone; the first is the
    caller's while it is in the operations of a step. without: names out of optimisations()."""

    def __init__(
        self,
        num_threads: int,
        path: str | None = None,
        cpus: Sequence[int] | None = None,
        without: Sequence[str] = (),
    ) -> None: ...
    @property
    def cpus(self) -> list[int]:
        """Empty where threads are not pinned."""
    @property
    def num_threads(self) -> int: ...
    @property
    def path(self) -> str: ...
    @property
    def without(self) -> list[str]: ...

class Matrix:
    """A packed matrix. parts: float32 [out, in]; biases: one [out] for each part."""

    def __init__(
        self,
        runtime: Runtime,
        parts: Sequence[Floats],
        biases: Sequence[Floats] | None = None,
        interleaved: bool = False,
    ) -> None: ...
    def multiply(self, runtime: Runtime, x: _Bf16s, out: Floats) -> None:
        """out [M, out] = x [M, in] times the matrix, plus bias; not for an interleaved one."""

    def silu_times(self, runtime: Runtime, x: _Bf16s, out: _Bf16s) -> None:
        """out [M, out / 2] = silu(x * first part) * (x * second part); interleaved only."""

    @property
    def num_bytes(self) -> int: ...

class Layer:
    """The weights of one layer."""

    def __init__(
        self,
        attention_norm: Floats,
        qkv: Matrix,
        q_norm: Floats | None,
        k_norm: Floats | None,
        o: Matrix,
        mlp_norm: Floats,
        gate_up: Matrix,
        down: Matrix,
    ) -> None: ...

class Network:
    """All weights of a network, and the memory of its intermediate results."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        hidden_size: int,
        intermediate_size: int,
        vocab_size: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        rms_norm_eps: float,
        layers: Sequence[Layer],
        embedding: Matrix,
        lm_head: Matrix | None,
        final_norm: Floats,
        inverse_frequencies: Floats,
        rotary_scale: float,
    ) -> None: ...
    @property
    def num_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    def max_workspace_bytes(self, num_tokens: int, context_len: int) -> int: ...

class Step:
    """One forward pass: the operations of protocol.StepKernels, on memory of the network."""

    def __init__(
        self,
        network: Network,
        input_ids: Int32s,
        positions: Int32s,
        cu_seqlens_q: Int32s,
        context_lens: Int32s,
        block_tables: Int32s,
        slot_mapping: Int32s,
        logit_rows: Int32s,
        keys: NDArray[np.generic],
        values: NDArray[np.generic],
    ) -> None: ...
    def run(self, operations: Sequence[tuple[Operation, int]]) -> None:
        """Run operations, each of a layer, one after the other."""

    def norm_logits(self, logits: Floats) -> None: ...
    def norm_sample(self, logits_of: Int32s, rows: SamplingRows, out: SampledArrays) -> None:
        """Sample row i of `rows` from the row logits_of[i] of the logits."""

class Operation(Enum):
    EMBED = ...
    NORM_QKV_ROPE_WRITE = ...
    PAGED_ATTENTION = ...
    PROJECT_ADD = ...
    NORM_MLP_ADD = ...

class RowExtras:
    """sampling.RowExtras."""

    def __init__(
        self,
        token_history: Int64s,
        prompt_length: int,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        bias_ids: Int64s,
        bias_values: Floats,
        forbidden_ids: Int64s,
    ) -> None: ...

class SamplingRows:
    """sampling.SamplingRows."""

    def __init__(
        self,
        temperature: Floats,
        top_k: Int32s,
        top_p: Floats,
        min_p: Floats,
        seed: NDArray[np.uint64],
        position: Int64s,
        wants_logprobs: Flags,
        num_logprobs: Int32s,
        extras: Sequence[tuple[int, RowExtras]],
    ) -> None: ...

class SampledArrays:
    """Where results go: [R], and [R, K] for the likeliest, K at least any num_logprobs."""

    def __init__(
        self,
        token_ids: Int32s,
        failed: Flags,
        logprobs: Floats,
        ranks: Int64s,
        top_ids: Int64s,
        top_logprobs: Floats,
    ) -> None: ...
