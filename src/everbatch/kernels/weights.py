"""What a backend is built from: the sizes and the weights of one dense decoder.

Belongs here: names and shapes of weights as a backend receives them, once. Not here: the names in
model files (models) and the layout a backend packs them into. Made by models, read by the backends.

    L layers, H query heads, H_kv key-value heads, D head_dim
"""

from collections.abc import Iterable
from dataclasses import dataclass

from everbatch.kernels.arrays import Floats


@dataclass(frozen=True, slots=True)
class NetworkShape:
    """The sizes of one dense decoder; counts of values, not bytes."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    vocab_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer, float32, matrices [out, in] as in a checkpoint.

    None is "this model has no such weight". q_norm and k_norm are [D], shared by all heads.
    """

    attention_norm: Floats  # [hidden]
    q_proj: Floats  # [H * D, hidden]
    k_proj: Floats  # [H_kv * D, hidden]
    v_proj: Floats  # [H_kv * D, hidden]
    o_proj: Floats  # [hidden, H * D]
    mlp_norm: Floats  # [hidden]
    gate_proj: Floats  # [intermediate, hidden]
    up_proj: Floats  # [intermediate, hidden]
    down_proj: Floats  # [hidden, intermediate]
    q_bias: Floats | None = None
    k_bias: Floats | None = None
    v_bias: Floats | None = None
    o_bias: Floats | None = None
    q_norm: Floats | None = None
    k_norm: Floats | None = None
    gate_bias: Floats | None = None
    up_bias: Floats | None = None
    down_bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class NetworkWeights:
    """All that a backend packs. `layers` may be read once only, in order: a generator lets the
    caller drop each layer's tensors as soon as they are packed.

    The rotation of position p turns the pair (i, i + D/2) of a head by p * inverse_frequencies[i]
    and multiplies it by rotary_scale.
    """

    embedding: Floats  # [vocab, hidden]
    layers: Iterable[LayerWeights]
    final_norm: Floats  # [hidden]
    lm_head: Floats  # [vocab, hidden]; the same object as `embedding` where they are tied
    inverse_frequencies: Floats  # [D / 2] float32
    rotary_scale: float
