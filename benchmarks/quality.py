"""How far the native kernels' text is from the float32 reference's, on real text.

    python benchmarks/quality.py                    # the default model, texts of this repository
    python benchmarks/quality.py MODEL --text FILE …   # another model, other texts

Each text is cut into windows of --window tokens. Of every token of a window but the first, both
backends give the log probability after those before it. Both have the same weights out of the same
file: what a file's own quantisation costs is in both, and is not what this measures.
"""

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from positive_numbers import positive

from everbatch.assemble.model_source import resolve_model
from everbatch.kernels.backends import choose_backend
from everbatch.kernels.batch import PackedBatch
from everbatch.models.llama import LlamaForCausalLM
from everbatch.models.weights import load_model
from everbatch.tokenizer.tokenizer import Tokenizer

ROOT = Path(__file__).parent.parent
TEXTS = [ROOT / "LICENSE", ROOT / "docs/architecture.md", ROOT / "docs/lesson.md"]
BLOCK_SIZE = 16


@dataclass(frozen=True, slots=True)
class Scored:
    """Of each token that has something before it, in order."""

    logprobs: np.ndarray  # float64, of the token that stands there
    likeliest: np.ndarray  # the id that is likeliest there


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", nargs="?")
    parser.add_argument("--text", type=Path, nargs="+", default=TEXTS)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--max-windows", type=positive, default=16)
    options = parser.parse_args()
    if options.window < 2:
        parser.error("--window must be at least 2")
    path = resolve_model(options.model).path
    tokenizer = Tokenizer.from_path(path)
    try:
        windows = cut(tokenizer, options.text, options.window, options.max_windows)
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"a text of --text cannot be read: {error}")
    if not windows:
        parser.error(f"the texts have no window of {options.window} tokens: lower --window")
    names = [str(text) for text in options.text]
    print(f"{len(windows)} windows of {options.window} tokens of {', '.join(names)}")
    found = [score(path, name, windows) for name in ("reference", "native")]
    report(*found)


def cut(tokenizer: Tokenizer, texts: list[Path], window: int, most: int) -> list[np.ndarray]:
    """Cut texts into windows; an end that fills none is left out."""
    windows = []
    for text in texts:
        ids = np.array(tokenizer.encode(text.read_text(encoding="utf-8")), np.int32)
        windows += [ids[first : first + window] for first in range(0, len(ids), window)]
    return [ids for ids in windows if len(ids) == window][:most]


def score(path: Path, backend: str, windows: list[np.ndarray]) -> Scored:
    """Run the windows one after the other; the model is held no longer than that."""
    loaded = load_model(path)
    network = LlamaForCausalLM(loaded.config, loaded.tensors, choose_backend(backend, None).build)
    logprobs, likeliest = [], []
    for ids in windows:
        logits = forward(network, ids)[:-1].astype(np.float64)
        largest = logits.max(axis=1)
        totals = largest + np.log(np.exp(logits - largest[:, None]).sum(axis=1))
        logprobs.append(logits[np.arange(len(ids) - 1), ids[1:]] - totals)
        likeliest.append(logits.argmax(axis=1))
    return Scored(np.concatenate(logprobs), np.concatenate(likeliest))


def forward(network: LlamaForCausalLM, ids: np.ndarray) -> np.ndarray:
    """Give the logits of every token of one prompt."""
    num_tokens = len(ids)
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    positions = np.arange(num_tokens, dtype=np.int32)
    batch = PackedBatch(
        input_ids=ids,
        positions=positions,
        cu_seqlens_q=np.array([0, num_tokens], np.int32),
        context_lens=np.array([num_tokens], np.int32),
        block_tables=np.arange(num_blocks, dtype=np.int32)[None],
        slot_mapping=positions,
        logit_rows=positions,
        num_prefills=1,
    )
    return network.forward(batch, network.allocate_kv(num_blocks, BLOCK_SIZE))


def report(reference: Scored, native: Scored) -> None:
    """Print the table of docs/kernels.md."""
    differences = np.abs(native.logprobs - reference.logprobs)
    agree = np.mean(native.likeliest == reference.likeliest)
    perplexities = [math.exp(-scored.logprobs.mean()) for scored in (reference, native)]
    print(f"tokens scored                              {len(differences):,}")
    print(f"perplexity, reference float32              {perplexities[0]:.4f}")
    print(f"perplexity, native bfloat16                {perplexities[1]:.4f}")
    print(
        f"  relative difference                      {perplexities[1] / perplexities[0] - 1:+.3%}"
    )
    print(f"same likeliest token                       {agree:.2%}")
    print(f"difference of a token's logprob, mean      {differences.mean():.4f}")
    print(f"  99th percentile                          {np.quantile(differences, 0.99):.4f}")
    print(f"  largest                                  {differences.max():.4f}")


if __name__ == "__main__":
    main()
