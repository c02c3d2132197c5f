"""What a network must know about a model: its sizes, its switches and its rotary embedding.

Belongs here: the values, and the rules that tie one of them to another. Not here: how they are read
from a `config.json` (hf_config.py) or from GGUF metadata (gguf_config.py), and what they are used
for (llama.py, rope.py). Called by both readers, by the network and by whoever sizes the KV cache.
"""

from dataclasses import dataclass

from everbatch.base.errors import ModelLoadError

# Beyond every model; it bounds what a hostile config can make the loader enumerate.
MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Position interpolation: every frequency is divided by `factor`."""

    factor: float


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Llama 3.1's scaling: long wavelengths divided by `factor`, short ones kept, a ramp between.
    The ramp's ends are wavelengths of original_max_position_embeddings over the two factors."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (arXiv 2309.00071): a ramp between interpolated and plain frequencies.
    `attention_factor` multiplies cos and sin and is always resolved. `truncate` rounds the ends of
    the ramp to whole dimensions, which is what transformers and llama.cpp do unless told not to."""

    factor: float
    original_max_position_embeddings: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class FrequencyFactors:
    """Explicit divisors, one a frequency: inverse frequency i is divided by factors[i].
    `factors` has head_dim / 2 entries. GGUF stores Llama 3.1's scaling in this form."""

    factors: tuple[float, ...]


RopeScaling = LinearScaling | Llama3Scaling | YarnScaling | FrequencyFactors


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding over the whole head: inverse frequency i is theta ** (-2 i / head_dim),
    changed by `scaling` where there is one."""

    theta: float = 10_000.0
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One dense Llama-family model. Sizes are counts of values, not bytes.

    architecture is "llama", "mistral", "qwen2" or "qwen3"; everything in which these differ is also
    spelt out in the switches, so a network never has to compare the name.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    max_model_len: int
    tie_word_embeddings: bool = False  # lm_head is embed_tokens
    attention_bias: bool = False  # biases of q, k and v
    attention_output_bias: bool = False  # bias of o
    mlp_bias: bool = False  # biases of gate, up and down
    qk_norm: bool = False  # RMS norm of each head of q and k before the rotation
    rope: RopeConfig = RopeConfig()
    eos_token_ids: tuple[int, ...] = ()
    name: str = ""


def check_consistency(config: ModelConfig, source: str) -> None:
    """Raise ModelLoadError, naming `source`, where two values of `config` contradict each other."""
    if config.num_layers > MAX_LAYERS:
        raise ModelLoadError(
            f"{source}: num_hidden_layers is {config.num_layers:,}, the most that is supported is "
            f"{MAX_LAYERS:,}"
        )
    if config.num_heads % config.num_kv_heads:
        raise ModelLoadError(
            f"{source}: num_attention_heads ({config.num_heads}) is not a multiple of "
            f"num_key_value_heads ({config.num_kv_heads})"
        )
    if config.head_dim % 2:
        raise ModelLoadError(
            f"{source}: head_dim is {config.head_dim}, rotary embeddings need an even one"
        )
    scaling = config.rope.scaling
    if isinstance(scaling, FrequencyFactors) and len(scaling.factors) != config.head_dim // 2:
        raise ModelLoadError(
            f"{source}: {len(scaling.factors)} rope frequency factors for head_dim "
            f"{config.head_dim}, expected {config.head_dim // 2}"
        )
