"""The native backend: C++ kernels, bfloat16 weights and KV, float32 sums.

Belongs here: the Python face of csrc/. Not here: arithmetic (csrc/, whose specification is
reference.py). Imported only where the extension can be loaded, which backends.py finds out. Called
by models through the protocol.

A token's result depends on its own context alone, bit by bit: not on what shares the batch, how a
prompt is cut into chunks, or how many threads compute (docs/kernels.md says why).
"""

import os
from collections.abc import Callable
from enum import Enum, auto
from functools import partial

import numpy as np

from everbatch.base.errors import ConfigError
from everbatch.kernels import _native
from everbatch.kernels.arrays import Floats, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.cores import cpus_to_pin, num_physical_cores
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.sampling import RowExtras, RowLogprobs, SampledTokens, SamplingRows
from everbatch.kernels.weights import LayerWeights, NetworkShape, NetworkWeights

PATH_VARIABLE = "EVERBATCH_CPU_PATH"
"""Names the path to use, for tests and comparisons: avx512, avx2 or portable."""

WITHOUT_VARIABLE = "EVERBATCH_WITHOUT"
"""Names optimisations to leave out, with commas between them, for comparisons (docs/kernels.md)."""

KV_DTYPE = np.uint16
"""The bits of bfloat16."""

WORK_PER_CALL = 100_000_000_000
"""Multiplications of layers that run in one call, from which on it ends with the layer: 4 s of a
CPU that does 50 GFLOP/s. Whoever watches a long step sees it go on (LlamaForCausalLM)."""


class NativeKernels:
    """One network's weights, packed as bfloat16: a Kernels, whose class is a KernelsBackend.

    Its steps share their intermediate results, so one runs at a time.
    """

    def __init__(
        self, shape: NetworkShape, weights: NetworkWeights, runtime: _native.Runtime | None = None
    ) -> None:
        self.shape = shape
        self.runtime = runtime or make_runtime()
        # Read one layer at a time, so that the caller can drop what has been packed.
        layers = [self._packed_layer(layer) for layer in weights.layers]
        tied = weights.lm_head is weights.embedding
        self._network = _native.Network(
            self.runtime,
            hidden_size=shape.hidden_size,
            intermediate_size=shape.intermediate_size,
            vocab_size=shape.vocab_size,
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            rms_norm_eps=shape.rms_norm_eps,
            layers=layers,
            # Once in memory where they are tied: looking up a packed row costs microseconds.
            embedding=_native.Matrix(self.runtime, [weights.embedding]),
            lm_head=None if tied else _native.Matrix(self.runtime, [weights.lm_head]),
            final_norm=weights.final_norm,
            inverse_frequencies=weights.inverse_frequencies,
            rotary_scale=weights.rotary_scale,
        )

    @property
    def num_bytes(self) -> int:
        """Memory of the packed weights."""
        return self._network.num_bytes

    @property
    def workspace_bytes(self) -> int:
        """Memory of the intermediate results of the largest batch so far."""
        return self._network.workspace_bytes

    def max_workspace_bytes(self, num_tokens: int, context_len: int) -> int:
        """Give what those grow to with batches of so many tokens, in contexts of this length."""
        return self._network.max_workspace_bytes(num_tokens, context_len)

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        """Give empty bfloat16 storage."""
        return KVStorage(self.shape, num_blocks, block_size, KV_DTYPE)

    def begin_step(self, batch: PackedBatch, kv: KVStorage) -> "NativeStep":
        """Give the operations of one forward pass over `batch`. ValueError where an index of the
        batch leads out of the vocabulary or the storage."""
        return NativeStep(self._network, self.shape, batch, kv)

    def _packed_layer(self, weights: LayerWeights) -> _native.Layer:
        return _native.Layer(
            attention_norm=weights.attention_norm,
            qkv=self._packed(
                [weights.q_proj, weights.k_proj, weights.v_proj],
                [weights.q_bias, weights.k_bias, weights.v_bias],
            ),
            q_norm=weights.q_norm,
            k_norm=weights.k_norm,
            o=self._packed([weights.o_proj], [weights.o_bias]),
            mlp_norm=weights.mlp_norm,
            gate_up=self._packed(
                [weights.gate_proj, weights.up_proj],
                [weights.gate_bias, weights.up_bias],
                interleaved=True,
            ),
            down=self._packed([weights.down_proj], [weights.down_bias]),
        )

    def _packed(
        self, parts: list[Floats], biases: list[Floats | None], *, interleaved: bool = False
    ) -> _native.Matrix:
        present = [bias for bias in biases if bias is not None]
        assert len(present) in (0, len(parts))
        return _native.Matrix(self.runtime, parts, present or None, interleaved)


def make_runtime(num_threads: int | None = None, *, pin: bool = False) -> _native.Runtime:
    """Give threads, None: one for each physical core we may use, on the path of the CPU that the
    environment names, or else the fastest, and with all optimisations but those that it names;
    `pin`: each on a CPU of its own. ConfigError where one of them cannot be."""
    path = os.environ.get(PATH_VARIABLE) or None
    known = _native.available_paths()
    if path is not None and path not in known:
        raise ConfigError(
            f"{PATH_VARIABLE} is {path!r}, this CPU runs {', '.join(known)}: name one of these, or "
            "unset it for the fastest"
        )
    names = os.environ.get(WITHOUT_VARIABLE, "").split(",")
    without = [name.strip() for name in names if name.strip()]
    for name in without:
        if name not in _native.optimisations():
            raise ConfigError(
                f"{WITHOUT_VARIABLE} holds {name!r}, what may be left out is "
                f"{', '.join(_native.optimisations())}: name some of these, or unset it for all"
            )
    num_threads = num_threads or num_physical_cores()
    cpus = cpus_to_pin(num_threads) if pin else None
    try:
        return _native.Runtime(num_threads, path, cpus, without)
    except ValueError as error:
        raise ConfigError(f"native kernels: {error}") from error


class _Tensor(Enum):
    """What an operation gives: the step itself holds the numbers, as its caller never looks."""

    HIDDEN = auto()
    QUERIES = auto()
    ATTENDED = auto()


class NativeStep:
    """The operations of one forward pass. Implements StepKernels, which documents each.

    They are only noted, and run when logits or tokens are asked for: all of them in one call, so
    that Python's lock is let go, and got back from other threads, once a step. Those of a long step
    run in several, after each WORK_PER_CALL. What is wrong with them is said then.
    """

    def __init__(
        self, network: _native.Network, shape: NetworkShape, batch: PackedBatch, kv: KVStorage
    ) -> None:
        self._logits_shape = (len(batch.logit_rows), shape.vocab_size)
        self._noted: list[tuple[_native.Operation, int]] = []
        self._noted_work = 0
        self._step = _native.Step(
            network,
            batch.input_ids,
            batch.positions,
            batch.cu_seqlens_q,
            batch.context_lens,
            np.ascontiguousarray(batch.block_tables),
            batch.slot_mapping,
            batch.logit_rows,
            kv.keys,
            kv.values,
        )
        self._layer_work = _layer_work(shape, batch)

    def embed(self) -> _Tensor:
        self._noted.append((_EMBED, 0))
        return _Tensor.HIDDEN

    def norm_qkv_rope_write(self, layer: int, hidden: _Tensor) -> _Tensor:
        assert hidden is _Tensor.HIDDEN
        self._noted.append((_NORM_QKV_ROPE_WRITE, layer))
        return _Tensor.QUERIES

    def paged_attention(self, layer: int, queries: _Tensor) -> _Tensor:
        assert queries is _Tensor.QUERIES
        self._noted.append((_PAGED_ATTENTION, layer))
        return _Tensor.ATTENDED

    def project_add(self, layer: int, attended: _Tensor, hidden: _Tensor) -> _Tensor:
        assert attended is _Tensor.ATTENDED
        assert hidden is _Tensor.HIDDEN
        self._noted.append((_PROJECT_ADD, layer))
        return hidden

    def norm_mlp_add(self, layer: int, hidden: _Tensor) -> _Tensor:
        assert hidden is _Tensor.HIDDEN
        self._noted.append((_NORM_MLP_ADD, layer))
        self._noted_work += self._layer_work
        if self._noted_work >= WORK_PER_CALL:
            self.finish()
        return hidden

    def norm_logits(self, hidden: _Tensor) -> Floats:
        assert hidden is _Tensor.HIDDEN
        self.finish()
        logits = np.empty(self._logits_shape, np.float32)
        self._step.norm_logits(logits)
        return logits

    def norm_sample(self, hidden: _Tensor, logits_of: Int32s, rows: SamplingRows) -> SampledTokens:
        assert hidden is _Tensor.HIDDEN
        self.finish()
        vocab_size = self._logits_shape[1]
        return sample_with(partial(self._step.norm_sample, logits_of), rows, vocab_size)

    def finish(self) -> None:
        """Run what was noted; for whoever wants to know how long it takes."""
        noted, self._noted, self._noted_work = self._noted, [], 0
        self._step.run(noted)


_EMBED = _native.Operation.EMBED
_NORM_QKV_ROPE_WRITE = _native.Operation.NORM_QKV_ROPE_WRITE
_PAGED_ATTENTION = _native.Operation.PAGED_ATTENTION
_PROJECT_ADD = _native.Operation.PROJECT_ADD
_NORM_MLP_ADD = _native.Operation.NORM_MLP_ADD


def _layer_work(shape: NetworkShape, batch: PackedBatch) -> int:
    """Give how many multiplications a layer is, as if each token saw the whole of its context."""
    query_size, kv_size = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    num_weights = shape.hidden_size * (2 * query_size + 2 * kv_size + 3 * shape.intermediate_size)
    num_seen = int(np.dot(np.diff(batch.cu_seqlens_q), batch.context_lens.astype(np.int64)))
    return batch.num_tokens * num_weights + 2 * query_size * num_seen


def sample_with(
    sample: Callable[[_native.SamplingRows, _native.SampledArrays], None],
    rows: SamplingRows,
    vocab_size: int,
) -> SampledTokens:
    """Give what `sample` puts into arrays, as sampling.sample would give it."""
    wanting = np.flatnonzero(rows.wants_logprobs).tolist()
    num_rows, num_top = len(rows.temperature), 0
    if wanting:
        num_top = min(int(rows.num_logprobs[wanting].max()), vocab_size)
    token_ids = np.empty(num_rows, np.int32)
    failed = np.empty(num_rows, np.bool_)
    logprobs = np.empty(num_rows, np.float32)
    ranks = np.empty(num_rows, np.int64)
    top_ids = np.empty((num_rows, num_top), np.int64)
    top_logprobs = np.empty((num_rows, num_top), np.float32)
    sample(
        _native_rows(rows),
        _native.SampledArrays(token_ids, failed, logprobs, ranks, top_ids, top_logprobs),
    )
    by_row = {}
    for row in wanting:
        if not failed[row]:
            count = min(int(rows.num_logprobs[row]), vocab_size)
            by_row[row] = RowLogprobs(
                logprob=float(logprobs[row]),
                rank=int(ranks[row]),
                top_ids=top_ids[row, :count],
                top_logprobs=top_logprobs[row, :count],
            )
    return SampledTokens(token_ids, failed, by_row)


def _native_rows(rows: SamplingRows) -> _native.SamplingRows:
    return _native.SamplingRows(
        rows.temperature,
        rows.top_k,
        rows.top_p,
        rows.min_p,
        rows.seed,
        rows.position,
        rows.wants_logprobs,
        rows.num_logprobs,
        [(row, _native_extras(extras)) for row, extras in rows.extras.items()],
    )


def _native_extras(extras: RowExtras) -> _native.RowExtras:
    return _native.RowExtras(
        extras.token_history,
        extras.prompt_length,
        extras.repetition_penalty,
        extras.presence_penalty,
        extras.frequency_penalty,
        extras.bias_ids,
        extras.bias_values,
        extras.forbidden_ids,
    )
