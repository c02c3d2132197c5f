"""The network of Llama, Mistral, Qwen2 and Qwen3 (dense), written once against the kernels.

Belongs here: which tensors such a model has, and the order of operations. Not here: arithmetic
(kernels), file formats (the loaders), requests (executors). Called by the model executor.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from everbatch.base.errors import ModelLoadError
from everbatch.kernels.arrays import Floats, Int32s
from everbatch.kernels.batch import PackedBatch
from everbatch.kernels.kv_storage import KVStorage
from everbatch.kernels.protocol import KernelsBackend, StepKernels, Tensor
from everbatch.kernels.sampling import SampledTokens, SamplingRows
from everbatch.kernels.weights import LayerWeights, NetworkShape, NetworkWeights
from everbatch.models.config import ModelConfig
from everbatch.models.rope import rotary_frequencies
from everbatch.models.tensor_names import EMBEDDING, FINAL_NORM, LM_HEAD, is_computed

MAX_NAMES_IN_ERROR = 5


class LlamaForCausalLM:
    """A dense decoder: token ids of a packed batch in, logits or tokens out.

    The four architectures differ only in switches of ModelConfig. Takes tensors with Hugging Face
    names and raises ModelLoadError, naming them, for any that is missing, left over or of a wrong
    shape. `tensors` is emptied while the backend packs, so that no model is held twice.
    """

    def __init__(
        self, config: ModelConfig, tensors: dict[str, Floats], backend: KernelsBackend
    ) -> None:
        check_tensors(config, tensors)
        self.config = config
        self._kernels = backend(network_shape(config), _network_weights(config, tensors))
        tensors.clear()
        self.num_layers_run = 0
        """Since it was made. Other threads read it to see that a long pass lives."""

    @property
    def vocab_size(self) -> int:
        """Logits of a row."""
        return self.config.vocab_size

    def allocate_kv(self, num_blocks: int, block_size: int) -> KVStorage:
        """Give empty storage for keys and values, in the backend's element type."""
        return self._kernels.allocate_kv(num_blocks, block_size)

    def max_workspace_bytes(self, num_tokens: int, context_len: int) -> int | None:
        """Give the most memory for intermediate results, of batches of so many tokens in contexts
        of this length; None where the backend does not know."""
        return self._kernels.max_workspace_bytes(num_tokens, context_len)

    def forward(self, batch: PackedBatch, kv: KVStorage) -> Floats:
        """Give the logits [R, vocab] float32 of batch.logit_rows, and write its keys and values."""
        step = self._kernels.begin_step(batch, kv)
        return step.norm_logits(self._hidden(step))

    def sample(
        self, batch: PackedBatch, kv: KVStorage, logits_of: Int32s, rows: SamplingRows
    ) -> SampledTokens:
        """Do the same and choose tokens: one for each of `rows`, from the row of logits that
        logits_of says, int32 indices into R."""
        step = self._kernels.begin_step(batch, kv)
        return step.norm_sample(self._hidden(step), logits_of, rows)

    def _hidden(self, step: StepKernels) -> Tensor:
        hidden = step.embed()
        for layer in range(self.config.num_layers):
            queries = step.norm_qkv_rope_write(layer, hidden)
            attended = step.paged_attention(layer, queries)
            hidden = step.project_add(layer, attended, hidden)
            hidden = step.norm_mlp_add(layer, hidden)
            self.num_layers_run += 1
        return hidden


def network_shape(config: ModelConfig) -> NetworkShape:
    """Give the sizes that a backend and the KV storage need."""
    return NetworkShape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        num_heads=config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        rms_norm_eps=config.rms_norm_eps,
    )


def tensor_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Give name and shape of every tensor that a model of this configuration has."""
    vocab, hidden = config.vocab_size, config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {
        EMBEDDING: (vocab, hidden),
        FINAL_NORM: (hidden,),
    }
    if not config.tie_word_embeddings:
        shapes[LM_HEAD] = (vocab, hidden)
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {prefix + name: shape for name, shape in _layer_shapes(config).items()}
    return shapes


@dataclass(frozen=True, slots=True)
class TensorProblems:
    """What keeps tensors from being a model's: names, in the network's order or in that given.

    misshapen: name to the shape that the configuration asks for.
    """

    missing: list[str]
    left_over: list[str]
    misshapen: dict[str, tuple[int, ...]]


def compare_tensors(
    config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]
) -> TensorProblems | None:
    """Compare tensors, by name and shape, with those of the configuration; None: they are these."""
    expected = tensor_shapes(config)
    problems = TensorProblems(
        missing=[name for name in expected if name not in shapes],
        left_over=[name for name in shapes if name not in expected and not _unread(name, config)],
        misshapen={
            name: shape for name, shape in expected.items() if shapes.get(name, shape) != shape
        },
    )
    is_whole = not (problems.missing or problems.left_over or problems.misshapen)
    return None if is_whole else problems


def check_tensors(config: ModelConfig, tensors: dict[str, Floats]) -> None:
    """Raise ModelLoadError unless `tensors` are exactly those of the configuration."""
    problems = compare_tensors(config, {name: values.shape for name, values in tensors.items()})
    if problems is None:
        return
    wrong = [
        f"{name} {list(tensors[name].shape)} (expected {list(shape)})"
        for name, shape in problems.misshapen.items()
    ]
    told = [
        _listing("missing", problems.missing),
        _listing("not part of this model", problems.left_over),
        _listing("of a wrong shape", wrong),
    ]
    raise ModelLoadError(
        f"the weights of {config.name or 'the model'} do not fit its configuration "
        f"({config.architecture}, {config.num_layers} layers): " + "; ".join(filter(None, told))
    )


def _layer_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries = config.num_heads * config.head_dim
    keys = config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    if config.attention_bias:
        shapes["self_attn.q_proj.bias"] = (queries,)
        shapes["self_attn.k_proj.bias"] = (keys,)
        shapes["self_attn.v_proj.bias"] = (keys,)
    if config.attention_output_bias:
        shapes["self_attn.o_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    if config.mlp_bias:
        shapes["mlp.gate_proj.bias"] = (intermediate,)
        shapes["mlp.up_proj.bias"] = (intermediate,)
        shapes["mlp.down_proj.bias"] = (hidden,)
    return shapes


def _unread(name: str, config: ModelConfig) -> bool:
    """Whether a tensor that the network does not read is known to carry nothing."""
    # With tied embeddings some exporters write the one matrix under both names, and transformers
    # ties them at load whatever the file says (modeling_utils.py, tie_weights).
    return is_computed(name) or (name == LM_HEAD and config.tie_word_embeddings)


def _listing(problem: str, names: list[str]) -> str:
    """Say how many tensors have a problem, and name the first few."""
    if not names:
        return ""
    more = len(names) - MAX_NAMES_IN_ERROR
    listed = ", ".join(names[:MAX_NAMES_IN_ERROR]) + (f" and {more} more" if more > 0 else "")
    return f"{len(names)} {'tensor is' if len(names) == 1 else 'tensors are'} {problem}: {listed}"


def _network_weights(config: ModelConfig, tensors: dict[str, Floats]) -> NetworkWeights:
    embedding = tensors.pop(EMBEDDING)
    frequencies, rotary_scale = rotary_frequencies(config)
    return NetworkWeights(
        embedding=embedding,
        layers=_layer_weights(config, tensors),
        final_norm=tensors.pop(FINAL_NORM),
        lm_head=embedding if config.tie_word_embeddings else tensors.pop(LM_HEAD),
        inverse_frequencies=frequencies,
        rotary_scale=rotary_scale,
    )


def _layer_weights(config: ModelConfig, tensors: dict[str, Floats]) -> Iterator[LayerWeights]:
    """Give one layer after the other, dropping our reference to its tensors."""
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}."
        own = {name: tensors.pop(prefix + name) for name in _layer_shapes(config)}
        yield LayerWeights(
            attention_norm=own["input_layernorm.weight"],
            q_proj=own["self_attn.q_proj.weight"],
            k_proj=own["self_attn.k_proj.weight"],
            v_proj=own["self_attn.v_proj.weight"],
            o_proj=own["self_attn.o_proj.weight"],
            mlp_norm=own["post_attention_layernorm.weight"],
            gate_proj=own["mlp.gate_proj.weight"],
            up_proj=own["mlp.up_proj.weight"],
            down_proj=own["mlp.down_proj.weight"],
            q_bias=own.get("self_attn.q_proj.bias"),
            k_bias=own.get("self_attn.k_proj.bias"),
            v_bias=own.get("self_attn.v_proj.bias"),
            o_bias=own.get("self_attn.o_proj.bias"),
            q_norm=own.get("self_attn.q_norm.weight"),
            k_norm=own.get("self_attn.k_norm.weight"),
            gate_bias=own.get("mlp.gate_proj.bias"),
            up_bias=own.get("mlp.up_proj.bias"),
            down_bias=own.get("mlp.down_proj.bias"),
        )
