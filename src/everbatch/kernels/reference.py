"""The reference backend: numpy, float32, a few readable lines an operation.

This is the specification of `protocol.py`: other backends are tested against it. Products go to
BLAS, and no Python loop runs over tokens: only over prompt chunks, pieces of long chunks, and
groups of decodes. Not here: anything clever. Called by models through the protocol.

    T tokens, B decodes of one group, H query heads, H_kv key-value heads, G = H / H_kv, D head_dim
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from everbatch.base.units import div_ceil
from everbatch.kernels.arrays import Flags, Floats, Indices, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.sampling import SampledTokens, SamplingRows, sample
from everbatch.kernels.weights import LayerWeights, NetworkShape, NetworkWeights
from everbatch.kernels.workers import Workers

# Bounds on temporary memory, in float32 values. Attention scores of one piece of a prompt chunk:
# 16 MB, far below what the weights need. Keys gathered for one group of decodes: 1 MB, so that they
# are still in the L2 cache when the product reads them.
MAX_SCORES = 4 * 2**20
MAX_GATHERED = 2**18
# Short pieces also skip most of the products that the causal mask would throw away.
MAX_PIECE_ROWS = 256
STRIP_ROWS = 64
# Workers share a product by columns, in whole cache lines of many registers' width.
COLUMN_STEP = 64
# Products of fewer rows are over too soon to be cut here (handing a piece over costs some 90 us);
# BLAS cuts those, and a matrix times a row has no parts that wait for each other.
FEW_ROWS = 4


class ReferenceKernels:
    """One network's weights, packed for numpy: a Kernels, whose class is a KernelsBackend."""

    def __init__(
        self, shape: NetworkShape, weights: NetworkWeights, num_threads: int | None = None
    ) -> None:
        self.shape = shape
        self.workers = Workers(num_threads)
        # Read one layer at a time, so that the caller can drop what has been copied.
        self.layers = [_PackedLayer.pack(layer, shape) for layer in weights.layers]
        self.final_norm = weights.final_norm
        self.lm_head = _packed(weights.lm_head)
        # One matrix where they are tied: looking up columns costs 6 ms for 512 tokens, the matrix
        # of SmolLM2 113 MB.
        tied = weights.lm_head is weights.embedding
        self.embedding = self.lm_head.T if tied else weights.embedding
        self.inverse_frequencies = weights.inverse_frequencies
        self.rotary_scale = np.float32(weights.rotary_scale)
        assert len(self.layers) == shape.num_layers

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        """Give empty float32 storage."""
        return KVStorage(self.shape, num_blocks, block_size, np.float32)

    def max_workspace_bytes(self, num_tokens: int, context_len: int) -> int | None:
        """Not known: numpy takes memory as it computes."""
        return None

    def begin_step(self, batch: PackedBatch, kv: KVStorage) -> "ReferenceStep":
        """Give the operations of one forward pass over `batch`."""
        self.workers.let_blas_share(batch.num_tokens < FEW_ROWS)
        return ReferenceStep(self, batch, kv)


class ReferenceStep:
    """The operations of one forward pass. Implements StepKernels, which documents each."""

    def __init__(self, kernels: ReferenceKernels, batch: PackedBatch, kv: KVStorage) -> None:
        self._kernels = kernels
        self._batch = batch
        self._kv = kv
        self._slots = batch.slot_mapping.astype(np.intp)
        self._cos, self._sin = self._rotation()
        self._chunks = [_PromptChunk.of_row(batch, kv, row) for row in range(batch.num_prefills)]
        self._groups = list(self._decode_groups())

    def embed(self) -> Floats:
        return self._kernels.embedding[self._batch.input_ids]

    def norm_qkv_rope_write(self, layer: int, hidden: Floats) -> Floats:
        shape, weights = self._kernels.shape, self._kernels.layers[layer]
        normed = _rms_norm(hidden, weights.attention_norm, shape.rms_norm_eps)
        heads = self._linear(normed, weights.qkv, weights.qkv_bias).reshape(
            len(hidden), shape.num_heads + 2 * shape.num_kv_heads, shape.head_dim
        )
        rotated = heads[:, : shape.num_heads + shape.num_kv_heads]
        if weights.qk_norm is not None:
            rotated = _rms_norm(rotated, weights.qk_norm, shape.rms_norm_eps)
        rotated = _rotate(rotated, self._cos, self._sin)
        _by_slot(self._kv.keys[layer])[self._slots] = rotated[:, shape.num_heads :]
        _by_slot(self._kv.values[layer])[self._slots] = heads[:, rotated.shape[1] :]
        return rotated[:, : shape.num_heads]

    def paged_attention(self, layer: int, queries: Floats) -> Floats:
        shape = self._kernels.shape
        keys, values = self._kv.keys[layer], self._kv.values[layer]
        scaled = queries * np.float32(shape.head_dim**-0.5)
        # [T, H_kv, G, D]: consecutive query heads share one key-value head.
        scaled = scaled.reshape(len(queries), shape.num_kv_heads, -1, shape.head_dim)
        attended = np.empty_like(scaled)
        arrays = (scaled, keys, values, attended)
        self._kernels.workers.run(
            [
                *(partial(_attend_chunk, chunk, *arrays) for chunk in self._chunks),
                *(partial(_attend_decodes, group, *arrays) for group in self._groups),
            ]
        )
        return attended.reshape(len(queries), -1)

    def project_add(self, layer: int, attended: Floats, hidden: Floats) -> Floats:
        weights = self._kernels.layers[layer]
        hidden += self._linear(attended, weights.o, weights.o_bias)
        return hidden

    def norm_mlp_add(self, layer: int, hidden: Floats) -> Floats:
        weights = self._kernels.layers[layer]
        normed = _rms_norm(hidden, weights.mlp_norm, self._kernels.shape.rms_norm_eps)
        gate_up = self._linear(normed, weights.gate_up, weights.gate_up_bias)
        half = gate_up.shape[1] // 2
        gate, up = gate_up[:, :half], gate_up[:, half:]
        hidden += self._linear(_silu(gate) * up, weights.down, weights.down_bias)
        return hidden

    def norm_logits(self, hidden: Floats) -> Floats:
        kernels = self._kernels
        wanted = hidden[self._batch.logit_rows]
        normed = _rms_norm(wanted, kernels.final_norm, kernels.shape.rms_norm_eps)
        return self._linear(normed, kernels.lm_head, None)

    def norm_sample(self, hidden: Floats, logits_of: Int32s, rows: SamplingRows) -> SampledTokens:
        return sample(self.norm_logits(hidden)[logits_of], rows)

    def _linear(self, x: Floats, weight: Floats, bias: Floats | None) -> Floats:
        """Give x [T, in] times weight [in, out], plus bias [out]; each worker some columns."""
        workers, num_columns = self._kernels.workers, weight.shape[1]
        product = np.empty((len(x), num_columns), np.float32)
        if workers.blas_shares:
            np.matmul(x, weight, out=product)
        else:
            width = div_ceil(num_columns, workers.num_threads * COLUMN_STEP) * COLUMN_STEP
            parts = [slice(start, start + width) for start in range(0, num_columns, width)]
            workers.run([partial(np.matmul, x, weight[:, p], out=product[:, p]) for p in parts])
        if bias is not None:
            product += bias
        return product

    def _rotation(self) -> tuple[Floats, Floats]:
        """Give cos and sin of every token's angles, [T, 1, D / 2].
        Angles are products in float32, as in transformers: at position 8,000 one in float64 would
        differ by up to 5e-4 rad (modeling_llama, LlamaRotaryEmbedding.forward)."""
        positions = self._batch.positions.astype(np.float32)
        angles = positions[:, None, None] * self._kernels.inverse_frequencies
        scale = self._kernels.rotary_scale
        return np.cos(angles) * scale, np.sin(angles) * scale

    def _decode_groups(self) -> Iterator["_DecodeGroup"]:
        """Group decodes whose block counts have the same power of two, and bound each group.
        Padding to the longest of a group then at most doubles the work, however ragged the batch.
        """
        batch, block_size = self._batch, self._kv.block_size
        rows = np.arange(batch.num_prefills, batch.num_rows)
        num_blocks = -(-batch.context_lens[rows] // block_size)  # div_ceil, of an array
        powers = np.frexp(num_blocks)[1]
        values_per_block = self._kv.keys[0, 0].size
        for power in np.unique(powers):
            members = rows[powers == power]
            widest = num_blocks[powers == power].max()
            step = max(1, MAX_GATHERED // int(widest * values_per_block))
            for start in range(0, len(members), step):
                yield _DecodeGroup.of_rows(batch, self._kv, members[start : start + step])


@dataclass(frozen=True, slots=True)
class _PackedLayer:
    """One layer's weights; matrices that share an input are one matrix, [in, out]."""

    attention_norm: Floats
    qkv: Floats  # [hidden, (H + 2 H_kv) * D]
    qkv_bias: Floats | None
    qk_norm: Floats | None  # [H + H_kv, D]
    o: Floats
    o_bias: Floats | None
    mlp_norm: Floats
    gate_up: Floats  # [hidden, 2 * intermediate]
    gate_up_bias: Floats | None
    down: Floats
    down_bias: Floats | None

    @staticmethod
    def pack(weights: LayerWeights, shape: NetworkShape) -> "_PackedLayer":
        qk_norm = None
        if weights.q_norm is not None and weights.k_norm is not None:
            per_head = [weights.q_norm] * shape.num_heads + [weights.k_norm] * shape.num_kv_heads
            qk_norm = np.stack(per_head)
        return _PackedLayer(
            attention_norm=weights.attention_norm,
            qkv=_packed(weights.q_proj, weights.k_proj, weights.v_proj),
            qkv_bias=_packed_bias(weights.q_bias, weights.k_bias, weights.v_bias),
            qk_norm=qk_norm,
            o=_packed(weights.o_proj),
            o_bias=_packed_bias(weights.o_bias),
            mlp_norm=weights.mlp_norm,
            gate_up=_packed(weights.gate_proj, weights.up_proj),
            gate_up_bias=_packed_bias(weights.gate_bias, weights.up_bias),
            down=_packed(weights.down_proj),
            down_bias=_packed_bias(weights.down_bias),
        )


@dataclass(frozen=True, slots=True)
class _PromptChunk:
    """One prompt chunk: tokens [start, stop) of T, the last ones of a context in `blocks`."""

    start: int
    stop: int
    context_len: int
    blocks: Indices

    @staticmethod
    def of_row(batch: PackedBatch, kv: KVStorage, row: int) -> "_PromptChunk":
        start, stop = batch.cu_seqlens_q[row : row + 2].tolist()
        context_len = int(batch.context_lens[row])
        num_blocks = div_ceil(context_len, kv.block_size)
        return _PromptChunk(start, stop, context_len, batch.block_tables[row, :num_blocks])


@dataclass(frozen=True, slots=True)
class _DecodeGroup:
    """Decodes computed together, their contexts padded to whole blocks and to the longest."""

    tokens: Indices  # [B] indices into T
    blocks: Indices  # [B, blocks of the longest]
    outside: Flags  # [B, padded context]: True past the end of the context

    @staticmethod
    def of_rows(batch: PackedBatch, kv: KVStorage, rows: Indices) -> "_DecodeGroup":
        context_lens = batch.context_lens[rows, None]
        num_blocks = div_ceil(int(context_lens.max()), kv.block_size)
        return _DecodeGroup(
            tokens=batch.cu_seqlens_q[rows],
            blocks=batch.block_tables[rows, :num_blocks],
            outside=np.arange(num_blocks * kv.block_size) >= context_lens,
        )


def _attend_chunk(
    chunk: _PromptChunk,
    queries: Floats,
    keys: Floats,
    values: Floats,
    attended: Floats,
) -> None:
    """Causal attention of one chunk, in pieces; queries, attended: [T, H_kv, G, D]."""
    context_keys = _by_slot(keys[chunk.blocks]).transpose(1, 2, 0)  # [H_kv, D, context]
    context_values = _by_slot(values[chunk.blocks]).transpose(1, 0, 2)  # [H_kv, context, D]
    _, num_kv_heads, group_size, head_dim = queries.shape
    scores_per_row = num_kv_heads * group_size * chunk.context_len
    step = min(MAX_PIECE_ROWS, max(1, MAX_SCORES // scores_per_row))
    for start in range(chunk.start, chunk.stop, step):
        stop = min(start + step, chunk.stop)
        rows = stop - start
        # The context of the piece's last token: [0, past) older tokens | [past, visible) the piece.
        visible = chunk.context_len - (chunk.stop - stop)
        past = visible - rows
        piece = queries[start:stop].transpose(1, 2, 0, 3).reshape(num_kv_heads, -1, head_dim)
        scores = piece @ context_keys[:, :, :visible]
        by_token = scores.reshape(num_kv_heads, group_size, rows, visible)
        by_token[..., past:] += np.triu(np.full((rows, rows), -np.inf, np.float32), 1)
        result = _softmax(scores) @ context_values[:, :visible]
        result = result.reshape(num_kv_heads, group_size, rows, head_dim)
        attended[start:stop] = result.transpose(2, 0, 1, 3)


def _attend_decodes(
    group: _DecodeGroup,
    queries: Floats,
    keys: Floats,
    values: Floats,
    attended: Floats,
) -> None:
    """Attention of one token a row over its context; queries, attended: [T, H_kv, G, D]."""
    padded = (len(group.tokens), -1, *keys.shape[2:])  # [B, padded context, H_kv, D]
    context_keys = keys[group.blocks].reshape(padded)
    # Slots outside may hold what another request left, even a NaN. So scores there are replaced,
    # not lowered, and values are cleared: a weight of 0 times NaN is NaN.
    scores = queries[group.tokens] @ context_keys.transpose(0, 2, 3, 1)
    np.copyto(scores, -np.inf, where=group.outside[:, None, None, :])
    context_values = values[group.blocks].reshape(padded)
    context_values[group.outside] = 0
    attended[group.tokens] = _softmax(scores) @ context_values.transpose(0, 2, 1, 3)


def _softmax(scores: Floats) -> Floats:
    """Softmax over the last axis, in place. Each row has at least one score above -inf."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _rms_norm(x: Floats, weight: Floats, eps: float) -> Floats:
    """x / sqrt(mean(x ** 2) + eps) * weight over the last axis (arXiv 1910.07467)."""
    mean_square: Floats = np.vecdot(x, x)[..., None] / np.float32(x.shape[-1])
    normed: Floats = x / np.sqrt(mean_square + np.float32(eps))
    normed *= weight
    return normed


def _rotate(x: Floats, cos: Floats, sin: Floats) -> Floats:
    """Rotate the pairs (i, i + D/2) of x [T, heads, D] by the angles of cos, sin [T, 1, D/2].
    RoPE (arXiv 2104.09864) in the half-split order of checkpoints in Hugging Face format."""
    half = x.shape[-1] // 2
    first, second = x[..., :half], x[..., half:]
    rotated = np.empty_like(x)
    rotated[..., :half] = first * cos - second * sin
    rotated[..., half:] = second * cos + first * sin
    return rotated


def _silu(x: Floats) -> Floats:
    """x * sigmoid(x)."""
    with np.errstate(over="ignore"):  # exp(-x) is inf below -88, where the quotient is rightly 0.
        denominator = np.exp(-x)
    denominator += 1
    return np.divide(x, denominator, out=denominator)


def _by_slot(blocks: Floats) -> Floats:
    """[blocks, block_size, H_kv, D] as [slots, H_kv, D], without a copy."""
    return blocks.reshape(-1, *blocks.shape[2:])


def _packed(*parts: Floats) -> Floats:
    """Matrices [out, in] side by side as one [in, out], contiguous.
    OpenBLAS multiplies 4 to 32 rows up to 1.6 times as fast by this layout as by [out, in]."""
    packed = np.empty((parts[0].shape[1], sum(len(part) for part in parts)), np.float32)
    column = 0
    for part in parts:
        # Transposed in strips that fit the cache: four times as fast as at once.
        for start in range(0, len(part), STRIP_ROWS):
            strip = part[start : start + STRIP_ROWS]
            packed[:, column : column + len(strip)] = strip.T
            column += len(strip)
    return packed


def _packed_bias(*parts: Floats | None) -> Floats | None:
    """The biases one after the other; None where the model has none of them."""
    present = [part for part in parts if part is not None]
    assert len(present) in (0, len(parts))
    return np.concatenate(present) if present else None
