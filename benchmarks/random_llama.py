"""Write a model directory in the shape of Llama-3.2-1B with random weights, for measuring speed.

    python benchmarks/random_llama.py FOLDER --tokenizer DIR [--layers 16]

Speed does not depend on what weights say, so a comparison at this shape needs no licence and no
download. The weights are bfloat16, as small as trained ones, so that values stay finite; norms are
1. The tokenizer is copied from DIR, a model directory of any smaller vocabulary: token ids beyond
it have no text. FOLDER takes 2.5 GB. Not here: converting it for peers (README.md says how).
"""

import argparse
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from positive_numbers import positive

HIDDEN, INTERMEDIATE, LAYERS, VOCAB = 2048, 8192, 16, 128_256
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 64
STANDARD_DEVIATION = 0.02
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
SEED = 0
BF16_ONE = 0x3F80

Shapes = dict[str, tuple[int, ...]]


def config(num_layers: int = LAYERS) -> dict[str, Any]:
    """Give config.json, with the names and values that Llama-3.2-1B has."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": 131_072,
        "num_attention_heads": HEADS,
        "num_hidden_layers": num_layers,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-05,
        "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 32.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "vocab_size": VOCAB,
    }


def shapes(num_layers: int = LAYERS) -> Shapes:
    """Give the tensors in the order in which they are written."""
    layer = {
        "input_layernorm": (HIDDEN,),
        "self_attn.q_proj": (HEADS * HEAD_DIM, HIDDEN),
        "self_attn.k_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.v_proj": (KV_HEADS * HEAD_DIM, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HEADS * HEAD_DIM),
        "post_attention_layernorm": (HIDDEN,),
        "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
        "mlp.up_proj": (INTERMEDIATE, HIDDEN),
        "mlp.down_proj": (HIDDEN, INTERMEDIATE),
    }
    named: Shapes = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for number in range(num_layers):
        named |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
    return named | {"model.norm.weight": (HIDDEN,)}


def write(folder: Path, tokenizer: Path, num_layers: int = LAYERS) -> None:
    """Write the directory; ValueError if `tokenizer` has none or a vocabulary that is too large."""
    size = _vocabulary_size(tokenizer)
    if size > VOCAB:
        raise ValueError(
            f"{tokenizer} has {size:,} tokens, the model {VOCAB:,}: take a smaller tokenizer"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, folder / name)
    text = json.dumps(config(num_layers), indent=1)
    (folder / "config.json").write_text(text + "\n", encoding="utf-8")
    named = shapes(num_layers)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(_header(named))
        for bits in _tensors(named):
            file.write(bits.data)


def _vocabulary_size(tokenizer: Path) -> int:
    path = tokenizer / "tokenizer.json"
    if not path.exists():
        raise ValueError(f"{tokenizer} has no tokenizer.json: name a model directory that has one")
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        ids = [*told["model"]["vocab"].values(), *(one["id"] for one in told["added_tokens"])]
        return max(ids) + 1
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} has no vocabulary by id: take another tokenizer") from error


def _header(named: Shapes) -> bytes:
    """Give the length and the table that a safetensors file begins with."""
    table: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in named.items():
        start, end = end, end + 2 * int(np.prod(shape))
        table[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(table).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _tensors(named: Shapes) -> Iterator[np.ndarray]:
    """Give the bits of each tensor, one at a time."""
    rng = np.random.default_rng(SEED)
    for shape in named.values():
        if len(shape) == 1:
            yield np.full(shape, BF16_ONE, np.uint16)
            continue
        values = rng.standard_normal(shape, dtype=np.float32)
        values *= STANDARD_DEVIATION
        # Cut off to bfloat16: the upper half of each float32.
        yield np.ascontiguousarray(values.view(np.uint16)[:, 1::2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--tokenizer", type=Path, required=True, metavar="DIR", help="a model directory"
    )
    parser.add_argument("--layers", type=positive, default=LAYERS)
    options = parser.parse_args()
    try:
        write(options.folder, options.tokenizer, options.layers)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
